"""Results to and from files: JSON with everything, CSV with one line a row."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastload.bench.results import SCHEMA_VERSION, Failure, Latency, Machine, Measurement, Results, Round
from fastload.bench.schema import results_schema, violations
from fastload.errors import ConfigurationError

__all__ = ["from_json", "read_json", "to_csv", "to_json", "write_text"]


def to_json(results: Results) -> str:
    """As `results.schema.json` says. Numbers that JSON does not have (infinity, not a number) become null."""
    return json.dumps(_finite(asdict(results)), indent=1, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def from_json(text: str, name: str) -> Results:
    """Read what `to_json` wrote.

    Args:
        name: what to call it in messages.

    Raises:
        ConfigurationError: it is no JSON, no results of `fastload bench`, or of another version of the schema.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(
            f"{name}: not JSON ({error}). Give a file that fastload bench wrote with --json."
        ) from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if isinstance(version, int) and version != SCHEMA_VERSION:
        raise ConfigurationError(
            f"{name}: results of schema version {version}, this fastload reads {SCHEMA_VERSION}. "
            "Measure again, or read it with the version of fastload that wrote it."
        )
    if wrong := next(violations(document, results_schema()), None):
        raise ConfigurationError(f"{name}: no results of fastload bench: {wrong}. Give a file written with --json.")
    return _results(document)


def read_json(path: str | os.PathLike[str]) -> Results:
    """`from_json` of a file. Raises ConfigurationError, OSError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{os.fspath(path)}: not a text file ({error.reason}). Give results as JSON."
        ) from error
    return from_json(text, os.fspath(path))


def _results(document: dict[str, Any]) -> Results:
    machine = document["machine"] | {name: tuple(document["machine"][name]) for name in ("simd", "gpus")}
    measurements = tuple(_measurement(row) for row in document["measurements"])
    whole = {"machine": Machine(**machine), "measurements": measurements, "notes": tuple(document["notes"])}
    return Results(**(document | whole))


def _measurement(row: dict[str, Any]) -> Measurement:
    parts = {
        "rounds": tuple(Round(**r) for r in row["rounds"]),
        "latency": None if row["latency"] is None else Latency(**row["latency"]),
        "failures": tuple(Failure(**failure) for failure in row["failures"]),
        "series": {name: tuple(map(tuple, points)) for name, points in row["series"].items()},
    }
    return Measurement(**(row | parts))


_COLUMNS = (
    *("contestant", "mode", "status", "version", "rounds", "rate_median", "rate_q1", "rate_q3", "rate_mad"),
    *("cpu_seconds_per_1000", "latency_p50", "latency_p99", "peak_memory", "memory_growth", "failures", "note"),
)


def to_csv(results: Results) -> str:
    """A line a row; parameters and the medians of further metrics as columns after the common ones.

    Rates are samples per second; times seconds; memory bytes. Empty where there is no number.
    """
    parameters = sorted({name for row in results.measurements for name in row.parameters})
    metrics = sorted({name for row in results.measurements for r in row.rounds for name in r.metrics})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_COLUMNS[:2], *parameters, *_COLUMNS[2:], *metrics])
    for row in results.measurements:
        rate, latency = row.rate, row.latency
        rates = (None,) * 4 if rate is None else (rate.median, rate.low, rate.high, rate.mad)
        latencies = (None, None) if latency is None else (latency.p50, latency.p99)
        found = [row.metric(name) for name in metrics]
        writer.writerow(
            [
                *(row.contestant, row.mode),
                *(row.parameters.get(name) for name in parameters),
                *(row.status, row.version, len(row.rounds), *rates, row.cpu_seconds_per_1000, *latencies),
                *(row.peak_memory, row.memory_growth, len(row.failures), row.note),
                *(None if summary is None else summary.median for summary in found),
            ]
        )
    return text.getvalue()


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """All of it or nothing: an interrupted write leaves the file that was there. Raises OSError."""
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
