"""MDS, the shards of MosaicML's Streaming, read at random where they lie, on a disk or in a store.

    data/
    ├── train/                 or the files without folders of splits
    │   ├── index.json
    │   ├── shard.00000.mds
    │   └── shard.00001.mds
    └── val/

Gives the columns that the index names and that are served: images, numbers, arrays of one shape.

A folder has an `index.json` and shards. A shard is: the number of its samples n, and n + 1 offsets,
all uint32; a JSON; and the samples. A sample is: the sizes (uint32) of its columns of variable
size, and the columns one after the other, as the index names them
(https://docs.mosaicml.com/projects/streaming, "Dataset format"). All numbers are little-endian.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from fastload import stores
from fastload.errors import DecodeError, SourceError, counted
from fastload.files import check_regular
from fastload.fingerprint import fingerprint_of
from fastload.narrowed import say_narrowed
from fastload.sources.base import Opened, OpenOptions, Source, columns_left_out
from fastload.sources.buffers import Int64Array, PathTable
from fastload.sources.checked import class_labels
from fastload.sources.columns import Column, EncodedFiles, PixelImages, ValueArray
from fastload.sources.folders import sampled_bytes
from fastload.sources.formats import Format
from fastload.sources.image_files import begins_as_image
from fastload.sources.kinds import check_rows, role_of_images, role_of_values
from fastload.stores.reads import ReaderPool

_INDEX = "index.json"
_NUMBER = re.compile(r"u?int(8|16|32|64)|float(16|32|64)")
_ARRAY = re.compile(r"ndarray:(u?int(?:8|16|32|64)|float(?:16|32|64)):(\d+(?:,\d+)*)")
_U32 = np.dtype("<u4")
# Bytes of one value of numbers: an index may claim any.
_LARGEST = 1 << 30
# Remote shards that are read at once; each is in memory meanwhile, 64 MiB by default.
_SHARDS_AT_ONCE = 8


class _File(msgspec.Struct):
    basename: str
    bytes: int
    hashes: dict[str, str] = {}


class _Shard(msgspec.Struct):
    """One entry of the index."""

    format: str
    samples: int
    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[int | None]
    raw_data: _File
    version: int = 2
    compression: str | None = None


class _Index(msgspec.Struct):
    shards: list[_Shard]
    version: int = 2


def is_mds(spec: object) -> bool:
    """A folder whose `index.json` lists MDS shards."""
    if not isinstance(spec, str) or not stores.is_folder(spec):
        return False
    path = os.path.join(spec, _INDEX)
    if not stores.is_file(path):
        return False
    content = stores.look(path, stores.size_of(path))
    try:
        index = msgspec.json.decode(content)
    except ValueError:  # of msgspec's, and of bytes that are no UTF-8
        return False
    shards = index.get("shards") if isinstance(index, dict) else None
    return isinstance(shards, list) and any(
        isinstance(shard, dict) and shard.get("format") == "mds" for shard in shards
    )


def open_mds(folder: str, options: OpenOptions) -> Opened:
    """Open the shards of a folder: their samples in the order of the index, as dicts by column.

    - Images are columns of `jpeg`, `png` and `pil`, and of `bytes` whose first value is an image.
      One called mask, seg, segmentation, annotation or label holds masks.
    - Numbers, and arrays of one dtype and shape (`ndarray:float32:2,3`), are served as they are.
      `options.classes` names the classes of the column `label` or `class`.
    - Others are left out, which the notes say, or an error with `options.strict` or where
      `options.fields` names them.

    Shards in a store are read through once, for offsets and numbers; of their images `pil`, whose
    pixels are not compressed, is read from a disk only.

    Raises:
        SourceError: the index or a shard is damaged, missing or compressed; no such column; no
            images; a label beyond the classes; a column of `pil` in a store.
    """
    index = _read_index(os.path.join(folder, _INDEX))
    first = index.shards[0]
    names, encodings = first.column_names, first.column_encodings
    wanted = names if options.fields is None else list(options.fields)
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise SourceError(f"{folder}: has no column {unknown[0]!r}; there are {', '.join(names)}.")
    if options.classes is not None and not {"label", "class"} & {*wanted}:
        raise SourceError(
            f"{folder}: classes= names those of a column label or class, and there is none among "
            f"{', '.join(wanted)}; leave it out."
        )
    numbers = {
        at: dtype
        for at, name in enumerate(names)
        if name in wanted and (dtype := _numbers_of(encodings[at])) is not None
    }
    places = _places(folder, index.shards, numbers)
    columns: dict[str, Column] = {}
    left_out, identity = [], list[Any]()
    classes = options.classes
    for name in wanted:
        at = names.index(name)
        encoding, place = encodings[at], places.column(at, name)
        if encoding in ("jpeg", "png") or (encoding == "bytes" and place.is_image()):
            column = place.files(role_of_images(name))
            columns[name] = column
            identity += [name, place.lengths, *sampled_bytes(column)]
        elif encoding == "pil":
            if stores.is_remote(folder):
                raise SourceError(
                    f"{folder}: column {name!r} is 'pil', pixels that are not compressed, which "
                    "are read from a local disk only; copy the data set there, or write it with "
                    "'jpeg' or 'png'."
                )
            columns[name] = StoredPictures(place.files(role_of_images(name)))
            identity += [name, place.lengths, *sampled_bytes(place.files("image"))]
        elif at in numbers:
            values = places.values[at]
            if classes is not None and name in ("label", "class"):
                values = class_labels(values, classes=len(classes), name=f"{folder}: {name!r}")
            columns[name] = numeric = ValueArray(values, role=role_of_values(name))
            check_rows(numeric.kind, values, f"{folder}: column {name!r}")
            identity += [name, values]
        else:
            left_out.append(f"{name} ({encoding})")
    notes = columns_left_out(folder, left_out, columns, options)
    if not any(isinstance(column, EncodedFiles | StoredPictures) for column in columns.values()):
        raise SourceError(
            f"{folder}: no column of images (jpeg, png, pil, or bytes that begin as an image does) "
            f"among {', '.join(wanted)}."
        )
    source = Source(
        columns,
        fingerprint_of("mds", *identity),
        folder,
        layout="dict",
        classes=classes,
        format="MDS shards",
        details={"shards": len(index.shards)},
    )
    return Opened(source, notes=notes)


def _read_index(path: str) -> _Index:
    try:
        index = msgspec.json.decode(stores.read(path, version=stores.noted(path)), type=_Index)
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read ({error}); copy it again.") from error
    if not index.shards:
        raise SourceError(f"{path}: names no shards; copy the data set again.")
    first = index.shards[0]
    columns = (first.column_names, first.column_encodings, first.column_sizes)
    for shard in index.shards:
        name = shard.raw_data.basename
        if shard.format != "mds" or shard.version != 2:
            raise SourceError(
                f"{path}: {name} is {shard.format!r} of version {shard.version}; MDS of version 2 "
                "is read."
            )
        if (shard.column_names, shard.column_encodings, shard.column_sizes) != columns:
            raise SourceError(
                f"{path}: {name} has other columns than {first.raw_data.basename}; give the shards "
                "of one data set."
            )
        if len({len(columns[0]), len(columns[1]), len(columns[2]), len({*columns[0]})}) != 1:
            raise SourceError(f"{path}: names, encodings and sizes of columns do not agree.")
        if shard.samples < 0 or any(size is not None and size < 0 for size in columns[2]):
            raise SourceError(f"{path}: {name} has a negative number of samples or bytes.")
        large = next((size for size in columns[2] if size is not None and size > _LARGEST), None)
        if large is not None:
            raise SourceError(f"{path}: {name} claims values of {large:,} bytes; copy it again.")
        if os.path.basename(name) != name or name in ("", ".", ".."):
            raise SourceError(f"{path}: {name!r} is not the name of a file of this folder.")
    names = [shard.raw_data.basename for shard in index.shards]
    if len({*names}) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SourceError(f"{path}: names {twice} twice; make the index again.")
    return index


_Numbers = tuple[np.dtype[Any], tuple[int, ...]]
"""dtype and shape of each value of a column."""


def _numbers_of(encoding: str) -> _Numbers | None:
    """Of a column of numbers; None of another encoding."""
    if encoding == "int":
        return np.dtype("<i8"), ()
    if _NUMBER.fullmatch(encoding):
        return np.dtype(encoding).newbyteorder("<"), ()
    if match := _ARRAY.fullmatch(encoding):
        return np.dtype(match[1]).newbyteorder("<"), tuple(map(int, match[2].split(",")))
    return None


@dataclass(frozen=True)
class _Place:
    """Where the values of one column lie."""

    name: str
    paths: PathTable
    """Of the shards."""
    shards: Int64Array
    """(N,) which of them."""
    offsets: Int64Array
    lengths: Int64Array
    numbered: Int64Array
    """(N,) the number of each sample in its shard."""

    def files(self, role: str) -> EncodedFiles:
        names = PathTable.of(f"{self.name}[{row}]" for row in self.numbered.tolist())
        return EncodedFiles(self.paths.take(self.shards), role, self.offsets, self.lengths, names)

    def is_image(self) -> bool:
        return len(self.shards) > 0 and begins_as_image(self.files("image").read(0))


@dataclass(frozen=True)
class _Places:
    """Where the samples of a data set lie."""

    paths: PathTable
    shards: Int64Array
    numbered: Int64Array
    starts: Int64Array
    """(N, columns) first byte in the shard."""
    lengths: Int64Array
    """(N, columns) bytes."""
    values: dict[int, npt.NDArray[Any]]
    """(N, ...) of columns of numbers, by the place of the column."""

    def column(self, at: int, name: str) -> _Place:
        starts, lengths = self.starts[:, at].copy(), self.lengths[:, at].copy()
        return _Place(name, self.paths, self.shards, starts, lengths, self.numbered)


def _places(folder: str, shards: Sequence[_Shard], numbers: Mapping[int, _Numbers]) -> _Places:
    """`numbers`: the columns whose values are read now, by their place."""
    paths = [os.path.join(folder, shard.raw_data.basename) for shard in shards]
    if stores.is_remote(folder):
        versions = stores.versions_of(paths).tolist()
        with ReaderPool(_SHARDS_AT_ONCE, "fastload-shards") as threads:
            located = list(threads.map(_places_in, paths, shards, [numbers] * len(paths), versions))
    else:
        located = [_places_in(*each, numbers) for each in zip(paths, shards, strict=True)]
    counts = np.array([len(one.starts) for one in located])
    values = {}
    for at, (dtype, shape) in numbers.items():
        read = np.concatenate([one.values[at] for one in located]).reshape(-1).view(dtype)
        values[at] = read.reshape(counts.sum(), *shape).astype(dtype.newbyteorder("="))
    return _Places(
        PathTable.of(paths),
        np.repeat(np.arange(len(paths)), counts).astype(np.int64),
        np.concatenate([np.arange(count) for count in counts]).astype(np.int64),
        np.concatenate([one.starts for one in located]),
        np.concatenate([one.lengths for one in located]),
        values,
    )


class _InShard(NamedTuple):
    """Where the samples of one shard lie, and the numbers in them."""

    starts: Int64Array
    """(n, columns)."""
    lengths: Int64Array
    """(n, columns)."""
    values: dict[int, npt.NDArray[np.uint8]]
    """(n, bytes) by the place of the column."""


def _places_in(
    path: str, shard: _Shard, numbers: Mapping[int, _Numbers], version: int = 0
) -> _InShard:
    """`version`: of a remote shard, as listed."""
    size = stores.size_of(path)
    if size < 0:
        raise SourceError(
            f"{path}: this shard is not there. Copy it; if it is there compressed "
            f"({shard.compression or 'as .zstd, .gz, ...'}), decompress it first: images hardly "
            "shrink, and cannot be read from the middle."
        )
    count, header = shard.samples, _U32.itemsize * (shard.samples + 2)
    if size != shard.raw_data.bytes or header > size:
        raise SourceError(
            f"{path}: has {size:,} bytes, and {_INDEX} says {shard.raw_data.bytes:,} with "
            f"{counted(count, 'sample')}; copy it again."
        )
    data = _bytes_of(path, version)
    bounds = data[:header].view(_U32).astype(np.int64)[1:]
    variable = [at for at, fixed in enumerate(shard.column_sizes) if fixed is None]
    head = _U32.itemsize * len(variable)
    sound = data[:4].view(_U32)[0] == count and bounds[0] >= header and bounds[-1] == len(data)
    if not sound or (np.diff(bounds) < head).any():
        raise SourceError(f"{path}: its offsets are damaged; copy it again.")
    begins = bounds[:-1]
    lengths = np.empty((count, len(shard.column_sizes)), np.int64)
    for at, fixed in enumerate(shard.column_sizes):
        lengths[:, at] = 0 if fixed is None else fixed
    heads = _bytes_at(data, begins, head)
    lengths[:, variable] = heads.reshape(-1).view(_U32).reshape(count, len(variable))
    ends = head + np.cumsum(lengths, axis=1)
    total = ends[:, -1] if lengths.shape[1] else np.full(count, head)
    wrong = np.flatnonzero(total != np.diff(bounds))
    if len(wrong):
        raise SourceError(
            f"{path}: the sizes of sample {wrong[0]} are not those of its columns; copy it again."
        )
    starts, values = begins[:, None] + ends - lengths, {}
    for at, (dtype, shape) in numbers.items():
        each = dtype.itemsize * math.prod(shape)
        if each > _LARGEST or (lengths[:, at] != each).any():
            raise SourceError(
                f"{path}: column {shard.column_names[at]!r} is {shard.column_encodings[at]!r}, of "
                f"{each} bytes, but the index says otherwise; copy the data set again."
            )
        values[at] = _bytes_at(data, starts[:, at], each)
    return _InShard(starts, lengths, values)


def _bytes_of(path: str, version: int) -> npt.NDArray[np.uint8]:
    """All bytes of a shard: mapped from a disk, or read from a store."""
    try:
        if stores.is_remote(path):
            whole = stores.Range(path, version=version)
            return np.frombuffer(stores.read_many([whole], by_tier=False)[0], np.uint8)
        check_regular(path)
        return np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot be read ({error}).") from error


def _bytes_at(
    data: npt.NDArray[np.uint8], offsets: Int64Array, count: int
) -> npt.NDArray[np.uint8]:
    """(n, count) bytes, from each offset on."""
    if not len(offsets):
        return np.empty((0, count), np.uint8)
    return np.asarray(data[offsets[:, None] + np.arange(count)])


@dataclass(frozen=True)
class StoredPictures(PixelImages):
    """Images as Streaming's `pil` has them: width, height and the length of the mode (uint32), the
    mode, and the pixels as Pillow has them in memory."""

    files: EncodedFiles

    @property
    def role(self) -> str:
        return self.files.role

    def __len__(self) -> int:
        return len(self.files)

    def describe(self, index: int) -> str:
        return self.files.describe(index)

    def take(self, indices: Int64Array) -> StoredPictures:
        return StoredPictures(self.files.take(indices))

    def name_table(self) -> PathTable:
        return self.files.name_table()

    def sizes_of(self, indices: Int64Array) -> npt.NDArray[np.int32]:
        heads = [self.files.read_start(index, 8)[:8] for index in indices.tolist()]
        sizes = [np.frombuffer(head, _U32)[::-1] if len(head) == 8 else (1, 1) for head in heads]
        return np.clip(np.array(sizes, np.int64).reshape(-1, 2), 1, 1 << 16).astype(np.int32)

    def pixels(self, index: int) -> npt.NDArray[np.uint8]:
        try:
            data = self.files.read(index)
            width, height, length = np.frombuffer(data[:12], _U32).tolist()
            mode = data[12 : 12 + length].decode()
            image = Image.frombuffer(mode, (width, height), data[12 + length :], "raw", mode, 0, 1)
            if self.kind.as_stored and mode not in ("L", "P"):
                raise ValueError(f"a mask of mode {mode!r}; masks have the modes L and P")
            if mode.startswith("I;16"):
                say_narrowed(self.describe(index))
                # The high byte, as of all images; Pillow's conversion would clip at 255.
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            elif mode in ("I", "F"):
                raise ValueError(
                    f"pixels of 32 bits (Pillow's mode {mode}) have no scale that fits 8 bits"
                )
            wanted = image if self.kind.as_stored else image.convert("RGB")
        except (OSError, ValueError) as error:
            raise DecodeError(f"{self.describe(index)}: cannot be read ({error}).") from error
        array = np.asarray(wanted, np.uint8)
        return array if array.ndim == 3 else array[..., None]


FORMAT = Format(
    name="mds",
    title="MDS shards of MosaicML's Streaming",
    recognise=is_mds,
    open=open_mds,
    options=("fields", "classes"),
    remote=True,
    signs=("index.json",),
    files=(),
    packages=(),
)
