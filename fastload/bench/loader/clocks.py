"""When the trainer was busy: by the clock of the host, or by that of the GPU.

A GPU works behind the host's back: the time that Python spends in a step says nothing about it. So each step is put
between two events on the device's own timeline, and the gaps between steps are the time that it stood still for want of
a batch. Gaps of microseconds show, which a utilisation sampled every 100 ms hides.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import torch

__all__ = ["Clock", "CudaClock", "HostClock", "Steps", "busy_series", "gaps"]

Steps = Sequence[tuple[float, float]]
"""(begin, end) of each step [seconds since the restart], in order."""

_AHEAD = 2
"""Steps that the host may be ahead of the GPU: enough to keep it busy, and the round still ends in time."""


class Clock(Protocol):
    """Brackets each step: `begin` when its batch is there, `end` when its work is done or queued."""

    def restart(self) -> None:
        """Forget all steps; time 0 is now."""
        ...

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def steps(self) -> Steps:
        """All steps since the restart; waits until the last one is done."""
        ...


class HostClock:
    """For work that is done when the call returns."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._steps: list[tuple[float, float]] = []
        self._zero = time.perf_counter()
        self._begun = 0.0

    def begin(self) -> None:
        self._begun = time.perf_counter() - self._zero

    def end(self) -> None:
        self._steps.append((self._begun, time.perf_counter() - self._zero))

    def steps(self) -> Steps:
        return self._steps


class CudaClock:
    """For work that is queued on a stream, by events between the kernels."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.restart()

    def restart(self) -> None:
        torch.cuda.synchronize(self._device)
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._zero = self._record()

    def begin(self) -> None:
        if len(self._events) >= _AHEAD:
            self._events[-_AHEAD][1].synchronize()
        now = self._record()
        self._events.append((now, now))

    def end(self) -> None:
        self._events[-1] = (self._events[-1][0], self._record())

    def steps(self) -> Steps:
        torch.cuda.synchronize(self._device)
        zero = self._zero
        return [(zero.elapsed_time(a) / 1000, zero.elapsed_time(b) / 1000) for a, b in self._events]

    def _record(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def gaps(steps: Steps) -> list[float]:
    """The time before each step in which nothing was done [seconds]; the first counts from time 0."""
    ends = [0.0, *(end for _, end in steps)]
    return [max(0.0, begin - end) for (begin, _), end in zip(steps, ends, strict=False)]


def busy_series(steps: Steps, bins: int = 120) -> tuple[tuple[float, float], ...]:
    """(begin of the bin [seconds], share of it that was busy, 0 to 1), in bins of equal width up to the last step."""
    if not steps or steps[-1][1] <= 0:
        return ()
    width = steps[-1][1] / bins
    busy = [0.0] * bins
    for begin, end in steps:
        first, last = int(begin / width), min(int(end / width), bins - 1)
        for number in range(first, last + 1):
            busy[number] += max(0.0, min(end, (number + 1) * width) - max(begin, number * width))
    return tuple((number * width, min(seconds / width, 1.0)) for number, seconds in enumerate(busy))
