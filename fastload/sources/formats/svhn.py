"""SVHN as single digits (Street View, 32 x 32 pixels): MATLAB files, which scipy reads.

    data/
    ├── train_32x32.mat      X: uint8 (32, 32, 3, 73257), y: (73257, 1)
    ├── test_32x32.mat
    └── extra_32x32.mat

Gives `image` and `label`, held in memory. The file's label 10 is the digit 0. A file may be given
by itself. (http://ufldl.stanford.edu/housenumbers/)
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np

from fastload import stores
from fastload.errors import BackendUnavailableError, ConfigurationError, SourceError
from fastload.files import check_regular
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.checked import labelled_pixels
from fastload.sources.formats import Format
from fastload.sources.names import NO_SPLIT_NAMED

_SPLITS = ("train", "test", "extra")
_ENDING = "_32x32.mat"


def is_svhn(spec: object) -> bool:
    """A file `train_32x32.mat`, or a folder with one."""
    if not isinstance(spec, str):
        return False
    if os.path.isdir(spec):
        return any(os.path.isfile(os.path.join(spec, split + _ENDING)) for split in _SPLITS)
    return spec.endswith(_ENDING) and os.path.isfile(spec)


def remote_svhn(url: str) -> list[str]:
    """The URL of such a file; of a folder the files in it."""
    if url.endswith(_ENDING):
        return [url] if stores.is_file(url) else []
    if not stores.is_folder(url):
        return []
    there = {name for name, is_folder in stores.entries(url) if not is_folder}
    return [f"{url}/{split}{_ENDING}" for split in _SPLITS if split + _ENDING in there]


def open_svhn(path: str, options: OpenOptions) -> Opened:
    """Open a split: "train" (also when it is None, which the notes say), "test" or "extra"; not
    with a file, which is one.

    Raises:
        SourceError: the file is missing or damaged, or has other arrays.
        BackendUnavailableError: scipy is not installed.
    """
    notes: tuple[str, ...] = ()
    if os.path.isdir(path):
        split = options.split or "train"
        if split not in _SPLITS:
            raise ConfigurationError(
                f"split={split!r}: SVHN has 'train', 'test' and 'extra'; name one of them."
            )
        notes = () if options.split else (NO_SPLIT_NAMED,)
        file = os.path.join(path, split + _ENDING)
    elif options.split is not None:
        raise ConfigurationError(
            f"split={options.split!r}: {path} is one split already; leave it out."
        )
    else:
        file = path
    pixels, labels = _arrays(file)
    digits = np.where(labels == 10, 0, labels)
    source = labelled_pixels(
        np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)),
        digits,
        name=path,
        format="SVHN",
        class_count=10,
        classes=[str(digit) for digit in range(10)],
        describe=lambda row: f"{file}: y[{row}]",
    )
    return Opened(source, notes=notes)


def _arrays(path: str) -> tuple[Any, Any]:
    """X (H, W, 3, N) and y (N,)."""
    try:
        loadmat = importlib.import_module("scipy.io").loadmat
    except ImportError as error:
        raise BackendUnavailableError(
            f"{path}: MATLAB files are read by scipy, which is not installed: pip install scipy"
        ) from error
    try:
        check_regular(path)
        arrays = loadmat(path, variable_names=("X", "y"))
        pixels, labels = arrays["X"], arrays["y"].reshape(-1)
    except Exception as error:  # what is damaged raises whatever scipy's reader stumbles over
        raise SourceError(
            f"{path}: cannot be read as a MATLAB file with the arrays X and y ({error!r}); "
            "download it again."
        ) from error
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[2] != 3:
        raise SourceError(
            f"{path}: X is {pixels.dtype} of shape {pixels.shape}, and images are uint8 of shape "
            "(32, 32, 3, N); download it again."
        )
    return pixels, labels


FORMAT = Format(
    name="svhn",
    title="SVHN",
    recognise=is_svhn,
    open=open_svhn,
    options=("split",),
    signs=("*_32x32.mat",),
    files=("*_32x32.mat",),
    packages=(),
    copies=remote_svhn,
)
