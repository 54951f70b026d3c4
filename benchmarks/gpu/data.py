"""The input, made once: photographs under many names, their cache, and CIFAR-10's shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.setting import Setting
from benchmarks.peers.data import photographs
from fastload.cache import build_cache
from fastload.measure.photographs import write_photographs

__all__ = ["Input", "prepare", "small_images"]

_MADE = 192
"""Photographs that are made where no folder is given."""


@dataclass(frozen=True)
class Input:
    """What the parts will read."""

    photos: Path
    cache: Path
    note: str
    """What a reader must know about it."""


def prepare(setting: Setting, given: Path | None, work: Path, say: Callable[[str], None]) -> Input:
    """Repeat the photographs up to `setting.images` names, and build the cache of them.

    Args:
        given: class folders of JPEG files, or a folder with such in `train` and `val`; None: made here.

    Raises:
        SourceError: there are no JPEG files in it.
    """
    source = given
    if source is None:
        count = min(_MADE, setting.images)
        say(f"making {count} photographs")
        source = write_photographs(work / "made", count)
    found = photographs(source, work, setting.images)
    say("building the cache")
    cache = build_cache(str(found.folder), found.folder.parent / "cache", short_side=setting.short_side, progress=False)
    note = (
        f"{found.files:,} file names an epoch, {found.distinct:,} different photographs of "
        f"{found.mean_bytes / 1000:.0f} kB on average: files are read from memory, whatever the disk. "
        f"Cache: short side {setting.short_side} pixels."
    )
    return Input(found.folder, Path(cache), note)


def small_images(setting: Setting) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """CIFAR-10's shapes with random content, on which neither cropping nor training depends in speed."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (setting.small_images, 32, 32, 3), dtype=np.uint8)
    return images, rng.integers(0, 10, setting.small_images)
