"""Filling the seek index of a data set at once, ahead of its first epoch."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastload.errors import ConfigurationError
from fastload.geometry import Geometry
from fastload.machine import usable_cores
from fastload.native.pool import NativePool
from fastload.native.seek import EVERY, SeekIndex, default_path, open_seek_index

# Images in a batch of `fill_seek_index`.
_AT_ONCE = 256


@dataclass(frozen=True)
class Filled:
    """What `fill_seek_index` found, in images."""

    images: int
    """All that were read."""
    noted: int
    """Those whose points were added."""
    known: int
    """Those that the index had."""

    @property
    def others(self) -> int:
        """Progressive, small or damaged JPEGs, and other formats."""
        return self.images - self.noted - self.known


def fill_seek_index(
    data: str | Path, file: Path | None, *, split: str | None = None, every: int = EVERY
) -> tuple[SeekIndex, Filled]:
    """Decode one pixel of each image of a data set, so that the index has all of its points.

    Args:
        data: what `create_loader` takes.
        file: of the index; None: where loaders look for it.
        split: of a data set that has several, which part.
        every: pixels from one point to the next: 16, 32 or 64. The more points, the shorter is what
            a thread of a GPU decodes, and the larger is the index. Images that the index has stay
            as they are.

    Raises:
        ConfigurationError: the index cannot be made, or there are no compressed images.
        SourceError: the data set cannot be opened.
    """
    from fastload.sources import open_source

    source = open_source(data, split=split).source
    if not source.encoded:
        raise ConfigurationError(
            f"{source.name}: there are no compressed images in it, so that an index has no use."
        )
    path = default_path(source) if file is None else file.expanduser().absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    index, _ = open_seek_index(path, source, only_cheap=False, every=every)
    assert index is not None
    images = 0
    with closing(NativePool(usable_cores())) as pool:
        for column in source.encoded.values():
            for start in range(0, len(column), _AT_ONCE):
                rows = np.arange(start, min(start + _AT_ONCE, len(column)))
                pool.decode_batch(
                    column.in_files(rows) or list(column.views(rows)),
                    geometry=first_pixels(len(rows)),
                    out=np.empty((len(rows), 1, 1, 3), np.uint8),
                    index=index,
                ).wait()
                images += len(rows)
    index.flush()
    return index, Filled(images, pool.noted, pool.indexed)


def first_pixels(count: int) -> Geometry:
    """The upper left pixel of each of so many images."""
    box = np.tile(np.array([0, 0, 1, 1], np.int32), (count, 1))
    return Geometry(box, box[:, 2:].copy(), box.copy(), np.zeros((count, 2), np.bool_))
