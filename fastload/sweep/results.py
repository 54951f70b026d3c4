"""A row of a sweep: one run of the trainer, as `fastload.measure.results.Measurement` and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from fastload.measure.results import Measurement, Round, Status
from fastload.sweep.grid import Cell

__all__ = ["SHARES", "Row", "Share"]

Share = Literal["wait", "copy", "launch", "compute", "update", "exchange"]
"""What a step's time goes to, as `fastload.monitor.Activity` explains."""
SHARES: tuple[Share, ...] = get_args(Share)


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
