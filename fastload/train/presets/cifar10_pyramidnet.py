"""CIFAR-10 with a PyramidNet of 110 layers."""

from __future__ import annotations

from fastload.train.presets.base import Preset
from fastload.train.presets.cifar10 import CIFAR10_DATA, CIFAR10_SETTINGS

__all__ = ["PRESET"]

PRESET = Preset(
    name="cifar10-pyramidnet",
    about="PyramidNet-110 (alpha 48) on CIFAR-10, as Han, Kim and Kim train it (2017, arXiv:1610.02915, section 4.1)",
    data=CIFAR10_DATA,
    command="torchrun --nproc-per-node 2 -m fastload.train cifar10-pyramidnet --data cifar-10-python.tar.gz "
    "--batch-size 64 --out runs/pyramidnet",
    settings={
        **CIFAR10_SETTINGS,
        "model": "fastload:pyramidnet-110-48",
        "weight_decay": 1e-4,
        "epochs": 300,
        "schedule": "step",
        "milestones": (150, 225),
        "gamma": 0.1,
        "out": "runs/cifar10-pyramidnet",
    },
)
