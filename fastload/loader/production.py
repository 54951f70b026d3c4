"""The steps that make one batch: submit it to the backend, receive it, replace samples that could
not be read, start the device stage.

They run in one thread at a time: that of a `Prefetcher`, or the trainer's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

from fastload.backends.base import Backend, EndOfData, HostBatch
from fastload.device import DeviceStage, Staged
from fastload.draws import Draws
from fastload.errors import FastloadError, OnError
from fastload.loader.substitution import Substitution
from fastload.sampler import Order, Position, Schedule
from fastload.spans import SpanLog
from fastload.stores.reads import Reads

_NOTHING = nullcontext()
_CLOSED = "the loader was closed while a batch was waited for; create a new one."


class _Submitted(NamedTuple):
    position: Position
    """Of the first of its batches."""
    draws: Draws
    """Of all of them."""
    sizes: tuple[int, ...]
    """Samples of each."""
    at: float
    """[seconds of time.perf_counter]"""


class Production:
    """Makes the batches of a schedule, in order. The backend always has as many submitted as its
    `depth` says.

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
    ) -> None:
        """`order`: that of the schedule."""
        self._backend = backend
        self._stage = stage
        self._schedule = schedule
        self._order = order
        self._read_ahead = order.read_ahead
        self._on_error = on_error
        self._at_once: Callable[[Draws], int] | None = getattr(backend, "at_once", None)
        self.most_at_once = 1
        """Batches that were made as one so far, at most."""
        self._substitution: Substitution | None = None
        """None until a sample could not be read."""
        self._submitted: deque[_Submitted] = deque()
        """In flight, the oldest first."""
        self._next: tuple[Position, Draws] | None = None
        """What was asked of the schedule, and not submitted yet."""
        self._made: deque[Staged] = deque()
        """Batches that were made with one that was handed out."""
        self._clean = True
        """Whether nothing was submitted to the backend since it was last cancelled."""
        self._spans: SpanLog | None = None
        self._reads = Reads(_CLOSED)
        """All its reads from stores, until the next `allow_reads`."""
        self._in_flight = Reads("this batch was cancelled.", self._reads)
        """The reads for batches in flight."""

    def begin(self, position: Position) -> None:
        """Make the batch at this position next; what is in flight is cancelled."""
        self.cancel()
        self._schedule.begin(position)

    def cancel(self) -> None:
        """Forget all that is in flight. `begin` must follow. May be called after any exception, at
        any step."""
        self._in_flight.end()  # else the backend would wait for reads that nobody needs
        if not self._clean:
            self._backend.cancel()
        self._submitted.clear()
        self._made.clear()
        self._next = None
        self._clean = True
        self._in_flight = Reads("this batch was cancelled.", self._reads)

    def end_reads(self) -> None:
        """Let all waits for a store end with a CancelledReadError, until `allow_reads`. May be
        called by any thread."""
        self._reads.end()

    def allow_reads(self) -> None:
        """Allow reads again after `end_reads`, when no other thread uses this."""
        self._reads = Reads(_CLOSED)
        self._in_flight = Reads("this batch was cancelled.", self._reads)

    def submit(self) -> None:
        """Ask the backend for as many batches as it wants in flight."""
        with self._in_flight.here():
            self._submit()

    def _submit(self) -> None:
        wanted = self._backend.depth
        if self._read_ahead is not None:
            # The oldest one is about to be handed out; the others are read ahead.
            wanted = min(wanted, self._read_ahead + 1)
        while len(self._submitted) < wanted and (asked := self._asked()) is not None:
            position, draws = asked
            draws, sizes = self._with_neighbours(draws)
            at = time.perf_counter()
            self._clean = False
            with self._span("submit", position):
                self._backend.submit(draws)
            self._submitted.append(_Submitted(position, draws, sizes, at))

    def _asked(self) -> tuple[Position, Draws] | None:
        asked, self._next = self._next, None
        return self._schedule.next() if asked is None else asked

    def _with_neighbours(self, draws: Draws) -> tuple[Draws, tuple[int, ...]]:
        """The draws of this batch and of those after it that are made with it, and how many samples
        each has."""
        sizes = [len(draws)]
        most = 1
        if self._at_once is not None and self._read_ahead is None and self._stage.takes_apart:
            most = self._at_once(draws)
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
        if self._made:
            return self._made.popleft()
        self._submit()
        if not self._submitted:
            if self._schedule.ended:
                raise EndOfData
            return None
        spans, (position, draws, sizes, at) = self._spans, self._submitted[0]
        with self._span("receive", position):
            host = self._backend.receive()
        if spans is not None:
            args = {"epoch": position[0], "step": position[1]}
            spans.add("batch in the backend", at, time.perf_counter(), track="backend", args=args)
        try:
            self._submitted.popleft()
        except IndexError:  # another thread has closed the loader meanwhile
            raise FastloadError(_CLOSED) from None
        if self._read_ahead is None:
            self._submit()  # before the device stage, so that the backend is never without work
        substituted = len({failure.row for failure in host.failures})
        if substituted:
            with self._span("substitute", position):
                host = self._repaired(host, draws, position)
        with self._span("device stage", position):
            staged = self._stage.run(host, draws, position[1])
        staged.substituted = substituted
        if len(sizes) > 1:
            staged, *others = staged.taken_apart(sizes)
            self._made.extend(others)
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

    def _repaired(self, host: HostBatch, draws: Draws, position: Position) -> HostBatch:
        """The batch without failures; raises them where `on_error` says so."""
        if self._substitution is None:
            self._substitution = Substitution(self._backend, self._order, self._on_error)
        epoch, step = position
        return self._substitution.repair(host, draws, self._schedule.order_of(epoch), step)
