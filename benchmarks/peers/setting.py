"""What all contestants are given, and what they give."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CROP = 224
"""Photographs: RandomResizedCrop to this many pixels, then a random horizontal flip."""
PNG, TINY = 480, 64
"""Photographs as PNG, pixels on their longer side; small JPEGs, pixels on each side:
RandomResizedCrop as well."""
SIDE, PADDING = 32, 4
"""Small images: a random crop of as many pixels, after padding by four on each side; then a random
horizontal flip."""
AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)
"""Of the crops, as in torchvision, where a peer must be given them."""
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of the pixels that are normalised."""


@dataclass(frozen=True)
class Setting:
    """What all are given."""

    photographs: str  # a folder of class folders of image files
    small: str  # a folder with images.npy (N, 32, 32, 3) uint8 and labels.npy (N,) int64
    files: str  # the folder of the peers' files and fastload's cache of these photographs
    batch_size: int
    threads: int  # threads or worker processes that decode
    crop: int = CROP  # RandomResizedCrop to this many pixels
    cores: int | None = None  # the process may use only so many. None: all
    epochs: int = 0  # over how many their ends, and memory, are measured

    def samples(self) -> list[tuple[str, int]]:
        """(path, label) of each photograph."""
        return [
            (str(path), label)
            for label, folder in enumerate(sorted(Path(self.photographs).iterdir()))
            for path in sorted(folder.iterdir())
        ]


@dataclass(frozen=True)
class Batches:
    """A loader at work. Made by a function of a `Setting`; what that takes is not measured."""

    version: str
    epoch: Callable[[], Iterator[Any]]
    """The image batches of one epoch, (B, H, W, C) or (B, C, H, W). Called repeatedly."""


def random_crop(draw: random.Random, width: int, height: int) -> tuple[int, int, int, int]:
    """left, top, width, height as torchvision's RandomResizedCrop draws them."""
    for _ in range(10):
        area = width * height * draw.uniform(*AREA)
        aspect = math.exp(draw.uniform(*map(math.log, ASPECT)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return draw.randint(0, width - w), draw.randint(0, height - h), w, h
    w, h = min(width, round(height * ASPECT[1])), min(height, round(width / ASPECT[0]))
    return (width - w) // 2, (height - h) // 2, w, h
