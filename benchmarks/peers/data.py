"""The input of all contestants, made once and kept in the work folder."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.peers.process import ROOT
from fastload.cache import build_cache
from fastload.errors import BackendUnavailableError, SourceError

__all__ = ["Photographs", "cache_photographs", "photographs", "sample_set", "small_images", "write_ffcv"]


@dataclass(frozen=True)
class Photographs:
    """A folder of class folders of links to JPEG files."""

    folder: Path
    few: Path
    """The same without repetitions."""
    files: int
    """In `folder`."""
    distinct: int
    mean_bytes: float


def sample_set(work: Path, say: Callable[[str], None]) -> Path:
    """The photographs that `fastload demo` makes."""
    from fastload.measure.photographs import write_photographs

    folder = work / "sample"
    if not (folder / "complete").exists():
        say("making 1,000 photographs")
        write_photographs(folder, 1000)
        (folder / "complete").touch()
    return folder


def photographs(source: Path, work: Path, least: int) -> Photographs:
    """All JPEG files of the class folders in `source` (or in its `train` and `val`), under as many names as it takes.

    Epochs of few images would measure how epochs begin and end, which is measured apart.

    Raises:
        SourceError: there are none.
    """
    parts = [source / part for part in ("train", "val") if (source / part).is_dir()] or [source]
    files = sorted(path for part in parts for path in part.glob("*/*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not files:
        raise SourceError(f"{source}: no .jpg or .jpeg files in folders of classes. Give another one: DATA=folder.")
    sizes = [path.stat().st_size for path in files]
    names = "\n".join(f"{path.resolve()} {size}" for path, size in zip(files, sizes, strict=True))
    key = hashlib.sha256(f"{least}\n{names}".encode())
    folder = work / f"photographs-{key.hexdigest()[:12]}"
    times = -(-least // len(files))
    if not (folder / "complete").exists():
        _link(files, folder / "few", 1)
        _link(files, folder / "all", times)
        (folder / "complete").touch()
    return Photographs(folder / "all", folder / "few", times * len(files), len(files), sum(sizes) / len(sizes))


def _link(files: list[Path], folder: Path, times: int) -> None:
    for number, path in enumerate(files * times):
        target = folder / path.parent.name / f"{number:06d}{path.suffix}"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.symlink_to(path.resolve())


def small_images(work: Path, count: int) -> Path:
    """CIFAR-10's shapes with random content, on which the speed of cropping does not depend."""
    folder = work / f"small-{count}"
    if not (folder / "labels.npy").exists():
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        np.save(folder / "images.npy", rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8))
        np.save(folder / "labels.npy", rng.integers(0, 10, count))
    return folder


def cache_photographs(input_: Photographs) -> Path:
    """fastload's cache with a short side of 256 pixels."""
    return build_cache(str(input_.folder), input_.folder.parent / "cache", short_side=256)


def write_ffcv(kind: str, source: Path, folder: Path, python: str, workers: int) -> None:
    """Write one of FFCV's files, in its environment. Raises BackendUnavailableError if that fails."""
    target = folder / f"{kind}.beton"
    if target.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    command = [python, "-m", "benchmarks.peers.write_ffcv", kind, str(source), str(part), str(workers)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise BackendUnavailableError(f"FFCV could not write its file: {(done.stderr.splitlines() or ['?'])[-1]}")
    part.rename(target)
