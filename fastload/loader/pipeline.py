"""The machine between a backend and the Loader: keeps batches coming, in order, across epoch ends.

One thread asks the backend for batches ahead of the trainer, has what could not be read substituted, and starts the
device stage; the trainer takes finished batches from a short queue. Backends that must work in the caller's thread are
driven from there, by the same steps.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastload.backends.base import KILLED_WORKER, Backend, HostBatch
from fastload.device import DeviceStage, Staged, use_one_thread_here
from fastload.draws import Draws, Stream
from fastload.errors import DecodeError, FastloadError, OnError, SampleError, WorkerError
from fastload.loader.cursor import Position
from fastload.sampler import Order
from fastload.spans import SpanLog, span

logger = logging.getLogger("fastload")

READY = 2
"""Finished batches kept for the trainer: one it is about to take, one being finished."""
_AWAY = 0.0003
"""Seconds after which a trainer is at work, and does not just want the next batch."""
_PATIENCE = 10.0
"""Seconds that `close` waits for the batch under way."""

_TRIES = 32
"""Replacements tried for a sample that cannot be read."""


class _Submitted(NamedTuple):
    position: Position
    draws: Draws
    at: float
    """[seconds of time.perf_counter]"""


class _Item(NamedTuple):
    position: Position | None
    staged: Staged | None = None
    error: BaseException | None = None


@contextlib.contextmanager
def _calm_about_children() -> Iterator[None]:
    """While workers are ended nobody wants to hear that one has died: torch's handler of SIGCHLD raises that in the
    main thread, wherever it is. Whoever handled the signal before goes on doing so."""
    before: Any = signal.getsignal(signal.SIGCHLD)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def calm(number: int, frame: Any) -> None:
        with contextlib.suppress(RuntimeError):
            before(number, frame)

    signal.signal(signal.SIGCHLD, calm)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGCHLD) is calm:
            signal.signal(signal.SIGCHLD, before)


class Pipeline:
    """Produces the batches of consecutive positions, endlessly where the order allows, from wherever it is put."""

    def __init__(
        self, backend: Backend, stage: DeviceStage, order: Order, on_error: OnError = "raise", *, ahead: bool = True
    ) -> None:
        """`ahead`: whether batches are made before their epoch begins; not where its data may change until then."""
        self._backend = backend
        self._stage = stage
        self._order = order
        self._ahead = order.ahead and ahead
        self._substitution = Substitution(backend, order, on_error)
        self._orders: dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]] = {}
        self._spans: SpanLog | None = None

        self._expected: Position | None = None
        """Position of the next batch that `next` will hand out."""
        self._last_epoch: int | None = None
        """Where the tickets end: orders that may only be drawn when their epoch starts. None: never."""
        self._tickets: Iterator[tuple[Position, Draws]] = iter(())
        self._exhausted = True
        self._submitted: deque[_Submitted] = deque()

        self._ready: deque[_Item] = deque()
        self._change = threading.Condition()
        self._restart: Position | None = None
        self._generation = 0
        """Counts the seeks: a batch of an earlier generation is thrown away."""
        self._obeyed = 0
        """The generation that is produced: a seek may be obeyed as soon as it is made."""
        self._little_work = False
        """Whether a batch is made sooner than it is handed from thread to thread; known once one is."""
        self._producer: int | None = None
        """The thread that is at it, ours or the trainer's."""
        self._lacked = -math.inf
        """When the trainer last found no batch ready, where it may make them itself [seconds]."""
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    # -- called by the Loader, in the trainer's thread

    def seek(self, position: Position) -> None:
        """Make `position` the next batch; free of cost if it is next anyway."""
        epoch, step = position
        if not self._order.ahead:
            # The user's sampler may look at anything: ask it now, in the user's thread, and not ahead of time.
            moved = self._expected != position or self._last_epoch != epoch
            if moved and (step == 0 or epoch not in self._orders):  # else a loaded state has asked already
                self._orders = {epoch: self._draw_order(epoch)}
        last_epoch = None if self._ahead else epoch
        if self._expected == position and self._last_epoch == last_epoch:  # which only this thread changes
            return
        with self._change:
            self._expected = position
            self._last_epoch = last_epoch
            self._restart = position
            self._generation += 1
            self._ready.clear()
            self._change.notify_all()

    def next(self) -> Staged:
        """The batch at the expected position. Raises what went wrong with it, and then stands still until a seek."""
        if self._stopping:
            raise FastloadError("the loader is closed; create a new one.")
        if os.getpid() != self._pid:
            raise FastloadError("the loader was started in another process; create one after the fork.")
        if self._backend.background:
            item = self._take()
        else:
            item = self._produce() or _Item(None, error=WorkerError("the backend produced no batch."))
        if item.error is not None:
            self._expected = None
            raise item.error
        assert item.staged is not None
        assert item.position is not None
        assert item.position == self._expected
        self._expected = self._after(item.position)
        return item.staged

    def order_of(self, epoch: int) -> npt.NDArray[np.int64]:
        """The (global) order of an epoch, kept for the epochs under way."""
        return self._order_and_repeats(epoch)[0]

    @property
    def substituted(self) -> int:
        """Samples replaced so far because they could not be read, those prefetched included."""
        return self._substitution.count

    def record(self, spans: SpanLog | None) -> None:
        """Write to a log, from the next stage on, what each batch spends its time on; None: no longer."""
        self._spans = spans
        self._stage.record(spans)

    def rest(self) -> None:
        """Stop the thread and the backend, to be started anew by the next `next`, after a seek."""
        if self._stopping or os.getpid() != self._pid:
            return
        self._stop()
        self._thread, self._stopping = None, False
        self._expected, self._exhausted = None, True
        self._tickets = iter(())
        self._submitted.clear()

    def close(self) -> None:
        """Stop the thread and the backend. A second call does nothing; in a forked child nothing is touched."""
        if self._stopping or os.getpid() != self._pid:
            return
        self._stop()
        self._stage.close()

    @_calm_about_children()
    def _stop(self) -> None:
        with self._change:
            self._stopping = True
            self._ready.clear()
            self._change.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE)
        # If the thread is stuck in user code, closing the backend under it is what frees it.
        self._backend.close()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE)

    # -- the steps, in the pipeline's thread or, without one, in the trainer's

    def _take(self) -> _Item:
        if self._thread is None:
            # The first submit may fork workers: better here, while the trainer's thread is known to wait, than later
            # in ours, while the trainer's may hold any lock.
            self._stage.prepare()
            self._obey_seek()
            self._top_up()
            self._little_work = getattr(self._backend, "light", False) and self._stage.stays_on_host
            self._thread = threading.Thread(target=self._run, name="fastload-pipeline", daemon=True)
            self._thread.start()
        mine = False
        try:
            while True:
                with self._change:
                    if self._ready:
                        item = self._ready.popleft()
                        if not mine:  # our thread sleeps until it is told only where it had made enough
                            self._change.notify_all()
                        break
                    if self._stopping:
                        raise FastloadError("the loader was closed while a batch was waited for; create a new one.")
                    light = self._light()
                    if light:
                        self._lacked = time.perf_counter()
                    # It is this very thread if a signal's handler has raised in the middle of it.
                    if not light or self._producer not in (None, threading.get_ident()):
                        if not self._change.wait(_PATIENCE) and not self._thread.is_alive():
                            raise WorkerError("the loader's own thread has ended without a batch or an error.")
                        continue
                    generation = self._begin()
                self._end(self._produce(), generation)
                mine = True
        except RuntimeError as error:
            # torch's handler of SIGCHLD raises in the main thread, wherever it is, when a worker dies.
            self._expected = None
            raise WorkerError(f"{error} {KILLED_WORKER}") from error
        return item

    def _run(self) -> None:
        use_one_thread_here()
        while True:
            with self._change:
                while not self._stopping and not self._wanted():
                    # The trainer, where it makes batches itself, does not wake this thread for each.
                    self._change.wait(_AWAY if self._light() and len(self._ready) < READY else None)
                if self._stopping:
                    return
                generation = self._begin()
            self._end(self._produce(), generation)

    def _begin(self) -> int:
        self._producer = threading.get_ident()
        return self._generation

    def _end(self, item: _Item | None, generation: int) -> None:
        with self._change:
            self._producer = None
            if item is not None and self._generation == max(generation, self._obeyed) and not self._stopping:
                self._ready.append(item)
                if not self._little_work or threading.current_thread() is self._thread:
                    self._change.notify_all()

    def _wanted(self) -> bool:
        """Whether this thread is to produce."""
        if self._producer is not None or (self._light() and time.perf_counter() - self._lacked < _AWAY):
            return False
        return self._restart is not None or (len(self._ready) < READY and not self._blocked())

    def _light(self) -> bool:
        """Whether a batch takes less than to hand it from thread to thread. A trainer that comes for the next one at
        once then makes it itself; one that stays away finds it made by this thread."""
        return self._little_work and (self._restart is not None or not self._blocked())

    def _blocked(self) -> bool:
        """Whether there is nothing to do: an error waits to be taken, or the tickets have come to their end."""
        return not self._submitted and self._exhausted

    def _produce(self) -> _Item | None:
        """One step: top up, receive the oldest, finish it. None when there is nothing to produce."""
        taken: Position | None = None
        try:
            if self._backend.background:  # then this is our own thread
                self._stage.claim_thread()
            self._obey_seek()
            self._top_up()
            if not self._submitted:
                return None
            spans, submitted = self._spans, self._submitted[0]
            position, draws = submitted.position, submitted.draws
            with span(spans, "receive", "loader", position):
                host = self._backend.receive()
            if spans is not None:
                args = {"epoch": position[0], "step": position[1]}
                spans.add("batch in the backend", submitted.at, time.perf_counter(), track="backend", args=args)
            taken = self._submitted.popleft().position
            self._top_up()
            if host.failures:
                with span(spans, "substitute", "loader", position):
                    host = self._substitution.repair(host, draws, self.order_of(position[0]))
            with span(spans, "device stage", "loader", position):
                return _Item(position, self._stage.run(host, draws, position[1]))
        except BaseException as error:  # handed to the trainer's thread, which raises it
            with contextlib.suppress(FastloadError):
                self._backend.cancel()
            self._submitted.clear()
            self._tickets, self._exhausted = iter(()), True
            return _Item(taken, error=error)

    def _obey_seek(self) -> None:
        with self._change:
            restart, self._restart = self._restart, None
            self._obeyed = self._generation
        if restart is None:
            return
        if self._submitted:
            self._submitted.clear()
            self._backend.cancel()
        self._tickets, self._exhausted = self._tickets_from(restart), False

    def _top_up(self) -> None:
        while len(self._submitted) < self._backend.depth and not self._exhausted:
            ticket = next(self._tickets, None)
            if ticket is None:
                self._exhausted = True
                return
            position, draws = ticket
            begun = time.perf_counter()
            with span(self._spans, "submit", "loader", position):
                self._backend.submit(draws)
            self._submitted.append(_Submitted(position, draws, begun))

    def _tickets_from(self, position: Position) -> Iterator[tuple[Position, Draws]]:
        epoch, step = position
        while self._last_epoch is None or epoch <= self._last_epoch:
            order, repeats = self._order_and_repeats(epoch)
            while step < self._order.steps:
                yield (epoch, step), self._order.draws(epoch, step, order, repeats)
                step += 1
            epoch, step = epoch + 1, 0

    def _after(self, position: Position) -> Position:
        epoch, step = position
        return (epoch, step + 1) if step + 1 < self._order.steps else (epoch + 1, 0)

    def _order_and_repeats(self, epoch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
        found = self._orders.get(epoch)
        if found is None:
            found = self._draw_order(epoch)
            # The epoch before is kept: substitution still looks into it while the next one is being submitted.
            self._orders = {e: o for e, o in self._orders.items() if e == epoch - 1} | {epoch: found}
        return found

    def _draw_order(self, epoch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
        order = self._order.epoch(epoch)
        return order, self._order.repeats(order)


class Substitution:
    """Raises what went wrong with a batch or repairs it, as `on_error` says; remembers what it has reported."""

    def __init__(self, backend: Backend, order: Order, on_error: OnError) -> None:
        self.count = 0
        """Samples replaced so far."""
        self._backend, self._order, self._on_error = backend, order, on_error
        self._reported: set[int] = set()

    def repair(self, host: HostBatch, draws: Draws, epoch_order: npt.NDArray[np.int64]) -> HostBatch:
        """The batch without failures; it may be written to. Replacements are of the (global) order of the epoch.

        Raises DecodeError: the first failure (with on_error="raise"), or a sample that nothing can replace; or what the
        user's own code raised: if that code is wrong, with on_error="substitute" too.
        """
        wrong = [f.error for f in host.failures if isinstance(f.error, SampleError) and f.error.of_code]
        if wrong:
            raise wrong[0].as_raised()
        if self._on_error == "raise":
            first, others = host.failures[0].error, len(host.failures) - 1
            if isinstance(first, SampleError):
                raise first.as_raised()
            if others and isinstance(first, DecodeError):
                raise DecodeError(f"{first} ({others} more of the same batch could not be read.)") from first
            raise first
        indices, repeats = draws.indices.copy(), None if draws.repeats is None else draws.repeats.copy()
        replacements: dict[int, HostBatch] = {}
        for row, error in ((failure.row, failure.error) for failure in host.failures):
            if (index := int(indices[row])) not in self._reported:
                self._reported.add(index)
                logger.warning("%s (Replaced by another sample, as on_error='substitute' asks.)", error)
            indices[row], replacements[row] = self._replacement_for(error, draws, row, epoch_order)
            if repeats is not None:
                repeats[row] = 0
            self.count += 1
        if not host.columns:  # a collated batch, or one of which nothing could be read
            return self._backend.reread(Draws(draws.seed, draws.epoch, indices, repeats))
        for failure in host.failures:
            for name, rows in replacements[failure.row].columns.items():
                target = host.columns[name]
                if tuple(target.shape[1:]) != tuple(rows.shape[1:]):
                    raise DecodeError(
                        f"{failure.error} It cannot be substituted either: its replacement has the shape "
                        f"{tuple(rows.shape[1:])}, the batch {tuple(target.shape[1:])}. Add a Resize or a crop."
                    )
                if isinstance(target, torch.Tensor):
                    target[failure.row] = torch.as_tensor(rows[0])
                else:
                    target[failure.row] = np.asarray(rows[0])
        return host

    def _replacement_for(
        self, error: Exception, draws: Draws, row: int, epoch_order: npt.NDArray[np.int64]
    ) -> tuple[int, HostBatch]:
        """Index and batch of one: a sample of this rank's part of the epoch that can be read.

        Chosen by (seed, epoch, index of the bad sample) alone, so every run finds the same.
        """
        lottery = draws.take(slice(row, row + 1)).uniform(Stream.SUBSTITUTE, 2 * _TRIES)[0]
        for attempt in range(_TRIES):
            rows = self._order.batch(int(lottery[2 * attempt] * self._order.steps))
            if not len(rows):
                continue
            index = epoch_order[rows[int(lottery[2 * attempt + 1] * len(rows))]]
            batch = self._backend.reread(Draws(draws.seed, draws.epoch, np.array([index], dtype=np.int64)))
            if not batch.failures:
                return int(index), batch
        raise DecodeError(
            f"{error} No replacement for it could be read either, in {_TRIES} tries: is most of the data set damaged? "
            "`on_error='raise'` names the first bad file."
        ) from error
