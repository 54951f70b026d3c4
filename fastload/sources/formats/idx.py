"""IDX files: MNIST, Fashion-MNIST, KMNIST and others of the kind, plain or gzip.

    MNIST/
    └── raw/                            or the files without folders above them
        ├── train-images-idx3-ubyte     also with .gz
        ├── train-labels-idx1-ubyte
        ├── t10k-images-idx3-ubyte
        └── t10k-labels-idx1-ubyte

Gives `image`, of one channel, and `label`.

Layout (http://yann.lecun.com/exdb/mnist/): two zero bytes, a type code, the number of dimensions,
each dimension as a big-endian uint32, then the values.
"""

from __future__ import annotations

import gzip
import math
import os
import re
import zlib
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from fastload import stores
from fastload.errors import ConfigurationError, SourceError, counted
from fastload.files import open_regular
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.checked import labelled_pixels
from fastload.sources.folders import files_in, subfolders, train_or_test
from fastload.sources.formats import Format

_DTYPES = {
    0x08: "uint8",
    0x09: "int8",
    0x0B: "int16",
    0x0C: "int32",
    0x0D: "float32",
    0x0E: "float64",
}
_IMAGES = re.compile(r"^(?P<split>.+)-images[-.]idx3-ubyte(\.gz)?$")
_FILE = re.compile(r"^.+-(images|labels)[-.]idx[13]-ubyte(\.gz)?$")
_FEW_FOLDERS = 4
_PREFIX = {"train": "train", "test": "t10k"}


def is_idx(spec: object) -> bool:
    """A file `*-images-idx3-ubyte` (or .gz), or a folder with one, itself or where torchvision puts
    them."""
    if not isinstance(spec, str):
        return False
    if os.path.isfile(spec):
        return _IMAGES.match(os.path.basename(spec)) is not None
    return os.path.isdir(spec) and bool(_folders(spec))


def remote_idx(url: str) -> list[str]:
    """The files to copy: for the URL of a file of images, that file and the labels beside it; for a
    folder, all such files in it, or where torchvision puts them."""
    folder, name = os.path.split(url)
    match = _IMAGES.match(name)
    if match is not None:
        beside = [f"{folder}/{label}" for label in _names_of(f"{match['split']}-labels", "idx1")]
        stores.ask_ahead([url, *beside])
        return [each for each in (url, *beside) if stores.size_of(each) >= 0]
    if not stores.is_folder(url):
        return []
    names = dict(stores.entries(url))
    below = [name for name, is_folder in names.items() if is_folder]
    # Each is listed: not those of a data set with many folders, which this is not.
    tops = [url, *(f"{url}/{name}" for name in below if len(below) <= _FEW_FOLDERS)]
    tops += [
        f"{top}/raw" for top in tops if stores.is_folder(top) and stores.is_folder(f"{top}/raw")
    ]
    files_of_tops = [
        [
            f"{top}/{name}"
            for name, is_folder in stores.entries(top)
            if not is_folder and _FILE.match(name)
        ]
        for top in tops
    ]
    return next((files for files in files_of_tops if any(map(_holds_images, files))), [])


def _holds_images(url: str) -> bool:
    return _IMAGES.match(os.path.basename(url)) is not None


def open_idx(path: str, options: OpenOptions) -> Opened:
    """Open images and labels: columns `image` (N, H, W, 1) and `label`. Plain files are
    memory-mapped.

    `path` is a folder with the official names (`train-images-idx3-ubyte`,
    `t10k-labels-idx1-ubyte`...), a folder with one such folder in it (torchvision's `MNIST/raw`),
    or one file of images, beside which its labels lie. `options.split` is "train" (also when it is
    None, which the notes say) or "test"; not with a file of images.
    """
    notes: tuple[str, ...] = ()
    if os.path.isfile(path):
        if options.split is not None:
            raise ConfigurationError(
                f"split={options.split!r}: {path} is one split already; leave it out."
            )
        images = path
    else:
        split, notes = train_or_test(options, "IDX files have")
        images = _images_in(path, split)
    labels = _labels_beside(images)
    pixels, values = read_idx(images, dimensions=3), read_idx(labels, dimensions=1)
    source = labelled_pixels(
        pixels[..., None],
        values,
        name=path,
        format="IDX",
        classes=options.classes,
        describe=lambda row: f"{labels}, record {row}",
    )
    return Opened(source, notes=notes)


def read_idx(path: str, *, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array in an IDX file of bytes: a read-only memory map, or in memory if it is
    compressed."""
    packed = path.endswith(".gz")
    try:
        with (
            open_regular(path) as stored,
            cast("IO[bytes]", gzip.open(stored)) if packed else stored as file,
        ):
            head = file.read(4)
            shape = _shape(head, file.read(4 * dimensions), dimensions, path)
            need = math.prod(shape)
            start = 4 + 4 * dimensions
            data = _up_to(file, need + 1) if packed else b""
            have = len(data) if packed else os.stat(path).st_size - start
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(
            f"{path}: cannot be read ({error}); if it is truncated, download it again."
        ) from error
    if have != need or not need:
        more = "more than" if packed and have > need else f"{have:,} of"
        raise SourceError(
            f"{path}: holds {more} {need:,} bytes that its header (shape {shape}) promises; "
            "download it again."
        )
    if packed:
        return np.frombuffer(data, dtype=np.uint8).reshape(shape)
    return np.memmap(path, dtype=np.uint8, mode="r", offset=start, shape=shape)


def _up_to(file: IO[bytes], limit: int) -> bytes:
    """At most `limit` bytes: one more than there should be shows what should not be there. In
    pieces, because a damaged header may ask for more than there is memory."""
    data = bytearray()
    while len(data) < limit and (piece := file.read(min(1 << 20, limit - len(data)))):
        data += piece
    return bytes(data)


def _shape(head: bytes, sizes: bytes, dimensions: int, path: str) -> tuple[int, ...]:
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _DTYPES:
        raise SourceError(
            f"{path}: starts with {head.hex(' ') or 'nothing'}, which is not the magic number of "
            f"an IDX file (expected 00 00 08 {dimensions:02x}); download it again."
        )
    if head[2] != 0x08:
        raise SourceError(
            f"{path}: values are {_DTYPES[head[2]]}, only unsigned bytes are served; convert the "
            "file."
        )
    if head[3] != dimensions:
        raise SourceError(
            f"{path}: has {counted(head[3], 'dimension')}, expected {dimensions}; is it the other "
            "file of the two?"
        )
    if len(sizes) < 4 * dimensions:
        raise SourceError(f"{path}: ends within its header; download it again.")
    return tuple(int(size) for size in np.frombuffer(sizes, dtype=">u4"))


def _folders(path: str) -> list[str]:
    """Folders with files of images: `path`, `path/raw` or `path/<name>/raw`."""

    def has_images(folder: str) -> bool:
        return os.path.isdir(folder) and any(map(_IMAGES.match, files_in(folder)))

    if has_images(path):
        return [path]
    below = [
        os.path.join(path, "raw"),
        *(os.path.join(path, name, "raw") for name in subfolders(path)),
    ]
    return list(filter(has_images, below))


def _images_in(path: str, split: str) -> str:
    folders = _folders(path)
    if len(folders) > 1:
        raise SourceError(
            f"{path}: holds several data sets ({', '.join(folders)}); open one of them."
        )
    return _first(
        folders[0], f"{_PREFIX[split]}-images", "idx3", f"the images of the {split} split"
    )


def _labels_beside(images: str) -> str:
    folder, name = os.path.split(images)
    match: Any = _IMAGES.match(name)
    return _first(folder, f"{match['split']}-labels", "idx1", f"the labels of {name}")


def _first(folder: str, stem: str, infix: str, what: str) -> str:
    names = _names_of(stem, infix)
    for name in names:
        if os.path.isfile(os.path.join(folder, name)):
            return os.path.join(folder, name)
    raise SourceError(
        f"{folder}: {what} are missing ({names[0]}, plain or .gz); download them into this folder."
    )


def _names_of(stem: str, infix: str) -> list[str]:
    return [f"{stem}{dot}{infix}-ubyte{zipped}" for zipped in ("", ".gz") for dot in "-."]


FORMAT = Format(
    name="idx",
    title="IDX files, as of MNIST",
    recognise=is_idx,
    open=open_idx,
    options=("split", "classes"),
    signs=("*-images?idx3-ubyte*", ".*-images?idx3-ubyte*", "raw", "*/raw", ".*/raw"),
    files=("*-images?idx3-ubyte*",),
    packages=(),
    copies=remote_idx,
)
