"""The seek index of a data set: where in its JPEGs decoding can start, noted when they are first
decoded.

The core makes and reads the file (`fastload/native/seek_index.cpp`). This module decides where it
is, and how large it may grow.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fastload.errors import ConfigurationError, counted
from fastload.machine import cache_home
from fastload.native.extension import load

if TYPE_CHECKING:
    import fastload.native._core as _core
    from fastload.sources.base import Source

SeekIndexOption = Literal["auto", False] | str | Path

# Pixels from one point to the next.
EVERY = 64
# Of the files that are made where none is named.
SUFFIX = ".seek"
# Of fewer images, "auto" makes no index: they are decoded again in a second.
FEWEST_IMAGES = 256
# Bytes that an index of "auto" may take: some 3.5 million photographs of 110 KB.
LARGEST = 4 << 30
# An index takes at most one part in so many of the space that is free where it is made.
_FREE_SHARE = 10


@dataclass(frozen=True)
class Contents:
    """What is in the file of an index."""

    images: int
    """JPEGs whose points it has."""
    bytes: int
    """What it takes of the disk [bytes]."""
    limit: int
    """Bytes that it may grow to."""

    def __str__(self) -> str:
        size = f"{self.bytes / 1e6:,.1f} MB of at most {self.limit / 1e6:,.0f}"
        return f"points of {counted(self.images, 'image')}, {size}"


class SeekIndex:
    """An open index. `path`: where it is."""

    def __init__(
        self,
        path: Path,
        images: int,
        limit: int = LARGEST,
        *,
        only_cheap: bool = False,
        every: int = EVERY,
    ) -> None:
        """Opens the index at `path`, or makes one for about so many images.

        Args:
            path: the file.
            images: how many the data set has, about.
            limit: bytes that it may grow to.
            only_cheap: note the points of an image where its crop ends near its lower edge, and of
                one in 16 others. Points are of images that were read to their end, and for most
                crops that takes a sixth of their time.
            every: pixels from one point to the next, of images that are noted from now on: 16, 32
                or 64.

        Raises:
            OSError: it can be neither read nor made.
            ConfigurationError: the file is something else, or of another version of fastload.
        """
        self.path = path
        try:
            self.native: _core.SeekIndex = load().SeekIndex(
                os.fsencode(path), images, limit, only_cheap, every
            )
        except ValueError as error:
            raise ConfigurationError(
                f"seek_index: {error}. Remove it, or name another file."
            ) from error

    @property
    def contents(self) -> Contents:
        images, size, _, limit = self.native.contents()
        return Contents(images, size, limit)

    @property
    def grows(self) -> bool:
        """Whether images that it lacks are added: not where the file cannot be written, nor beyond
        its limit."""
        return self.native.is_writable

    def flush(self) -> None:
        """Write what was noted and is not in the file yet."""
        self.native.flush()


def default_path(source: Source) -> Path:
    """Where the index of a source is unless a file is named."""
    return cache_home() / "seek" / f"{source.fingerprint}{SUFFIX}"


def open_seek_index(
    option: SeekIndexOption, source: Source, *, only_cheap: bool, every: int = EVERY
) -> tuple[SeekIndex | None, str]:
    """The index of a source as `TurboJpegOptions.seek_index` asks for it, and where there is none,
    why. `only_cheap`, `every`: of `SeekIndex`.

    Raises ConfigurationError: a file was named that cannot be read or made.
    """
    if option is False:
        return None, "off (seek_index=False)"
    images = len(source)
    if option == "auto":
        path = default_path(source)
        if images < FEWEST_IMAGES and not path.exists():
            return None, f"none: the data set has fewer images than {FEWEST_IMAGES}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            limit = min(LARGEST, shutil.disk_usage(path.parent).free // _FREE_SHARE)
            return SeekIndex(path, images, limit, only_cheap=only_cheap, every=every), ""
        except (OSError, ConfigurationError) as error:
            return None, f"none: {error}"
    path = Path(option).expanduser().absolute()
    return _index_named(path, images, only_cheap=only_cheap, every=every), ""


def _index_named(path: Path, images: int, *, only_cheap: bool, every: int) -> SeekIndex:
    try:
        limit = shutil.disk_usage(path.parent).free // 2
        return SeekIndex(path, images, limit, only_cheap=only_cheap, every=every)
    except OSError as error:
        raise ConfigurationError(
            f"seek_index: {path} can be neither read nor made ({error.strerror}). Name a file in a "
            "folder that can be written, or use seek_index='auto' or False."
        ) from error
