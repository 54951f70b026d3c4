"""Both sides of pipelines that make images of the files in folders of classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

import fastload
from benchmarks.pipelines.pipeline import Numbers, Setting, Side, Tile
from fastload.pipelines.normalised import MEAN, STD

Views = Callable[[Any], Sequence[torch.Tensor]]
"""Of a batch: one (B, 3, H, W) tensor for each view."""
Floats = Sequence[float]


def of_image_folder(
    transform: Callable[[Setting], Any], views: Views, mean: Floats = MEAN, std: Floats = STD
) -> Side:
    """The original, where its repository has torchvision's ImageFolder. `mean` and `std` are what
    the transform normalises by; only pictures need them."""

    def loader(setting: Setting) -> DataLoader[Any]:
        return plain(ImageFolder(str(setting.data), transform(setting)), setting)

    return Side(loader, *seen(views, mean, std))


def plain(dataset: Any, setting: Setting, **options: Any) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        batch_size=setting.batch_size,
        shuffle=setting.shuffle,
        drop_last=setting.shuffle,
        num_workers=setting.workers,
        persistent_workers=setting.workers > 0,
        **options,
    )


def of_fastload(
    transform: Callable[[Setting], Any],
    views: Views,
    mean: Floats = MEAN,
    std: Floats = STD,
    **options: Any,
) -> Side:
    """Ours; `options` are those of `create_loader`."""

    def loader(setting: Setting) -> fastload.Loader:
        return fastload.create_loader(
            setting.data,
            setting.batch_size,
            transform=transform(setting),
            shuffle=setting.shuffle,
            drop_last=setting.shuffle,
            num_workers=max(1, setting.workers),
            **options,
        )

    return Side(loader, *seen(views, mean, std))


def seen(
    views: Views, mean: Floats, std: Floats
) -> tuple[Callable[[Any], Numbers], Callable[[Any], list[Tile]]]:
    """The numbers and the tiles of batches of normalised images."""
    return lambda batch: numbers_of(views(batch)), lambda batch: tiles_of(views(batch), mean, std)


def one(batch: Any) -> Sequence[torch.Tensor]:
    """Of (images, labels)."""
    return [batch[0]]


def several(batch: Any) -> Sequence[torch.Tensor]:
    """Of (views, labels)."""
    views: Sequence[torch.Tensor] = batch[0]
    return views


def numbers_of(views: Sequence[torch.Tensor]) -> Numbers:
    """The size, of each channel the mean and the deviation, and of all three together what
    mirroring, places and filters change: how far the halves differ, and neighbours."""
    numbers = {}
    for index, view in enumerate(views):
        pixels, (height, width) = view.float().flatten(2), view.shape[2:]
        for name, size in (("height", height), ("width", width)):
            numbers[f"{name} of view {index}"] = torch.full((len(view),), size)
        means = pixels.mean(2)
        apart = torch.linalg.vector_norm(pixels - means[..., None], dim=2)
        for channel, colour in enumerate(("red", "green", "blue")):
            numbers[f"mean of {colour}, view {index}"] = means[:, channel]
            numbers[f"deviation of {colour}, view {index}"] = apart[:, channel] / math.sqrt(
                height * width - 1
            )
        middle = pixels.mean(1).view(-1, height, width)
        rows, columns = middle.mean(2), middle.mean(1)
        numbers[f"left less right, view {index}"] = _halves_apart(columns)
        numbers[f"top less bottom, view {index}"] = _halves_apart(rows)
        for name, axis in (("rows", 1), ("columns", 2)):
            numbers[f"step between {name}, view {index}"] = middle.diff(dim=axis).abs().mean((1, 2))
    return {name: values.double().numpy() for name, values in numbers.items()}


def _halves_apart(lines: torch.Tensor) -> torch.Tensor:
    """Of the means of the lines (B, n); one in the middle is in neither half."""
    half = lines.shape[1] // 2
    return lines[:, :half].mean(1) - lines[:, lines.shape[1] - half :].mean(1)


def tiles_of(views: Sequence[torch.Tensor], mean: Floats, std: Floats) -> list[Tile]:
    """Views of the largest size side by side, and those of others below them, four in a row."""
    scale, shift = (torch.tensor(numbers).view(3, 1, 1) for numbers in (std, mean))
    shown = [((view.float().cpu() * scale + shift) * 255).round().clamp(0, 255) for view in views]
    large = torch.cat([view for view in shown if view.shape == shown[0].shape], dim=3)
    small = [view for view in shown if view.shape != shown[0].shape]
    if small:
        rows = [torch.cat(small[at : at + 4], dim=3) for at in range(0, len(small), 4)]
        rows = [row for row in rows if row.shape[3] == rows[0].shape[3]]
        below = torch.cat(rows, dim=2)
        share = large.shape[3] / below.shape[3]
        below = F.interpolate(below, (round(below.shape[2] * share), large.shape[3]), mode="area")
        large = torch.cat([large, below], dim=2)
    return [np.ascontiguousarray(tile) for tile in large.byte().permute(0, 2, 3, 1).numpy()]
