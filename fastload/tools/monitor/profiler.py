"""The finest view, on request: every kernel and every copy of some steps (torch.profiler), and what
lay between them.

It slows the steps down by some per cent, so it is for a window of them, not for a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from fastload.errors import FastloadError, counted
from fastload.tools.monitor.idle import (
    ACTIVITIES,
    Activity,
    IdleSummary,
    Phase,
    Segment,
    StepTotals,
    joined,
)

_PREFIX = "fastload."
_WINDOW, _STEP = "fastload.window", "fastload.step"
_GAP = 1e-4  # gaps from here on are listed one by one [seconds]


@dataclass(frozen=True)
class DeviceProfile:
    """What was seen of a window of steps."""

    timeline: Literal["device", "host"]
    """Whose work it shows: kernels and copies of a GPU; or, where there is none, operations of the
    host."""
    segments: tuple[Segment, ...]
    """The whole window without holes [seconds since its begin]."""
    idle: IdleSummary
    """Its sums and gaps. `compute` is all work; `steps` counts the ranges "fastload.step"."""

    def __str__(self) -> str:
        idle = self.idle
        whose = (
            "GPU"
            if self.timeline == "device"
            else "host (no GPU: its operations in place of kernels)"
        )
        causes = {
            "data": idle.wait_share,
            "copies": idle.copy_share,
            "launches": idle.launch_share,
            "exchange": idle.exchange_share,
        }
        longest = max((gap.seconds for gap in idle.gaps), default=0.0)
        return (
            f"{counted(idle.steps, 'step')} in {idle.seconds:.3f} s on the {whose}: busy "
            f"{100 * idle.busy_share:.1f}%; idle for "
            f"{', '.join(f'{name} {100 * share:.1f}%' for name, share in causes.items())}; "
            f"{counted(idle.long_gaps, 'gap')} from 0.1 ms on, the longest {1000 * longest:.1f} ms"
        )


class Profiling:
    """A window under way; `result` is there when it is over."""

    _result: DeviceProfile | None = None

    @property
    def result(self) -> DeviceProfile:
        """
        Raises:
            FastloadError: the window is not over.
        """
        if self._result is None:
            raise FastloadError(
                "profile_steps: the result is there when the `with` block has ended."
            )
        return self._result


def phase_range(phase: Phase | Literal["step"]) -> record_function:
    """Tell the profiler what the trainer does in the body of a `with`; costs about a microsecond
    without a profiler.

    Args:
        phase: "wait", "copy" and "exchange" are causes of idleness; "compute" and "update" are
            work; "step" is counted.
    """
    return record_function(_PREFIX + phase)


@contextmanager
def profile_steps(device: torch.device | str) -> Iterator[Profiling]:
    """Profile what runs in the body of a `with`: a few steps, of which some have gone before.

        with profile_steps(device) as profiling:
            for _ in range(10):
                with phase_range("step"):
                    with phase_range("wait"):
                        batch = next(batches)
                    ...
        print(profiling.result)

    On CUDA the timeline is that of the device: work is kernels; a gap's cause is what the device
    or, where it had nothing to do, the host did meanwhile. On others the operations of the calling
    thread stand for the kernels. Waits for the device at the end.

    Args:
        device: what the steps run on.

    Yields:
        An object whose `result`, after the body, is a `DeviceProfile`.
    """
    device = torch.device(device)
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if on_gpu else [ProfilerActivity.CPU]
    profiling = Profiling()
    with profile(activities=activities) as profiler:
        with record_function(_WINDOW):
            yield profiling
            if on_gpu:
                torch.cuda.synchronize(device)
    index = (
        (torch.cuda.current_device() if device.index is None else device.index) if on_gpu else None
    )
    profiling._result = _result(profiler.events() or (), index)


def divide(
    work: Sequence[Segment],
    ranges: Sequence[Segment],
    begin: float,
    end: float,
    *,
    host: bool = False,
) -> tuple[Segment, ...]:
    """What a device did at each moment from `begin` to `end`, and why it did nothing.

    Computing comes before an exchange, and that before a copy, where they overlap: what is hidden
    costs nothing. Where a device did none of these, the cause is the phase that the trainer was in,
    of `ranges`; "launch", if it was in none of waiting, copying or exchanging. Work of the `host`
    itself within a range belongs to the range.
    """
    order: list[tuple[str, Activity]] = [
        ("work", "compute"),
        ("work", "exchange"),
        ("work", "copy"),
    ]
    causes: list[tuple[str, Activity]] = [
        ("range", "wait"),
        ("range", "copy"),
        ("range", "exchange"),
    ]
    order = [*causes, *order] if host else [*order, *causes]
    changes: list[tuple[float, int, tuple[str, str]]] = []
    for source, items in (("work", work), ("range", ranges)):
        for name, first, last in items:
            first, last = max(first, begin), min(last, end)
            if first < last:
                changes += [(first, 1, (source, name)), (last, -1, (source, name))]
    changes.sort(key=lambda change: change[0])
    open_now: Counter[tuple[str, str]] = Counter()
    pieces: list[Segment] = []
    for (at, change, key), following in pairwise(
        [(begin, 0, ("", "")), *changes, (end, 0, ("", ""))]
    ):
        open_now[key] += change
        activity: Activity = next(
            (activity for source, activity in order if open_now[source, activity]), "launch"
        )
        pieces.append(Segment(activity, at, following[0]))
    return joined(pieces)


def _result(events: Any, device_index: int | None) -> DeviceProfile:
    window = next(event for event in events if event.name == _WINDOW and _on_host(event))
    zero, end = window.time_range.start, window.time_range.end
    phases = {_PREFIX + activity: activity for activity in ACTIVITIES}
    work: list[Segment] = []
    ranges: list[Segment] = []
    steps = 0
    for event in events:
        # Reported in microseconds.
        started = (event.time_range.start - zero) / 1e6
        done = (event.time_range.end - zero) / 1e6
        if _on_host(event):
            if event.thread != window.thread or event is window:
                continue
            if event.name == _STEP:
                steps += 1
            elif event.name in phases:
                ranges.append(Segment(phases[event.name], started, done))
            elif device_index is None and not getattr(event, "is_user_annotation", False):
                work.append(Segment("compute", started, done))
        elif event.device_index == device_index and not _is_annotation(event):
            work.append(Segment(_kind(event.name), started, done))
    host = device_index is None
    segments = divide(work, ranges, 0.0, (end - zero) / 1e6, host=host)
    tally = StepTotals(_GAP, begin=0.0)
    tally.add(segments)
    return DeviceProfile("host" if host else "device", segments, tally.summary(steps=steps))


def _on_host(event: Any) -> bool:
    return bool(event.device_type.name == "CPU")


def _is_annotation(event: Any) -> bool:
    """Ranges of the host that the profiler repeats on the device's timeline."""
    return bool(getattr(event, "is_user_annotation", False)) or event.name.startswith(
        (_PREFIX, "ProfilerStep")
    )


def _kind(name: str) -> Activity:
    """Of a kernel or copy, by the name that CUPTI gives it."""
    lower = name.lower()
    if lower.startswith("nccl"):
        return "exchange"
    if lower.startswith("memcpy"):
        # Within the device, and between devices as DataParallel does it.
        return "compute" if "dtod" in lower else "exchange" if "ptop" in lower else "copy"
    return "compute"
