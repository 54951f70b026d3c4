"""CIFAR-10 with VGG-19."""

from __future__ import annotations

from fastload.train.presets.base import Preset
from fastload.train.presets.cifar10 import CIFAR10_DATA, CIFAR10_SETTINGS

__all__ = ["PRESET"]

PRESET = Preset(
    name="cifar10-vgg19",
    about="VGG-19 with batch normalisation on CIFAR-10, by the recipe of github.com/kuangliu/pytorch-cifar",
    data=CIFAR10_DATA,
    command="fastload train cifar10-vgg19 --data cifar-10-python.tar.gz --amp bf16 --out runs/vgg19",
    settings={
        **CIFAR10_SETTINGS,
        "model": "fastload:vgg19",
        "weight_decay": 5e-4,
        "epochs": 200,
        "schedule": "cosine",
        # A large batch scales the rate up; without these epochs it diverges.
        "warmup_epochs": 5,
        "out": "runs/cifar10-vgg19",
    },
)
