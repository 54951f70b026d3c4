"""Cracks in photographs, with a U-Net on vgg16."""

from __future__ import annotations

from fastload.train.presets.base import Preset
from fastload.train.presets.cracks import CRACKS_DATA, CRACKS_SETTINGS

__all__ = ["PRESET"]

PRESET = Preset(
    name="cracks-unet-vgg16",
    about="U-Net with the layers of VGG-16 (with batch normalisation) as its encoder, on road cracks; weighted BCE",
    data=CRACKS_DATA,
    command="fastload train cracks-unet-vgg16 --data cracks/ --weights imagenet --lr 2e-4 --out runs/cracks",
    settings={**CRACKS_SETTINGS, "model": "smp:Unet/vgg16_bn", "out": "runs/cracks-unet-vgg16"},
)
