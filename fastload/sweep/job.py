"""What a sweep and the processes of a cell tell each other, by files in a folder.

The sweep writes the job; rank 0 leaves the measurement, and a rank that fails its last words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fastload.sweep.grid import Cell
from fastload.sweep.results import Row, Share
from fastload.train.config import TrainConfig
from fastload.train.settings import all_fields, merged

__all__ = ["FAILURE", "JOB", "MEASURED", "Job", "Measured"]

JOB, MEASURED, FAILURE = "job.json", "measured.json", "failure-"


@dataclass(frozen=True)
class Job:
    """What a run is told."""

    settings: Mapping[str, Any]
    """All of its configuration by field name."""
    warmup: int
    """Steps before the measurement begins."""

    @staticmethod
    def of(config: TrainConfig, *, warmup: int) -> Job:
        groups = [(field, getattr(config, field.table) if field.table else config) for field in all_fields().values()]
        return Job({field.name: getattr(group, field.name) for field, group in groups}, warmup)

    @property
    def config(self) -> TrainConfig:
        return merged(self.settings)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        return Job(**json.loads(text))


@dataclass(frozen=True)
class Measured:
    """What a run tells about itself."""

    samples: int
    """Of the training data."""
    steps: int
    rate: float
    """Samples per second of all ranks."""
    peak_memory: int | None
    """Of the device; on the CPU, of the process [bytes]."""
    shares: Mapping[Share, float]

    def to_json(self) -> str:
        return json.dumps(asdict(self), allow_nan=False)

    @staticmethod
    def from_json(text: str) -> Measured:
        return Measured(**json.loads(text))

    def row(self, cell: Cell) -> Row:
        """The cell's row."""
        return Row(
            cell,
            rate=self.rate,
            steps=self.steps,
            epoch_seconds=self.samples / self.rate,
            peak_memory=self.peak_memory,
            shares=self.shares,
        )
