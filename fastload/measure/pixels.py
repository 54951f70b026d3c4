"""The transforms of a training script, in torchvision's own terms, and how far pixels are apart."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torchvision.transforms import v2

__all__ = ["Difference", "difference", "evaluation", "evaluation_pixels", "training", "training_pixels"]

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


@dataclass(frozen=True)
class Difference:
    """How far two sets of pixels are apart, on the scale of 0 to 255."""

    largest: int
    mean: float
    psnr: float
    """Peak signal-to-noise ratio, 10 log10(255**2 / mean squared difference) [dB]; infinite when equal."""


def difference(pairs: Iterable[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]]) -> Difference | None:
    """Over all pairs of images; None without any. Raises ValueError: two are not of one shape."""
    largest, absolute, squared, count = 0, 0, 0, 0
    for ours, theirs in pairs:
        if ours.shape != theirs.shape:
            raise ValueError(f"images of shape {ours.shape} against {theirs.shape}")
        apart = np.abs(ours.astype(np.int16) - theirs)
        largest = max(largest, int(apart.max()))
        absolute += int(apart.sum(dtype=np.int64))
        squared += int(np.square(apart, dtype=np.int64).sum())
        count += apart.size
    if not count:
        return None
    return Difference(largest, absolute / count, 10 * math.log10(255**2 * count / squared) if squared else math.inf)
