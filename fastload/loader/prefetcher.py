"""A thread that makes batches ahead of the trainer.

The thread and the trainer share nothing but two queues: messages go to the thread, batches come
back. Only the thread knows its state, and only the trainer knows which batch it waits for. So an
exception at any line of the trainer's thread, such as KeyboardInterrupt, leaves nothing half done:
the trainer starts again from the position that it wants.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from enum import Enum, auto
from queue import Empty, SimpleQueue
from typing import NamedTuple

from fastload.backends.base import KILLED_WORKER
from fastload.device import DeviceStage, Staged
from fastload.ending import end_thread
from fastload.errors import FastloadError, WorkerError
from fastload.loader.production import Production
from fastload.machine import use_one_thread_here
from fastload.sampler import Position

# Finished batches kept for the trainer: one it is about to take, one being finished.
READY = 2
# Seconds that `stop` waits for the batch that is being made.
_PATIENCE = 10.0
# Seconds that `end` waits for a thread whose backend was closed.
_FREED = 1.0


class State(Enum):
    """What the thread does."""

    WAITING = auto()
    """It waits for a position to start from."""
    MAKING = auto()
    """It makes a batch, and reads its messages between two batches."""
    FULL = auto()
    """READY batches are finished; it waits for the trainer to take one."""
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
    made: SimpleQueue[_Made] | None = None
    """Of START: where the batches are put. Each start has a queue of its own, so that no batch of
    an earlier one is ever taken for one of this."""


_TAKEN = _Message(Event.TAKEN)


class Prefetcher:
    """Keeps READY batches finished ahead of the trainer.

    The states of its thread:

    | state   | START  | TAKEN   | STOP    | MADE   | FILLED | ENDED   |
    |---------|--------|---------|---------|--------|--------|---------|
    | WAITING | MAKING | WAITING | STOPPED |        |        |         |
    | MAKING  | MAKING | MAKING  | STOPPED | MAKING | FULL   | WAITING |
    | FULL    | MAKING | MAKING  | STOPPED |        |        |         |
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
        self._made: SimpleQueue[_Made] = SimpleQueue()
        self._thread: threading.Thread | None = None

    # -- called by the trainer

    def begin(self, position: Position | None) -> None:
        """Make the batch at this position next; None: the one that the production has started with.
        Starts the thread."""
        if self._thread is None:
            self._start()
        self._made = SimpleQueue()
        self._messages.put(_Message(Event.START, position, self._made))

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
        made = self._received()
        self._messages.put(_TAKEN)
        if made.error is not None:
            raise made.error
        assert made.staged is not None
        return made.staged

    def stop(self) -> None:
        """Have the thread end after the batch that it makes, and wait for some seconds. May be
        called again."""
        self.stopping = True
        self._messages.put(_Message(Event.STOP))
        closed = FastloadError(
            "the loader was closed while a batch was waited for; create a new one."
        )
        self._made.put(_Made(None, closed))  # for another thread, which may be waiting in `next`
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
                return self._made.get(timeout=_PATIENCE)
            except Empty:
                if self._thread.is_alive() or not self._made.empty():
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
        made: SimpleQueue[_Made] = SimpleQueue()
        position: Position | None = None
        ready = 0
        """Batches that the trainer has not taken, as far as it has said so."""
        while True:
            if message is None:
                batch, event = self._make(position)
                made.put(batch)
                del batch  # the trainer may let go of it before the next one is made
                position, ready = None, ready + 1
                if event is Event.MADE and ready == READY:
                    event = Event.FILLED
            else:
                event = message.event
                if message.made is not None:
                    position, made, ready = message.position, message.made, 0
                if event is Event.TAKEN:
                    ready -= 1
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
