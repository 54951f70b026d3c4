"""Masks of objects, drawn by the native core when all else of a batch is known."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.backends.base import BufferAllocator
from fastload.geometry.points import PointMap
from fastload.native.pool import NativePool
from fastload.sources.ragged import Ragged


class MaskDrawer:
    """Draws masks from the shapes of objects. Picklable; any thread may call it, several at
    once."""

    def __init__(self, threads: int = 0, allocate: BufferAllocator | None = None) -> None:
        """`threads`: of the core, which the first batch starts; 0: the calling thread draws.

        Raises BackendUnavailableError: the native core is not built.
        """
        self._threads = threads
        self._allocate = allocate
        self._pool: NativePool | None = NativePool(threads) if threads else None
        if not threads:
            _pool_of_callers()

    def __getstate__(self) -> dict[str, Any]:
        return {"_threads": 0, "_allocate": None, "_pool": None}

    def draw(self, shapes: Ragged, points: PointMap) -> tuple[Ragged, dict[int, str]]:
        """The masks, (T, H, W) uint8 in B rows, and why some of the B images have none; theirs are
        all 0.

        Args:
            shapes: of each image its objects, of each object its numbers; numpy arrays.
            points: traced, of the B images; those with objects come out in one size.
        """
        # Images without objects may be such as could not be read, whose size is a mere number.
        height, width = points.sizes.max(axis=0, initial=1).tolist()
        shape = (len(shapes.values), height, width)
        out = np.empty(shape, np.uint8) if self._allocate is None else self._allocate(shape)
        pool, here = (self._pool, False) if self._pool is not None else (_pool_of_callers(), True)
        failures = pool.draw_masks(shapes, points, out, here=here).wait()
        return Ragged(out, shapes.offsets), {one.row: one.message for one in failures}

    def close(self) -> None:
        """Join the threads. May be called twice; a later batch starts them again."""
        if self._pool is not None:
            self._pool.close()


def box_of(mask: npt.NDArray[np.uint8]) -> tuple[int, int, int, int]:
    """Left, top, right, bottom around the pixels of a mask that has any."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


@functools.cache
def _pool_of_callers() -> NativePool:
    """Has no threads: all is drawn by those that call."""
    return NativePool(1)
