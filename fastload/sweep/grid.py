"""Which runs a sweep makes, and what becomes of one: a row.

Every batch size in every parallel mode, so that modes can be compared at equal batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from fastload.errors import ConfigurationError
from fastload.measure.results import Measurement, Round, Status

Mode = Literal["none", "dp", "ddp"]

Share = Literal["wait", "copy", "launch", "compute", "update", "exchange"]
"""What a step's time goes to, as `fastload.monitor.Activity` explains."""
SHARES: tuple[Share, ...] = get_args(Share)


@dataclass(frozen=True)
class Cell:
    """One run of the trainer."""

    mode: Mode
    processes: int
    """Over which each step is spread: ranks of ddp, GPUs of dp, 1 for none."""
    batch: int
    """Samples of a batch on each of them."""
    accumulate: int = 1
    """Batches of a step."""

    @property
    def global_batch(self) -> int:
        """Samples of a step."""
        return self.batch * self.processes * self.accumulate

    @property
    def batch_size(self) -> int:
        """What the trainer is given: dp divides the batch among the GPUs itself."""
        return self.batch * self.processes if self.mode == "dp" else self.batch

    @property
    def name(self) -> str:
        """ "one process", "ddp x 2"."""
        return "one process" if self.mode == "none" else f"{self.mode} x {self.processes}"


@dataclass(frozen=True)
class Row:
    """One cell of the grid, and what became of it."""

    cell: Cell
    status: Status = "measured"
    """`unavailable`: this machine cannot run the mode with any batch. `not run`: a smaller batch did not fit already,
    or the sweep was stopped before."""
    note: str = ""
    """Why there are no numbers."""
    rate: float | None = None
    """Samples per second of all processes over the measured steps."""
    steps: int = 0
    """Measured; those of the warm-up do not count."""
    epoch_seconds: float | None = None
    """Of an epoch at this rate: extrapolated, not measured; without validation and saving."""
    peak_memory: int | None = None
    """Of the device of rank 0; on the CPU, of its process [bytes]."""
    shares: Mapping[Share, float] = field(default_factory=dict)
    """Parts of the time of rank 0, 0 to 1; they add up to 1."""

    @property
    def speed(self) -> float:
        """The rate; 0 if it was not measured."""
        return self.rate or 0.0

    @property
    def busy(self) -> float:
        """Share of the time in which the device computed."""
        return self.shares.get("compute", 0.0) + self.shares.get("update", 0.0)

    @property
    def step_seconds(self) -> float:
        """Of one step of all processes; 0 if it was not measured."""
        return self.cell.global_batch / self.rate if self.rate else 0.0

    def seconds(self, share: Share) -> float:
        """How much of a step went to this."""
        return self.shares.get(share, 0.0) * self.step_seconds

    def measurement(self) -> Measurement:
        """The same for `Results`: one round, whose metrics are the shares; its CPU time was not measured."""
        rounds: tuple[Round, ...] = ()
        if self.rate:
            samples = self.steps * self.cell.global_batch
            metrics: dict[str, float | None] = {f"{share}_share": part for share, part in self.shares.items()}
            metrics |= {"busy_share": self.busy, "epoch_seconds": self.epoch_seconds, "steps": self.steps}
            rounds = (Round(samples, samples / self.rate, 0.0, metrics),)
        cell = self.cell
        parameters = {"parallel": cell.mode, "processes": cell.processes, "batch": cell.batch}
        parameters |= {"accumulate": cell.accumulate, "global_batch": cell.global_batch}
        return Measurement(
            cell.name, "train", parameters, self.status, self.note, rounds=rounds, peak_memory=self.peak_memory
        )

    @classmethod
    def of(cls, row: Measurement) -> Row:
        """Back again."""
        given: Mapping[str, Any] = row.parameters
        cell = Cell(given["parallel"], given["processes"], given["batch"], given["accumulate"])
        metrics = row.rounds[0].metrics if row.rounds else {}
        return cls(
            cell,
            row.status,
            row.note,
            rate=row.rounds[0].rate if row.rounds else None,
            steps=int(metrics.get("steps") or 0),
            epoch_seconds=metrics.get("epoch_seconds"),
            peak_memory=row.peak_memory,
            shares={share: part for share in SHARES if (part := metrics.get(f"{share}_share")) is not None},
        )


def cells(
    batch_sizes: Sequence[int], parallel: Sequence[Mode], processes: int, accumulate: int = 1
) -> tuple[Cell, ...]:
    """All runs, by mode and rising batch.

    What is spread over several processes gets each batch size twice: once for each of them, and once divided among
    them, so that it has a partner of one process with the same batch on a rank and one with the same global batch.

    Raises:
        ConfigurationError: a batch size below 1, none at all, or fewer than two processes to spread over.
    """
    if not batch_sizes or min(batch_sizes) < 1:
        raise ConfigurationError(f"--batch-sizes: must be numbers of at least 1, got {list(batch_sizes)}.")
    spread = [mode for mode in parallel if mode != "none"]
    if spread and processes < 2:
        raise ConfigurationError(
            f"--processes: must be at least 2 for {', '.join(spread)}, got {processes}. One process is mode none."
        )
    found = []
    for mode in parallel:
        if mode == "none":
            found += [Cell(mode, 1, batch, accumulate) for batch in sorted(set(batch_sizes))]
        else:
            divided = {batch // processes for batch in batch_sizes if batch % processes == 0}
            found += [Cell(mode, processes, batch, accumulate) for batch in sorted(divided.union(batch_sizes))]
    return tuple(found)


def modes(names: Sequence[str]) -> tuple[Mode, ...]:
    """Raises ConfigurationError: not a mode, or none at all."""
    known: dict[str, Mode] = {mode: mode for mode in get_args(Mode)}
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise ConfigurationError(f"--parallel: must be of {', '.join(known)}, got {', '.join(wrong) or 'nothing'}.")
    return tuple(known[name] for name in dict.fromkeys(names))


def unavailable(cell: Cell, device: str, gpus: int) -> str | None:
    """Why this machine cannot run it; None if it can.

    Args:
        device: "cuda" or "cpu", where it is to run.
        gpus: that torch sees.
    """
    if cell.mode == "dp" and device != "cuda":
        return "DataParallel divides a batch among GPUs, and this runs on the processor: use ddp, which can do both."
    if cell.processes > gpus and device == "cuda":
        return f"{cell.name} needs {cell.processes} GPUs and torch sees {gpus}: give --processes, or --device cpu."
    return None
