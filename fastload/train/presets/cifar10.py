"""What the jobs on CIFAR-10 have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["CIFAR10_DATA", "CIFAR10_SETTINGS"]

CIFAR10_DATA = (
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz, the archive or what it unpacks to; "
    "it has the test images too"
)

CIFAR10_SETTINGS: Mapping[str, Any] = {
    "task": "classification",
    "augment": "crop-flip",
    "image_size": (32, 32),
    # Of the 50,000 training images.
    "mean": (0.4914, 0.4822, 0.4465),
    "std": (0.2470, 0.2435, 0.2616),
    "batch_size": 128,
    "optimizer": "sgd",
    "lr": 0.1,
    "reference_batch": 128,
    "momentum": 0.9,
}
"""Batch, learning rate and crops (4 pixels of padding, mirroring) as in most papers since He et al. (2016)."""
