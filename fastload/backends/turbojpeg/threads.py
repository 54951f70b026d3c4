"""Python threads that decode files straight into the batch buffer, with any decoder that releases the GIL.

A batch is cut into slices, a slice is one task of a thread pool. Several batches are in flight, so a slow slice at the
end of one does not leave threads idle.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from fastload.backends.assemble import Assembler, Buffers
from fastload.backends.base import BufferAllocator, Failure, HostBatch
from fastload.backends.turbojpeg.engine import Task
from fastload.decode.registry import describe_decoder, get_decoder
from fastload.draws import Draws
from fastload.errors import FastloadError, WorkerError

__all__ = ["BATCHES_IN_FLIGHT", "ThreadEngine"]

BATCHES_IN_FLIGHT = 3
"""One being received, one being finished, one to keep the threads busy meanwhile."""
_LARGEST_SLICE = 32
"""Samples. Enough to make the work per slice small (50 microseconds of 20 milliseconds), few enough to share evenly."""


class ThreadEngine:
    """Serves every source without Python objects."""

    def __init__(
        self,
        assembler: Assembler,
        *,
        decoder: str,
        threads: int,
        batch_size: int,
        prefetch_factor: int | None = None,
        allocate: BufferAllocator | None = None,
    ) -> None:
        self._assembler = assembler
        self._decoder = get_decoder(decoder)
        self._threads = threads
        self._allocate = allocate
        self._slice = max(1, min(_LARGEST_SLICE, -(-batch_size // threads)))
        # Without a size known in advance a batch is one task, so each thread needs a batch.
        whole = assembler.out_size is None
        self.depth = prefetch_factor or (BATCHES_IN_FLIGHT + (threads - 1 if whole else 0))
        self._pool: ThreadPoolExecutor | None = None

    def start(self, draws: Draws) -> Task:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="fastload-turbojpeg")
        size = self._assembler.out_size
        if size is None:
            return _Slices(None, [(0, self._pool.submit(self._assembler.batch, draws, self._allocate))])
        buffers = self._assembler.buffers(len(draws), size, self._allocate)
        tasks: list[tuple[int, Future[Any]]] = []
        for start in range(0, len(draws), self._slice):
            rows = slice(start, min(start + self._slice, len(draws)))
            views = {name: array[rows] for name, array in buffers.items()}
            tasks.append((start, self._pool.submit(self._assembler.fill, draws.take(rows), views)))
        return _Slices(buffers, tasks)

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)

    def explain(self) -> Mapping[str, str]:
        return {
            "decoder": describe_decoder(self._decoder),
            "threads": f"{self._threads}, slices of {self._slice} samples, {self.depth} batches in flight",
        }


@dataclass(frozen=True)
class _Slices:
    """A submitted batch: where its pixels go, and the tasks that put them there."""

    buffers: Buffers | None
    """None where the single task brings its own."""
    tasks: list[tuple[int, Future[Any]]]
    """First row of each slice, and what `Assembler.fill` (or `batch`) will return."""

    def result(self) -> HostBatch:
        self.wait()
        try:
            if self.buffers is None:
                whole: HostBatch = self.tasks[0][1].result()
                return whole
            failures = [
                Failure(start + failure.row, failure.error) for start, task in self.tasks for failure in task.result()
            ]
        except FastloadError:
            raise
        except Exception as error:
            raise WorkerError(
                f"backend 'turbojpeg': a thread failed with {type(error).__name__}: {error}. This is not about one "
                "sample; if it is not a lack of memory (lower the batch size or num_workers), please report it with "
                "the traceback above."
            ) from error
        return HostBatch({**self.buffers}, failures)

    def cancel(self) -> None:
        for _, task in self.tasks:
            task.cancel()

    def wait(self) -> None:
        wait([task for _, task in self.tasks])  # all of them, even if one failed: they write to the buffers
