"""One contestant feeds one network for a while: what came of it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

from benchmarks.gpu.feeds import Feed
from benchmarks.gpu.network import Training
from fastload.measure.clock import cpu_seconds
from fastload.monitor import GpuMonitor, GpuReading, Segment, Step, StepClock, phase_range, profile_steps, step_clock
from fastload.monitor.gpu import reading_of

__all__ = ["LONG_GAP", "empty", "feed_steps", "profiled", "turn"]

LONG_GAP = 0.005
"""From here on a gap is listed [seconds]."""
_SHOWN_GAPS = 20
_DRIVER_LOOKS_BACK = 1.0
"""The driver's answers are of up to so long ago [seconds]: at first of what was before the turn."""


def empty(feed: Feed) -> None:
    """Take what lies ready: it was made while others were measured."""
    for _ in range(feed.ahead):
        next(feed)


def feed_steps(feed: Feed, training: Training, seconds: float, clock: StepClock | None = None) -> None:
    """Train for about so long, two steps at least. The clock, if any, keeps the host from running far ahead."""
    end = time.perf_counter() + seconds
    steps = 0
    while steps < 2 or time.perf_counter() < end:
        with phase_range("step"):
            if clock is not None:
                clock.begin()
            with phase_range("wait"):
                batch = next(feed)
            if clock is not None:
                clock.mark("copy")
            training.step(batch, clock)
            if clock is not None:
                clock.end()
        steps += 1


def turn(
    feed: Feed, training: Training, batch_size: int, seconds: float, monitor: GpuMonitor
) -> tuple[dict[str, Any], tuple[Step, ...]]:
    """Measure, ends of epochs included; what was ready before is used up first.

    Returns:
        The figures, and the steps on the device's timeline.
    """
    empty(feed)
    feed_steps(feed, training, 0)
    clock = step_clock(training.device, threshold=LONG_GAP, keep=None)
    clock.restart()
    epochs, cpu = feed.epochs, cpu_seconds()
    begun = time.perf_counter()
    monitor.start()
    feed_steps(feed, training, seconds, clock)
    idle = clock.summary(wait=True)  # when the device has done all of it
    elapsed = time.perf_counter() - begun
    reading = monitor.stop()
    used = cpu_seconds() - cpu
    figures: dict[str, Any] = {
        "images_per_second": idle.steps * batch_size / idle.seconds,
        "steps": idle.steps,
        "seconds": idle.seconds,
        "epoch_ends": feed.epochs - epochs,
        "busy_share": idle.busy_share,
        "wait_share": idle.wait_share,
        "copy_share": idle.copy_share,
        "launch_share": idle.launch_share,
        "gaps_over_5_ms": idle.long_gaps,
        "longest_gaps": [asdict(gap) for gap in sorted(idle.gaps, key=lambda gap: -gap.seconds)[:_SHOWN_GAPS]],
        "host_cpu_share": used / elapsed / (os.cpu_count() or 1),
        "host_cores": used / elapsed,
    }
    settled = None if reading is None else _settled(reading, elapsed)
    if settled is not None:
        figures["driver"] = {**asdict(settled), "utilisation": [(round(at, 2), u) for at, u in settled.utilisation]}
    return figures, clock.steps(wait=True)


def profiled(feed: Feed, training: Training, seconds: float) -> dict[str, Any]:
    """The same under torch.profiler, which sees every kernel, those of the loader included."""
    empty(feed)
    feed_steps(feed, training, 0)
    clock = step_clock(training.device, keep=0)
    epochs = feed.epochs
    with profile_steps(training.device) as profiling:
        feed_steps(feed, training, seconds, clock)
    found = profiling.result
    gaps = _idle_stretches(found.segments)
    return {
        "timeline": found.timeline,
        "steps": found.idle.steps,
        "seconds": found.idle.seconds,
        "epoch_ends": feed.epochs - epochs,
        "busy_share": found.idle.busy_share,
        "gaps_over_5_ms": sum(gap >= LONG_GAP for gap in gaps),
        "longest_gap_seconds": max(gaps, default=0.0),
    }


def _idle_stretches(segments: Sequence[Segment]) -> list[float]:
    """Lengths of the times without any kernel, whatever the causes in them."""
    lengths = []
    for working, group in groupby(segments, lambda piece: piece.activity in ("compute", "update")):
        if not working:
            lengths.append(sum(piece.seconds for piece in group))
    return lengths


def _settled(reading: GpuReading, end: float) -> GpuReading | None:
    """Of the turn alone; None if that is too short."""
    samples = [(at, share) for at, share in reading.utilisation if at >= _DRIVER_LOOKS_BACK]
    return replace(reading, **_shares(reading_of(samples, end, reading.peak_memory))) if samples else None


def _shares(reading: GpuReading) -> dict[str, Any]:
    names = ("busy_share", "idle_windows", "idle_seconds", "longest_idle_seconds", "utilisation")
    return {name: getattr(reading, name) for name in names}
