"""What pipelines have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torchvision.transforms import InterpolationMode, v2

from fastload.arguments import integer, require

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Of ImageNet's pixels, 0..1, by channel; torchvision, timm and their followers use these."""

Floats = tuple[float, float, float]


def to_floats(mean: Floats = MEAN, std: Floats = STD) -> tuple[v2.Transform, ...]:
    """The last steps: a float32 (3, H, W) tensor, normalised. Raises ConfigurationError: one of
    them is not three numbers, or a deviation is not above 0."""
    for name, floats in (("mean", mean), ("std", std)):
        good = are_numbers(floats, 3) and (name == "mean" or min(floats) > 0)
        require(name, good, f"three numbers{' above 0' if name == 'std' else ''}", floats)
    return v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)


def checked_scale(name: str, scale: tuple[float, float]) -> tuple[float, float]:
    """The bounds of a share of an area. Raises ConfigurationError: they are none."""
    good = are_numbers(scale, 2) and 0 < scale[0] <= scale[1] <= 1
    require(name, good, "(low, high) with 0 < low <= high <= 1", scale)
    return float(scale[0]), float(scale[1])


def checked_sizes(name: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Sizes to choose among [pixels]. Raises ConfigurationError: one is no int of at least 1, or
    there is none."""
    require(name, isinstance(sizes, Sequence) and len(sizes) > 0, "one size or several", sizes)
    return tuple(integer(name, size, 1) for size in sizes)


def checked_pair(
    name: str, pair: Sequence[int], what: str = "two whole numbers"
) -> tuple[int, int]:
    """Two sides [pixels]; `what` they are. Raises ConfigurationError: they are not two ints of at
    least 1."""
    require(name, isinstance(pair, Sequence) and len(pair) == 2, what, pair)
    return integer(name, pair[0], 1), integer(name, pair[1], 1)


def checked_probability(name: str, p: float) -> float:
    """Raises ConfigurationError: it is not from 0 to 1."""
    require(name, are_numbers((p,), 1) and 0 <= p <= 1, "a probability from 0 to 1", p)
    return p


def checked_filter(mode: InterpolationMode, name: str = "interpolation") -> InterpolationMode:
    """Of torchvision's, by its value as well. Raises ConfigurationError: it is none of these."""
    by_value = {one.value: one for one in InterpolationMode}
    value = mode.value if isinstance(mode, InterpolationMode) else mode
    require(name, value in by_value, f"one of {', '.join(map(repr, by_value))}", mode)
    return by_value[value]


def are_numbers(values: Any, count: int) -> bool:
    """Whether they are a sequence of so many finite numbers."""
    numbers = isinstance(values, Sequence) and len(values) == count
    return numbers and all(isinstance(one, Real) and math.isfinite(one) for one in values)
