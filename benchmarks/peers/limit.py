"""The limit: decoding the same crops with the same library, and nothing else (`benchmarks/native_limit.cpp`)."""

from __future__ import annotations

import shutil
import subprocess
import time
from functools import cache
from pathlib import Path

from benchmarks.peers.process import ROOT
from benchmarks.peers.setting import Setting
from fastload.errors import BackendUnavailableError, WorkerError
from fastload.measure.rounds import Work

__all__ = ["LimitRunner"]

_NEEDS = (
    "the limit needs cmake, a C++ compiler and libjpeg-turbo's headers: sudo apt-get install -y cmake g++ libjpeg-dev"
)


@cache
def _build(where: Path) -> Path:
    """Build the program, if need be. Raises BackendUnavailableError."""
    if shutil.which("cmake") is None:
        raise BackendUnavailableError(_NEEDS)
    options = ["-DFASTLOAD_TOOLS=ON", "-DFASTLOAD_PYTHON=OFF", "-DCMAKE_BUILD_TYPE=Release"]
    for command in (
        ["cmake", "-S", str(ROOT), "-B", str(where), *options],
        ["cmake", "--build", str(where), "--target", "native_limit"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise BackendUnavailableError(f"{_NEEDS} ({lines[-1] if lines else 'the build failed'})")
    return where / "native_limit"


class LimitRunner:
    """Goes through whole epochs; its decoders and threads live on between them."""

    def __init__(self, setting: Setting, build: Path, *, files: bool) -> None:
        command = [str(_build(build)), setting.photographs, str(setting.threads), "0", "auto", "1" if files else "0"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def run(self, seconds: float) -> Work:
        samples, clock, processor = 0, 0.0, 0.0
        stop = time.monotonic() + seconds
        while not samples or time.monotonic() < stop:
            images, elapsed, burnt = self._epoch()
            samples, clock, processor = samples + int(images), clock + elapsed, processor + burnt
        return Work(samples=samples, seconds=clock, cpu_seconds=processor, peak_memory=0, memory_growth=0)

    def close(self) -> None:
        self._process.communicate()

    def _epoch(self) -> tuple[float, float, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        fields = self._process.stdout.readline().split()
        if len(fields) != 3:
            raise WorkerError("native_limit: ended in the middle; it wrote why to standard error")
        images, elapsed, burnt = map(float, fields)
        return images, elapsed, burnt
