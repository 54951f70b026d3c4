"""From cached pixels on the host to rows of a batch: on the native core's threads, or on Python's.

Both take whole batches and return at once; the pixels are there when `wait` returns.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from fastload.draws import Draws
from fastload.errors import DecodeError, WorkerError
from fastload.geometry import Geometry, GeometryPlan, Resampling
from fastload.render.host import render_row
from fastload.sources.columns import PixelArray

if TYPE_CHECKING:
    from fastload.native import FusedGeometry, Pending

__all__ = ["HostServer", "NativeServer", "PendingPixels", "ThreadServer", "host_server"]

Pixels = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]

_SLICE = 16
"""Samples of a slice."""


class PendingPixels(Protocol):
    """Pixels in the making."""

    def wait(self) -> None:
        """Until all are there, or were given up after `cancel`. Raises WorkerError if they cannot be made."""
        ...

    def cancel(self) -> None:
        """Do not begin what has not begun; `wait` for the rest."""
        ...


class HostServer(Protocol):
    """Renders batches of one or more columns, several at a time."""

    description: str
    """For `explain()`."""

    def fuse(self, plan: GeometryPlan, draws: Draws) -> FusedGeometry | None:
        """A geometry that is resolved while rendering, in place of `plan.resolve`; None if that cannot be done."""
        ...

    def render(
        self,
        images: PixelArray,
        indices: Int64Array,
        geometry: Geometry | FusedGeometry,
        resampling: Resampling,
        out: Pixels,
    ) -> PendingPixels:
        """Write `out[i]` = image `indices[i]` under row i of the geometry. `out` is (B, h, w, C), C-contiguous."""
        ...

    def close(self) -> None:
        """Stop the threads. May be called twice; a later `render` starts them again."""
        ...


def host_server(threads: int) -> HostServer:
    """The fastest server that works here."""
    from fastload import native

    return NativeServer(threads) if native.available() else ThreadServer(threads)


class NativeServer:
    """On the threads of the native core."""

    def __init__(self, threads: int) -> None:
        from fastload.native import NativePool, fuse

        self.fuse = fuse
        self._pool = NativePool(threads)
        self.description = f"native core ({self._pool.simd}), {threads} threads"

    def render(
        self,
        images: PixelArray,
        indices: Int64Array,
        geometry: Geometry | FusedGeometry,
        resampling: Resampling,
        out: Pixels,
    ) -> PendingPixels:
        return _NativePixels(self._pool.gather_batch(images, indices, geometry=geometry, out=out, sampling=resampling))

    def close(self) -> None:
        self._pool.close()


class _NativePixels:
    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        self._cancelled = False

    def wait(self) -> None:
        failures = self._pending.wait()
        if failures and not self._cancelled:
            first = failures[0]
            raise WorkerError(f"backend 'cache': row {first.row} could not be made: {first.message}.")

    def cancel(self) -> None:
        self._cancelled = True
        self._pending.cancel()


class ThreadServer:
    """On a pool of Python threads, slice by slice, in numpy and torch calls that release the GIL."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self.description = f"{threads} Python threads (the native core is not installed)"

    def fuse(self, plan: GeometryPlan, draws: Draws) -> FusedGeometry | None:
        return None

    def render(
        self,
        images: PixelArray,
        indices: Int64Array,
        geometry: Geometry | FusedGeometry,
        resampling: Resampling,
        out: Pixels,
    ) -> PendingPixels:
        assert isinstance(geometry, Geometry)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="fastload-cache")
        parts = [slice(start, min(start + _SLICE, len(indices))) for start in range(0, len(indices), _SLICE)]
        return _ThreadPixels(
            [self._pool.submit(_render, images, indices, geometry, resampling, out, part) for part in parts]
        )

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


class _ThreadPixels:
    def __init__(self, tasks: list[Future[None]]) -> None:
        self._tasks = tasks

    def wait(self) -> None:
        wait(self._tasks)  # all of them, even if one failed: they write to the buffer
        for task in self._tasks:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                raise WorkerError(f"backend 'cache': a thread failed with {type(error).__name__}: {error}.") from error

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()


def _render(
    images: PixelArray, indices: Int64Array, geometry: Geometry, resampling: Resampling, out: Pixels, part: slice
) -> None:
    for row in range(part.start, part.stop):
        with contextlib.suppress(DecodeError):  # which the backend knows already
            pixels = images.pixels(int(indices[row]))
            render_row(pixels, row, geometry=geometry, resampling=resampling, out=out)
