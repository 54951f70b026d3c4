"""Points in time on a device's own timeline: taken at once, known later."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from fastload.monitor.idle import Mark, Phase

__all__ = ["CudaStamps", "HostStamps", "Stamp", "Stamps"]


class Stamp(NamedTuple):
    """One point in time. (A tuple: steps of microseconds are to be measured without being slowed down.)"""

    phase: Phase | None
    """What begins there; None: nothing, the step ends."""
    host: float
    """time.perf_counter [seconds]"""
    event: Any = None
    """Happens on the device when the work queued before it is done."""
    anchor: tuple[Any, float] | None = None
    """An event that waits for no work, and the host's time of it."""


class Stamps(Protocol):
    """Takes stamps, and turns them into marks when the device has come so far."""

    def take(self, phase: Phase | None) -> Stamp: ...

    def passed(self, stamp: Stamp) -> bool:
        """Whether the device has come so far."""
        ...

    def wait(self, stamp: Stamp) -> None:
        """Until the device has come so far."""
        ...

    def marks(self, stamps: Sequence[Stamp]) -> list[Mark]:
        """All of them passed; to be called in the order in which they were taken."""
        ...


class HostStamps:
    """For work that is done when the call returns."""

    def take(self, phase: Phase | None) -> Stamp:
        return Stamp(phase, time.perf_counter())

    def passed(self, stamp: Stamp) -> bool:
        return True

    def wait(self, stamp: Stamp) -> None:
        pass

    def marks(self, stamps: Sequence[Stamp]) -> list[Mark]:
        return [Mark(stamp.phase, stamp.host, stamp.host) for stamp in stamps]


_ANCHOR_PERIOD = 0.25
"""Between two comparisons of the clocks of host and device [seconds], which drift by some 10 microseconds a second."""
_ANCHORS = 4
"""Comparisons that count: the one with the least delay is taken to be the truth."""


class CudaStamps:
    """For work that is queued on the current stream, by events between the kernels.

    Times are on the host's clock as it was when the first stamp was taken, counted by the device from there on.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._idle: torch.cuda.Stream | None = None
        """Carries nothing but anchors."""
        self._anchored = float("-inf")
        self._spare: list[Any] = []
        self._last: tuple[Any, float] | None = None
        """The event known last, and its time. Times are chained: CUDA's float32 is exact for short distances only."""
        self._delays: deque[float] = deque(maxlen=_ANCHORS)
        """Time of the device minus time of the host, at anchors."""

    def take(self, phase: Phase | None) -> Stamp:
        now = time.perf_counter()
        anchor = None
        if now - self._anchored >= _ANCHOR_PERIOD:
            self._anchored = now
            if self._idle is None:
                self._idle = torch.cuda.Stream(self._device)
            anchor = (self._record(self._idle), now)
        return Stamp(phase, now, self._record(torch.cuda.current_stream(self._device)), anchor)

    def passed(self, stamp: Stamp) -> bool:
        return bool(stamp.event.query())

    def wait(self, stamp: Stamp) -> None:
        stamp.event.synchronize()

    def marks(self, stamps: Sequence[Stamp]) -> list[Mark]:
        known = [self._time_of(stamp) for stamp in stamps]
        # A device cannot do what it has not been told yet: no event comes before the host's time. Where one comes
        # right after it, the device was idle, and the difference is that of the clocks.
        delay = min([*self._delays, *(at - stamp.host for stamp, at in zip(stamps, known, strict=True))])
        return [Mark(stamp.phase, stamp.host + delay, at) for stamp, at in zip(stamps, known, strict=True)]

    def _time_of(self, stamp: Stamp) -> float:
        if self._last is None:
            # The first stamp has an anchor, which waits for nothing on its stream.
            assert stamp.anchor is not None
            stamp.anchor[0].synchronize()
            at = stamp.anchor[1] + max(0.0, float(stamp.anchor[0].elapsed_time(stamp.event))) / 1000
        else:
            before, time_before = self._last
            at = time_before + max(0.0, float(before.elapsed_time(stamp.event))) / 1000
            self._spare.append(before)
        self._last = (stamp.event, at)
        if stamp.anchor is not None and stamp.anchor[0].query():
            event, host = stamp.anchor
            self._delays.append(at - event.elapsed_time(stamp.event) / 1000 - host)
            self._spare.append(event)
        return at

    def _record(self, stream: torch.cuda.Stream) -> Any:
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event
