"""STL10: its binary files, unpacked.

    stl10_binary/
    ├── train_X.bin            3 x 96 x 96 bytes an image, columns first
    ├── train_y.bin            a byte each, from 1
    ├── test_X.bin, test_y.bin
    ├── unlabeled_X.bin
    ├── class_names.txt
    └── fold_indices.txt       ten lines of numbers of training images

Gives `image` and `label`, counted from 0; of `unlabeled` only `image`. Held in memory: the images
without labels are 2.8 GB. (https://cs.stanford.edu/~acoates/stl10/)
"""

from __future__ import annotations

import os
import re

import numpy as np
import numpy.typing as npt

from fastload import stores
from fastload.errors import ConfigurationError, SourceError, counted
from fastload.files import open_regular, read_regular
from fastload.fingerprint import fingerprint_of
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.checked import labelled_pixels
from fastload.sources.columns import PixelArray
from fastload.sources.formats import Format
from fastload.sources.names import NO_SPLIT_NAMED

_FOLDER = "stl10_binary"
_SIDE = 96
_IMAGE = 3 * _SIDE * _SIDE
_CLASSES = 10
_FILES = ("train_X.bin", "test_X.bin", "unlabeled_X.bin")
_NEEDED = (*_FILES, "train_y.bin", "test_y.bin", "class_names.txt", "fold_indices.txt")
_FOLD = re.compile(r"fold([0-9])")
_LARGEST = 1 << 24
"""Bytes of a file of labels, names or folds."""


def is_stl10(spec: object) -> bool:
    """A folder with one of its files of images, or the folder around it."""
    return isinstance(spec, str) and os.path.isdir(spec) and _folder(spec) is not None


def _folder(root: str) -> str | None:
    places = (root, os.path.join(root, _FOLDER))
    return next(
        (
            place
            for place in places
            if any(os.path.isfile(os.path.join(place, name)) for name in _FILES)
        ),
        None,
    )


def remote_stl10(url: str) -> list[str]:
    """The files in the folder of a URL, or in the one of the official name in it."""
    if not stores.is_folder(url):
        return []
    for place in (url, f"{url}/{_FOLDER}"):
        if stores.is_folder(place):
            there = {name for name, is_folder in stores.entries(place) if not is_folder}
            if not there.isdisjoint(_FILES):
                return [f"{place}/{name}" for name in _NEEDED if name in there]
    return []


def open_stl10(root: str, options: OpenOptions) -> Opened:
    """Open a split: "train" (also when it is None, which the notes say), "test", "unlabeled", or
    "fold0" to "fold9", the parts of the training split by `fold_indices.txt`.

    Raises SourceError: a file is missing, or of a size that is no whole number of images; labels
    and images of other numbers; a label outside of 1 to 10.
    """
    folder = _folder(root)
    assert folder is not None, "is_stl10 said so"
    split = options.split or "train"
    fold = _FOLD.fullmatch(split)
    if fold is None and split not in ("train", "test", "unlabeled"):
        raise ConfigurationError(
            f"split={split!r}: STL10 has 'train', 'test', 'unlabeled', and 'fold0' to 'fold9'."
        )
    notes = () if options.split else (NO_SPLIT_NAMED,)
    stem = "train" if fold else split
    pixels = _pixels(os.path.join(folder, f"{stem}_X.bin"))
    if stem == "unlabeled":
        images = PixelArray(pixels)
        source = Source({"image": images}, fingerprint_of("pixels", pixels), root, format="STL10")
        return Opened(source, notes=notes)
    path = os.path.join(folder, f"{stem}_y.bin")
    labels = np.frombuffer(_bytes(path), dtype=np.uint8)
    if len(labels) and not 1 <= labels.min() <= labels.max() <= _CLASSES:
        row = int(np.flatnonzero((labels < 1) | (labels > _CLASSES))[0])
        raise SourceError(
            f"{path}: byte {row} is {labels[row]}, and labels are 1 to {_CLASSES}; download it "
            "again."
        )
    source = labelled_pixels(
        pixels,
        labels.astype(np.int64) - 1,
        name=root,
        format="STL10",
        classes=_names(os.path.join(folder, "class_names.txt")),
        class_count=_CLASSES,
        describe=lambda row: f"{path}, byte {row}",
    )
    if fold:
        rows = _rows(os.path.join(folder, "fold_indices.txt"), int(fold[1]), len(source))
        source = source.take(rows)
    return Opened(source, notes=notes)


def _pixels(path: str) -> npt.NDArray[np.uint8]:
    """(N, 96, 96, 3), copied from planes whose columns come first."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise SourceError(
            f"{path}: cannot be read ({error.strerror or error}); unpack stl10_binary.tar.gz again."
        ) from error
    if not size or size % _IMAGE:
        raise SourceError(
            f"{path}: {size:,} bytes are not a whole number of images of {_IMAGE:,}; it is "
            "truncated: unpack stl10_binary.tar.gz again."
        )
    planes = np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, 3, _SIDE, _SIDE)
    return np.ascontiguousarray(planes.transpose(0, 3, 2, 1))


def _bytes(path: str) -> bytes:
    try:
        return read_regular(path, most=_LARGEST)
    except OSError as error:
        raise SourceError(
            f"{path}: cannot be read ({error.strerror or error}); unpack stl10_binary.tar.gz again."
        ) from error


def _names(path: str) -> list[str] | None:
    """Names of the classes; None where the file is missing or of another number."""
    if not os.path.isfile(path):
        return None
    names = _bytes(path).decode("utf-8", "replace").split()
    return names if len(names) == _CLASSES else None


def _rows(path: str, fold: int, count: int) -> npt.NDArray[np.int64]:
    """The training images of a fold, by a line of the file."""
    lines = _bytes(path).splitlines()
    try:
        rows = np.array([int(text) for text in lines[fold].split()], dtype=np.int64)
    except (IndexError, ValueError, OverflowError) as error:
        raise SourceError(
            f"{path}: line {fold + 1} is no list of numbers ({error}); unpack stl10_binary.tar.gz "
            "again."
        ) from None
    if not len(rows) or rows.min() < 0 or rows.max() >= count:
        raise SourceError(
            f"{path}: line {fold + 1} names images beyond the {counted(count, 'image')} that there "
            "are; unpack stl10_binary.tar.gz again."
        )
    return rows


FORMAT = Format(
    name="stl10",
    title="STL10",
    recognise=is_stl10,
    open=open_stl10,
    options=("split",),
    signs=("stl10_binary", "train_X.bin", "test_X.bin", "unlabeled_X.bin"),
    files=(),
    packages=(),
    copies=remote_stl10,
)
