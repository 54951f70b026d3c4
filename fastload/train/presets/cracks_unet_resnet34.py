"""Cracks in photographs, with a U-Net on resnet34."""

from __future__ import annotations

from fastload.train.presets.base import Preset
from fastload.train.presets.cracks import CRACKS_DATA, CRACKS_SETTINGS

__all__ = ["PRESET"]

PRESET = Preset(
    name="cracks-unet-resnet34",
    about="U-Net with a ResNet-34 as its encoder, on road cracks; weighted BCE",
    data=CRACKS_DATA,
    command="fastload train cracks-unet-resnet34 --data cracks/ --weights imagenet --lr 2e-4 --out runs/cracks",
    settings={**CRACKS_SETTINGS, "model": "smp:Unet/resnet34", "out": "runs/cracks-unet-resnet34"},
)
