"""Samples as a trainer would get them: as they are stored, and as a transform makes them in several
epochs."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision.transforms import v2

import fastload
from fastload import Ragged
from fastload.errors import ConfigurationError
from fastload.sources import Source
from fastload.sources.keypoints import unpaired


@dataclass(frozen=True)
class Shown:
    """One sample, or one view of it."""

    title: str
    """"as stored", "epoch 0", or "epoch 0, view 1"."""
    pixels: npt.NDArray[np.uint8]
    """(H, W, 3)."""
    stretched: bool
    """Whether the images are floating point numbers beyond 0 to 1, and were stretched to be
    seen."""
    columns: dict[str, Any]
    """All columns but the images, each the row of this sample on the host."""


@dataclass(frozen=True)
class Row:
    """The same sample several times."""

    name: str
    """Where it is stored, below the folder of all."""
    versions: Sequence[Shown]
    """As it is stored, then as the transform makes it in epoch 0, 1..., all views of each."""


def default_transform(size: int, source: Source) -> v2.Compose:
    """What is shown where no transform is given: a random crop to a square, and a flip, unless the
    source has keypoints of which it is not known which are left and right."""
    steps: list[Any] = [v2.RandomResizedCrop(size, scale=(0.3, 1.0))]
    if unpaired(source) is None:
        steps.append(v2.RandomHorizontalFlip())
    if source.instances:
        steps.append(v2.SanitizeBoundingBoxes(min_size=1))
    return v2.Compose(steps)


def transform_in(reference: str) -> Any:
    """An object in a file of Python, from "file.py:name"; a function without arguments is called.

    Raises ConfigurationError: there is no such file or name.
    """
    path, _, name = reference.rpartition(":")
    if not path.endswith(".py") or not Path(path).is_file() or not name:
        raise ConfigurationError(
            f"--transform {reference}: give a file of Python and a name in it: transforms.py:train"
        )
    spec = importlib.util.spec_from_file_location("transforms_to_look_at", path)
    assert spec is not None, "it is a file of Python"
    assert spec.loader is not None, "it is a file of Python"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise ConfigurationError(f"--transform {reference}: {path} has no {name}.")
    named = getattr(module, name)
    is_function = callable(named) and hasattr(named, "__code__") and not named.__code__.co_argcount
    return named() if is_function else named


def shown_rows(
    source: Source, transform: Any, *, count: int, versions: int, seed: int
) -> list[Row]:
    """`count` samples spread evenly over the source, each as it is stored and `versions` times
    transformed."""
    indices = np.unique(np.linspace(0, len(source) - 1, min(count, len(source))).astype(np.int64))
    part = source.take(indices)
    titles = [f"epoch {number}" for number in range(versions)]
    drawn = [
        *_samples(part, None, ["as stored"], seed),
        *_samples(part, transform, titles, seed),
    ]
    names = _below(source.name, [part.describe(row) for row in range(len(part))])
    return [
        Row(name, [view for version in drawn for view in version[row]])
        for row, name in enumerate(names)
    ]


def _below(place: str, names: Sequence[str]) -> list[str]:
    """Names of files without the folder that all are in: that of the source, or the deepest."""
    if not all(map(os.path.isabs, names)):
        return [name.removeprefix(f"{place}/") for name in names]
    folder = place.rstrip("/") + "/"
    if not all(name.startswith(folder) for name in names):
        folder = os.path.join(os.path.commonpath([os.path.dirname(name) for name in names]), "")
    return [name.removeprefix(folder) for name in names]


def _samples(
    source: Source, transform: Any, titles: Sequence[str], seed: int
) -> Iterator[list[list[Shown]]]:
    """All samples of each epoch, in order, in batches of one, as their sizes may differ; of each
    sample its views. `titles`: of the epochs."""
    with fastload.create_loader(
        source,
        1,
        transform=transform,
        seed=seed,
        collate_fn=fastload.CollateColumns(_named),
        num_workers=0,
    ) as loader:
        for title in titles:
            yield [_shown(columns, source, title) for columns in loader]


def _named(columns: dict[str, Any]) -> dict[str, Any]:
    return columns


def _shown(columns: dict[str, Any], source: Source, title: str) -> list[Shown]:
    image = next((name for name, column in source.images.items() if column.kind.coloured), None)
    if image is None:
        raise ConfigurationError(f"{source.name}: has no images to look at.")
    several = isinstance(columns[image], list | tuple)
    rows = {name: _row(column) for name, column in columns.items() if name != image}
    if isinstance(rows.get("boxes"), torch.Tensor) and rows["boxes"].ndim == 1:  # of one object
        of_object = ("boxes", "labels", "iscrowd", "keypoints")
        rows |= {name: rows[name][None] for name in of_object if name in rows}
    views = []
    for number, pixels in enumerate(columns[image] if several else [columns[image]], 1):
        picture, stretched = _visible(pixels[0].cpu())
        view = f"{title}, view {number}" if several else title
        views.append(Shown(view, picture, stretched, rows))
    return views


def _visible(pixels: torch.Tensor) -> tuple[npt.NDArray[np.uint8], bool]:
    """(C, H, W) numbers of any kind as (H, W, 3) to be seen."""
    stretched = False
    if pixels.is_floating_point():
        pixels = pixels.float()
        low, high = float(pixels.min()), float(pixels.max())
        if low < 0 or high > 1:
            pixels, stretched = (pixels - low) / max(high - low, 1e-6), True
        pixels = (pixels * 255).round()
    picture = pixels.clamp(0, 255).to(torch.uint8).permute(1, 2, 0)
    return picture.expand(*picture.shape[:2], 3).contiguous().numpy(), stretched


def _row(column: Any) -> Any:
    if isinstance(column, Ragged):
        return column[0]
    return column[0].cpu() if isinstance(column, torch.Tensor) else column[0]
