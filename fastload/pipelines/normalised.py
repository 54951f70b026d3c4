"""What pipelines have in common."""

from __future__ import annotations

import torch
from torchvision.transforms import v2

from fastload.errors import ConfigurationError

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Of ImageNet's pixels, 0..1, by channel; torchvision, timm and their followers use these."""

Floats = tuple[float, float, float]


def to_floats(mean: Floats = MEAN, std: Floats = STD) -> tuple[v2.Transform, ...]:
    """The last steps: a float32 (3, H, W) tensor, normalised."""
    return v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)


def checked_scale(name: str, scale: tuple[float, float]) -> tuple[float, float]:
    """The bounds of a share of an area. Raises ConfigurationError: they are none."""
    if len(scale) != 2 or not 0 < scale[0] <= scale[1] <= 1:
        raise ConfigurationError(f"{name}={scale!r}: give (low, high) with 0 < low <= high <= 1.")
    return float(scale[0]), float(scale[1])
