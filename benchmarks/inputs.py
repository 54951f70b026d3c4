"""The input of all contestants, made once and kept in a work folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from fastload.errors import SourceError
from fastload.files import replacing
from fastload.tools.measure.photographs import write_photographs

ROOT = Path(__file__).resolve().parents[1]
"""Of the checkout: where `benchmarks` and `fastload` are found."""


@dataclass(frozen=True)
class Photographs:
    """A folder of class folders of links to files."""

    folder: Path
    few: Path  # the same without repetitions
    files: int  # in `folder`
    distinct: int
    mean_bytes: float

    def __str__(self) -> str:
        return (
            f"{self.files:,} photographs an epoch ({self.distinct:,} different ones, "
            f"{self.mean_bytes / 1000:.0f} kB on average)"
        )


def sample_set(work: Path, count: int, say: Callable[[str], None]) -> Path:
    """Photographs that are made, as `fastload demo` makes them."""
    folder = work / f"sample-{count}"
    if not (folder / "complete").exists():
        say(f"making {count:,} photographs")
        write_photographs(folder, count)
        (folder / "complete").touch()
    return folder


def reduced(source: Path, work: Path, count: int, *, side: int, suffix: str) -> Path:
    """Some images of the class folders in `source`, with `side` pixels on their longer side, in the
    format of `suffix`.

    Where that is 64, they are squares, as in Tiny ImageNet.
    """
    folder = work / f"{source.parent.name}-{side}{suffix}"
    files = sorted(source.glob("*/*"))
    for path in files[:: -(-len(files) // count)]:
        target = folder / path.parent.name / (path.stem + suffix)
        if target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as image:
            scale = side / max(image.size)
            size = (
                (side, side)
                if side == 64
                else (round(image.width * scale), round(image.height * scale))
            )
            smaller = image.convert("RGB").resize(size, Image.Resampling.BICUBIC)
        with replacing(target) as beside:  # a run that is ended here leaves no half of an image
            smaller.save(beside, Image.registered_extensions()[suffix])
    return folder


def photographs(
    source: Path, work: Path, least: int, suffixes: tuple[str, ...] = (".jpg", ".jpeg")
) -> Photographs:
    """All files of these kinds in the class folders of `source` (or in its `train` and `val`),
    perhaps repeatedly.

    Epochs of few images would measure how epochs begin and end, which is measured apart.

    Raises:
        SourceError: there are none.
    """
    parts = [source / part for part in ("train", "val") if (source / part).is_dir()] or [source]
    files = sorted(
        path for part in parts for path in part.glob("*/*") if path.suffix.lower() in suffixes
    )
    if not files:
        kinds = " or ".join(suffixes)
        raise SourceError(
            f"{source}: no {kinds} files in folders of classes. Give another one: DATA=folder."
        )
    sizes = [path.stat().st_size for path in files]
    names = "\n".join(f"{path.resolve()} {size}" for path, size in zip(files, sizes, strict=True))
    key = hashlib.sha256(f"{least}\n{names}".encode())
    folder = work / f"photographs-{key.hexdigest()[:12]}"
    times = -(-least // len(files))
    if not (folder / "complete").exists():
        _link(files, folder / "few", 1)
        _link(files, folder / "all", times)
        (folder / "complete").touch()
    return Photographs(
        folder / "all", folder / "few", times * len(files), len(files), sum(sizes) / len(sizes)
    )


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
        with replacing(folder / "labels.npy") as beside, open(beside, "wb") as out:
            np.save(out, rng.integers(0, 10, count))
    return folder
