"""The steps that make one batch: submit it to the backend, receive it, replace samples that could
not be read, start the device stage.

They run in one thread at a time: that of a `Prefetcher`, or the trainer's.
"""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from fastload.backends.base import Backend, EndOfData
from fastload.device import DeviceStage, Staged
from fastload.draws import Draws
from fastload.errors import FastloadError
from fastload.loader.cursor import Position
from fastload.loader.schedule import Schedule
from fastload.loader.substitution import Substitution
from fastload.spans import SpanLog, span


class _Submitted(NamedTuple):
    position: Position
    draws: Draws
    at: float
    """[seconds of time.perf_counter]"""


class Production:
    """Makes the batches of a schedule, in order. The backend always has as many submitted as its
    `depth` says."""

    def __init__(
        self,
        backend: Backend,
        stage: DeviceStage,
        schedule: Schedule,
        substitution: Substitution,
        *,
        read_ahead: int | None = None,
    ) -> None:
        """`read_ahead`: see `Order`."""
        self._read_ahead = read_ahead
        self._backend = backend
        self._stage = stage
        self._schedule = schedule
        self._substitution = substitution
        self._submitted: deque[_Submitted] = deque()
        """In flight, the oldest first."""
        self._clean = True
        """Whether the backend has been asked for nothing since it was last cancelled."""
        self._spans: SpanLog | None = None

    def begin(self, position: Position) -> None:
        """Make the batch at this position next; what is in flight is cancelled."""
        self.cancel()
        self._schedule.begin(position)

    def cancel(self) -> None:
        """Forget all that is in flight. `begin` must follow. May be called after any exception, at
        any step."""
        if not self._clean:
            self._backend.cancel()
        self._submitted.clear()
        self._clean = True

    def submit(self) -> None:
        """Ask the backend for as many batches as it wants in flight."""
        wanted = self._backend.depth
        if self._read_ahead is not None:
            # The oldest one is about to be handed out; the others are read ahead.
            wanted = min(wanted, self._read_ahead + 1)
        while len(self._submitted) < wanted and (asked := self._schedule.next()) is not None:
            position, draws = asked
            at = time.perf_counter()
            self._clean = False
            with span(self._spans, "submit", "loader", position):
                self._backend.submit(draws)
            self._submitted.append(_Submitted(position, draws, at))

    def make(self) -> Staged | None:
        """The next batch; None if the schedule has no more. After an exception `cancel` must
        follow.

        Raises:
            EndOfData: the user's sampler has no more.
            Exception: what went wrong with the batch.
        """
        self.submit()
        if not self._submitted:
            if self._schedule.ended:
                raise EndOfData
            return None
        spans, (position, draws, at) = self._spans, self._submitted[0]
        with span(spans, "receive", "loader", position):
            host = self._backend.receive()
        if spans is not None:
            args = {"epoch": position[0], "step": position[1]}
            spans.add("batch in the backend", at, time.perf_counter(), track="backend", args=args)
        try:
            self._submitted.popleft()
        except IndexError:  # another thread has closed the loader meanwhile
            raise FastloadError(
                "the loader was closed while a batch was waited for; create a new one."
            ) from None
        if self._read_ahead is None:
            self.submit()  # before the device stage, so that the backend is never without work
        if host.failures:
            with span(spans, "substitute", "loader", position):
                indices = self._schedule.order_of(position[0])
                host = self._substitution.repair(host, draws, indices, position[1])
        with span(spans, "device stage", "loader", position):
            return self._stage.run(host, draws, position[1])

    def record(self, spans: SpanLog | None) -> None:
        """Write to a log, from the next step on, what each batch spends its time on; None: no
        longer."""
        self._spans = spans
        self._stage.record(spans)
