"""What a benchmark found: plain frozen dataclasses, the same for decoders and loaders.

The JSON that `store` writes has these names and this nesting; `results.schema.json` beside this file is its JSON
Schema, and `SCHEMA_VERSION` its version, raised whenever a reader of the old form would misunderstand the new one.
Times are in seconds, memory in bytes, rates per second. A metric that has no number is absent, or null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fastload.bench.statistics import Summary, summarise

__all__ = ["SCHEMA_VERSION", "Failure", "Latency", "Machine", "Measurement", "Parameter", "Results", "Round", "Status"]

SCHEMA_VERSION = 1

Parameter = str | int | float | bool
"""A setting of a contestant: number of threads, where the data lies, prefetch factor."""

Status = Literal["measured", "unavailable", "failed", "not run"]
"""`unavailable`: not installed here, `note` says how to get it. `failed`: it raised, `note` says what. `not run`: the
benchmark was stopped before its first round."""


@dataclass(frozen=True)
class Round:
    """One stretch of work, after the warm-up."""

    samples: int
    """Delivered; failed ones do not count."""
    seconds: float
    cpu_seconds: float
    """User and system time of this process and its children."""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """Further numbers, named with their unit: `pixels_per_second`, `wait_share`, `first_batch_seconds`."""

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Latency:
    """Over all rounds together [seconds]."""

    p50: float
    p99: float
    count: int
    of: str = "sample"
    """What took so long: a "sample", a "batch"."""


@dataclass(frozen=True)
class Failure:
    """A sample that gave no pixels."""

    name: str
    message: str


@dataclass(frozen=True)
class Measurement:
    """One contestant in one mode with one set of parameters: a row of the table."""

    contestant: str
    mode: str
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    status: Status = "measured"
    note: str = ""
    """The remedy or the error, where it was not measured."""
    version: str = ""
    rounds: tuple[Round, ...] = ()
    latency: Latency | None = None
    peak_memory: int | None = None
    """Largest memory of this process and its children [bytes]; worker processes by their proportional share (PSS)."""
    memory_growth: int | None = None
    """How much of it was not there before it was opened [bytes]: what the contestant itself takes."""
    failures: tuple[Failure, ...] = ()
    """Each failed sample once, whatever the number of rounds."""
    series: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    """Timelines of the last round: (seconds since its start, value), as of the GPU's utilisation."""

    @property
    def key(self) -> tuple[str, str, tuple[tuple[str, Parameter], ...]]:
        """What the row is of; equal in two runs that can be compared."""
        return self.contestant, self.mode, tuple(sorted(self.parameters.items()))

    @property
    def rate(self) -> Summary | None:
        """Samples per second over the rounds; None if there are none."""
        return summarise([r.rate for r in self.rounds]) if self.rounds else None

    @property
    def cpu_seconds_per_1000(self) -> float | None:
        """CPU seconds per 1,000 samples, over all rounds."""
        samples = sum(r.samples for r in self.rounds)
        return 1000 * sum(r.cpu_seconds for r in self.rounds) / samples if samples else None

    def metric(self, name: str) -> Summary | None:
        """A further number over the rounds that have it; None if none has."""
        values = [value for r in self.rounds if (value := r.metrics.get(name)) is not None]
        return summarise(values) if values else None


@dataclass(frozen=True)
class Machine:
    """Where it ran. Everything as text or numbers to show; made by `machine.describe_machine`."""

    cpu: str
    cores: int
    """In the machine."""
    affinity_cores: int
    """That this process may use."""
    quota_cores: float | None
    """The cgroup's limit; None if there is none."""
    simd: tuple[str, ...]
    memory: int
    """RAM [bytes]; the cgroup's limit if that is less."""
    system: str
    python: str
    gpus: tuple[str, ...]
    libraries: Mapping[str, str]
    """Package or library: version. Only what is there."""


@dataclass(frozen=True)
class Results:
    """One run of one benchmark."""

    benchmark: Literal["decode", "loader"]
    created: str
    """UTC, ISO 8601."""
    fastload: str
    """Version."""
    machine: Machine
    settings: Mapping[str, Parameter | list[Parameter] | None]
    """What was asked for: folder, number of images, seconds and so on."""
    measurements: tuple[Measurement, ...]
    complete: bool = True
    """False if it was stopped; then some rows have fewer rounds than others, or none."""
    notes: tuple[str, ...] = ()
    """What a reader has to know: verdicts, and what was left out and why."""
    schema_version: int = SCHEMA_VERSION
