"""Images made by Python's threads, with any decoder that releases the GIL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass

from fastload.backends.base import Context, Failure
from fastload.backends.maker import BatchInWork, PixelMaker, Threads
from fastload.backends.rows import Buffers, RowReader, is_little, settled_size
from fastload.decode.libraries import describe_decoder, get_decoder
from fastload.draws import Draws
from fastload.errors import counted
from fastload.recipe import SplitRecipe
from fastload.recipe.outputs import Size

# Samples. Enough to make the work per slice small (50 microseconds of 20 milliseconds), few enough
# to share evenly.
_LARGEST_SLICE = 32


class PythonPixels(PixelMaker):
    """Renders straight into the buffers of a batch.

    A batch is cut into slices, a slice is one task of the threads. Several batches are in flight,
    so a slow slice at the end of one does not leave threads idle.
    """

    def __init__(
        self, context: Context, rows: RowReader, threads: Threads, decoder: str = "auto"
    ) -> None:
        super().__init__(context, rows, threads)
        self._decoder = get_decoder(decoder) if self._source.encoded else None
        self._slice = min(_LARGEST_SLICE, threads.slice_of(context.batch_size))
        self._sizes: dict[Size | None, list[Size] | None] = {None: self._sizes_by(self._recipe)}
        self._sizes |= {size: self._sizes_by(one) for size, one in self._recipe.sized.items()}
        """By `Draws.size` (height, width) of each view; None where one is not known in advance."""
        if None in self._sizes.values() and self._source.images and not context.prefetch_factor:
            # A batch is one task then, so each thread needs a batch.
            self.depth += threads.count - 1
        values = self._source.values.values()
        self.light = not self._source.images and is_little(values, context.batch_size)

    def _sizes_by(self, recipe: SplitRecipe) -> list[Size] | None:
        known = [plan.out_size or settled_size(self._source, plan) for plan in recipe.geometries]
        return None if None in known else [size for size in known if size is not None]

    def start(self, draws: Draws) -> BatchInWork:
        if not self._source.images:
            return BatchInWork(draws, Buffers({}))
        sizes = self._sizes[draws.size]
        if sizes is None:
            whole = self._threads.submit(self._rows.fill_new, draws, self._allocate)
            part = _Whole(whole, self._threads)
            return BatchInWork(draws, Buffers({}), [part], new_buffers=part.buffers)
        buffers = self._rows.buffers(len(draws), sizes, self._allocate)
        work = BatchInWork(draws, buffers)
        for first in range(0, len(draws), self._slice):
            rows = slice(first, min(first + self._slice, len(draws)))
            task = self._threads.submit(self._rows.fill, draws.take(rows), buffers.take(rows))
            work.parts.append(_Slice(first, task, self._threads))
        return work

    def explain(self, decoded: Mapping[str, int]) -> Mapping[str, str]:
        if not self._source.images:
            return {}
        rows = {"decoder": describe_decoder(self._decoder)} if self._decoder is not None else {}
        slices = counted(self._slice, "sample")
        threads = (
            f"{self._threads.count} of Python, slices of {slices}, {counted(self.depth, 'batch')} "
            "in flight"
        )
        return {**rows, "threads": threads}


@dataclass(frozen=True)
class _Slice:
    """Rows of a batch that are one task."""

    first: int
    task: Future[list[Failure]]
    threads: Threads

    def lost(self) -> Iterator[tuple[int, Exception]]:
        for failure in self.threads.result(self.task):
            yield self.first + failure.row, failure.error

    def cancel(self) -> None:
        self.task.cancel()

    def wait(self) -> None:
        if not self.task.cancelled():
            wait([self.task])


@dataclass(frozen=True)
class _Whole:
    """A whole batch that is one task, with buffers of its own."""

    task: Future[tuple[Buffers, list[Failure]]]
    threads: Threads

    def lost(self) -> Iterator[tuple[int, Exception]]:
        for failure in self.threads.result(self.task)[1]:
            yield failure.row, failure.error

    def buffers(self) -> Buffers:
        return self.task.result()[0]

    def cancel(self) -> None:
        self.task.cancel()

    def wait(self) -> None:
        if not self.task.cancelled():
            wait([self.task])
