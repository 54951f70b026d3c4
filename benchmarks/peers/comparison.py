"""The comparison, in order: the input, the rounds, then what is not throughput."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.peers import data, singles
from benchmarks.peers.contestants import (
    DALI,
    FASTLOAD_CACHE,
    FASTLOAD_TURBOJPEG,
    FFCV_JPEG,
    LIMIT,
    LIMIT_FILES,
    PILLOW,
    Row,
)
from benchmarks.peers.limit import LimitRunner
from benchmarks.peers.process import DRAIN, Interpreters, StreamRunner
from benchmarks.peers.setting import Setting
from fastload.errors import BackendUnavailableError
from fastload.measure.results import Measurement
from fastload.measure.rounds import Entry, Measured, Progress, Runner, measure

__all__ = ["Comparison", "Wanted", "prepare"]

_EPOCHS = 20
_PEER_EPOCHS = 3

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
    ffcv_python: str = sys.executable


def prepare(wanted: Wanted, rows: Sequence[Row], say: Say) -> Comparison:
    """Make what is not there yet: photographs, FFCV's environment and files, the cache.

    Raises:
        SourceError: no photographs.
    """
    wanted.work.mkdir(parents=True, exist_ok=True)
    interpreters = Interpreters(sys.executable, str(wanted.work / "ffcv" / "bin" / "python"))
    peers = [row for row in rows if row.environment == "ffcv"]
    without_ffcv = _ffcv_environment(wanted, say) if peers else ""
    photographs = data.photographs(wanted.data or data.sample_set(wanted.work, say), wanted.work, wanted.least)
    small = data.small_images(wanted.work, wanted.small)
    files = photographs.folder.parent / "ffcv"
    if peers and not without_ffcv:
        say("writing FFCV's files, unless they are there")
        for row in peers:
            source = small if row.task == "small images" else photographs.folder
            kind = row.opener.partition(":")[2]
            data.write_ffcv(kind, source, files, interpreters.ffcv, wanted.threads)
    say("writing fastload's cache, unless it is there")
    setting = Setting(
        photographs=str(photographs.folder),
        small=str(small),
        ffcv=str(files),
        cache=str(data.cache_photographs(photographs)),
        batch_size=wanted.batch_size,
        threads=wanted.threads,
    )
    return Comparison(wanted, tuple(rows), photographs, setting, interpreters, without_ffcv, say)


def _ffcv_environment(wanted: Wanted, say: Say) -> str:
    """Make it if it is not there. Returns why it cannot be had; empty if it can."""
    script = Path(__file__).with_name("ffcv_environment.sh")
    command = ["bash", str(script), str(wanted.work / "ffcv"), wanted.ffcv_python]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode == 0:
        return ""
    reason = (done.stderr.strip().splitlines() or ["its installation failed"])[-1]
    say(reason)
    return reason


@dataclass(frozen=True)
class Comparison:
    """Everything is there; `rates` and `singles` measure."""

    wanted: Wanted
    rows: tuple[Row, ...]
    photographs: data.Photographs
    setting: Setting
    interpreters: Interpreters
    without_ffcv: str
    """Why FFCV cannot take part."""
    say: Say

    def minutes(self, *, rates_only: bool) -> float:
        """A guess at how long it takes: starting a contestant some ten seconds, emptying and filling its queues one."""
        a_round = self.wanted.seconds + DRAIN + 0.5
        return len(self.rows) * (10 + self.wanted.rounds * a_round) / 60 + (0.0 if rates_only else 2.5)

    def rates(self, on_progress: Callable[[Progress], None]) -> Measured:
        """Throughput, in interleaved rounds."""
        runners: dict[Row, StreamRunner] = {}
        entries = [
            Entry(row.contestant, row.task, {"threads": self.wanted.threads}, partial(self._open, row, runners))
            for row in self.rows
        ]
        measured = measure(
            entries,
            rounds=self.wanted.rounds,
            seconds=self.wanted.seconds,
            warmup_seconds=self.wanted.seconds / 2,
            on_progress=on_progress,
        )
        versions: dict[tuple[str, str], str] = {
            (row.contestant, row.task): runner.version for row, runner in runners.items()
        }
        return replace(
            measured,
            measurements=tuple(
                msgspec.structs.replace(m, version=versions.get((m.contestant, m.mode), ""))
                for m in measured.measurements
            ),
        )

    def singles(self) -> list[Measurement]:
        """First batches, ends of epochs, memory, Python beside the loader."""
        few = replace(self.setting, photographs=str(self.photographs.few))
        asked = self._present(FASTLOAD_TURBOJPEG, PILLOW, DALI)
        found = singles.first_batches(asked, few, self.interpreters, self.say, times=3)
        for row in self._present(FASTLOAD_TURBOJPEG, FASTLOAD_CACHE, PILLOW, DALI, FFCV_JPEG):
            count = _EPOCHS if row in (FASTLOAD_TURBOJPEG, FASTLOAD_CACHE) else _PEER_EPOCHS
            found += singles.epoch_ends(row, self.setting, self.interpreters, self.say, count)
        for row in self._present(FASTLOAD_TURBOJPEG):
            found += singles.interpreter_speed(row, self.setting, self.interpreters, self.say, times=5, seconds=1.0)
        return found

    def _present(self, *rows: Row) -> tuple[Row, ...]:
        return tuple(row for row in rows if row in self.rows and not (row.environment == "ffcv" and self.without_ffcv))

    def _open(self, row: Row, runners: dict[Row, StreamRunner]) -> Runner:
        if row in (LIMIT, LIMIT_FILES):
            return LimitRunner(self.setting, self.wanted.work / "limit", files=row is LIMIT_FILES)
        if row.environment == "ffcv" and self.without_ffcv:
            raise BackendUnavailableError(self.without_ffcv)
        size = self.wanted.small_batch_size if row.task == "small images" else self.wanted.batch_size
        runners[row] = StreamRunner(row, replace(self.setting, batch_size=size), self.interpreters)
        return runners[row]
