"""Whether the backends deliver the same samples: in the same order, with the same labels and pixels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

__all__ = ["Difference", "Pixels", "compare", "first_images", "torchvision_images"]


@dataclass(frozen=True)
class Pixels:
    """Some samples: images (N, 3, H, W) uint8 and labels (N,) int64, on the host."""

    images: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True)
class Difference:
    """How far the pixels of two loaders are apart, on the scale of 0 to 255."""

    same_labels: bool
    """The labels are equal, one by one; over shuffled samples this means the same order as well."""
    largest: int
    mean: float
    psnr: float
    """Peak signal-to-noise ratio, 10 log10(255**2 / mean squared difference) [dB]; infinite when equal."""


def first_images(loader: Iterable[Any], count: int) -> Pixels:
    """The first `count` samples that a loader of uint8 images gives."""
    images: list[torch.Tensor] = []
    labels: list[torch.Tensor] = []
    for batch, batch_labels in loader:
        images.append(batch.cpu())
        labels.append(batch_labels.cpu())
        if sum(map(len, labels)) >= count:
            break
    return Pixels(torch.cat(images)[:count], torch.cat(labels)[:count])


def torchvision_images(folder: str, transform: v2.Compose, count: int) -> Pixels:
    """The first `count` samples as torchvision's own ImageFolder and transforms give them: nothing of fastload."""
    return first_images(DataLoader(ImageFolder(folder, transform), batch_size=32), count)


def compare(ours: Pixels, reference: Pixels) -> Difference:
    """Compare sample by sample; the images must be of one shape."""
    assert ours.images.dtype == reference.images.dtype == torch.uint8
    if ours.images.shape != reference.images.shape:
        raise ValueError(f"images of shape {tuple(ours.images.shape)} against {tuple(reference.images.shape)}")
    difference = ours.images.to(torch.int16).sub_(reference.images).abs_()
    squared = float(difference.to(torch.float64).square_().mean())
    return Difference(
        same_labels=bool(torch.equal(ours.labels, reference.labels)),
        largest=int(difference.max()),
        mean=float(difference.to(torch.float64).mean()),
        psnr=10 * math.log10(255**2 / squared) if squared else math.inf,
    )
