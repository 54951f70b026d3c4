"""The batches of a Loader, by position."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastload.backends.base import Backend
from fastload.device import DeviceStage, Staged
from fastload.errors import FastloadError, OnError
from fastload.loader.production import READY, OnDemand, Prefetcher, Production
from fastload.sampler import Order, Position, Schedule
from fastload.spans import SpanLog

if TYPE_CHECKING:
    from fastload.loader.compared import ComparedBackend
    from fastload.loader.remote import Remote
    from fastload.loader.together import ReadTogether


class Feed:
    """Gives the batch at any position. Consecutive batches come without a pause, also from one
    epoch to the next.

    Nothing starts before the first call of `batch`. That call starts the first ones in the
    trainer's thread, because workers may be forked then, and no other thread of ours may hold a
    lock at a fork. After any exception, at any line, the next call starts again from the position
    that it is given.
    """

    def __init__(
        self,
        backend: Backend,
        stage: DeviceStage,
        order: Order,
        on_error: OnError = "raise",
        *,
        ahead: bool = True,
        last_epoch: int | None = None,
        together: ReadTogether | None = None,
        remote: Remote | None = None,
        compared: ComparedBackend | None = None,
        survives_fork: bool = True,
    ) -> None:
        """`ahead`: whether batches are made before their epoch begins; not where its data may
        change until then. `last_epoch`: those of later ones are not, where it is given.
        `together`, `remote`: see `Production`. `compared`: the backend, if it asks the user's code
        at the start of each epoch. `survives_fork`: whether a forked process may read the
        source."""
        self._compared = compared
        self._order = order
        self._backend = backend
        self._stage = stage
        self._schedule = Schedule(order, ahead=ahead and compared is None, last_epoch=last_epoch)
        self._production = Production(
            backend, stage, self._schedule, order, on_error, together, remote
        )
        self._maker: OnDemand | Prefetcher | None = None
        """None: nothing has been started."""
        self._expected: Position | None = None
        """The position whose batch comes next without a new start; None: the next call is a new
        start."""
        self._closed = False
        self._survives_fork = survives_fork
        self._pid = os.getpid()
        """Of the process that it belongs to: that which made it, until a forked one starts it."""
        self._untouched = True
        """Whether nothing was ever started, so that a fork has taken nothing away."""

    def batch(self, position: Position) -> Staged:
        """The batch at this position. Raises what went wrong with it."""
        self.start(position)
        assert self._maker is not None
        self._expected = None
        staged = self._maker.next()
        self._expected = self._schedule.after(position)
        return staged

    def start(self, position: Position) -> None:
        """Ask for the batch at this position, if it was not asked for: it is made while the caller
        does something else. Raises what the user's code raises that is called for it."""
        if self._closed:
            raise FastloadError("the loader is closed; create a new one.")
        if os.getpid() != self._pid:
            self._move_here()
        self._untouched = False
        if self._compared is not None:
            self._compared.raise_difference()
        expected, self._expected = self._expected, None
        if position[1] == 0 and self._order.outdated(position[0]):
            expected = None  # what was made of it ahead is of the order that it had
        if self._maker is not None and self._maker.stopping:
            self._stop()  # The last stop was interrupted.
        if self._maker is None:
            self._ask_users_code(position)
            self._maker = self._started(position)
            self._maker.begin(None)
        elif position != expected:
            self._ask_users_code(position)
            self._maker.begin(position)
        self._expected = position

    def forget(self) -> None:
        """The order gives other samples from now on: what was made ahead is dropped when the next
        batch is asked for, and made again."""
        self._expected = None
        self._schedule.forget()

    def _move_here(self) -> None:
        """This process was forked: it begins with what nobody has started. Raises FastloadError:
        threads or workers are the parent's."""
        if self._untouched and self._survives_fork:
            self._pid = os.getpid()
            return
        why = "the loader was started in another process"
        if self._untouched:
            why = (
                "the loader was made in another process, and its data are read by threads of a "
                "store's client, which a forked process does not have"
            )
        raise FastloadError(f"{why}; create one after the fork.")

    def end_epoch(self, epoch: int) -> None:
        """All batches of an epoch were handed out. Raises what is wrong with one of them."""
        if self._compared is not None:
            self._compared.end_epoch()
        self._order.end_epoch(epoch)

    def _ask_users_code(self, position: Position) -> None:
        """Call the user's code, in the trainer's thread, for what the batches from here on need:
        their order from a sampler, their labels from a data set."""
        self._schedule.ask_sampler(position)
        if self._compared is not None:
            self._ask_for_labels(self._compared, *position)

    def _ask_for_labels(self, compared: ComparedBackend, epoch: int, step: int) -> None:
        if self._order.endless or self._order.read_ahead is not None:
            compared.begin_epoch(epoch, np.arange(self._order.length), 0)
            return
        indices = self._schedule.order_of(epoch)
        steps = range(self._order.steps_in(epoch))
        rows = [self._order.rows(epoch, n, indices) for n in steps]
        first = rows[step] if len(rows[step]) else rows[0]
        if len(first):
            own = indices[np.concatenate(rows)]
            compared.begin_epoch(epoch, own, int(indices[first[0]]))

    def order_of(self, epoch: int) -> npt.NDArray[np.int64]:
        """The (global) order of an epoch, kept for the epochs under way."""
        return self._schedule.order_of(epoch)

    @property
    def in_flight(self) -> int:
        """How many batches may be under way or finished ahead of the trainer."""
        return self._production.most_at_once * (self._backend.depth + 1) - 1 + READY

    def record(self, spans: SpanLog | None) -> None:
        """Write to a log, from the next step on, what each batch spends its time on; None: no
        longer."""
        self._production.record(spans)

    def rest(self) -> None:
        """Stop the thread and the backend; the next `batch` starts them again."""
        if not self._closed and os.getpid() == self._pid:
            self._stop()

    def close(self) -> None:
        """Stop the thread and the backend. A second call does nothing; in a forked child nothing is
        touched."""
        if not self._closed and os.getpid() == self._pid:
            self._closed = True
            self._stop()
            self._stage.close()

    def _started(self, position: Position) -> OnDemand | Prefetcher:
        """Starts the first batches, and chooses what makes them."""
        try:
            self._production.begin(position)
            self._production.start()
            return (
                OnDemand(self._production)
                if self._on_demand
                else Prefetcher(self._production, self._stage)
            )
        except BaseException:
            with contextlib.suppress(FastloadError):
                self._production.cancel()
            raise

    @property
    def _on_demand(self) -> bool:
        """Whether a thread would gain nothing: the backend works in its caller's thread, or making
        a batch takes less time than handing it from thread to thread. Known after the first
        `start`."""
        backend = self._backend
        if self._order.endless or self._order.read_ahead is not None:
            # the user's sampler, or torch's DataLoader, is read in the trainer's thread
            return True
        return not backend.background or (getattr(backend, "light", False) and self._stage.light)

    def _stop(self) -> None:
        maker = self._maker
        self._expected = None
        self._production.end_reads()
        with _ignoring_ended_workers():
            if maker is not None:
                maker.stop()
            # If the thread waits for the user's code in another process or thread, closing the
            # backend is what frees it.
            self._backend.close()
            if maker is not None:
                maker.end()
        self._production.cancel()
        self._production.allow_reads()
        self._maker = None


@contextlib.contextmanager
def _ignoring_ended_workers() -> Iterator[None]:
    """While workers are being ended, the end of one of them is no error. torch's handler of SIGCHLD
    would raise it in the main thread, at any line. The handler that was set before is still called,
    and is set again afterwards."""
    before: Any = hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def ignoring(number: int, frame: Any) -> None:
        with contextlib.suppress(RuntimeError):
            before(number, frame)

    signal.signal(signal.SIGCHLD, ignoring)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGCHLD) is ignoring:
            signal.signal(signal.SIGCHLD, before)
