"""Which images are measured on: a sample set, all of a small folder, a sample of a large one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fastload.errors import ConfigurationError, SourceError
from fastload.sources import open_source
from fastload.sources.base import Source
from fastload.sources.folders import images_below, split_folder, subfolders

_CLASSES = 10
"""Of a large folder: more than a small network could tell apart in two epochs."""


@dataclass(frozen=True)
class ImageFolders:
    """Two folders of class folders."""

    train: Path
    val: Path
    """The same as `train` where there is no other."""
    whole: Source
    """All of the training images, where these are only a sample of them."""
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
    """The class folders in `folder`, or in its splits for training and validation.

    Args:
        most: if the training part has more files than this, about so many are taken, from ten classes at most.
        room: a folder in which to lay out that sample, as links to the files.

    Raises:
        SourceError: there is no such folder, or no images in it.
        ConfigurationError: it is another kind of data set.
    """
    if not folder.is_dir():
        raise SourceError(f"{folder}: there is no such folder. Give a folder with one folder of images per class.")
    train = Path(split_folder(str(folder), "train") or folder)
    val = Path(split_folder(str(folder), "val") or train)
    whole = _class_folder(train)
    if val != train:
        _class_folder(val)
    if len(whole) <= most:
        return ImageFolders(train, val, whole)
    sample = ImageFolders(room / "train", room / "val" if val != train else room / "train", whole, folder)
    _link(train, sample.train, most)
    if val != train:
        _link(val, sample.val, max(most // 4, _CLASSES))
    return sample


def _class_folder(folder: Path) -> Source:
    source = open_source(str(folder)).source
    if source.format != "class folder":
        raise ConfigurationError(
            f"{folder}: is {source.format}; here fastload is compared with torchvision's ImageFolder: give a folder "
            "with one folder of images per class. To see what fastload makes of this one: "
            f"fastload.create_loader({str(folder)!r}).explain()."
        )
    return source


def _link(part: Path, into: Path, most: int) -> None:
    classes = subfolders(str(part))[:_CLASSES]
    for name in classes:
        (into / name).mkdir(parents=True)
        for number, path in enumerate(islice(images_below(str(part), name), max(most // len(classes), 1))):
            (into / name / f"{number:06d}-{os.path.basename(path)}").symlink_to((part / path).resolve())
