"""The images to measure on (a sample set, all of a small folder, a sample of a large one), and the
transforms, made of torchvision's."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torchvision.transforms import v2

from fastload import open_source
from fastload.errors import ConfigurationError, SourceError
from fastload.sources import Source
from fastload.sources.folders import images_below, split_folder, subfolders
from fastload.tools.measure.photographs import write_photographs

_CLASSES = 10  # of a large folder: more than a small network could tell apart in two epochs


@dataclass(frozen=True)
class ImageFolders:
    """Two folders of class folders."""

    train: Path
    val: Path  # the same as `train` where there is no other
    whole: Source  # all of the training images, where these are only a sample of them
    sampled_from: Path | None = None


@contextmanager
def sample_images(folder: Path | None, count: int, say: Callable[[str], None]) -> Iterator[Path]:
    """The folder, or one with a sample set that goes when the block ends."""
    if folder is not None:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="fastload-bench-") as temporary:
        say(f"Making a sample set: {count} photograph-like JPEGs.")
        yield write_photographs(temporary, count)


def image_folders(folder: Path, most: int, temporary: Path) -> ImageFolders:
    """The class folders in `folder`, or in its splits for training and validation.

    If the training part has more than `most` files, about so many are taken, from ten classes at
    most, laid out in `temporary` as links. Raises SourceError: no folder or images;
    ConfigurationError: it is another kind of data set.
    """
    if not folder.is_dir():
        raise SourceError(
            f"{folder}: there is no such folder. Give a folder with one folder of images per class."
        )
    train = Path(split_folder(str(folder), "train") or folder)
    val = Path(split_folder(str(folder), "val") or train)
    whole = _class_folder(train)
    if val != train:
        _class_folder(val)
    if len(whole) <= most:
        return ImageFolders(train, val, whole)
    sample = ImageFolders(
        temporary / "train",
        temporary / "val" if val != train else temporary / "train",
        whole,
        folder,
    )
    _link(train, sample.train, most)
    if val != train:
        _link(val, sample.val, max(most // 4, _CLASSES))
    return sample


def _class_folder(folder: Path) -> Source:
    source = open_source(str(folder)).source
    if source.format != "class folder":
        raise ConfigurationError(
            f"{folder}: is {source.format}; here fastload is compared with torchvision's "
            "ImageFolder: give a folder with one folder of images per class. To see what fastload "
            f"makes of this one: fastload.create_loader({str(folder)!r}).explain()."
        )
    return source


def _link(split: Path, into: Path, most: int) -> None:
    classes = subfolders(str(split))[:_CLASSES]
    for name in classes:
        (into / name).mkdir(parents=True)
        for number, path in enumerate(
            islice(images_below(str(split), name), max(most // len(classes), 1))
        ):
            (into / name / f"{number:06d}-{os.path.basename(path)}").symlink_to(
                (split / path).resolve()
            )


# -- Transforms ------------------------------------------------------------------------------------


def training(size: int = 224, smallest: float = 0.08) -> v2.Compose:
    """Random crop and flip to normalised float32 (3, size, size); `smallest` is the least share of
    the area kept."""
    return v2.Compose(
        [v2.RandomResizedCrop(size, scale=(smallest, 1.0)), v2.RandomHorizontalFlip(), *_to_float()]
    )


def training_pixels(size: int = 224) -> v2.Compose:
    """The same crop and flip, left as uint8 (3, size, size), for comparing pixels."""
    return v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), v2.ToImage()])


def evaluation(size: int = 224, resize: int = 256) -> v2.Compose:
    """Resize and central crop to normalised float32 (3, size, size)."""
    return v2.Compose([v2.Resize(resize), v2.CenterCrop(size), *_to_float()])


def evaluation_pixels() -> v2.Compose:
    """Resize and central crop, left as uint8 (3, 224, 224): nothing random, so torchvision alone
    can check it."""
    return v2.Compose([v2.Resize(256), v2.CenterCrop(224), v2.ToImage()])


def _to_float() -> list[torch.nn.Module]:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(mean, std)]
