"""A log of what took how long: stages of the loader, copies on the device, steps of a trainer.

Written from many threads; `fastload.tools.monitor.timeline` draws it.
Without a log nothing is recorded, and the places that would record cost one comparison.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

Args = Mapping[str, int | float | str | bool]


class Span(NamedTuple):
    """One step: when it began and ended, on the clock of `time.perf_counter`."""

    name: str
    track: str
    """The row of a timeline that it belongs to: "loader", "backend", "copy", "trainer" ..."""
    begin: float
    """[seconds]"""
    end: float
    """[seconds]"""
    thread: str
    """Name of the thread that recorded it."""
    args: Args
    """What else is known: epoch, step ..."""


class SpanLog:
    """Spans in the order of their recording, up to a limit (some 300 bytes each); what comes after
    is counted and dropped.

    Safe to write to and to read from any thread. Recording takes a few microseconds.
    """

    def __init__(self, limit: int = 200_000) -> None:
        self._limit = limit
        self._spans: list[Span] = []
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event, Span]] = deque()
        """Spans between two events that have not both happened yet; their times are to be found."""
        self._anchors: dict[int, tuple[torch.cuda.Event, float]] = {}
        """An event of each CUDA device, and the time of the host when it happened [seconds]."""
        self.dropped = 0
        """Spans that found the log full."""
        self._lock = threading.Lock()

    @contextmanager
    def span(self, name: str, *, track: str = "host", args: Args | None = None) -> Iterator[None]:
        """Records the body of a `with`, also one that ends in an exception."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, begin, time.perf_counter(), track=track, args=args)

    def add(
        self, name: str, begin: float, end: float, *, track: str = "host", args: Args | None = None
    ) -> None:
        """Record a step from `begin` to `end` [seconds of time.perf_counter]."""
        done = Span(name, track, begin, end, threading.current_thread().name, args or {})
        with self._lock:
            if self._has_space():
                self._spans.append(done)

    def device_span(
        self,
        name: str,
        begin: torch.cuda.Event,
        end: torch.cuda.Event,
        *,
        args: Args | None = None,
    ) -> None:
        """Record what a device does between two events, both recorded already, with timing; nothing
        is waited for."""
        span = Span(name, "copy", 0.0, 0.0, threading.current_thread().name, args or {})
        with self._lock:
            self._anchor(begin.device)
            if self._has_space():
                self._pending.append((begin, end, span))
            while self._pending and self._pending[0][1].query():
                self._settle()

    def anchor(self, device: torch.device) -> None:
        """Tie the clock of a CUDA device to that of the host, if that is not done yet: before its
        first event."""
        with self._lock:
            self._anchor(device)

    def __len__(self) -> int:
        with self._lock:
            return len(self._spans) + len(self._pending)

    def __iter__(self) -> Iterator[Span]:
        """All spans so far; waits for the device where it still works on some."""
        with self._lock:
            while self._pending:
                self._pending[0][1].synchronize()
                self._settle()
            return iter(list(self._spans))

    def _has_space(self) -> bool:
        if len(self._spans) + len(self._pending) < self._limit:
            return True
        self.dropped += 1
        return False

    def _settle(self) -> None:
        """The first of the pending spans, whose events have happened."""
        first, last, span = self._pending.popleft()
        anchor, zero = self._anchor(first.device)
        begin = zero + anchor.elapsed_time(first) / 1000
        # Not from the anchor again: CUDA gives times as float32, which after an hour is good to
        # 0.25 ms only.
        self._spans.append(span._replace(begin=begin, end=begin + first.elapsed_time(last) / 1000))

    def _anchor(self, device: torch.device) -> tuple[torch.cuda.Event, float]:
        import torch

        index = torch.cuda.current_device() if device.index is None else device.index
        if index not in self._anchors:
            # On a stream of its own, where it happens at once: the work queued on others is not
            # waited for.
            event = torch.cuda.Event(enable_timing=True, blocking=True)
            event.record(torch.cuda.Stream(index))
            event.synchronize()
            self._anchors[index] = event, time.perf_counter()
        return self._anchors[index]
