"""What a contestant is asked to do: plain data, so that it can be sent to another process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from fastload.bench.decode.eviction import evict

__all__ = ["READINGS", "JpegImages", "Place", "Reading", "Task"]

Reading = Literal["memory", "page cache", "cold"]
"""Where the compressed bytes come from: memory of the process; files that the system holds in memory; files on disk."""

READINGS: tuple[Reading, ...] = get_args(Reading)

Place = tuple[tuple[int, int, int, int], tuple[int, int]]
"""Box (top, left, height, width) of the image, and the size (height, width) that it is resampled to."""


@dataclass(frozen=True)
class JpegImages:
    """Some JPEG files, read once."""

    paths: tuple[str, ...]
    data: tuple[bytes, ...]
    sizes: tuple[tuple[int, int], ...]
    """(height, width)"""

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def pixels(self) -> int:
        """Of all images together."""
        return sum(height * width for height, width in self.sizes)


@dataclass(frozen=True)
class Task:
    """One pass: each of the images, decoded and placed."""

    images: JpegImages
    places: tuple[Place | None, ...]
    """One an image; None leaves it whole and as it is."""
    threads: int = 1
    reading: Reading = "memory"

    def prepare(self) -> None:
        """Before each pass, outside the clock."""
        if self.reading == "cold":
            evict(self.images.paths)

    def encoded(self, index: int) -> bytes:
        """The compressed bytes, from where they are to be read. Raises OSError."""
        if self.reading == "memory":
            return self.images.data[index]
        with open(self.images.paths[index], "rb", buffering=0) as file:
            return file.read(os.fstat(file.fileno()).st_size)
