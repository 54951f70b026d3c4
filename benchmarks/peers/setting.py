"""What all contestants are given. No imports but the standard library's: FFCV's environment has no fastload."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

__all__ = ["CIFAR_SIDE", "CROP", "PADDING", "Contestant", "Setting"]

CROP = 224
"""Photographs: RandomResizedCrop to this many pixels, then a random horizontal flip."""

CIFAR_SIDE, PADDING = 32, 4
"""Small images: a random crop of as many pixels, after padding by four on each side; then a random horizontal flip."""


@dataclass(frozen=True)
class Setting:
    """Plain values, so that it can be sent to another environment."""

    photographs: str
    """A folder of class folders of JPEG files."""
    small: str
    """A folder with images.npy (N, 32, 32, 3) uint8 and labels.npy (N,) int64."""
    ffcv: str
    """The folder of FFCV's files."""
    cache: str
    """The folder of fastload's cache."""
    batch_size: int
    threads: int
    """Threads or worker processes that decode."""
    cores: int | None = None
    """The process may use only so many. None: all."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Setting:
        return Setting(**json.loads(text))


class Contestant(Protocol):
    """A loader at work. Made by a function of a `Setting`; what that takes is not measured."""

    version: str
    side: int
    """Of the square images that it delivers, in pixels."""

    def epoch(self) -> Iterator[Any]:
        """The image batches of one epoch: uint8, all of one size, (B, H, W, C) or (B, C, H, W). Called repeatedly."""
        ...
