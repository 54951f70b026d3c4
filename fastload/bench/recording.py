"""What one contestant did, round after round, and the row of the table that it makes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from fastload.bench.resources import cpu_seconds, peak_memory, reset_peak_memory, resident_memory
from fastload.bench.results import Failure, Latency, Measurement, Parameter, Round, Status
from fastload.bench.statistics import quantile

__all__ = ["Record", "Runner", "Work"]


@dataclass(frozen=True)
class Work:
    """What a runner did in one call of `run`. None: as measured around the call."""

    samples: int
    """Delivered, without the failed ones."""
    seconds: float | None = None
    cpu_seconds: float | None = None
    peak_memory: int | None = None
    """[bytes]"""
    memory_growth: int | None = None
    latencies: Sequence[float] = ()
    """[seconds], one per sample or per batch."""
    latency_of: str = "sample"
    failures: Mapping[str, str] = field(default_factory=dict)
    """Name of the sample: what is wrong with it."""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    series: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """(seconds since the start of the run, value)"""


class Runner(Protocol):
    """A contestant at work."""

    def run(self, seconds: float) -> Work:
        """Work for about so long. An exception ends the contestant: its row is marked as failed."""
        ...

    def close(self) -> None:
        """Give back threads, processes and memory. Called once."""
        ...


_Runner = TypeVar("_Runner", bound=Runner)


class Record:
    """Grows with every round of one contestant."""

    def __init__(self, contestant: str, mode: str, parameters: Mapping[str, Parameter], version: str) -> None:
        self._contestant, self._mode, self._parameters, self._version = contestant, mode, dict(parameters), version
        self._status: Status = "not run"
        self._note = ""
        self._rounds: list[Round] = []
        self._latencies: list[float] = []
        self._latency_of = "sample"
        self._memory_before = self._peak = self._growth = 0
        self._failures: dict[str, str] = {}
        self._series: dict[str, tuple[tuple[float, float], ...]] = {}

    @property
    def ended(self) -> bool:
        """Whether it takes no further part."""
        return self._status in ("unavailable", "failed")

    def end(self, status: Status, note: str) -> None:
        self._status, self._note = status, note

    def warm_up(self, open_runner: Callable[[], _Runner], seconds: float) -> _Runner:
        """Open it and run it without counting; memory and failures are kept."""
        reset_peak_memory()
        self._memory_before = resident_memory()
        runner = open_runner()
        self._remember(runner.run(seconds))
        return runner

    def round(self, runner: Runner, seconds: float, *, alone: bool) -> None:
        """Run and count.

        Args:
            alone: nothing else ran since the warm-up, so that the memory in use is this contestant's.
        """
        cpu, clock = cpu_seconds(), time.perf_counter()
        work = runner.run(seconds)
        elapsed, burnt = time.perf_counter() - clock, cpu_seconds() - cpu
        self._remember(work, memory=alone)
        self._status = "measured"
        self._rounds.append(
            Round(
                samples=work.samples,
                seconds=elapsed if work.seconds is None else work.seconds,
                cpu_seconds=burnt if work.cpu_seconds is None else work.cpu_seconds,
                metrics=dict(work.metrics),
            )
        )
        self._latencies.extend(work.latencies)
        self._latency_of = work.latency_of
        self._series = {name: tuple(points) for name, points in work.series.items()}

    def _remember(self, work: Work, *, memory: bool = True) -> None:
        self._failures.update(work.failures)
        if memory:
            peak = peak_memory()
            growth = peak - self._memory_before if work.memory_growth is None else work.memory_growth
            self._peak = max(self._peak, peak if work.peak_memory is None else work.peak_memory)
            self._growth = max(self._growth, growth)

    def measurement(self) -> Measurement:
        """All of it so far."""
        latency = None
        if self._latencies:
            p50, p99 = quantile(self._latencies, 0.5), quantile(self._latencies, 0.99)
            latency = Latency(p50, p99, len(self._latencies), self._latency_of)
        return Measurement(
            contestant=self._contestant,
            mode=self._mode,
            parameters=self._parameters,
            status=self._status,
            note=self._note,
            version=self._version,
            rounds=tuple(self._rounds),
            latency=latency,
            peak_memory=self._peak or None,
            memory_growth=self._growth if self._peak else None,
            failures=tuple(Failure(name, message) for name, message in sorted(self._failures.items())),
            series=self._series,
        )
