"""What the backends share that make batches on the host, with threads of this process: the queue,
and Python's threads.

They differ in what the columns hold (compressed bytes, or pixels) and in what must be done before
the first batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from fastload.backends.assemble import Assembler, Buffers, settled_size
from fastload.backends.base import Context, Failure, HostBatch
from fastload.decode.libraries import describe_decoder, get_decoder
from fastload.draws import Draws
from fastload.errors import ConfigurationError, FastloadError, WorkerError, counted
from fastload.machine import usable_cores

BATCHES_IN_FLIGHT = 3
"""One being received, one being finished, one to keep the threads busy meanwhile."""
_LARGEST_SLICE = 32
"""Samples. Enough to make the work per slice small (50 microseconds of 20 milliseconds), few enough
to share evenly."""


class PendingBatch(ABC):
    """A batch in work."""

    @abstractmethod
    def result(self) -> HostBatch:
        """Wait for it. Raises what went wrong with it as a whole."""

    def cancel(self) -> None:
        """Drop what has not started; does not wait."""
        return

    def wait(self) -> None:
        """Until nothing writes to its buffers any more."""
        return


class Engine(ABC):
    """Makes batches with threads of its own, started by the first one."""

    light = False
    """Whether a batch is finished when `start` returns, within a fraction of a millisecond."""
    decoded: Mapping[str, int] = MappingProxyType({})
    """Images decoded so far, by what (`Stats.decoded`)."""

    def __init__(self, context: Context, assembler: Assembler, backend: str) -> None:
        """
        Args:
            assembler: of the context's source and recipe; does what is done in Python.
            backend: its name, for messages and threads.
        """
        self._source, self._plans = context.source, context.recipe.geometries
        self._allocate = context.allocate
        self._assembler = assembler
        self.backend = backend
        self._threads = max(
            1, usable_cores() if context.num_workers is None else context.num_workers
        )
        self.depth = context.prefetch_factor or BATCHES_IN_FLIGHT
        """Batches in flight that keep it busy."""
        self._python: ThreadPoolExecutor | None = None

    @abstractmethod
    def start(self, draws: Draws) -> PendingBatch:
        """Begin a batch. Does not block. Raises ConfigurationError if there cannot be such a
        batch."""

    def now(self, draws: Draws) -> HostBatch:
        """A batch made in the calling thread, past all others."""
        return self._assembler.batch(draws)

    def close(self) -> None:
        """Join the threads. May be called twice; a later batch starts them again."""
        python, self._python = self._python, None
        if python is not None:
            python.shutdown(wait=True)

    @abstractmethod
    def explain(self) -> Mapping[str, str]:
        """What it is, for a person."""

    def _executor(self) -> ThreadPoolExecutor:
        if self._python is None:
            self._python = ThreadPoolExecutor(
                self._threads, thread_name_prefix=f"fastload-{self.backend}"
            )
        return self._python


class HostBackend:
    """Keeps the batches of an engine in order. What the columns hold (compressed bytes, or pixels),
    and what is to be done before the first batch, is what the backends differ in that make batches
    on the host."""

    name: ClassVar[str]
    background = True
    depth: int

    def __init__(self, context: Context) -> None:
        context.require_whole_batches(self.name)
        self._context = context
        self._engine: Engine | None = None
        self._pending: deque[PendingBatch | ConfigurationError] = deque()
        self._layout: Literal["tuple"] | None = None
        """Of the batches, where the source does not tell."""

    def engine(self) -> Engine:
        """The engine; made by the first call if not before."""
        assert self._engine is not None
        return self._engine

    @property
    def light(self) -> bool:
        """See `Backend`."""
        return self.engine().light

    @property
    def decoded(self) -> Mapping[str, int]:
        return {} if self._engine is None else self._engine.decoded

    def submit(self, draws: Draws) -> None:
        try:
            self._pending.append(self.engine().start(draws))
        except (
            ConfigurationError
        ) as error:  # there cannot be this batch: `receive` raises the reason
            self._pending.append(error)

    def receive(self) -> HostBatch:
        assert self._pending, "receive() without a submitted batch"
        oldest = self._pending.popleft()
        if isinstance(oldest, ConfigurationError):
            raise oldest
        return self._labelled(oldest.result())

    def reread(self, draws: Draws) -> HostBatch:
        return self._labelled(self.engine().now(draws))

    def cancel(self) -> None:
        tasks = [task for task in self._pending if isinstance(task, PendingBatch)]
        self._pending.clear()
        for task in reversed(
            tasks
        ):  # the last ones first, or threads would begin what is about to be dropped
            task.cancel()
        for task in tasks:
            task.wait()

    def close(self) -> None:
        self.cancel()
        if self._engine is not None:
            self._engine.close()

    def explain(self) -> Mapping[str, str]:
        return {} if self._engine is None else self._engine.explain()

    def _labelled(self, batch: HostBatch) -> HostBatch:
        batch.layout = self._layout
        return batch


class ThreadEngine(Engine):
    """Python threads that render straight into the batch buffer, with any decoder that releases the
    GIL.

    A batch is cut into slices, a slice is one task of a thread pool. Several batches are in flight,
    so a slow slice at the end of one does not leave threads idle.
    """

    def __init__(self, context: Context, assembler: Assembler, backend: str, decoder: str) -> None:
        super().__init__(context, assembler, backend)
        self._decoder = get_decoder(decoder) if self._source.encoded else None
        self._slice = max(1, min(_LARGEST_SLICE, -(-context.batch_size // self._threads)))
        sizes = [plan.out_size or settled_size(self._source, plan) for plan in self._plans]
        self._sizes = None if None in sizes else [size for size in sizes if size is not None]
        """(height, width) of each view in every batch; None where one is not known in advance."""
        if self._sizes is None and self._source.images and not context.prefetch_factor:
            self.depth += (
                self._threads - 1
            )  # a batch is one task then, so each thread needs a batch

    def start(self, draws: Draws) -> PendingBatch:
        if not self._source.images:
            return _Slices(self.backend, self._assembler, draws, Buffers({}), [])
        if self._sizes is None:
            whole = self._executor().submit(self._assembler.batch, draws, self._allocate)
            return _Slices(self.backend, self._assembler, draws, None, [(0, whole)])
        buffers = self._assembler.buffers(len(draws), self._sizes, self._allocate)
        tasks: list[tuple[int, Future[Any]]] = []
        for start in range(0, len(draws), self._slice):
            rows = slice(start, min(start + self._slice, len(draws)))
            tasks.append(
                (
                    start,
                    self._executor().submit(
                        self._assembler.fill, draws.take(rows), buffers.take(rows)
                    ),
                )
            )
        return _Slices(self.backend, self._assembler, draws, buffers, tasks)

    def explain(self) -> Mapping[str, str]:
        if not self._source.images:
            return {}
        rows = {"decoder": describe_decoder(self._decoder)} if self._decoder is not None else {}
        slices = counted(self._slice, "sample")
        threads = (
            f"{self._threads} of Python, slices of {slices}, "
            f"{counted(self.depth, 'batch')} in flight"
        )
        return {**rows, "threads": threads}


@dataclass(frozen=True)
class _Slices(PendingBatch):
    """A submitted batch: where its pixels go, and the tasks that put them there."""

    backend: str
    assembler: Assembler
    draws: Draws
    buffers: Buffers | None
    """None where the single task brings its own."""
    tasks: list[tuple[int, Future[Any]]]
    """First row of each slice, and what `Assembler.fill` (or `batch`) will return."""

    def result(self) -> HostBatch:
        self.wait()
        try:
            found = [(start, task.result()) for start, task in self.tasks]
        except FastloadError:
            raise
        except Exception as error:
            raise thread_failure(self.backend, error) from error
        if self.buffers is None:
            whole: HostBatch = found[0][1]
            return whole
        failures = [
            Failure(start + one.row, one.error) for start, failed in found for one in failed
        ]
        return self.assembler.finish(self.draws, self.buffers, failures)

    def cancel(self) -> None:
        for _, task in self.tasks:
            task.cancel()

    def wait(self) -> None:
        wait(
            [task for _, task in self.tasks]
        )  # all of them, even if one failed: they write to the buffers


def thread_failure(backend: str, error: Exception) -> WorkerError:
    """For what a thread raises that is not about one sample."""
    return WorkerError(
        f"backend {backend!r}: a thread failed with {type(error).__name__}: {error}. This is "
        "not about one sample; if "
        "it is not a lack of memory (lower the batch size or num_workers), please report it "
        "with the traceback above."
    )
