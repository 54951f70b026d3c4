"""Pillow, and Pillow-SIMD beside it: built with AVX2 into a folder of its own, and measured in a
process of its own.

It has Pillow's import name; installed in the ordinary way it would replace Pillow. Its process
should use no more memory than Pillow's, so this file does not import torch.
"""

from __future__ import annotations

import io
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np

from fastload.errors import BackendUnavailableError, WorkerError
from fastload.machine import cache_home
from fastload.tools.bench.passes import (
    FORMATS,
    Contestant,
    Metrics,
    PassRunner,
    PixelRunner,
    Pixels,
    Place,
    Task,
)
from fastload.tools.measure.clock import peak_memory, reset_peak_memory, resident_memory
from fastload.tools.measure.process import Child
from fastload.tools.measure.rounds import Work


class Pillow(Contestant):
    """Pillow and its own resampling; also Pillow-SIMD, where that is what `import PIL` finds."""

    name = "pillow"
    resampler = "its own"
    formats = tuple(FORMATS)

    def __init__(self, task: Task) -> None:
        from PIL import Image, UnidentifiedImageError

        self._open, self._bilinear = Image.open, Image.Resampling.BILINEAR
        self._unidentified = UnidentifiedImageError

    def __call__(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        try:
            with self._open(io.BytesIO(data)) as file:
                image = file.convert("RGB")
        except SyntaxError as error:  # Pillow's word for a broken header
            raise ValueError(str(error)) from error
        except self._unidentified as error:
            raise ValueError("not an image that Pillow knows") from error
        if place is not None:
            (top, left, height, width), (out_height, out_width) = place
            image = image.crop((left, top, left + width, top + height)).resize(
                (out_width, out_height), self._bilinear
            )
        return np.asarray(image)


def pillow_simd_folder() -> Path:
    """Where it is kept for this Python: under $XDG_CACHE_HOME or ~/.cache."""
    return (
        cache_home()
        / "pillow-simd"
        / str(sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag)
    )


def build_pillow_simd() -> Path:
    """The folder with Pillow-SIMD in it; the first call builds it from source, in a minute or two.
    Raises
    BackendUnavailableError: it cannot be built here; the message says what is missing."""
    folder = pillow_simd_folder()
    if (folder / "PIL").is_dir():
        return folder
    if platform.machine() != "x86_64":
        raise BackendUnavailableError(
            f"Pillow-SIMD is for x86 processors only, this is {platform.machine()}."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix="building-", dir=folder.parent))
    try:
        # Its SIMD code is chosen when it is compiled. No cache: a wheel in there may have been
        # compiled without.
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--no-binary",
            "pillow-simd",
            "--no-cache-dir",
        ]
        command += [
            "--disable-pip-version-check",
            "--quiet",
            "--target",
            str(building),
            "pillow-simd",
        ]
        code, output = _run(building, command, os.environ | {"CC": "cc -mavx2"})
        if code:
            raise BackendUnavailableError(
                f"Pillow-SIMD could not be built ({_reason(output)}). It needs pip, a network, a C "
                "compiler and headers: sudo apt-get install -y gcc zlib1g-dev libjpeg-dev "
                "python3-dev"
            )
        if not (folder / "PIL").is_dir():  # another process may have been faster
            building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def _run(folder: Path, command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """(exit code, error output). If this process is killed meanwhile, the command is ended and the
    folder removed."""
    guarded = [
        sys.executable,
        "-I",
        str(Path(__file__).with_name("guarded.py")),
        str(folder),
        *command,
    ]
    with subprocess.Popen(
        guarded,
        env=environment,
        stdin=subprocess.PIPE,  # open as long as this process lives
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        output = process.stderr.read()
        return process.wait(), output


def _reason(output: str) -> str:
    """The line of pip's output that names the error."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [
        line for line in lines if "rror" in line or "required" in line or "No module" in line
    ]
    return (telling or lines or ["pip said nothing"])[0][:200]


class PillowSimd(Contestant):
    """`Pillow`, in a process that finds Pillow-SIMD first."""

    name = "pillow-simd"
    resampler = "its own"
    formats = tuple(FORMATS)

    @classmethod
    def open(cls, task: Task, known: Metrics) -> PixelRunner:
        folder = pillow_simd_folder()
        if not (folder / "PIL").is_dir():
            raise BackendUnavailableError(
                "Pillow-SIMD is not built. Add --pillow-simd: it is built into a folder of its own "
                "(a minute or two; needs a C compiler, zlib1g-dev and libjpeg-dev), and your "
                "Pillow stays as it is."
            )
        return RemotePillow(task, folder, known)

    @classmethod
    def version(cls) -> str:
        return next(
            (d.version for d in metadata.distributions(path=[str(pillow_simd_folder())])), ""
        )


class RemotePillow:
    """`PassRunner` of `Pillow`, in a process that finds packages first in the given folder."""

    def __init__(self, task: Task, folder: Path, known: Metrics) -> None:
        paths = [str(folder), str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
        self._child = Child(
            environment={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        )
        try:
            self._child.open(f"{__name__}:_Served", task, dict(known))
        except WorkerError as error:
            self.close()
            raise WorkerError(
                f"Pillow-SIMD: {error} Build it again (delete its folder under the cache), or "
                "leave it out of --decoders."
            ) from error

    def run(self, seconds: float) -> Work:
        work: Work = self._child.ask("run", seconds)
        return work

    def pixels(self, data: bytes, size: tuple[int, int], place: Place | None) -> Pixels:
        pixels: Pixels = self._child.ask("pixels", data, size, place)
        return pixels

    def close(self) -> None:
        """End the process, without finishing its pass: it has nothing to release."""
        self._child.close(grace=0.0)


class _Served(PassRunner):
    """The other end, in that process; it also measures its memory."""

    def __init__(self, task: Task, known: Metrics) -> None:
        reset_peak_memory()
        self._before = resident_memory()
        super().__init__(task, Pillow(task), known)

    def run(self, seconds: float) -> Work:
        work = super().run(seconds)
        peak = peak_memory()
        return replace(work, peak_memory=peak, memory_growth=peak - self._before)
