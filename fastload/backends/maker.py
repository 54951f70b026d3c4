"""The one maker of batches on the host.

    BatchMaker ── adds values, has Python look at rows that were given back
      ├─ PixelMaker ── who makes the images: Python's threads, the native core, or a device
      └─ RowReader ── reads rows in Python and collects failures (`rows.py`)

A batch in work is data: its draws, its buffers, and the parts that threads work on. The backends
that make batches on the host are BatchMakers. They differ in what the columns hold (compressed
bytes, or pixels), and in what must be done before the first batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, ParamSpec, Protocol, TypeVar

import numpy as np

from fastload.backends.base import (
    HOST_TRAITS,
    Context,
    Failure,
    HostBatch,
    MadeHere,
    StartedWork,
    Work,
)
from fastload.backends.needs import Abilities, Asked
from fastload.backends.rows import Buffers, RowReader
from fastload.draws import Draws
from fastload.errors import ConfigurationError, FastloadError, WorkerError
from fastload.machine import usable_cores
from fastload.stores.reads import ReaderPool

if TYPE_CHECKING:
    from fastload.backends.first_alone import FirstAlone

P = ParamSpec("P")
T = TypeVar("T")

# One being received, one being finished, one to keep the threads busy.
BATCHES_IN_FLIGHT = 3
# Where reading is mostly to wait for a store: samples that are asked for at once (at 30 ms 4,000 a
# second), the most of a task of Python's or of the first batch, and the most batches and tasks.
_SAMPLES_IN_FLIGHT = 128
_SLICE = 16
_MOST_BATCHES = 32
_MOST_TASKS = 64


def waits(asked: Asked) -> bool:
    """Whether reading its samples is mostly to wait for a store."""
    return any(column.waits for column in asked.source.encoded.values())


def depth_of(context: Context) -> int:
    """Batches in flight that keep the threads busy."""
    if context.prefetch_factor:
        return context.prefetch_factor
    more = -(-_SAMPLES_IN_FLIGHT // context.batch_size) if waits(context) else 0
    return BATCHES_IN_FLIGHT + min(more, _MOST_BATCHES)


class Part(Protocol):
    """Some rows of a batch that other threads work on."""

    def lost(self) -> Iterable[tuple[int, Exception | None]]:
        """Wait for it. The rows of the batch that have no pixels, with the reason; without one,
        Python is to read the row again. Raises what went wrong with the part as a whole."""

    def cancel(self) -> None:
        """Drop what has not started; does not wait."""

    def wait(self) -> None:
        """Until nothing writes to the buffers any more."""


@dataclass
class BatchInWork:
    """A batch whose images are being made."""

    draws: Draws
    buffers: Buffers
    parts: list[Part] = field(default_factory=list)
    failures: dict[int, Exception] = field(default_factory=dict)
    """The rows that were known to have no pixels before any part was started."""
    new_buffers: Callable[[], Buffers] | None = None
    """The buffers, once all parts are there, where they could not be made before."""
    columns: Callable[[], dict[str, Any]] | None = None
    """Makes the columns of a batch that is made when it is received, in place of buffers."""

    def lost(self) -> dict[int, Exception | None]:
        """Wait for all parts: the rows without pixels, see `Part`. After an exception nothing
        writes to the buffers any more."""
        lost: dict[int, Exception | None] = {}
        try:
            for part in self.parts:
                lost.update(part.lost())
        except BaseException:
            self.cancel()
            raise
        lost.update(self.failures)
        return lost

    def cancel(self) -> None:
        """Drop what has not started, and wait until nothing writes to the buffers any more."""
        for part in self.parts:
            part.cancel()
        for part in self.parts:
            part.wait()


class Threads:
    """Python's threads, started by the first call that is handed to them."""

    _turns: FirstAlone | None = None

    def __init__(self, count: int, backend: str, *, batch_size: int = 0) -> None:
        """
        Args:
            count: that compute.
            backend: a name, for messages and the names of the threads.
            batch_size: where what they do is mostly to wait for a store: then there are more.
        """
        self.count = count
        self.backend = backend
        self._slice, self._most = batch_size, count
        if batch_size:
            self._slice = max(1, min(-(-batch_size // count), _SLICE))
            self._most = max(count, min(_SAMPLES_IN_FLIGHT // self._slice, _MOST_TASKS))
        self._executor: ReaderPool | None = None

    def slice_of(self, batch_size: int, *, least: int = 1) -> int:
        """Samples of a batch that are one task; `least`: where a task does not wait for a store."""
        return self._slice or max(least, -(-batch_size // self.count))

    def submit(
        self, function: Callable[P, T], *arguments: P.args, **options: P.kwargs
    ) -> Future[T]:
        """Call it in a thread."""
        if self._executor is None:
            name = f"fastload-{self.backend}"
            self._executor = ReaderPool(self._most, name)
        return self._executor.submit(function, *arguments, **options)

    def in_turn(
        self, look: Callable[[], T], reads_of: Callable[[T], Sequence[Future[Any]]], *, first: bool
    ) -> Future[T]:
        """`submit` of what begins to read a batch from a store, after the first batch was read
        (`FirstAlone`).

        Args:
            reads_of: what it returns: the tasks that read the batch.
            first: whether it is that batch.
        """
        from fastload.backends.first_alone import FirstAlone

        if self._turns is None:
            self._turns = FirstAlone(self.submit)
        return self._turns.submit(look, reads_of, first=first)

    def result(self, task: Future[T]) -> T:
        """What a task returned. Raises FastloadError; WorkerError for anything else that it
        raised."""
        try:
            return task.result()
        except FastloadError:
            raise
        except CancelledError:
            raise WorkerError(f"backend {self.backend!r}: it was closed meanwhile.") from None
        except Exception as error:  # of a column's own code
            raise self.failure(error) from error

    def failure(self, error: Exception) -> WorkerError:
        """For what a thread raises that is not about one sample."""
        return WorkerError(
            f"backend {self.backend!r}: a thread failed with {type(error).__name__}: {error}. This "
            "is not about one sample; if it is not a lack of memory (lower the batch size or "
            "num_workers), please report it with the traceback above."
        )

    def close(self) -> None:
        """Drop what was not started, and join them. May be called twice; a later `submit` starts
        them again."""
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.close()
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=True)


class PixelMaker(ABC):
    """Makes the images of batches, with threads that the first batch starts."""

    can: ClassVar[Abilities] = HOST_TRAITS
    """What it can make; more is not asked of it."""
    light = False
    """Whether the images are there when `start` returns, within a fraction of a millisecond."""
    decoded: Mapping[str, int] = MappingProxyType({})
    """Images decoded so far, by what (`Stats.decoded`)."""

    def __init__(self, context: Context, rows: RowReader, threads: Threads) -> None:
        """
        Args:
            rows: of the context's source and recipe; reads what must be read in Python.
            threads: of the maker; how many they are is how many threads there are to be at all.
        """
        self._source, self._recipe = context.source, context.recipe
        self._allocate = context.allocate
        self._rows = rows
        self._threads = threads
        self.depth = depth_of(context)
        """Batches in flight that keep it busy."""

    def at_once(self, draws: Draws) -> int:
        """See `Backend`."""
        return 1

    @abstractmethod
    def start(self, draws: Draws) -> BatchInWork:
        """Start on the images of a batch. Does not block. Raises ConfigurationError if there cannot
        be such a batch."""

    @abstractmethod
    def explain(self, decoded: Mapping[str, int]) -> Mapping[str, str]:
        """What it is, for a person. `decoded`: by the maker, so far."""

    def close(self) -> None:
        """Stop threads of its own. May be called twice; a later batch starts them again."""
        return


class BatchMaker(ABC):
    """A backend that makes batches with threads of this process. A class derived from it says in
    `_open` what reads the rows and what makes the images."""

    name: ClassVar[str]
    background = True

    def __init__(self, context: Context) -> None:
        self._context = context
        self.depth = depth_of(context)
        count = usable_cores() if context.num_workers is None else context.num_workers
        waiting = context.batch_size if waits(context) else 0
        self._threads = Threads(max(1, count), self.name, batch_size=waiting)
        self._rows: RowReader | None = None
        self._pixels: PixelMaker | None = None
        """Both None until `_opened`."""
        self._remade = 0
        """Rows that were given back and that Python could read."""
        self._layout: Literal["tuple"] | None = None
        """Of the batches, where the source does not tell."""

    @abstractmethod
    def _open(self) -> tuple[RowReader, PixelMaker]:
        """Do what must be done before the first batch; called once, or again after `close`."""

    @property
    def light(self) -> bool:
        """See `Backend`."""
        return self._opened()[1].light

    def at_once(self, draws: Draws) -> int:
        """See `Backend`."""
        return self._opened()[1].at_once(draws)

    @property
    def decoded(self) -> Mapping[str, int]:
        """See `Backend`."""
        counts = {} if self._pixels is None else dict(self._pixels.decoded)
        return {**counts, "python": self._remade} if self._remade else counts

    def start(self, draws: Draws) -> Work:
        rows, pixels = self._opened()
        try:
            work = pixels.start(draws)
        except ConfigurationError as error:
            return MadeHere(partial(_raise, error))  # There cannot be this batch.
        return StartedWork(partial(self.finished, rows, work), work.cancel)

    def close(self) -> None:
        self._threads.close()  # before what they call
        if self._pixels is not None:
            self._pixels.close()
        if self._rows is not None:
            self._rows.close()

    def explain(self) -> Mapping[str, str]:
        return {} if self._pixels is None else self._pixels.explain(self.decoded)

    def _opened(self) -> tuple[RowReader, PixelMaker]:
        if self._rows is None or self._pixels is None:
            self._rows, self._pixels = self._open()
        return self._rows, self._pixels

    def finished(self, rows: RowReader, work: BatchInWork) -> HostBatch:
        """The batch, when all its parts are there; rows that were given back are read in Python, on
        all threads."""
        lost = work.lost()
        out = work.buffers if work.new_buffers is None else work.new_buffers()
        failures: list[Failure] = []
        if lost:
            failures = [Failure(row, error) for row, error in lost.items() if error is not None]
            for pixels in out.images.values():
                pixels[[failure.row for failure in failures]] = 0
            again = sorted(row for row, error in lost.items() if error is None)
            if again:
                failed_again = self._read_again(rows, work.draws, out, again)
                self._remade += len(again) - len(failed_again)
                failures += failed_again
            failures.sort(key=lambda failure: failure.row)
        columns = out.images if work.columns is None else work.columns()
        batch = rows.finish(work.draws, columns, out.points, failures)
        batch.layout = self._layout
        return batch

    def _read_again(
        self, reader: RowReader, draws: Draws, out: Buffers, rows: list[int]
    ) -> list[Failure]:
        """Make the pixels of some rows in Python; returns those that fail there as well."""
        read = partial(reader.fill_again, draws, out)
        parts = np.array_split(np.array(rows), min(self._threads.count, len(rows)))
        tasks = [self._threads.submit(read, part.tolist()) for part in parts]
        return [failure for task in tasks for failure in task.result()]


def _raise(error: Exception) -> NoReturn:
    raise error
