"""What a training run comes to: its epochs and their sum, how fast it goes, what holds it up and
what it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import msgspec
import torch

from fastload.tools.measure.clock import cpu_seconds, peak_memory
from fastload.tools.monitor import (
    GpuMonitor,
    GpuReading,
    IdleSummary,
    Step,
    StepClock,
    profile_steps,
)
from fastload.tools.monitor.profiler import Profiling
from fastload.train.distributed import World


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """One epoch; a line of epochs.jsonl."""

    epoch: int
    """0-based."""
    step: int
    """Optimizer steps of the run at its end."""
    samples: int
    """Trained on in this epoch, over all ranks."""
    lr: float
    """The learning rate of the next step, after warm-up and schedule."""
    train: Mapping[str, float]
    """The task's results over the training batches, as they were when each was trained on."""
    val: Mapping[str, float] | None
    """The task's results over the validation data; None without any."""
    images_per_second: float
    """Samples trained on a second, over all ranks, start-up included; of what this process did of
    the epoch."""
    wait_share: float
    """Share of the training time in which the device waited for data, 0 to 1, on rank 0; the first
    steps apart."""
    seconds: float
    """Seconds of training, in this process, without validation and saving."""
    val_seconds: float
    """Seconds of validation."""


@dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """What a run took of one GPU, or of the processor for one process."""

    device: str
    """As torch calls it on its rank: "cuda:1", "cpu"."""
    rank: int
    peak_memory: int
    """[bytes] On a GPU as the driver counts it for the process (what nvidia-smi shows), or, where
    it does not tell, what tensors took; on the CPU the memory of the process and its workers."""
    utilisation: float | None
    """Of a GPU as the driver says, 0 to 1; None where it does not."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run, or what this process did of one. Times and shares are rank 0's on rank 0, and so
    on."""

    epochs: tuple[EpochRecord, ...]
    """Those that are complete, also those from before the run was resumed."""
    steps: int
    """Optimizer steps of the run so far."""
    seconds: float
    """Seconds of this process's run, with validation and saving."""
    images_per_second: float | None
    """Samples trained on a second, over all ranks, the first steps left out; None where there were
    no others."""
    measured_steps: int
    """The number of steps that `images_per_second` and `idle` are measured over."""
    cpu_seconds: float | None
    """User and system time in those steps, workers included, of all ranks on rank 0; None where
    there were none."""
    idle: IdleSummary | None
    """What the device's time went to in those steps; None where there were none."""
    gpu: GpuReading | None
    """What the driver said during those steps; None on the CPU, or where it cannot be asked."""
    peak_device_memory: int | None
    """Largest amount that tensors took on the GPU [bytes]; None on the CPU."""
    devices: tuple[DeviceUse, ...]
    """All of this process (of dp, several); on rank 0, those of all ranks in their order."""
    substituted: int
    """Training samples of this rank that could not be read and were replaced (with on_error =
    "substitute")."""
    best: float | None
    """The best result of a validation, by `best_by`; None without validation."""
    best_by: str
    """Which result of the validation makes an epoch the best one."""
    interrupted: bool
    """Asked to stop before its end; the checkpoint is where it goes on."""
    samples: int
    """Of the training data."""
    val_samples: int
    """Of the validation data; 0 where there are none."""
    global_batch: int
    """Samples in an optimizer step, over all ranks and accumulated batches."""
    lr: float
    """After warm-up, scaled with the global batch."""
    world_size: int
    """How many ranks trained."""
    device: str
    """Of this rank, as torch calls it: "cuda:1", "cpu"."""
    stopped_by: int | None = None
    """The signal that this process was asked to stop with."""

    @property
    def final(self) -> Mapping[str, float]:
        """Results of the last complete epoch: of the validation, or of training where there is
        none."""
        return (self.epochs[-1].val or self.epochs[-1].train) if self.epochs else {}

    def to_json(self) -> str:
        """For files and other processes; what is not finite is null."""
        values = asdict(self)
        if self.idle is not None:
            values["idle"] = self.idle.metrics()
        if self.gpu is not None:
            values["gpu"] = self.gpu.metrics()
        return msgspec.json.encode(values | {"final": self.final}).decode()


# -- How fast, and what holds it up ----------------------------------------------------------------


class Throughput:
    """Counts the samples trained on between `begin` and `end` of each epoch.

    The first steps of a process (`warmup`) compile, choose algorithms and allocate; they are in the
    epoch's own seconds, but in neither the rate of the run nor its shares. Validation and saving,
    between the epochs, are in nothing.
    """

    def __init__(self, clock: StepClock, *, warmup: int, trace: bool) -> None:
        self._clock = clock
        self._left_out = warmup
        self._trace = trace
        self._samples = 0
        """In the steps that count."""
        self._epoch_samples = 0
        self._began = 0.0
        self._ended: float | None = 0.0
        """Of the latest epoch's training [seconds]; None while it is under way."""
        self.cpu_seconds = 0.0
        """Of this process and its workers in all that counts."""
        self._cpu_at = 0.0
        self.idle: IdleSummary | None = None
        """Of all that counts; None if nothing does."""
        self.timeline: list[Step] = []

    def begin(self) -> None:
        self._clock.restart()
        self._epoch_samples = 0
        self._began, self._ended = time.perf_counter(), None
        self._cpu_at = cpu_seconds()

    def step(self, samples: int) -> None:
        """A step of so many samples, over all ranks, has ended."""
        self._epoch_samples += samples
        if self._left_out:
            self._left_out -= 1
            if not self._left_out:
                self._keep_timeline()
                self._clock.restart()
                self._cpu_at = cpu_seconds()
        else:
            self._samples += samples

    def end(self) -> None:
        """The epoch's training ends, or is broken off, if it was under way."""
        if self._ended is not None:
            return
        self._ended = time.perf_counter()
        summary = self._clock.summary(wait=True)
        if summary.steps and not self._left_out:
            self.cpu_seconds += cpu_seconds() - self._cpu_at
            self.idle = summary if self.idle is None else _joined(self.idle, summary)
        self._keep_timeline()

    @property
    def epoch_seconds(self) -> float:
        """Of training in the latest epoch, so far [seconds]; 0 before the first."""
        return (time.perf_counter() if self._ended is None else self._ended) - self._began

    @property
    def epoch_rate(self) -> float:
        """Samples a second in the latest epoch, so far."""
        return self._epoch_samples / self.epoch_seconds if self._began else 0.0

    @property
    def epoch_wait_share(self) -> float:
        """Of the latest epoch, so far, 0 to 1."""
        return self._clock.summary().wait_share

    @property
    def rate(self) -> float | None:
        """Samples a second of all that counts; None if nothing does."""
        return (
            self._samples / self.idle.seconds
            if self.idle is not None and self.idle.seconds
            else None
        )

    def _keep_timeline(self) -> None:
        if self._trace:
            self.timeline.extend(self._clock.steps(wait=True))


def _joined(before: IdleSummary, after: IdleSummary) -> IdleSummary:
    """The sum of two summaries, of times that do not overlap."""
    gaps = (replace(gap, begin=before.seconds + gap.begin) for gap in after.gaps)
    names = [field.name for field in fields(IdleSummary) if field.name != "gaps"]
    sums: dict[str, Any] = {name: getattr(before, name) + getattr(after, name) for name in names}
    return IdleSummary(gaps=(*before.gaps, *gaps), **sums)


class StepProfiler:
    """Profiles the steps from number `skip` on, `steps` of them; none if `steps` is 0."""

    def __init__(
        self, device: torch.device, steps: int, *, skip: int, say: Callable[[str], None]
    ) -> None:
        self._device = device
        self._steps = range(skip, skip + steps)
        self._number = 0
        self._say = say
        self._window = ExitStack()
        self._seen: Profiling | None = None

    def begin_step(self) -> None:
        if self._steps and self._number == self._steps.start:
            self._seen = self._window.enter_context(profile_steps(self._device))

    def end_step(self) -> None:
        self._number += 1
        if self._number == self._steps.stop:
            self.close()

    def close(self) -> None:
        """End a window that is open, and tell what was seen."""
        self._window.close()
        if self._seen is not None:
            self._say(f"profile: {self._seen.result}")
        self._seen = None


class DeviceWatch(ExitStack):
    """Watches every GPU of this process; on a CPU there is only its memory to be asked for at the
    end."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._rank = world.rank
        own = [world.device] if world.device.type == "cuda" else []
        gpus = [torch.device("cuda", index) for index in world.devices] or own
        self._monitors = {gpu: self.enter_context(GpuMonitor(gpu)) for gpu in gpus}
        for gpu in gpus:
            torch.cuda.reset_peak_memory_stats(gpu)

    @property
    def reading(self) -> GpuReading | None:
        """Of the first GPU, after `stop`; None on the CPU, or where the driver does not answer."""
        return next((monitor.reading for monitor in self._monitors.values()), None)

    def stop(self) -> tuple[DeviceUse, ...]:
        """The use of each of them since the start."""
        if not self._monitors:
            return (
                DeviceUse(
                    device="cpu", rank=self._rank, peak_memory=peak_memory(), utilisation=None
                ),
            )
        uses = []
        for gpu, monitor in self._monitors.items():
            seen = monitor.stop()
            memory = torch.cuda.max_memory_allocated(gpu) if seen is None else seen.peak_memory
            share = None if seen is None else seen.busy_share
            uses.append(
                DeviceUse(device=str(gpu), rank=self._rank, peak_memory=memory, utilisation=share)
            )
        return tuple(uses)
