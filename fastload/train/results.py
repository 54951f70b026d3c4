"""What a training run came to, for whoever started it from Python, and for `fastload sweep`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from fastload.monitor import GpuReading, IdleSummary


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
    """That the next step takes, after warm-up and schedule."""
    train: Mapping[str, float]
    """The task's results over the training batches, as they were when each was trained on."""
    val: Mapping[str, float] | None
    """The task's results over the validation data; None without any."""
    images_per_second: float
    """Samples trained on a second, over all ranks, start-up included; of what this process did of the epoch."""
    wait_share: float
    """Share of the training time in which the device waited for data, 0 to 1, on rank 0; the first steps apart."""
    seconds: float
    """Of training, in this process; validation and saving are not in it."""
    val_seconds: float
    """Of validation."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values, and from those again by `EpochRecord(**values)`."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class DeviceUse:
    """What a run took of one GPU, or of the processor for one process."""

    device: str
    """As torch calls it on its rank: "cuda:1", "cpu"."""
    rank: int
    peak_memory: int
    """[bytes] On a GPU as the driver counts it for the process (what nvidia-smi shows), or, where it does not tell,
    what tensors took; on the CPU the memory of the process and its workers."""
    utilisation: float | None
    """Of a GPU as the driver says, 0 to 1; None where it does not."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run, or what this process did of one. Times and shares are rank 0's on rank 0, and so on."""

    epochs: tuple[EpochRecord, ...]
    """Those that are complete, also those from before the run was resumed."""
    steps: int
    """Optimizer steps of the run so far."""
    seconds: float
    """Of this process's run, validation and saving included."""
    images_per_second: float | None
    """Samples trained on a second, over all ranks, the first steps left out; None where there were no others."""
    measured_steps: int
    """Steps that `images_per_second` and `idle` are of."""
    idle: IdleSummary | None
    """What the device's time went to in those steps; None where there were none."""
    gpu: GpuReading | None
    """What the driver said meanwhile; None on the CPU, or where it cannot be asked."""
    peak_device_memory: int | None
    """Largest amount that tensors took on the GPU [bytes]; None on the CPU."""
    devices: tuple[DeviceUse, ...]
    """All of this process (of dp, several); on rank 0, those of all ranks in their order."""
    substituted: int
    """Training samples of this rank that could not be read and were replaced (with on_error = "substitute")."""
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
    device: str
    stopped_by: int | None = None
    """The signal that this process was asked to stop with."""

    @property
    def final(self) -> Mapping[str, float]:
        """Results of the last complete epoch: of the validation, or of training where there is none."""
        return (self.epochs[-1].val or self.epochs[-1].train) if self.epochs else {}

    def to_json(self) -> str:
        """For files and other processes; what is not finite is null."""
        values = asdict(self)
        if self.idle is not None:
            values["idle"] = self.idle.metrics()
        if self.gpu is not None:
            values["gpu"] = self.gpu.metrics()
        return msgspec.json.encode(values | {"final": self.final}).decode()
