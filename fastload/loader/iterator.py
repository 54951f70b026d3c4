"""An epoch under way: what `iter(loader)` gives, and what it shares with its Loader: where the
trainer is in the epochs, and the counts of what was done so far."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np
import torch

from fastload.backends.base import EndOfData
from fastload.device import Staged
from fastload.draws import Draws, Stream
from fastload.errors import FastloadError, StateMismatchError, WorkerError
from fastload.loader.build import LoaderParts
from fastload.loader.feed import Feed
from fastload.loader.states import LoadedOrder
from fastload.sampler import Position
from fastload.spans import SpanLog

if TYPE_CHECKING:
    from fastload.render.jpeg_share import OnDevice


class OneThread:
    """Guards what two threads must not do at once: each would wait for batches that the other one
    asked for."""

    def __init__(self) -> None:
        self._inside: dict[str, int] = {}
        """{"thread": id of the thread inside}. `setdefault` reads and writes in one step, so that
        no signal handler runs in between."""

    def __enter__(self) -> None:
        here = threading.get_ident()
        # It may be inside already, if a KeyboardInterrupt came between this line and the body of
        # the `with`.
        if self._inside.setdefault("thread", here) != here:
            raise FastloadError(
                "this Loader is in use: another thread is waiting in iter() or next() of it. One "
                "thread at a time may iterate over a Loader; create one for each thread."
            )

    def __exit__(self, *_: object) -> None:
        self._inside.clear()


@dataclass
class Cursor:
    """Counts the batches handed out. Epochs follow each other without a call; a place can be chosen
    for the next `iter()`.

    An epoch goes on until its end, or until the next `iter()`. An epoch of which no batch was taken
    has not started: the next `iter()` gives it again, and another may be chosen in its place
    (Lightning does that, between `iter()` and the first `next`).
    """

    epoch: int = 0
    step: int = 0
    taken: bool = False
    """Whether a batch was handed out since the epoch was started (or resumed)."""
    chosen: Position | None = None
    """Where the next `iter()` begins, if not at the epoch after this one."""
    went_on: bool = False
    """Whether a batch was handed out since `chosen` was."""

    @property
    def position(self) -> Position:
        """Where the trainer is, for a saved state: where the epoch under way goes on, or the next
        one begins."""
        return (self.epoch, self.step) if self.chosen is None or self.went_on else self.chosen

    @property
    def start(self) -> Position:
        """Where a copy of the Loader starts: at `chosen`; else, if a batch of the epoch was handed
        out, at the first batch of it."""
        return self.chosen or ((self.epoch, 0) if self.taken else (self.epoch, self.step))

    @property
    def next_epoch(self) -> int:
        """The epoch that the next `iter()` begins, or goes on with."""
        return self.chosen[0] if self.chosen else self.epoch + self.taken

    def begin(self) -> int:
        """`iter()` was called: the epoch that comes."""
        if self.chosen is not None:
            self.move(*self.chosen)
        elif self.taken:
            self.move(self.epoch + 1, 0)
        return self.epoch

    def take(self) -> None:
        """A batch was handed out."""
        self.step += 1
        self.taken = True
        self.went_on = self.chosen is not None

    def end(self) -> None:
        """All batches of the epoch have been handed out, and one more was asked for."""
        self.move(*(self.chosen or (self.epoch + 1, 0)))

    def choose(self, epoch: int) -> None:
        """`set_epoch`: the epoch under way goes on, and the next `iter()` begins this one.

        If no epoch is under way, this one is next. A position in the middle of this same epoch,
        from a loaded state, is kept.
        """
        if self.taken:
            self.chosen, self.went_on = (epoch, 0), False
        elif self.epoch != epoch:
            self.move(epoch, 0)

    def skip(self, steps: int) -> None:
        """The next `iter()` leaves out the first steps of its epoch."""
        if self.taken:
            self.chosen, self.went_on = (
                ((self.chosen[0] if self.chosen else self.epoch + 1), steps),
                False,
            )
        else:
            self.move(self.epoch, steps)

    def move(self, epoch: int, step: int) -> None:
        """Be there; nothing is under way."""
        self.epoch, self.step, self.taken, self.chosen, self.went_on = (
            epoch,
            step,
            False,
            None,
            False,
        )


@dataclass
class Stats:
    """What a loader has done so far."""

    batches: int = 0
    """Batches handed out."""
    samples: int = 0
    """Samples handed out."""
    substituted: int = 0
    """Samples handed out in the place of ones that could not be read
    (`on_error="substitute"`)."""
    wait_seconds: float = 0.0
    """Time the trainer spent waiting inside the loader [seconds], the first batch apart."""
    first_batch_seconds: float = 0.0
    """From the first `next` to the first batch [seconds]."""
    elapsed_seconds: float = 0.0
    """From the first batch to the latest one [seconds]."""
    decoded: Mapping[str, int] = field(default_factory=dict)
    """Images that the native core has decoded, those prefetched included, by what. JPEGs: "own" by
    its own decoder, and by libjpeg-turbo because they are of another "coding", other "components"
    or "layout", or "unusual"; of these "reduced" (`draft=True`), "indexed" by the points of a seek
    index, and "noted", whose points it was given. "png", "webp"; "python": by the decoders of other
    libraries; "device": on a GPU, and "refused" there, so that the core has made them again. Empty
    where nobody counts."""
    on_device: OnDevice | None = None
    """What a GPU has decoded, with `TurboJpegOptions(decode_on=...)` of "auto" or "device"."""
    _started: float = field(default=0.0, repr=False, compare=False)

    @property
    def wait_share(self) -> float:
        """Share of the time since the first batch that the trainer waited, 0 to 1."""
        return self.wait_seconds / self.elapsed_seconds if self.elapsed_seconds else 0.0

    def count(self, batch: Any, staged: Staged, asked: float, now: float) -> None:
        """A batch is handed out, made of the staged one, that the trainer had asked for then [both
        seconds of time.perf_counter]."""
        if self.batches == 0:
            self._started, self.first_batch_seconds = now, now - asked
        else:
            self.wait_seconds += now - asked
        self.batches += 1
        self.samples += _samples_in(batch) if staged.samples is None else staged.samples
        self.substituted += staged.substituted
        self.elapsed_seconds = now - self._started


def _samples_in(batch: Any) -> int:
    """Samples in a batch, as far as its structure tells."""
    if isinstance(batch, list | tuple):
        return _samples_in(batch[0]) if batch else 0
    if isinstance(batch, torch.Tensor):
        return batch.size(0) if batch.ndim else 1  # A nested tensor has no shape.
    if isinstance(batch, Mapping):
        return _samples_in(next(iter(batch.values()), None))
    return 0


@dataclass
class Progress:
    """What a Loader and its iterators share: what serves the batches, and how far it has come."""

    parts: LoaderParts
    feed: Feed
    cursor: Cursor = field(default_factory=Cursor)
    stats: Stats = field(default_factory=Stats)
    loss_weight: float = 1.0
    """`Draws.weight` of the batch handed out last."""
    spans: SpanLog | None = None
    loaded: LoadedOrder | None = None
    """What a loaded state says of the order of the next epoch, until that is known."""
    iteration: int = 0
    """Number of the iterator that is alive; those with a smaller one have ended."""
    one_thread: OneThread = field(default_factory=OneThread)

    def end_epoch(self) -> None:
        """All batches of the epoch have been handed out, and one more was asked for."""
        self.cursor.end()
        if self.parts.renewed:
            self.feed.rest()


class Owner(Protocol):
    """The Loader."""

    def _contents_changed(self) -> bool:
        """Whether the data set or the transforms hold something else than is served; the parts were
        then made again."""

    def _check_within(self) -> None:
        """Raises ConfigurationError: something was changed in the middle of an epoch whose effect
        there cannot be that which a DataLoader gives it."""


class IterationState(Enum):
    """How far an iterator is."""

    NEW = auto()
    """No batch was asked for."""
    UNDER_WAY = auto()
    FAILED = auto()
    """The batch at the cursor has raised an error."""
    COMPLETE = auto()
    """All batches were handed out."""
    OVER = auto()
    """`next` raises StopIteration."""


class LoaderIterator(Iterator[Any]):
    """The batches of one epoch. An error in one batch ends neither the iterator nor the epoch.

    As in a DataLoader, `next` after an error goes on with the batch after it. A state saved before
    that `next` still names the batch that failed. After KeyboardInterrupt, `next` gives the batch
    that it was waiting for.
    """

    def __init__(self, progress: Progress, owner: Owner) -> None:
        """`owner`: the Loader. The reference keeps it alive: threads and workers end with the
        Loader."""
        self._progress = progress
        self._owner = owner
        self._iteration = progress.iteration
        self._state = IterationState.NEW

    def __len__(self) -> int:
        """Batches of the epoch, those handed out included. Raises TypeError: the number is not
        known before the end."""
        order = self._progress.parts.order
        if order.endless:
            raise TypeError("an epoch of data that can only be iterated has no length")
        return order.steps_in(self._progress.cursor.epoch)

    def __next__(self) -> Any:
        """The next batch. Raises what `Loader.__iter__` documents."""
        asked = time.perf_counter()
        progress = self._progress
        if self._state is IterationState.OVER:
            raise StopIteration
        if self._iteration != progress.iteration:
            # Ignite evaluates on the training loader before it asks once more.
            if self._state is IterationState.COMPLETE:
                raise StopIteration
            raise FastloadError(
                "this iterator has ended, because iter() was called again on the same Loader, a "
                "state was loaded, or it was closed. Create a second Loader to iterate twice at "
                "the same time."
            )
        parts, cursor = progress.parts, progress.cursor
        if self._state is IterationState.FAILED:
            cursor.take()
        first = self._state is IterationState.NEW
        if self._state in (IterationState.NEW, IterationState.FAILED):
            self._state = IterationState.UNDER_WAY
        epoch, step = cursor.epoch, cursor.step
        if step >= parts.order.steps_in(epoch) and not parts.order.goes_on(epoch, step):
            self._end()
        with progress.one_thread:
            try:
                if first:
                    parts = self._compared((epoch, step))
                else:
                    self._owner._check_within()
                staged = progress.feed.batch((epoch, step))
                batch = parts.stage.deliver(staged)
            except EndOfData:
                self._end()
            except Exception as error:
                lost = isinstance(error, WorkerError | StateMismatchError)
                self._state = IterationState.OVER if lost else IterationState.FAILED
                raise
        if parts.batch_transform is not None:
            batch = self._transformed(batch, epoch, step)
        cursor.take()
        now = time.perf_counter()
        progress.stats.count(batch, staged, asked, now)
        progress.loss_weight = staged.weight
        if progress.spans is not None:
            args = {"epoch": epoch, "step": step}
            progress.spans.add("wait for a batch", asked, now, track="trainer", args=args)
        if step + 1 >= parts.order.steps_in(epoch):
            self._state = IterationState.COMPLETE
        return batch

    def _compared(self, position: Position) -> LoaderParts:
        """The parts that serve the epoch: made again if the data set or the transforms hold
        something else than they did. That is looked at while the first batch is made, which is then
        thrown away."""
        progress = self._progress
        try:
            progress.feed.start(position)
        except Exception:
            if not self._owner._contents_changed():
                raise
        else:
            self._owner._contents_changed()
        loaded = progress.loaded
        if loaded is not None and loaded.position == position:
            progress.feed.start(position)
            loaded.check(progress.parts.order, progress.feed.order_of)
        progress.loaded = None
        return progress.parts

    def _end(self) -> NoReturn:
        """The epoch is over. Raises StopIteration."""
        self._state = IterationState.OVER
        self._progress.feed.end_epoch(self._progress.cursor.epoch)
        self._progress.end_epoch()
        raise StopIteration

    def _transformed(self, batch: Any, epoch: int, step: int) -> Any:
        parts = self._progress.parts
        assert parts.batch_transform is not None
        draws = Draws(parts.order.seed, epoch, np.array([step], dtype=np.int64))
        seed = int(draws.integers(Stream.BATCH_TRANSFORM)[0]) >> 1
        with _generators_seeded(seed, parts.stage.device):
            if isinstance(batch, tuple | list):
                return parts.batch_transform(*batch)
            return parts.batch_transform(batch)


@contextmanager
def _generators_seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Within: torch's generators of the CPU and of the device begin with this seed; afterwards they
    go on from where they were. Those of other GPUs, on which a trainer may run whose batches come
    on the CPU, are left alone: `torch.manual_seed` would set all of them."""
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        if device.type not in ("cpu", "cuda"):  # MPS, XPU: of these nothing is put back
            torch.manual_seed(seed)
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield
