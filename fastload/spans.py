"""A log of what took how long: stages of the loader, copies on the device, steps of a trainer.

Written from many threads, read by whoever draws a timeline (`fastload.monitor.timeline`). Without a log nothing is
recorded, and the places that would record cost one comparison.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

Args = Mapping[str, int | float | str | bool]


class Span(NamedTuple):
    """Something that lasted, on the clock of `time.perf_counter`."""

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


class DeviceEvent(Protocol):
    """What is used of a `torch.cuda.Event` with timing."""

    @property
    def device(self) -> torch.device: ...

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Any) -> float: ...


@dataclass(frozen=True)
class _Pending:
    """A span between two events that have not both happened yet."""

    name: str
    track: str
    begin: DeviceEvent
    end: DeviceEvent
    thread: str
    args: Args


class SpanLog:
    """Spans in the order of their recording, up to a limit; what comes after is counted and dropped.

    Safe to write to and to read from any thread. Recording takes a few microseconds.
    """

    def __init__(self, limit: int = 200_000) -> None:
        """
        Args:
            limit: spans kept; some 300 bytes each.
        """
        self._limit = limit
        self._spans: list[Span] = []
        self._pending: deque[_Pending] = deque()
        self._anchors: dict[int, tuple[DeviceEvent, float]] = {}
        """An event of each CUDA device, and the time of the host when it happened [seconds]."""
        self._dropped = 0
        self._lock = threading.Lock()

    @property
    def dropped(self) -> int:
        """Spans that found the log full."""
        return self._dropped

    def span(self, name: str, *, track: str = "host", args: Args | None = None) -> AbstractContextManager[None]:
        """Records the body of a `with`, also one that ends in an exception."""
        return _Open(self, name, track, args)

    def add(self, name: str, begin: float, end: float, *, track: str = "host", args: Args | None = None) -> None:
        """Record what lasted from `begin` to `end` [seconds of time.perf_counter]."""
        done = Span(name, track, begin, end, threading.current_thread().name, args or {})
        with self._lock:
            if self._has_room():
                self._spans.append(done)

    def device_span(
        self, name: str, begin: DeviceEvent, end: DeviceEvent, *, track: str = "copy", args: Args | None = None
    ) -> None:
        """Record what a device does between two events, both recorded already, with timing; nothing is waited for."""
        pending = _Pending(name, track, begin, end, threading.current_thread().name, args or {})
        with self._lock:
            self._anchor_of(begin.device)
            if self._has_room():
                self._pending.append(pending)
            while self._pending and self._pending[0].end.query():
                self._resolve(self._pending.popleft())

    def anchor(self, device: torch.device) -> None:
        """Tie the clock of a CUDA device to that of the host, if that is not done yet: before its first event."""
        with self._lock:
            self._anchor_of(device)

    def clear(self) -> None:
        """Forget all spans, and how many were dropped."""
        with self._lock:
            self._spans.clear()
            self._pending.clear()
            self._dropped = 0

    def __len__(self) -> int:
        with self._lock:
            return len(self._spans) + len(self._pending)

    def __iter__(self) -> Iterator[Span]:
        """All spans so far; waits for the device where it still works on some."""
        with self._lock:
            while self._pending:
                self._pending[0].end.synchronize()
                self._resolve(self._pending.popleft())
            found = list(self._spans)
        return iter(found)

    def _has_room(self) -> bool:
        if len(self._spans) + len(self._pending) < self._limit:
            return True
        self._dropped += 1
        return False

    def _resolve(self, pending: _Pending) -> None:
        anchor, zero = self._anchors[_index(pending.begin.device)]
        begin = zero + anchor.elapsed_time(pending.begin) / 1000
        # Not from the anchor again: CUDA gives times as float32, which after an hour is good to 0.25 ms only.
        end = begin + pending.begin.elapsed_time(pending.end) / 1000
        self._spans.append(Span(pending.name, pending.track, begin, end, pending.thread, pending.args))

    def _anchor_of(self, device: torch.device) -> None:
        index = _index(device)
        if index not in self._anchors:
            self._anchors[index] = _anchor(index)


class _Open:
    """A span whose end has not come yet. (A generator would cost twice the time.)"""

    __slots__ = ("_args", "_begin", "_log", "_name", "_track")

    def __init__(self, log: SpanLog, name: str, track: str, args: Args | None) -> None:
        self._log, self._name, self._track, self._args = log, name, track, args

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        self._log.add(self._name, self._begin, time.perf_counter(), track=self._track, args=self._args)


_NOTHING = nullcontext()


def span(log: SpanLog | None, name: str, track: str, position: tuple[int, int]) -> AbstractContextManager[None]:
    """`log.span` for the batch at (epoch, step), or a context that does nothing where there is no log."""
    if log is None:
        return _NOTHING
    return log.span(name, track=track, args={"epoch": position[0], "step": position[1]})


def _index(device: torch.device) -> int:
    index: int | None = device.index
    if index is None:
        import torch

        index = torch.cuda.current_device()
    return index


def _anchor(device: int) -> tuple[DeviceEvent, float]:
    import torch

    # On a stream of its own, where it happens at once: the work queued on others is not waited for.
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.Stream(device))
    event.synchronize()
    return event, time.perf_counter()
