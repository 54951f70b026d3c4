"""Batches, one after the other. `Production` has the steps that make one: start it in the backend,
wait for it, replace samples that could not be read, start the device stage. They run in one thread
at a time: that of a `Prefetcher`, ahead of the trainer, or the trainer's, `OnDemand`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from enum import Enum, auto
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from fastload.backends.base import KILLED_WORKER, Backend, EndOfData, HostBatch, Work
from fastload.device import DeviceStage, Staged
from fastload.draws import Draws
from fastload.ending import end_thread
from fastload.errors import FastloadError, OnError, WorkerError
from fastload.loader.substitution import Substitution
from fastload.machine import use_one_thread_here
from fastload.sampler import Order, Position, Schedule
from fastload.spans import SpanLog
from fastload.stores.reads import Reads

if TYPE_CHECKING:
    from fastload.loader.remote import Remote
    from fastload.loader.together import ReadTogether

_NOTHING = nullcontext()
_CLOSED = "the loader was closed while a batch was waited for; create a new one."

# Finished batches kept for the trainer: one it is about to take, one being finished.
READY = 2
# Seconds that `stop` waits for the batch that is being made.
_PATIENCE = 10.0
# Seconds that `end` waits for a thread whose backend was closed.
_FREED = 1.0


# -- The steps -------------------------------------------------------------------------------------


class _Started(NamedTuple):
    work: Work
    position: Position
    """Of the first of its batches."""
    draws: Draws
    """Of all of them."""
    sizes: tuple[int, ...]
    """Samples of each."""
    at: float
    """[seconds of time.perf_counter]"""


class Production:
    """Makes the batches of a schedule, in order. As many are always under way as the
    backend's `depth` says.

    Where it takes longer to ask for a batch than to make it (`Backend.at_once`), several of an
    epoch are made as one and then taken apart: each sample draws for itself, so they are the same.
    """

    def __init__(
        self,
        backend: Backend,
        stage: DeviceStage,
        schedule: Schedule,
        order: Order,
        on_error: OnError = "raise",
        together: ReadTogether | None = None,
        remote: Remote | None = None,
    ) -> None:
        """`order`: that of the schedule. `together`: hears which samples the batches need; None:
        each is read by itself. `remote`: None where no image lies in a store."""
        self._backend = backend
        self._stage = stage
        self._schedule = schedule
        self._order = order
        self._read_ahead = order.read_ahead
        self._together = together
        self._remote = remote
        self._on_error = on_error
        self._at_once: Callable[[Draws], int] | None = getattr(backend, "at_once", None)
        self.most_at_once = 1
        """Batches that were made as one so far, at most."""
        self._substitution: Substitution | None = None
        """None until a sample could not be read."""
        self._started: deque[_Started] = deque()
        """In flight, the oldest first."""
        self._started_epoch: int | None = None
        """The epoch of the batch that was started last; None: there is none since the last
        `cancel`."""
        self._next: tuple[Position, Draws] | None = None
        """What was asked of the schedule, and not started yet."""
        self._staged: deque[Staged] = deque()
        """Batches that were made with one that was handed out."""
        self._epoch = 0
        """That of the batch that the trainer has taken last, or is to take first."""
        self._untaken: deque[int] = deque()
        """The epochs of the batches that were made and that the trainer has not taken."""
        self._spans: SpanLog | None = None
        self._reads = Reads(_CLOSED)
        """All its reads from stores, until the next `allow_reads`."""
        self._in_flight = Reads("this batch was cancelled.", self._reads)
        """The reads for batches in flight."""

    def begin(self, position: Position) -> None:
        """Make the batch at this position next; what is in flight is cancelled."""
        self.cancel()
        self._schedule.begin(position)
        self._epoch = position[0]
        if self._together is not None:
            self._together.begin(position)

    def cancel(self) -> None:
        """Forget all that is in flight. `begin` must follow. May be called after any exception, at
        any step."""
        self._in_flight.end()  # The backend would wait for reads that nobody needs.
        started, self._started = self._started, deque()
        self._started_epoch = None
        self._staged.clear()
        self._untaken.clear()
        self._next = None
        self._in_flight = Reads("this batch was cancelled.", self._reads)
        # The last ones first, or threads would start what is about to be dropped; all of them,
        # whatever one raises.
        with contextlib.ExitStack() as last_first:
            if self._together is not None:
                last_first.callback(self._together.forget)
            for one in started:
                last_first.callback(one.work.cancel)

    def end_reads(self) -> None:
        """Let all waits for a store end with a CancelledReadError, until `allow_reads`. May be
        called by any thread."""
        self._reads.end()

    def allow_reads(self) -> None:
        """Allow reads again after `end_reads`, when no other thread uses this."""
        self._reads = Reads(_CLOSED)
        self._in_flight = Reads("this batch was cancelled.", self._reads)

    def start(self) -> None:
        """Have the backend start as many batches as it wants in flight."""
        with self._in_flight.here():
            self._start()

    def _start(self) -> None:
        wanted = self._backend.depth
        if self._read_ahead is not None:
            # The oldest one is about to be handed out; the others are read ahead.
            wanted = min(wanted, self._read_ahead + 1)
        while len(self._started) < wanted and (asked := self._asked()) is not None:
            if self._remote is not None and (self._is_past_end(asked[0]) or self._is_far(asked[1])):
                self._next = asked
                return
            position, draws = asked
            sizes: tuple[int, ...]
            sizes, most = (len(draws),), 1
            if self._at_once is not None and self._read_ahead is None and self._stage.takes_apart:
                most = self._at_once(draws)
            if most > 1:
                draws, sizes = self._with_neighbours(draws, most)
            at = time.perf_counter()
            if position[0] != self._started_epoch:
                draws = replace(draws, begins=True, waited_for=not self._started)
            self._started_epoch = position[0]
            with self._span("start", position):
                work = self._backend.start(draws)
            self._started.append(_Started(work, position, draws, sizes, at))

    def _is_past_end(self, position: Position) -> bool:
        """Whether the batch at this position must wait until the trainer has taken one of a later
        epoch."""
        most = None if self._remote is None else self._remote.past_end
        if most is None or position[0] <= self._epoch:
            return False
        ahead = [*self._untaken, *(each.position[0] for each in self._started)]
        return sum(epoch > self._epoch for epoch in ahead) >= most

    def _is_far(self, draws: Draws) -> bool:
        """Whether a batch must wait until one in flight is made, as they have many bytes."""
        assert self._remote is not None
        ahead = [each.draws for each in self._started]
        return bool(ahead) and self._remote.bytes_of([*ahead, draws]) > self._remote.most_bytes

    @property
    def paused(self) -> bool:
        """Whether no batch can be made before the trainer has taken one."""
        return not self._started and self._next is not None and self._is_past_end(self._next[0])

    def taken(self) -> None:
        """The trainer has taken a batch: the oldest one that was made."""
        if self._untaken:
            self._epoch = self._untaken.popleft()

    def _asked(self) -> tuple[Position, Draws] | None:
        asked, self._next = self._next, None
        if asked is None:
            asked = self._schedule.next()
            if asked is not None and self._together is not None:
                position, _ = asked
                self._together.announce(position, self._schedule.order_of(position[0]))
        return asked

    def _with_neighbours(self, draws: Draws, most: int) -> tuple[Draws, tuple[int, ...]]:
        """The draws of this batch and of those after it that are made with it, `most` in all, and
        how many samples each has."""
        sizes = [len(draws)]
        while len(sizes) < most and (asked := self._asked()) is not None:
            joined = draws.followed_by(asked[1])
            if joined is None:
                self._next = asked
                break
            draws = joined
            sizes.append(len(asked[1]))
        self.most_at_once = max(self.most_at_once, len(sizes))
        return draws, tuple(sizes)

    def make(self) -> Staged | None:
        """The next batch; None if the schedule has no more. After an exception `cancel` must
        follow.

        Raises:
            EndOfData: the user's sampler has no more.
            CancelledReadError: `end_reads` was called meanwhile.
            Exception: what went wrong with the batch.
        """
        with self._in_flight.here():
            return self._make()

    def _make(self) -> Staged | None:
        if self._staged:
            return self._staged.popleft()
        self._start()
        if not self._started:
            if self._schedule.ended:
                raise EndOfData
            return None
        spans, (work, position, draws, sizes, at) = self._spans, self._started[0]
        with self._span("result", position):
            host = work.result()
        if spans is not None:
            args = {"epoch": position[0], "step": position[1]}
            spans.add("batch in the backend", at, time.perf_counter(), track="backend", args=args)
        try:
            self._started.popleft()
        except IndexError:  # another thread has closed the loader meanwhile
            raise FastloadError(_CLOSED) from None
        self._untaken.extend([position[0]] * len(sizes))
        if self._read_ahead is None:
            self._start()  # before the device stage, so that the backend is never without work
        substituted = 0
        if host.failures:
            with self._span("substitute", position):
                host, substituted = self._repaired(host, draws, position)
        with self._span("device stage", position):
            staged = self._stage.run(host, draws, position[1])
        staged.substituted, staged.weight = substituted, draws.weight
        if len(sizes) > 1:
            staged, *others = staged.taken_apart(sizes)
            self._staged.extend(others)
        return staged

    def record(self, spans: SpanLog | None) -> None:
        """Write to a log, from the next step on, what each batch spends its time on; None: no
        longer."""
        self._spans = spans
        self._stage.record(spans)

    def _span(self, name: str, position: Position) -> AbstractContextManager[None]:
        """Records the body of a `with`, where there is a log."""
        if self._spans is None:
            return _NOTHING
        epoch, step = position
        return self._spans.span(name, track="loader", args={"epoch": epoch, "step": step})

    def _repaired(self, host: HostBatch, draws: Draws, position: Position) -> tuple[HostBatch, int]:
        """As `Substitution.repair`."""
        if self._substitution is None:
            self._substitution = Substitution(
                self._backend, self._order, self._on_error, self._remote
            )
        epoch, step = position
        return self._substitution.repair(host, draws, self._schedule.order_of(epoch), step)


# -- In the trainer's thread -----------------------------------------------------------------------


class OnDemand:
    """Makes each batch when the trainer asks for it, in the trainer's thread."""

    stopping = False

    def __init__(self, production: Production) -> None:
        self._production = production

    def begin(self, position: Position | None) -> None:
        """Make the batch at this position next; None: the one that the production has started
        with."""
        if position is not None:
            self._production.begin(position)

    def next(self) -> Staged:
        """The next batch. Raises what went wrong with it; `begin` must follow."""
        try:
            staged = self._production.make()
        except BaseException:
            with contextlib.suppress(FastloadError):
                self._production.cancel()
            raise
        assert staged is not None
        self._production.taken()
        return staged

    def stop(self) -> None:
        """Nothing to stop."""

    def end(self) -> None:
        """Nothing to end."""


# -- In a thread ahead of the trainer --------------------------------------------------------------


class State(Enum):
    """What the thread does."""

    WAITING = auto()
    """It waits for a position to start from."""
    MAKING = auto()
    """It makes a batch, and reads its messages between two batches."""
    FULL = auto()
    """READY batches are finished, or fewer, and no other may be made yet; it waits for the trainer
    to take one."""
    STOPPED = auto()
    """It has ended."""


class Event(Enum):
    """What changes the state."""

    START = auto()
    """Message: make batches from this position on; earlier ones are thrown away."""
    TAKEN = auto()
    """Message: the trainer has taken a batch."""
    STOP = auto()
    """Message: end."""
    MADE = auto()
    """A batch was made, and there is room for another one."""
    FILLED = auto()
    """A batch was made, and READY batches wait now."""
    PAUSED = auto()
    """A batch was made or taken, and no other may be made before the trainer takes one."""
    ENDED = auto()
    """There was an error in place of a batch, or no batch is left."""


TRANSITIONS: Mapping[tuple[State, Event], State] = {
    **{(state, Event.START): State.MAKING for state in (State.WAITING, State.MAKING, State.FULL)},
    **{(state, Event.STOP): State.STOPPED for state in (State.WAITING, State.MAKING, State.FULL)},
    (State.WAITING, Event.TAKEN): State.WAITING,
    (State.MAKING, Event.TAKEN): State.MAKING,
    (State.FULL, Event.TAKEN): State.MAKING,
    (State.MAKING, Event.MADE): State.MAKING,
    (State.MAKING, Event.FILLED): State.FULL,
    (State.MAKING, Event.PAUSED): State.FULL,
    (State.FULL, Event.PAUSED): State.FULL,
    (State.MAKING, Event.ENDED): State.WAITING,
}


class _Made(NamedTuple):
    """A batch, or the error in its place."""

    staged: Staged | None
    error: BaseException | None = None


class _Message(NamedTuple):
    event: Event
    position: Position | None = None
    """Of START: where; None: the production has started already."""
    batches: SimpleQueue[_Made] | None = None
    """Of START: where the batches are put. Each start has a queue of its own, so that no batch of
    an earlier one is ever taken for one of this."""


_TAKEN = _Message(Event.TAKEN)


class Prefetcher:
    """Keeps READY batches finished ahead of the trainer, in a thread of its own.

    The thread and the trainer share nothing but two queues: messages go to the thread, batches come
    back. Only the thread knows its state, and only the trainer knows which batch it waits for. So
    an exception at any line of the trainer's thread, such as KeyboardInterrupt, leaves nothing half
    done: the trainer starts again from the position that it wants.

    The states of the thread:

    | state   | START  | TAKEN   | STOP    | MADE   | FILLED | PAUSED | ENDED   |
    |---------|--------|---------|---------|--------|--------|--------|---------|
    | WAITING | MAKING | WAITING | STOPPED |        |        |        |         |
    | MAKING  | MAKING | MAKING  | STOPPED | MAKING | FULL   | FULL   | WAITING |
    | FULL    | MAKING | MAKING  | STOPPED |        |        | FULL   |         |
    """

    def __init__(self, production: Production, stage: DeviceStage) -> None:
        """Nobody else may use the production from `begin` on until the thread was stopped."""
        self.state = State.WAITING
        """Of the thread, which alone changes it."""
        self.stopping = False
        """Whether the thread was asked to stop."""
        self._production = production
        self._stage = stage
        self._messages: SimpleQueue[_Message] = SimpleQueue()
        self._batches: SimpleQueue[_Made] = SimpleQueue()
        self._thread: threading.Thread | None = None

    # -- called by the trainer

    def begin(self, position: Position | None) -> None:
        """Make the batch at this position next; None: the one that the production has started with.
        Starts the thread."""
        if self._thread is None:
            self._start()
        self._batches = SimpleQueue()
        self._messages.put(_Message(Event.START, position, self._batches))

    def _start(self) -> None:
        self._stage.prepare()
        messages: SimpleQueue[_Message] = SimpleQueue()
        thread = threading.Thread(
            target=self._run, args=(messages,), name="fastload-prefetcher", daemon=True
        )
        try:
            thread.start()
            self._messages, self._thread = messages, thread
        except BaseException:
            # It may run already (KeyboardInterrupt while `start` waits for it), but has not been
            # given anything to do.
            self._thread = None
            messages.put(_Message(Event.STOP))
            raise

    def next(self) -> Staged:
        """Waits for the next batch. Raises what went wrong with it; `begin` must follow."""
        batch = self._received()
        self._messages.put(_TAKEN)
        if batch.error is not None:
            raise batch.error
        assert batch.staged is not None
        return batch.staged

    def stop(self) -> None:
        """Have the thread end after the batch that it makes, and wait for some seconds. May be
        called again."""
        self.stopping = True
        self._messages.put(_Message(Event.STOP))
        closed = FastloadError(_CLOSED)
        self._batches.put(_Made(None, closed))  # for another thread, which may be waiting in `next`
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)

    def end(self) -> None:
        """End the thread, which was asked to stop, wherever it is. The backend is closed, so that
        what it may still be in is the user's code."""
        end_thread(self._thread, _FREED)

    def _received(self) -> _Made:
        assert self._thread is not None
        while True:
            try:
                return self._batches.get(timeout=_PATIENCE)
            except Empty:
                if self._thread.is_alive() or not self._batches.empty():
                    continue
            except RuntimeError as error:
                # torch's handler of SIGCHLD raises in the main thread, wherever it is, when a
                # worker dies.
                raise WorkerError(f"{error} {KILLED_WORKER}") from error
            raise WorkerError("the loader's own thread has ended without a batch or an error.")

    # -- the thread

    def _run(self, messages: SimpleQueue[_Message]) -> None:
        use_one_thread_here()
        message: _Message | None = messages.get()
        if message is not None and message.event is Event.STOP:
            return  # another thread may have been started in its place
        batches: SimpleQueue[_Made] = SimpleQueue()
        position: Position | None = None
        ready = 0
        """Batches that the trainer has not taken, as far as it has said so."""
        while True:
            if message is None:
                batch, event = self._make(position)
                batches.put(batch)
                del batch  # the trainer may let go of it before the next one is made
                position, ready = None, ready + 1
                if event is Event.MADE and ready == READY:
                    event = Event.FILLED
            else:
                event = message.event
                if message.batches is not None:
                    position, batches, ready = message.position, message.batches, 0
                if event is Event.TAKEN:
                    ready -= 1
                    self._production.taken()
            if event in (Event.MADE, Event.TAKEN) and self.state is not State.WAITING:
                event = Event.PAUSED if self._production.paused else event
            self.state = TRANSITIONS[self.state, event]
            if self.state is State.STOPPED:
                return
            try:
                message = messages.get(block=self.state is not State.MAKING)
            except Empty:
                message = None

    def _make(self, position: Position | None) -> tuple[_Made, Event]:
        """The next batch; of this position, if one is given."""
        try:
            self._stage.claim_thread()
            if position is not None:
                self._production.begin(position)
            staged = self._production.make()
        except BaseException as error:  # the trainer's thread raises it
            with contextlib.suppress(FastloadError):
                self._production.cancel()
            return _Made(None, error), Event.ENDED
        if staged is None:
            return _Made(None, WorkerError("no batch is left to be waited for.")), Event.ENDED
        return _Made(staged), Event.MADE
