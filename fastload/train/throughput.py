"""How fast a run goes, what holds it up and what it takes: samples a second, the clock's shares, a profile of some
steps, memory and utilisation of the devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import Any

import torch

from fastload.measure.clock import peak_memory
from fastload.monitor import GpuMonitor, GpuReading, IdleSummary, Step, StepClock, profile_steps
from fastload.train.distributed import World
from fastload.train.results import DeviceUse


class Throughput:
    """Counts what is trained on between `begin` and `end` of each epoch.

    The first steps of a process compile, choose algorithms and allocate; they are in the epoch's own seconds, but in
    neither the rate of the run nor its shares. Validation and saving, between the epochs, are in nothing.
    """

    def __init__(self, clock: StepClock, *, warmup: int, trace: bool) -> None:
        """
        Args:
            clock: marked by whoever runs the steps.
            warmup: steps to leave out.
            trace: keep every step for a timeline; the clock must keep them too.
        """
        self._clock = clock
        self._left_out = warmup
        self._trace = trace
        self._summaries: list[IdleSummary] = []
        self._samples = 0
        """In the steps that count."""
        self._epoch_samples = 0
        self._epoch_began: float | None = None
        self._epoch_ended: float | None = None
        self.timeline: list[Step] = []

    def begin(self) -> None:
        """An epoch's training begins."""
        self._clock.restart()
        self._epoch_samples = 0
        self._epoch_began = time.perf_counter()
        self._epoch_ended = None

    def step(self, samples: int) -> None:
        """A step of so many samples, over all ranks, has ended."""
        self._epoch_samples += samples
        if self._left_out:
            self._left_out -= 1
            if not self._left_out:
                self._keep_timeline()
                self._clock.restart()
        else:
            self._samples += samples

    def end(self) -> None:
        """The epoch's training ends, or is broken off, if it was under way."""
        if self._epoch_began is None or self._epoch_ended is not None:
            return
        self._epoch_ended = time.perf_counter()
        if not self._left_out:
            summary = self._clock.summary(wait=True)
            if summary.steps:
                self._summaries.append(summary)
        self._keep_timeline()

    @property
    def epoch_seconds(self) -> float:
        """Of training in the latest epoch, so far [seconds]; 0 before the first."""
        if self._epoch_began is None:
            return 0.0
        return (self._epoch_ended or time.perf_counter()) - self._epoch_began

    @property
    def epoch_rate(self) -> float:
        """Samples a second in the latest epoch, so far."""
        seconds = self.epoch_seconds
        return self._epoch_samples / seconds if seconds else 0.0

    @property
    def epoch_wait_share(self) -> float:
        """Of the latest epoch, so far, 0 to 1."""
        return self._clock.summary().wait_share

    @property
    def idle(self) -> IdleSummary | None:
        """Of all that counts; None if nothing does."""
        return _joined(self._summaries) if self._summaries else None

    @property
    def rate(self) -> float | None:
        """Samples a second of all that counts; None if nothing does."""
        idle = self.idle
        return self._samples / idle.seconds if idle is not None and idle.seconds else None

    def _keep_timeline(self) -> None:
        if self._trace:
            self.timeline.extend(self._clock.steps(wait=True))


def _joined(summaries: Sequence[IdleSummary]) -> IdleSummary:
    """One after the other, as if nothing had been between them."""
    gaps = []
    before = 0.0
    for summary in summaries:
        gaps += [replace(gap, begin=before + gap.begin) for gap in summary.gaps]
        before += summary.seconds
    sums: dict[str, Any] = {
        field.name: sum(getattr(summary, field.name) for summary in summaries)
        for field in fields(IdleSummary)
        if field.name != "gaps"
    }
    return IdleSummary(gaps=tuple(gaps), **sums)


class StepProfiler:
    """Profiles the steps from number `skip` on, `steps` of them; none if `steps` is 0."""

    def __init__(self, device: torch.device, steps: int, *, skip: int, say: Callable[[str], None]) -> None:
        self._device = device
        self._skip = skip
        self._say = say
        self._left = steps
        """Steps of the window that have not ended."""
        self._window: ExitStack | None = None

    def begin_step(self) -> None:
        """A step begins."""
        if self._skip or not self._left or self._window is not None:
            return
        self._window = ExitStack()
        self._profiling = self._window.enter_context(profile_steps(self._device))

    def end_step(self) -> None:
        """A step has ended."""
        if self._skip:
            self._skip -= 1
        elif self._window is not None:
            self._left -= 1
            if not self._left:
                self.close()

    def close(self) -> None:
        """End a window that is open, and tell what was seen."""
        if self._window is not None:
            self._window.close()
            self._window, self._left = None, 0
            self._say(f"profile: {self._profiling.result}")


class DeviceWatch(ExitStack):
    """Watches every GPU of this process; on a CPU there is only its memory to be asked for at the end."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._rank = world.rank
        self._device = world.device
        own = [world.device] if world.device.type == "cuda" else []
        self._gpus = [torch.device("cuda", index) for index in world.devices] or own
        self._monitors = [self.enter_context(GpuMonitor(gpu)) for gpu in self._gpus]
        for gpu in self._gpus:
            torch.cuda.reset_peak_memory_stats(gpu)

    @property
    def reading(self) -> GpuReading | None:
        """Of the first GPU, after `stop`; None on the CPU, or where the driver does not answer."""
        return self._monitors[0].reading if self._monitors else None

    def stop(self) -> tuple[DeviceUse, ...]:
        """What each of them was used for since the begin."""
        if not self._gpus:
            return (DeviceUse(device=str(self._device), rank=self._rank, peak_memory=peak_memory(), utilisation=None),)
        found = []
        for gpu, monitor in zip(self._gpus, self._monitors, strict=True):
            seen = monitor.stop()
            memory = torch.cuda.max_memory_allocated(gpu) if seen is None else seen.peak_memory
            share = None if seen is None else seen.busy_share
            found.append(DeviceUse(device=str(gpu), rank=self._rank, peak_memory=memory, utilisation=share))
        return tuple(found)
