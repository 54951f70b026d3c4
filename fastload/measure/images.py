"""Which images are measured on: a sample set, all of a small folder, a sample of a large one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fastload.errors import SourceError

_CLASSES = 10
"""Of a large folder: more than a small network could tell apart in two epochs."""


@dataclass(frozen=True)
class ImageFolders:
    """Two folders of class folders."""

    train: Path
    val: Path
    """The same as `train` where there is no other."""
    sampled_from: Path | None = None
    """The folder that these are only a sample of."""


@contextmanager
def sample_images(folder: Path | None, count: int, say: Callable[[str], None]) -> Iterator[Path]:
    """The folder, or one with a sample set (`photographs.py`) that goes when the block ends."""
    if folder is not None:
        yield folder
        return
    from fastload.measure.photographs import write_photographs

    with tempfile.TemporaryDirectory(prefix="fastload-bench-") as room:
        say(f"Making a sample set: {count} photograph-like JPEGs.")
        yield write_photographs(room, count)


def image_folders(folder: Path, most: int, room: Path) -> ImageFolders:
    """The class folders in `folder`, or in its `train` and `val`.

    Args:
        most: if the training part has more files than this, about so many are taken, from ten classes at most.
        room: a folder in which to lay out that sample, as links to the files.

    Raises:
        SourceError: there is no such folder.
    """
    if not folder.is_dir():
        raise SourceError(f"{folder}: there is no such folder. Give a folder with one folder of images per class.")
    train = folder / "train" if (folder / "train").is_dir() else folder
    val = folder / "val" if (folder / "val").is_dir() else train
    if sum(1 for _ in islice(_files(train), most + 1)) <= most:
        return ImageFolders(train, val)
    sample = ImageFolders(room / "train", room / "val" if val != train else room / "train", folder)
    _link(train, sample.train, most)
    if val != train:
        _link(val, sample.val, max(most // 4, _CLASSES))
    return sample


def _link(part: Path, into: Path, most: int) -> None:
    classes = sorted(entry.name for entry in os.scandir(part) if entry.is_dir())[:_CLASSES]
    for name in classes:
        (into / name).mkdir(parents=True)
        for number, path in enumerate(islice(_files(part / name), max(most // len(classes), 1))):
            (into / name / f"{number:06d}-{path.name}").symlink_to(path.resolve())


def _files(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        for name in names:
            yield Path(root, name)
