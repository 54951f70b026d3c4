"""What was measured: one schema for all benchmarks and sweeps, and the files of it.

The JSON has the names and the nesting of these structs; `results_schema()` is its JSON Schema, and
`SCHEMA_VERSION` its version, raised whenever a reader of the old form would misunderstand the new
one. Times are in seconds, memory in bytes, rates per second. A metric that has no number is absent,
or null.
"""

from __future__ import annotations

import csv
import io
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import msgspec

import fastload
from fastload import machine as this
from fastload.errors import BackendUnavailableError, ConfigurationError, counted
from fastload.files import replacing
from fastload.tools.measure.statistics import Summary, Verdict, summarise

SCHEMA_VERSION = 2
_READ = (1, 2)  # version 1 had no verdicts

Parameter = str | int | float | bool
"""A setting of a contestant: number of threads, where the data lies, prefetch factor."""

Status = Literal["measured", "unavailable", "failed", "out of memory", "timed out", "not run"]
"""`unavailable`: not installed here, or this machine cannot do it; `note` says what to do.
`failed`: it raised, `note` says what. `not run`: the benchmark was stopped before its first round,
or it was known to be pointless."""


class Round(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One stretch of work, after the warm-up."""

    samples: int
    """Delivered; failed ones do not count."""
    seconds: float
    cpu_seconds: float | None = None
    """User and system time of this process and its children; None: not measured."""
    metrics: Mapping[str, float | None] = {}
    """Further numbers, named with their unit: `pixels_per_second`, `wait_share`,
    `first_batch_seconds`."""

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0


class Latency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Latency over all rounds together [seconds]."""

    p50: float
    p99: float
    count: int
    of: str = "sample"  # what took so long: a "sample", a "batch"


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sample that gave no pixels."""

    name: str
    message: str


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One contestant in one mode with one set of parameters: a row of the table."""

    contestant: str
    mode: str
    parameters: Mapping[str, Parameter] = {}
    status: Status = "measured"
    note: str = ""  # the remedy or the error, where it was not measured
    version: str = ""
    rounds: tuple[Round, ...] = ()
    latency: Latency | None = None
    peak_memory: int | None = None
    """Largest memory of this process and its children [bytes]; worker processes by their
    proportional share (PSS)."""
    memory_growth: int | None = None
    """How much of it was not there before it was opened [bytes]: what the contestant itself
    takes."""
    failures: tuple[Failure, ...] = ()  # each failed sample once, whatever the number of rounds
    series: Mapping[str, tuple[tuple[float, float], ...]] = {}
    """Timelines of the last round: (seconds since its start, value), as of the GPU's
    utilisation."""

    @property
    def key(self) -> tuple[str, str, tuple[tuple[str, Parameter], ...]]:
        """What the row is of; equal in two runs that can be compared."""
        return self.contestant, self.mode, tuple(sorted(self.parameters.items()))

    @property
    def rate(self) -> Summary | None:
        """Samples per second over the rounds; None if there are none."""
        return summarise([r.rate for r in self.rounds]) if self.rounds else None

    @property
    def speed(self) -> float:
        """The median of `rate`; 0 if there are no rounds."""
        rate = self.rate
        return rate.median if rate is not None else 0.0

    @property
    def cpu_seconds_per_1000(self) -> float | None:
        """CPU seconds per 1,000 samples, over all rounds."""
        samples = sum(r.samples for r in self.rounds)
        spent = [r.cpu_seconds for r in self.rounds if r.cpu_seconds is not None]
        return 1000 * sum(spent) / samples if samples and len(spent) == len(self.rounds) else None

    def metric(self, name: str) -> Summary | None:
        """A further number over the rounds that have it; None if none has."""
        values = self.metrics(name)
        return summarise(values) if values else None

    def metrics(self, name: str) -> list[float]:
        """A further number of each round that has it."""
        return [value for r in self.rounds if (value := r.metrics.get(name)) is not None]


def ratios(
    of: Measurement | None,
    to: Measurement | None,
    quantity: Callable[[Round], float] = lambda r: r.rate,
) -> list[float]:
    """The ratio of a quantity of two contestants in each round: what disturbed a round disturbed
    both. Their median is the figure to report; empty if one of them was not measured."""
    if of is None or to is None:
        return []
    return [
        quantity(mine) / quantity(other) for mine, other in zip(of.rounds, to.rounds, strict=False)
    ]


class Results(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One run of one benchmark; `new_results` makes it."""

    benchmark: str  # "decode", "loader", "sweep", ...
    created: str  # UTC, ISO 8601
    fastload: str  # version
    machine: Machine
    settings: Mapping[str, Parameter | list[Parameter] | None]
    """What was asked for: folder, number of images, seconds and so on."""
    measurements: tuple[Measurement, ...]
    complete: bool = (
        True  # False if it was stopped; then some rows have fewer rounds than others, or none
    )
    notes: tuple[
        str, ...
    ] = ()  # what a reader has to know: what the numbers mean, and what was left out and why
    verdicts: tuple[Verdict, ...] = ()  # what should be reached, and what was
    schema_version: int = SCHEMA_VERSION


def new_results(
    benchmark: str,
    settings: Mapping[str, Parameter | list[Parameter] | None],
    measurements: Sequence[Measurement],
    *,
    complete: bool = True,
    notes: Sequence[str] = (),
    verdicts: Sequence[Verdict] = (),
) -> Results:
    """Results of this machine and this version of fastload, dated now."""
    return Results(
        benchmark=benchmark,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        fastload=fastload.__version__,
        machine=describe_machine(),
        settings=settings,
        measurements=tuple(measurements),
        complete=complete,
        notes=tuple(notes),
        verdicts=tuple(verdicts),
    )


# -- JSON ------------------------------------------------------------------------------------------


def results_schema() -> dict[str, Any]:
    """The JSON Schema of what `to_json` writes."""
    return msgspec.json.schema(Results)


def to_json(results: Results) -> str:
    """As `results_schema` says. Numbers that JSON does not have (infinity, not a number) become
    null."""
    return msgspec.json.format(msgspec.json.encode(results), indent=1).decode() + "\n"


class _Version(msgspec.Struct):
    schema_version: int | None = None


def from_json(text: str, name: str) -> Results:
    """Read what `to_json` wrote; `name` is what messages call it. Raises ConfigurationError: it is
    no JSON, no results of fastload, or of another version of the schema."""
    give = "Give a file that was written with --json."
    try:
        version = msgspec.json.decode(text, type=_Version).schema_version
        if version is not None and version not in _READ:
            raise ConfigurationError(
                f"{name}: results of schema version {version}, this fastload reads {_READ[0]} to "
                f"{_READ[-1]}. Measure again, or read it with the version of fastload that wrote "
                "it."
            )
        return msgspec.json.decode(text, type=Results)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{name}: no results of fastload: {error}. {give}") from error
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{name}: not JSON ({error}). {give}") from error


def read_json(path: str | os.PathLike[str]) -> Results:
    """`from_json` of a file. Raises ConfigurationError."""
    name = os.fspath(path)
    try:
        return from_json(Path(path).read_text(encoding="utf-8"), name)
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{name}: not a text file ({error.reason}). Give results as JSON."
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"{name}: cannot be read ({error.strerror}). Give a file that a benchmark or sweep "
            "wrote with --json."
        ) from error


# -- CSV -------------------------------------------------------------------------------------------

_COLUMNS = (
    "contestant",
    "mode",
    "status",
    "version",
    "rounds",
    "rate_median",
    "rate_q1",
    "rate_q3",
    "rate_mad",
    "cpu_seconds_per_1000",
    "latency_p50",
    "latency_p99",
    "peak_memory",
    "memory_growth",
    "failures",
    "note",
)


def to_csv(results: Results) -> str:
    """One line for each row; parameters and the medians of further metrics as columns after the
    common ones. Rates are samples per second; times seconds; memory bytes. Empty where there is no
    number."""
    parameters = sorted({name for row in results.measurements for name in row.parameters})
    metrics = sorted(
        {name for row in results.measurements for r in row.rounds for name in r.metrics}
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_COLUMNS[:2], *parameters, *_COLUMNS[2:], *metrics])
    for row in results.measurements:
        rate, latency = row.rate, row.latency
        rates = (None,) * 4 if rate is None else (rate.median, rate.low, rate.high, rate.mad)
        latencies = (None, None) if latency is None else (latency.p50, latency.p99)
        summaries = [row.metric(name) for name in metrics]
        writer.writerow(
            [
                row.contestant,
                row.mode,
                *(row.parameters.get(name) for name in parameters),
                row.status,
                row.version,
                len(row.rounds),
                *rates,
                row.cpu_seconds_per_1000,
                *latencies,
                row.peak_memory,
                row.memory_growth,
                len(row.failures),
                row.note,
                *(None if summary is None else summary.median for summary in summaries),
            ]
        )
    return text.getvalue()


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """All of it or nothing: an interrupted write leaves the file that was there. Raises OSError."""
    with replacing(Path(path)) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


# -- The machine -----------------------------------------------------------------------------------

_PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "simplejpeg",
    "PyTurboJPEG",
    "opencv-python-headless",
    "opencv-python",
)


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The machine of a run, as text and numbers to show."""

    cpu: str
    cores: int  # in the machine
    affinity_cores: int  # that this process may use
    quota_cores: float | None  # the cgroup's limit; None if there is none
    simd: tuple[str, ...]
    memory: int  # RAM [bytes]; the cgroup's limit if that is less
    system: str
    python: str
    gpus: tuple[str, ...]
    libraries: Mapping[str, str]  # package or library: version; only what is there

    def __str__(self) -> str:
        """In one line."""
        cores = f"{self.affinity_cores} of {counted(self.cores, 'core')}"
        if self.quota_cores is not None:
            cores += f", quota {self.quota_cores:g}"
        parts = [
            self.cpu,
            cores,
            " ".join(self.simd),
            f"{self.memory / (1 << 30):.0f} GiB",
            *self.gpus,
        ]
        return ", ".join(part for part in (*parts, f"Python {self.python}") if part)


def describe_machine() -> Machine:
    """This machine, as it is now. Imports torch."""
    return Machine(
        cpu=this.cpu_model(),
        cores=os.cpu_count() or 1,
        affinity_cores=this.affinity_cores(),
        quota_cores=this.quota_cores(),
        simd=this.simd_extensions(),
        memory=this.memory_bytes(),
        system=platform.platform(terse=True),
        python=platform.python_version(),
        gpus=this.driver_gpus().names,
        libraries=_libraries(),
    )


def _libraries() -> dict[str, str]:
    """Versions of what decodes, resizes and loads, and what SIMD each chose, where it tells."""
    import PIL
    import torch

    from fastload.native import NativePool

    versions = {}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    versions["torch CPU kernels"] = torch.backends.cpu.get_cpu_capability()
    if torch.version.cuda:
        versions["CUDA of torch"] = torch.version.cuda
    versions["Pillow-SIMD" if this.pillow_is_simd() else "Pillow"] = PIL.__version__
    versions["libjpeg-turbo of Pillow"] = this.libjpeg_turbo_of_pillow() or "none"
    try:
        versions["libturbojpeg"] = this.system_turbojpeg() or "none"
    except OSError as error:
        versions["libturbojpeg"] = str(error)
    if dali := this.dali_version():
        versions["DALI"] = dali
    with suppress(BackendUnavailableError), closing(NativePool(1)) as pool:
        versions["native core"] = f"SIMD {pool.simd}"
    if os.environ.get("JSIMD_FORCENONE") == "1":
        versions["JSIMD_FORCENONE"] = "1: libjpeg-turbo without SIMD"
    return versions
