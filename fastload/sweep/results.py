"""What a sweep found: plain frozen dataclasses, and the JSON and CSV of them.

Times are in seconds, memory in bytes, rates in samples per second of all processes together.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from fastload.bench.results import Machine
from fastload.errors import ConfigurationError
from fastload.sweep.grid import Cell

__all__ = ["SCHEMA_VERSION", "SHARES", "Row", "Share", "Status", "Sweep", "from_json", "to_csv", "to_json"]

SCHEMA_VERSION = 1
"""Raised whenever a reader of the old form would misunderstand the new one."""

Status = Literal["measured", "out of memory", "failed", "timed out", "unavailable", "not run"]
"""`unavailable`: this machine cannot run the mode with any batch, `note` says why. `not run`: a smaller batch did not
fit already, or the sweep was stopped before."""
Share = Literal["wait", "copy", "launch", "compute", "update", "exchange"]
"""What a step's time goes to, as `fastload.monitor.Activity` explains."""
SHARES: tuple[Share, ...] = get_args(Share)


@dataclass(frozen=True)
class Row:
    """One cell of the grid, and what became of it."""

    cell: Cell
    status: Status = "measured"
    note: str = ""
    """Why there are no numbers."""
    rate: float | None = None
    """Samples per second over the measured steps."""
    steps: int = 0
    """Measured; those of the warm-up do not count."""
    epoch_seconds: float | None = None
    """Of an epoch at this rate: extrapolated, not measured; without validation and saving."""
    peak_memory: int | None = None
    """Of the device of rank 0; on the CPU, of its process."""
    shares: Mapping[Share, float] = field(default_factory=dict)
    """Parts of the time of rank 0, 0 to 1; they add up to 1."""

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


@dataclass(frozen=True)
class Sweep:
    """One run of `fastload sweep`."""

    created: str
    """UTC, ISO 8601."""
    fastload: str
    """Version."""
    machine: Machine
    settings: Mapping[str, str | int | float | None]
    """What was asked for: preset, model, data, steps and so on."""
    device: Literal["cpu", "cuda"]
    unit: str
    """What a sample is called: "img", "sequences"."""
    samples: int | None
    """Of an epoch; None if nothing was measured."""
    rows: tuple[Row, ...]
    complete: bool = True
    """False if it was stopped."""
    advice: tuple[str, ...] = ()
    """What the numbers mean; the recommendation first."""
    schema_version: int = SCHEMA_VERSION


def to_json(sweep: Sweep) -> str:
    """With the names and the nesting of the dataclasses."""
    return json.dumps(asdict(sweep), indent=1, allow_nan=False) + "\n"


def from_json(text: str, name: str) -> Sweep:
    """Read what `to_json` wrote.

    Args:
        name: what to call it in messages.

    Raises:
        ConfigurationError: it is no JSON, no sweep, or of another version.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{name}: not JSON ({error}). Give a file that fastload sweep wrote with --json."
        ) from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        found = "no results of fastload sweep" if version is None else f"a sweep of schema version {version}"
        raise ConfigurationError(
            f"{name}: {found}; this fastload reads version {SCHEMA_VERSION}. Give a file written with --json."
        )
    try:
        return _sweep(document)
    except (KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{name}: not as fastload sweep writes it ({error}). Give a file written with --json."
        ) from error


def _sweep(document: dict[str, Any]) -> Sweep:
    machine = document["machine"] | {name: tuple(document["machine"][name]) for name in ("simd", "gpus")}
    parts = {
        "machine": Machine(**machine),
        "rows": tuple(Row(**(row | {"cell": Cell(**row["cell"])})) for row in document["rows"]),
        "advice": tuple(document["advice"]),
    }
    return Sweep(**(document | parts))


def to_csv(sweep: Sweep) -> str:
    """A line for each cell; empty where there is no number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [
            *(
                "mode",
                "processes",
                "rank_batch",
                "accumulate",
                "global_batch",
                "status",
                "samples_per_second",
                "epoch_seconds",
            ),
            *("peak_memory", "busy", *SHARES, "steps", "note"),
        ]
    )
    for row in sweep.rows:
        cell = row.cell
        shares = [row.busy, *(row.shares.get(name) for name in SHARES)] if row.shares else [None] * (len(SHARES) + 1)
        writer.writerow(
            [
                *(
                    cell.mode,
                    cell.processes,
                    cell.batch,
                    cell.accumulate,
                    cell.global_batch,
                    row.status,
                    row.rate,
                    row.epoch_seconds,
                ),
                *(row.peak_memory, *shares, row.steps, row.note),
            ]
        )
    return text.getvalue()
