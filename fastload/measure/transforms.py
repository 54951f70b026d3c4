"""The transforms of a training script, in torchvision's own terms."""

from __future__ import annotations

import torch
from torchvision.transforms import v2

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def training(size: int = 224, smallest: float = 0.08) -> v2.Compose:
    """Random crop and flip to normalised float32 (3, size, size); `smallest` is the least share of the area kept."""
    return v2.Compose([v2.RandomResizedCrop(size, scale=(smallest, 1.0)), v2.RandomHorizontalFlip(), *_to_float()])


def training_pixels(size: int = 224) -> v2.Compose:
    """The same crop and flip, left as uint8 (3, size, size), for comparing pixels."""
    return v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), v2.ToImage()])


def evaluation(size: int = 224, resize: int = 256) -> v2.Compose:
    """Resize and central crop to normalised float32 (3, size, size)."""
    return v2.Compose([v2.Resize(resize), v2.CenterCrop(size), *_to_float()])


def evaluation_pixels(size: int = 224, resize: int = 256) -> v2.Compose:
    """Resize and central crop, left as uint8 (3, size, size): nothing random, so torchvision alone can check it."""
    return v2.Compose([v2.Resize(resize), v2.CenterCrop(size), v2.ToImage()])


def _to_float() -> list[torch.nn.Module]:
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
