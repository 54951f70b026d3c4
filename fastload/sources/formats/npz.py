"""Images and labels in a `.npz` file of numpy, as Keras has MNIST.

    mnist.npz
    ├── x_train      uint8, (60000, 28, 28) or (N, H, W, 3)
    ├── y_train      whole numbers, (60000,) or (N, 1)
    ├── x_test
    └── y_test

Gives `image` and `label`, held in memory. MNIST has the fingerprint of its IDX files.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from typing import Any

import numpy as np

from fastload import stores
from fastload.errors import SourceError
from fastload.files import check_regular
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.checked import labelled_pixels
from fastload.sources.folders import train_or_test
from fastload.sources.formats import Format

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def is_npz(spec: object) -> bool:
    """A `.npz` file with the arrays of a training split."""
    if not isinstance(spec, str) or not os.path.isfile(spec):
        return False
    try:
        check_regular(spec)
        with zipfile.ZipFile(spec) as archive:
            return {f"{name}.npy" for name in _ARRAYS[:2]} <= {*archive.namelist()}
    except (OSError, ValueError, zipfile.BadZipFile):
        return False


def remote_npz(url: str) -> list[str]:
    """The URL itself, if it is of a `.npz` file."""
    return [url] if url.endswith(".npz") and stores.is_file(url) else []


def open_npz(path: str, options: OpenOptions) -> Opened:
    """Open images and labels: columns `image` (N, H, W, C) and `label`. `options.split` is "train"
    (also when it is None, which the notes say) or "test".

    Raises SourceError: an array is missing or damaged, holds Python objects, or is no uint8 image
    of one or three channels; labels that are no whole numbers.
    """
    split, notes = train_or_test(options, f"{path} has")
    pixels, labels = (_array(path, f"{letter}_{split}") for letter in "xy")
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[3] not in (1, 3):
        raise SourceError(
            f"{path}: x_{split} is {pixels.dtype} of shape {pixels.shape}; images are uint8 of "
            "shape (N, H, W), (N, H, W, 1) or (N, H, W, 3): convert them, or give the arrays: "
            "create_loader((images, labels))."
        )
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    source = labelled_pixels(
        pixels,
        labels,
        name=path,
        format="arrays in a .npz file",
        classes=options.classes,
        describe=lambda row: f"y_{split}[{row}]",
    )
    return Opened(source, notes=notes)


def _array(path: str, name: str) -> Any:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if name in arrays:
                return np.ascontiguousarray(arrays[name])
            there = ", ".join(arrays)
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise SourceError(
            f"{path}: {name} cannot be read ({error}); write it again with numpy.savez, as an "
            "array of numbers."
        ) from error
    raise SourceError(f"{path}: has no array {name}; there are {there}.")


FORMAT = Format(
    name="npz",
    title="a .npz file of images and labels, as Keras has MNIST",
    recognise=is_npz,
    open=open_npz,
    options=("split", "classes"),
    signs=(),
    files=("*.npz",),
    packages=(),
    copies=remote_npz,
)
