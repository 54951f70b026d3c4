"""This end of the pipe to a contestant's process (`serve.py` is the other)."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.contestants import Row
from benchmarks.peers.setting import Setting
from fastload.errors import FastloadError, WorkerError
from fastload.measure.rounds import Work

__all__ = ["ContestantProcess", "Interpreters", "StreamRunner"]

ROOT = Path(__file__).resolve().parents[2]
"""Of the checkout: where `benchmarks` and `fastload` are found."""

DRAIN = 0.6
"""Before each measurement, so that batches which were ready do not count [seconds]."""

_PATIENCE = 300.0
"""For what is not timed: imports, the compilers of FFCV, the first batch [seconds]."""


@dataclass(frozen=True)
class Interpreters:
    """Python of each environment."""

    fastload: str
    ffcv: str


class ContestantProcess:
    """A contestant in a process of its own."""

    def __init__(self, row: Row, setting: Setting, interpreters: Interpreters) -> None:
        self._row = row
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        python = interpreters.fastload if row.environment == "fastload" else interpreters.ffcv
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.peers.serve", row.opener, setting.to_json()],
            cwd=ROOT,
            # Libraries that ask for it start no more threads than the others may.
            env=os.environ | {"OMP_NUM_THREADS": str(setting.threads)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
        )
        assert self._process.stdout is not None
        self._answers = selectors.DefaultSelector()
        self._answers.register(self._process.stdout, selectors.EVENT_READ)

    def ask(self, what: str, *, patience: float = _PATIENCE, **arguments: float) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises:
            FastloadError: the contestant raised something.
            WorkerError: it died, or did not answer in time.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **arguments}).encode() + b"\n")
            answer: dict[str, Any] = json.loads(self._line(time.monotonic() + patience) or b"{}")
        except BrokenPipeError:
            answer = {}
        if not answer:
            raise WorkerError(f"{self._row.contestant}: did not answer {what!r}. {self._last_words()}")
        if "error" in answer:
            raise FastloadError(f"{self._row.contestant}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End of input ends it, and its workers; if it does not go by itself, by force."""
        self._answers.close()
        try:
            self._process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._log.close()

    def _line(self, deadline: float) -> bytes:
        """A whole line; empty if there is none by then, or the process ended."""
        assert self._process.stdout is not None
        line = b""
        while not line.endswith(b"\n"):
            if not self._answers.select(max(deadline - time.monotonic(), 0.0)):
                return b""
            part = os.read(self._process.stdout.fileno(), 1 << 16)
            if not part:
                return b""
            line += part
        return line

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        return lines[-1] if lines else ""


class StreamRunner:
    """A contestant for `fastload.measure.rounds`: stays open over all rounds."""

    def __init__(self, row: Row, setting: Setting, interpreters: Interpreters) -> None:
        self._process = ContestantProcess(row, setting, interpreters)
        self._mean: float | None = None
        self.version = ""
        """Known after the first run."""

    def run(self, seconds: float) -> Work:
        if self._mean is None:
            opened = self._process.ask("open")
            self._mean, self.version = opened["mean_pixel"], opened["version"]
        answer = self._process.ask("stream", seconds=seconds, drain=DRAIN, patience=_PATIENCE + 20 * seconds)
        return Work(
            samples=answer["samples"],
            seconds=answer["seconds"],
            cpu_seconds=answer["cpu_seconds"],
            peak_memory=answer["memory"],
            memory_growth=answer["memory"],
            metrics={"mean_pixel": self._mean},
        )

    def close(self) -> None:
        self._process.close()
