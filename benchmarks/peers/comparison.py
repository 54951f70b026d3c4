"""The comparison, in order: the input, the rounds, then what is not throughput."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from msgspec import structs

from benchmarks.inputs import ROOT, Photographs, photographs, reduced, sample_set, small_images
from benchmarks.peers.contestants import LIMIT_FILES, PNG, TINY, Row, Setting
from fastload.cache import build_cache
from fastload.errors import BackendUnavailableError, FastloadError, WorkerError
from fastload.measure import process
from fastload.measure.process import Child
from fastload.measure.results import Measurement, Round
from fastload.measure.rounds import Entry, Measured, Progress, Runner, Work, measure
from fastload.measure.statistics import quantile

FIRST, END = "first batch", "end of an epoch"
MEMORY, INTERPRETER = "memory over epochs", "Python beside the loader"
"""The modes of what is not throughput; that of throughput is the task."""

_DRAIN = 0.6
"""Before each measurement, so that batches which were ready do not count [seconds]."""
_PATIENCE = 300.0
"""For what is not timed: imports, the compilers of FFCV, the first batch [seconds]."""
_LIMIT_NEEDS = (
    "the limit needs cmake, a C++ compiler and libjpeg-turbo's headers: sudo apt-get install -y cmake g++ libjpeg-dev"
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """What is asked for; the command line has the same names."""

    data: Path | None
    """Class folders of JPEGs. None: the photographs of `fastload demo`."""
    work: Path
    """Files and environments are kept here."""
    least: int = 2048
    """Photographs an epoch; fewer files are repeated."""
    small: int = 50_000
    """Number of 32x32 images."""
    batch_size: int = 64
    small_batch_size: int = 512
    threads: int = 2
    rounds: int = 7
    seconds: float = 2.0
    """Of one contestant in one round."""
    peers_python: str = sys.executable
    """Makes the peers' environments."""


def prepare(wanted: Wanted, rows: Sequence[Row], say: Say) -> Comparison:
    """Make what is not there yet: photographs, the peers' environments and files, the cache.

    Raises:
        SourceError: no photographs.
    """
    wanted.work.mkdir(parents=True, exist_ok=True)
    found = photographs(wanted.data or sample_set(wanted.work, 1000, say), wanted.work, wanted.least)
    small = small_images(wanted.work, wanted.small)
    work = found.folder.parent
    setting = Setting(str(found.folder), str(small), str(work), wanted.batch_size, wanted.threads)
    say("building fastload's cache, unless it is there")
    build_cache(setting.photographs, work / "cache", short_side=256)
    comparison = Comparison(wanted, tuple(rows), found, setting, say)
    for task, count, side, suffix in (("PNG photographs", 256, PNG, ".png"), ("small JPEGs", 1024, TINY, ".jpg")):
        if any(row.task == task for row in rows):
            say(f"making {task}, unless they are there")
            made = reduced(found.few, work, count, side=side, suffix=suffix)
            comparison.folders[task] = str(photographs(made, work, wanted.least, (suffix,)).folder)
    for name in dict.fromkeys(row.environment for row in rows if row.environment):
        comparison.lacking[name] = _environment(name, wanted, say)
    for row in rows:
        if row.written and not comparison.lacking[row.environment]:
            say(f"writing FFCV's file {row.written!r}, unless it is there")
            done = process.run(
                "benchmarks.peers.contestants:write_ffcv",
                *(setting, row.written),
                launcher=comparison.launcher(row),
                cwd=ROOT,
            )
            if done.code != 0:
                raise BackendUnavailableError(f"FFCV could not write its file: {done.words}")
    return comparison


def _environment(name: str, wanted: Wanted, say: Say) -> str:
    """Make it if it is not there. Returns why it cannot be had; empty if it can."""
    script = Path(__file__).with_name("environment.sh")
    command = ["bash", str(script), name, str(wanted.work / name), wanted.peers_python]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode == 0:
        return ""
    reason = (done.stderr.strip().splitlines() or [f"the installation of {name} failed"])[-1]
    say(reason)
    return reason


@dataclass(frozen=True)
class Comparison:
    """Everything is there; `rates` and the others measure."""

    wanted: Wanted
    rows: tuple[Row, ...]
    photographs: Photographs
    setting: Setting
    say: Say
    lacking: dict[str, str] = field(default_factory=dict)
    """Environment: why it cannot be had."""
    folders: dict[str, str] = field(default_factory=dict)
    """Of tasks with files of their own."""

    def minutes(self, *, rates_only: bool) -> float:
        """A guess at how long it takes: starting a contestant some ten seconds, emptying and filling its queues one."""
        a_round = self.wanted.seconds + _DRAIN + 0.5
        return len(self.rows) * (10 + self.wanted.rounds * a_round) / 60 + (0.0 if rates_only else 2.5)

    def launcher(self, row: Row) -> list[str]:
        """The interpreter of its environment."""
        return [str(self.wanted.work / row.environment / "bin" / "python") if row.environment else sys.executable]

    def rates(self, on_progress: Callable[[Progress], None]) -> Measured:
        """Throughput, in interleaved rounds."""
        runners: dict[tuple[str, str], StreamRunner] = {}
        parameters = {"threads": self.wanted.threads}
        entries = [Entry(r.contestant, r.task, parameters, partial(self._open, r, runners)) for r in self.rows]
        measured = measure(
            entries,
            rounds=self.wanted.rounds,
            seconds=self.wanted.seconds,
            warmup_seconds=self.wanted.seconds / 2,
            on_progress=on_progress,
        )
        named = [
            structs.replace(m, version=runners[m.contestant, m.mode].version)
            if (m.contestant, m.mode) in runners
            else m
            for m in measured.measurements
        ]
        return replace(measured, measurements=tuple(named))

    def singles(self) -> Iterator[Measurement]:
        """First batches, ends of epochs, memory, Python beside the loader.

        Each in fresh processes, one after the other, while nothing else is at work. A contestant that cannot be
        measured gives no row: the table of the rounds says why.
        """
        there = [row for row in self.rows if not self.lacking.get(row.environment)]
        few = replace(self.setting, photographs=str(self.photographs.few))
        rounds: dict[str, list[Round]] = {}
        for row in [row for _ in range(3) for row in there if row.first_batch]:  # in turns
            with self._alone(FIRST, row, few) as child:
                found = child.ask("first", limit=_PATIENCE)
                metrics = {name: found[name] for name in ("first_batch_seconds", "made_seconds")}
                once = Round(0, 0.0, 0.0, metrics)
                rounds.setdefault(row.contestant, []).append(once)
        for name, every in rounds.items():
            yield Measurement(name, FIRST, rounds=tuple(every))
        for row in [row for row in there if row.epochs]:
            with self._alone(END, row, self.setting) as child:
                child.ask("first", limit=_PATIENCE)
                yield from _epochs(row, child.ask("epochs", row.epochs))
        for row in [row for row in there if row.beside_python]:
            with self._alone(INTERPRETER, row, replace(self.setting, threads=1, cores=2)) as child:
                child.ask("first", limit=_PATIENCE)
                child.ask("stream", 1.0, 0.0)
                answers = [child.ask("beside_python", 1.0) for _ in range(5)]
                loops = tuple(Round(0, found.pop("seconds"), found.pop("cpu_seconds"), found) for found in answers)
                yield Measurement(row.contestant, INTERPRETER, {"threads": 1, "cores": 2}, rounds=loops)

    @contextmanager
    def _alone(self, what: str, row: Row, setting: Setting) -> Iterator[Child]:
        """A fresh process; what the contestant raises ends the measurement and is said."""
        self.say(f"{what}: {row.contestant}")
        try:
            with ExitStack() as stack:
                child = contestant(row, setting, self.launcher(row))
                stack.callback(child.close)
                yield child
        except (FastloadError, ValueError, OSError) as error:  # as `Child` raises them
            self.say(f"{row.contestant}: {error}")

    def _open(self, row: Row, runners: dict[tuple[str, str], StreamRunner]) -> Runner:
        if row.open is None:
            return LimitRunner(self.setting, self.wanted.work / "limit", files=row is LIMIT_FILES)
        if lacking := self.lacking.get(row.environment):
            raise BackendUnavailableError(lacking)
        setting = replace(
            self.setting,
            photographs=self.folders.get(row.task, self.setting.photographs),
            crop=row.side,
            batch_size=self.wanted.small_batch_size if row.task.startswith("small") else self.wanted.batch_size,
        )
        runner = StreamRunner(contestant(row, setting, self.launcher(row)))
        runners[row.contestant, row.task] = runner
        return runner


def contestant(row: Row, setting: Setting, launcher: Sequence[str]) -> Child:
    """Its process, from which `serve.Contestant` answers. Raises as `Child.open`."""
    import os

    # Libraries that ask for it start no more threads than the others may.
    environment = {**os.environ, "OMP_NUM_THREADS": str(setting.threads)}
    child = Child(launcher=launcher, environment=environment, cwd=ROOT)
    try:
        child.open("benchmarks.peers.serve:Contestant", row.contestant, row.task, setting, limit=_PATIENCE)
    except BaseException:
        child.close()
        raise
    return child


class StreamRunner:
    """A contestant for the rounds: stays open over all of them."""

    def __init__(self, child: Child) -> None:
        self.version = ""
        """Known after the first run."""
        self.close = child.close
        self._child = child
        self._mean: float | None = None

    def run(self, seconds: float) -> Work:
        if self._mean is None:
            opened = self._child.ask("first", limit=_PATIENCE)
            self._mean, self.version = opened["mean_pixel"], opened["version"]
        found = self._child.ask("stream", seconds, _DRAIN, limit=_PATIENCE + 20 * seconds)
        return Work(
            found["samples"],
            found["seconds"],
            found["cpu_seconds"],
            peak_memory=found["memory"],
            memory_growth=found["memory"],
            metrics={"mean_pixel": self._mean},
        )


class LimitRunner:
    """The limit: decoding the same crops with the same library, and nothing else (`benchmarks/native_limit.cpp`).

    Goes through whole epochs; its decoders and threads live on between them.
    """

    def __init__(self, setting: Setting, build: Path, *, files: bool) -> None:
        """Builds the program, if need be. Raises BackendUnavailableError."""
        if shutil.which("cmake") is None:
            raise BackendUnavailableError(_LIMIT_NEEDS)
        options = ["-DFASTLOAD_TOOLS=ON", "-DFASTLOAD_PYTHON=OFF", "-DCMAKE_BUILD_TYPE=Release"]
        for step in (
            ["-S", str(ROOT), "-B", str(build), *options],
            ["--build", str(build), "--target", "native_limit"],
        ):
            done = subprocess.run(["cmake", *step], capture_output=True, text=True)
            if done.returncode != 0:
                lines = (done.stderr or done.stdout).strip().splitlines()
                raise BackendUnavailableError(f"{_LIMIT_NEEDS} ({lines[-1] if lines else 'the build failed'})")
        command = [str(build / "native_limit"), setting.photographs, str(setting.threads), "0", "auto", str(int(files))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def run(self, seconds: float) -> Work:
        samples, clock, processor = 0.0, 0.0, 0.0
        stop = time.monotonic() + seconds
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        while not samples or time.monotonic() < stop:
            self._process.stdin.write("\n")
            found = [float(text) for text in self._process.stdout.readline().split()]
            if len(found) != 3:
                raise WorkerError("native_limit: ended in the middle; it wrote why to standard error")
            samples, clock, processor = samples + found[0], clock + found[1], processor + found[2]
        return Work(int(samples), seconds=clock, cpu_seconds=processor, peak_memory=0, memory_growth=0)

    def close(self) -> None:
        self._process.communicate()


def _epochs(row: Row, found: Mapping[str, Sequence[float]]) -> Iterator[Measurement]:
    """Ends of epochs beside ordinary intervals, and memory after each epoch."""
    within, memory = found["within"], found["memory"]
    ordinary = quantile(within, 0.5)
    usual = {"ordinary_seconds": ordinary, "ordinary_p99_seconds": quantile(within, 0.99)}
    ends = [Round(0, s, 0.0, {"gap_in_ordinary_intervals": s / ordinary - 1, **usual}) for s in found["across"]]
    yield Measurement(row.contestant, END, rounds=tuple(ends))
    growth = max(memory[1:], default=memory[0]) / memory[0] - 1
    yield Measurement(
        row.contestant,
        MEMORY,
        {"epochs": len(memory)},
        rounds=(Round(0, 0.0, 0.0, {"growth_after_first_epoch_share": growth, "most_bytes": max(memory)}),),
        series={"bytes_after_epoch": tuple((float(number), size) for number, size in enumerate(memory, 1))},
    )
