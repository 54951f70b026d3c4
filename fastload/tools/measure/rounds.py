"""Rounds: contestants take turns, in one run, on one machine, until each has the same number of
rounds.

    entries = [Entry("simplejpeg", "full", {"threads": 2}, open=lambda: SimpleJpegRunner(...)), ...]
    measured = measure(entries, rounds=5, seconds=0.5, warmup_seconds=0.2, on_progress=...)
    measured.measurements   # one `results.Measurement` per entry, in the order of the entries
    measured.complete       # False after Ctrl-C: what was measured until then is there

Each round takes all entries in turn, every second round backwards, so that whatever changes on the
machine meanwhile meets all alike. The clock, CPU seconds (worker processes included) and memory are
taken around each run, except where its `Work` says them itself, because the work happened elsewhere
or only a part of the call counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from fastload.errors import BackendUnavailableError, FastloadError
from fastload.tools.measure.clock import (
    cpu_seconds,
    peak_memory,
    reset_peak_memory,
    resident_memory,
)
from fastload.tools.measure.results import Failure, Latency, Measurement, Parameter, Round, Status
from fastload.tools.measure.statistics import quantile


@dataclass(frozen=True)
class Work:
    """What a runner did in one call of `run`. None: as measured around the call."""

    samples: int  # delivered, without the failed ones
    seconds: float | None = None
    cpu_seconds: float | None = None
    peak_memory: int | None = None  # [bytes]
    memory_growth: int | None = None
    latencies: Sequence[float] = ()  # [seconds], one per sample or per batch
    latency_of: str = "sample"
    # Name of the sample: what is wrong with it.
    failures: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    """Further numbers of the round, named with their unit; `Measurement.metric(name)` gives median
    and spread."""
    series: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """(seconds since the start of the run, value); the last round's are kept."""


class Runner(Protocol):
    """A contestant that was opened."""

    def run(self, seconds: float) -> Work:
        """Work for about so long, at least one whole unit: a pass over the images, a few
        batches."""
        ...

    def close(self) -> None:
        """Give back threads, processes and memory. Called once."""
        ...


@dataclass(frozen=True)
class Entry:
    """One row to be measured. An exception of `open` or of `run` ends this contestant, not the
    benchmark."""

    contestant: str
    mode: str
    parameters: Mapping[str, Parameter]
    open: Callable[[], Runner]
    version: str = ""


@dataclass(frozen=True)
class Progress:
    """Where the run is, for a progress bar."""

    entry: Entry
    round: int  # 0 is the warm-up
    share: float  # done of the whole, 0 to 1


@dataclass(frozen=True)
class Measured:
    measurements: tuple[Measurement, ...]
    complete: bool


def measure(
    entries: Sequence[Entry],
    *,
    rounds: int = 5,
    seconds: float = 0.5,
    warmup_seconds: float = 0.2,
    keep_open: bool = True,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_row: Callable[[Measurement], None] = lambda row: None,
    until: float = math.inf,
) -> Measured:
    """Measure all entries in interleaved rounds.

    Args:
        rounds: that each entry runs, at least 1; 5 or more give a spread worth reading.
        seconds: of one round of one entry.
        warmup_seconds: of the run before the first round (before every round, unless `keep_open`).
            Of it only the failures and the memory are kept; with `keep_open` no other run's memory
            is looked at.
        keep_open: open and warm up all entries once and leave them open: for what costs little
            while it is idle. False: open, warm up, run and close the entry within its round: for
            loaders, whose workers and prefetched batches would disturb the others.
        on_progress: called before each run, from this thread.
        on_row: called after each run, with the row so far.
        until: no run begins later than this, by `time.monotonic()`.

    Returns:
        What was measured; also after KeyboardInterrupt, which ends the run and is not raised again.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds}: at least 1")
    turns = [_ContestantRounds(entry) for entry in entries]
    total = (rounds + keep_open) * max(len(entries), 1)
    done, complete = 0, True
    with ExitStack() as opened:
        try:
            for number in range(0 if keep_open else 1, rounds + 1):
                for turn in reversed(turns) if number > 0 and number % 2 == 0 else turns:
                    if time.monotonic() > until:
                        return Measured(tuple(turn.measurement() for turn in turns), False)
                    on_progress(Progress(turn.entry, number, done / total))
                    done += 1
                    turn.take(number, seconds, warmup_seconds, opened if keep_open else None)
                    on_row(turn.measurement())
        except KeyboardInterrupt:
            complete = False
    return Measured(tuple(turn.measurement() for turn in turns), complete)


def status_of(error: Exception) -> tuple[Status, str]:
    """The status of a contestant that raised this, and the note on it."""
    if isinstance(error, BackendUnavailableError):
        return "unavailable", str(error)
    return "failed", str(error) if isinstance(
        error, FastloadError
    ) else f"{type(error).__name__}: {error}"


class _ContestantRounds:
    """What one contestant does, round after round, and the row of the table that it makes."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self._runner: Runner | None = None
        self._status: Status = "not run"
        self._note = ""
        self._rounds: list[Round] = []
        self._latencies: list[float] = []
        self._latency_of = "sample"
        self._memory_before = self._peak = self._growth = 0
        self._failures: dict[str, str] = {}
        self._series: dict[str, tuple[tuple[float, float], ...]] = {}

    def take(
        self, number: int, seconds: float, warmup_seconds: float, opened: ExitStack | None
    ) -> None:
        """One turn, of round 0 the warm-up; nothing once it has failed. `opened` closes the runner
        at the end of the benchmark; None: it is opened and closed here."""
        if self._status in ("unavailable", "failed"):
            return
        try:
            if opened is None:
                with ExitStack() as alone:
                    self._round(self._warm_up(alone, warmup_seconds), seconds, alone=True)
            elif number == 0:
                self._runner = self._warm_up(opened, warmup_seconds)
            elif self._runner is not None:
                self._round(self._runner, seconds, alone=False)
        except Exception as error:
            # Also an error of a library: the rounds of the others must not be lost with it.
            self._status, self._note = status_of(error)

    def _warm_up(self, opened: ExitStack, seconds: float) -> Runner:
        """Open it and run it without counting; memory and failures are kept."""
        reset_peak_memory()
        self._memory_before = resident_memory()
        runner = self.entry.open()
        opened.callback(runner.close)
        work = runner.run(seconds)
        self._failures.update(work.failures)
        self._remember_memory(work)
        return runner

    def _round(self, runner: Runner, seconds: float, *, alone: bool) -> None:
        """Run and count. `alone`: nothing else ran since the warm-up, so the memory in use is this
        contestant's."""
        cpu, clock = cpu_seconds(), time.perf_counter()
        work = runner.run(seconds)
        elapsed, burnt = time.perf_counter() - clock, cpu_seconds() - cpu
        if alone:
            self._remember_memory(work)
        self._status = "measured"
        self._rounds.append(
            Round(
                samples=work.samples,
                seconds=elapsed if work.seconds is None else work.seconds,
                cpu_seconds=burnt if work.cpu_seconds is None else work.cpu_seconds,
                metrics=dict(work.metrics),
            )
        )
        self._failures.update(work.failures)
        self._latencies.extend(work.latencies)
        self._latency_of = work.latency_of
        self._series = {name: tuple(points) for name, points in work.series.items()}

    def _remember_memory(self, work: Work) -> None:
        peak = peak_memory()
        growth = peak - self._memory_before if work.memory_growth is None else work.memory_growth
        self._peak = max(self._peak, peak if work.peak_memory is None else work.peak_memory)
        self._growth = max(self._growth, growth)

    def measurement(self) -> Measurement:
        """The row so far."""
        latency = None
        if self._latencies:
            p50, p99 = quantile(self._latencies, 0.5), quantile(self._latencies, 0.99)
            latency = Latency(p50, p99, len(self._latencies), self._latency_of)
        return Measurement(
            contestant=self.entry.contestant,
            mode=self.entry.mode,
            parameters=dict(self.entry.parameters),
            status=self._status,
            note=self._note,
            version=str(self.entry.version),  # torch has a class of its own for it
            rounds=tuple(self._rounds),
            latency=latency,
            peak_memory=self._peak or None,
            memory_growth=self._growth if self._peak else None,
            failures=tuple(
                Failure(name, message) for name, message in sorted(self._failures.items())
            ),
            series=self._series,
        )
