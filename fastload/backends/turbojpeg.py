"""The `turbojpeg` backend: threads that decode files straight into the batch buffer. No processes, no copies.

A batch is cut into slices, a slice is one task of a thread pool. Several batches are in flight, so a slow slice at the
end of one does not leave threads idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from fastload.backends.assemble import Assembler, Buffers
from fastload.backends.base import BackendOptions, Context, Failure, HostBatch
from fastload.cpu import usable_cores
from fastload.decode.registry import get_decoder
from fastload.draws import Draws
from fastload.errors import ConfigurationError, FastloadError, WorkerError
from fastload.sources.base import Objects

__all__ = ["TurboJpegBackend", "TurboJpegOptions"]

_BATCHES_IN_FLIGHT = 3
"""One being received, one being finished, one to keep the threads busy meanwhile."""
_LARGEST_SLICE = 32
"""Samples. Enough to make the work per slice small (50 microseconds of 20 milliseconds), few enough to share evenly."""


@dataclass(frozen=True)
class TurboJpegOptions(BackendOptions):
    """Options of the `turbojpeg` backend."""

    decoder: str = "auto"
    """Which JPEG decoder to use; see `fastload doctor`."""


class TurboJpegBackend:
    """Serves images, masks and values, compressed or not; no Python objects, no opaque transforms."""

    name = "turbojpeg"
    background = True
    Options = TurboJpegOptions

    def __init__(self, context: Context, options: TurboJpegOptions) -> None:
        """
        Raises:
            ConfigurationError: the source has columns that only Python can produce, or the options are not valid.
            UnsupportedTransformError: the recipe has an opaque part.
            BackendUnavailableError: the decoder is not installed.
        """
        for column in context.source.columns.values():
            if isinstance(column, Objects):
                raise ConfigurationError(
                    f"backend 'turbojpeg' reads image files, but the samples of {context.source.name} are made by the "
                    f"Python code of {type(column.dataset).__name__}. Use backend='torch', which runs it, or "
                    "backend='cache', which runs it once."
                )
        context.recipe.require_no_opaque("turbojpeg", ("torch",))
        if context.collate_fn is not None:
            raise ConfigurationError(
                "collate_fn: backend 'turbojpeg' makes whole batches and has no samples to collate. "
                "Use backend='torch', or leave collate_fn out."
            )
        if context.num_workers is not None and context.num_workers < 0:
            raise ConfigurationError(f"num_workers={context.num_workers} must be None, 0 or more.")
        self._chosen = context.num_workers is None
        self._threads = max(1, usable_cores() if context.num_workers is None else context.num_workers)
        self._assembler = Assembler(
            context.source,
            context.recipe.geometry,
            settings=options.decode_settings,
            decoder=options.decoder,
        )
        self._decoder = get_decoder(options.decoder)
        self._allocate = context.allocate
        self._slice = max(1, min(_LARGEST_SLICE, -(-context.batch_size // self._threads)))
        # Without a size known in advance a batch is one task, so each thread needs a batch.
        whole = self._assembler.out_size is None
        self.depth = context.prefetch_factor or (_BATCHES_IN_FLIGHT + (self._threads - 1 if whole else 0))
        self._pending: deque[_Batch] = deque()
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, draws: Draws) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="fastload-turbojpeg")
        size = self._assembler.out_size
        if size is None:
            self._pending.append(_Batch(None, [(0, self._pool.submit(self._assembler.batch, draws, self._allocate))]))
            return
        buffers = self._assembler.buffers(len(draws), size, self._allocate)
        tasks: list[tuple[int, Future[Any]]] = []
        for start in range(0, len(draws), self._slice):
            rows = slice(start, min(start + self._slice, len(draws)))
            views = {name: array[rows] for name, array in buffers.items()}
            tasks.append((start, self._pool.submit(self._assembler.fill, draws.take(rows), views)))
        self._pending.append(_Batch(buffers, tasks))

    def receive(self) -> HostBatch:
        assert self._pending, "receive() without a submitted batch"
        batch = self._pending.popleft()
        wait([task for _, task in batch.tasks])  # all of them, even if one failed: they write to the buffers
        try:
            return batch.result()
        except FastloadError:
            raise
        except Exception as error:
            raise WorkerError(
                f"backend 'turbojpeg': a thread failed with {type(error).__name__}: {error}. This is not about one "
                "sample; if it is not a lack of memory (lower the batch size or num_workers), please report it with "
                "the traceback above."
            ) from error

    def reread(self, draws: Draws) -> HostBatch:
        return self._assembler.batch(draws)

    def cancel(self) -> None:
        tasks = [task for batch in self._pending for _, task in batch.tasks]
        self._pending.clear()
        wait([task for task in tasks if not task.cancel()])

    def close(self) -> None:
        self.cancel()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)

    def explain(self) -> Mapping[str, str]:
        strict = "" if self._decoder.strict else "; it does not report damage inside an otherwise complete JPEG"
        cores = "one for each usable core" if self._chosen else "as asked"
        return {
            "decoder": f"{self._decoder.name} {self._decoder.version}{strict}",
            "threads": f"{self._threads} ({cores}), slices of {self._slice} samples, {self.depth} batches in flight",
        }


@dataclass(frozen=True)
class _Batch:
    """A submitted batch: where its pixels go, and the tasks that put them there."""

    buffers: Buffers | None
    """None where the single task brings its own."""
    tasks: list[tuple[int, Future[Any]]]
    """First row of each slice, and what `Assembler.fill` (or `batch`) will return."""

    def result(self) -> HostBatch:
        """Assemble what the finished tasks returned; raises what a task raised."""
        if self.buffers is None:
            whole: HostBatch = self.tasks[0][1].result()
            return whole
        failures = [
            Failure(start + failure.row, failure.error) for start, task in self.tasks for failure in task.result()
        ]
        return HostBatch({**self.buffers}, failures)
