"""The comparison, in order: the input, the rounds, then what is not throughput."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from msgspec import structs

from benchmarks.inputs import ROOT, photographs, reduced, sample_set, small_images
from benchmarks.peers.contestants import ENVIRONMENTS, Row, seek_index
from benchmarks.peers.setting import PNG, TINY, Setting
from fastload.cache import build_cache
from fastload.errors import BackendUnavailableError, WorkerError
from fastload.native.seek_filling import fill_seek_index
from fastload.tools.measure import process
from fastload.tools.measure.process import Child
from fastload.tools.measure.results import Measurement
from fastload.tools.measure.rounds import Entry, Measured, Progress, Runner, Work, measure

FIRST, EPOCHS, INTERPRETER = "first batch", "epochs", "Python beside the loader"
"""The modes of what is not throughput; that of throughput is the task."""

LEAST = 2048
"""Photographs an epoch; fewer files are repeated."""
SMALL = 50_000
"""Number of 32x32 images."""
BATCH, SMALL_BATCH = 64, 512
_PATIENCE = 300.0
"""For what is not timed: imports, the compilers of FFCV, the first batch [seconds]."""
_LIMIT_NEEDS = (
    "the limit needs cmake, a C++ compiler and libjpeg-turbo's headers: sudo apt-get install -y "
    "cmake g++ libjpeg-dev"
)


class Comparison:
    """Makes what is not there yet: photographs, the peers' environments and files, the cache, the
    seek index. Then it measures."""

    def __init__(self, given: Namespace, rows: Sequence[Row], say: Callable[[str], None]) -> None:
        """
        Args:
            given: the command line.

        Raises:
            SourceError: no photographs.
        """
        self.rows, self._given, self._say = rows, given, say
        work: Path = given.work
        work.mkdir(parents=True, exist_ok=True)
        self.photographs = photographs(given.data or sample_set(work, 1000, say), work, LEAST)
        folder = str(self.photographs.folder)
        # Its name is a hash of the photographs: other ones get a cache and FFCV files of their own.
        files = self.photographs.folder.parent
        self.setting = Setting(
            folder, str(small_images(work, SMALL)), str(files), BATCH, given.threads
        )
        say("building fastload's cache, unless it is there")
        build_cache(folder, files / "cache", short_side=256)
        say("noting the points of the seek index, unless it has them")
        fill_seek_index(folder, seek_index(self.setting))
        self._folders: dict[str, str] = {}
        for task, count, side, suffix in (
            ("PNG photographs", 256, PNG, ".png"),
            ("small JPEGs", 1024, TINY, ".jpg"),
        ):
            if any(row.task == task for row in rows):
                say(f"making {task}, unless they are there")
                made = reduced(self.photographs.few, work, count, side=side, suffix=suffix)
                self._folders[task] = str(photographs(made, work, LEAST, (suffix,)).folder)
        names = dict.fromkeys(row.environment for row in rows if row.environment)
        self._lacking = {name: ENVIRONMENTS[name].make(work, say) for name in names}
        for row in rows:
            if row.written and not self._lacking[row.environment]:
                say(f"writing what {row.contestant} reads, unless it is there")
                done = process.run(
                    "benchmarks.peers.stored:write",
                    *(self.setting, row.written),
                    launcher=self._launcher(row),
                    cwd=ROOT,
                )
                if done.code != 0:
                    raise BackendUnavailableError(f"{row.contestant}: no files: {done.words}")

    def rates(self, on_progress: Callable[[Progress], None]) -> Measured:
        """Throughput, in interleaved rounds."""
        given = self._given
        parameters = {"threads": given.threads}
        versions: dict[tuple[str, str], str] = {}

        def opened(row: Row) -> Runner:
            if row.open is None:
                return Limit(self.setting, given.work / "limit")
            peer = self._peer(row, "stream")
            versions[row.contestant, row.task] = peer.version
            return peer

        entries = [
            Entry(row.contestant, row.task, parameters, partial(opened, row)) for row in self.rows
        ]
        timing = {"seconds": given.seconds, "warmup_seconds": given.seconds / 2}
        found = measure(entries, rounds=given.rounds, on_progress=on_progress, **timing)
        named = [
            structs.replace(m, version=versions.get((m.contestant, m.mode), ""))
            for m in found.measurements
        ]
        return replace(found, measurements=tuple(named))

    def singles(self) -> Iterator[Measurement]:
        """First batches, ends of epochs and memory, Python beside the loader: while nothing else is
        at work."""
        few = str(self.photographs.few)
        first = [row for row in self.rows if row.first_batch]
        yield from self._alone(
            FIRST, first, "first_batch", 3, partial(replace, photographs=few), keep_open=False
        )
        for row in self.rows:
            if row.epochs:
                epochs = partial(replace, epochs=row.epochs)
                yield from self._alone(EPOCHS, [row], "epochs", 1, epochs)
            if row.beside_python:
                beside = partial(replace, threads=1, cores=2)
                yield from self._alone(INTERPRETER, [row], "beside_python", 5, beside)

    def _alone(
        self,
        mode: str,
        rows: Sequence[Row],
        method: str,
        rounds: int,
        changed: Callable[[Setting], Setting],
        keep_open: bool = True,
    ) -> tuple[Measurement, ...]:
        entries = [
            Entry(row.contestant, mode, {}, partial(self._peer, row, method, changed))
            for row in rows
        ]
        self._say(f"{mode}: {', '.join(row.contestant for row in rows)}")
        return measure(
            entries, rounds=rounds, seconds=1.0, warmup_seconds=0.0, keep_open=keep_open
        ).measurements

    def _peer(
        self, row: Row, method: str, changed: Callable[[Setting], Setting] = lambda given: given
    ) -> Peer:
        if lacking := self._lacking.get(row.environment):
            raise BackendUnavailableError(lacking)
        setting = replace(
            self.setting,
            photographs=self._folders.get(row.task, self.setting.photographs),
            crop=row.side,
            batch_size=SMALL_BATCH if row.task.startswith("small") else BATCH,
        )
        return Peer(row, changed(setting), self._launcher(row), method)

    def _launcher(self, row: Row) -> list[str]:
        """The interpreter of its environment."""
        return [
            str(ENVIRONMENTS[row.environment].python(self._given.work))
            if row.environment
            else sys.executable
        ]


class Peer:
    """A contestant in a process of its own, as a runner: a method of `serve.Contestant`."""

    def __init__(self, row: Row, setting: Setting, launcher: Sequence[str], method: str) -> None:
        """Raises as `Child.open`."""
        # Libraries that ask for it start no more threads than the others may.
        environment = {**os.environ, "OMP_NUM_THREADS": str(setting.threads)}
        self._method = method
        self._child = Child(launcher=launcher, environment=environment, cwd=ROOT)
        self.close = self._child.close
        try:
            self._child.open(
                "benchmarks.peers.serve:Contestant",
                row.contestant,
                row.task,
                setting,
                limit=_PATIENCE,
            )
            self.version: str = self._child.ask("version")
        except BaseException:
            self.close()
            raise

    def run(self, seconds: float) -> Work:
        if not seconds:
            return Work(0)
        return Work(**self._child.ask(self._method, seconds, limit=_PATIENCE + 20 * seconds))


class Limit:
    """The limit: decoding the same crops with the same library, and nothing else
    (`benchmarks/native_limit.cpp`).

    Goes through whole epochs; its decoders and threads live on between them.
    """

    def __init__(self, setting: Setting, build: Path) -> None:
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
                raise BackendUnavailableError(
                    f"{_LIMIT_NEEDS} ({lines[-1] if lines else 'the build failed'})"
                )
        command = [str(build / "native_limit"), setting.photographs, str(setting.threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def run(self, seconds: float) -> Work:
        samples, clock, processor = 0.0, 0.0, 0.0
        stop = time.monotonic() + seconds
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        while not samples or time.monotonic() < stop:
            self._process.stdin.write("\n")
            found = [float(text) for text in self._process.stdout.readline().split()]
            if len(found) != 3:
                raise WorkerError(
                    "native_limit: ended in the middle; it wrote why to standard error"
                )
            samples, clock, processor = samples + found[0], clock + found[1], processor + found[2]
        return Work(
            int(samples), seconds=clock, cpu_seconds=processor, peak_memory=0, memory_growth=0
        )

    def close(self) -> None:
        self._process.communicate()
