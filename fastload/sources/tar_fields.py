"""Samples and their fields in a tar shard, by WebDataset's naming."""

from __future__ import annotations

import io
import itertools
import operator
import os
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fastload.errors import SourceError
from fastload.sources.base import EncodedImages, Values
from fastload.sources.folder_scan import is_image_name
from fastload.sources.labels import class_labels
from fastload.sources.paths import PathTable, PathTableBuilder
from fastload.sources.tar_index import FileInTar, files_in_tar

__all__ = ["Kind", "TarColumn", "samples_in_shard"]

Kind = Literal["image", "mask", "array", "label"]
Sample = dict[str, tuple[Kind, FileInTar]]
"""Kind and file by column name."""

_MASKS = ("mask", "seg")


def samples_in_shard(path: str, fields: tuple[str, ...] | None) -> Iterator[tuple[str, Sample]]:
    """(key, {column: (kind, file)}) of each sample of a shard that has any of the fields."""
    current = ""
    sample: Sample = {}
    for file in files_in_tar(path):
        folder, base = os.path.split(file.name)
        stem, dot, extension = base.partition(".")
        if not stem or not dot or stem.startswith("__"):
            continue  # no sample to WebDataset either: hidden files, read-me files without extension, its own metadata
        key = f"{folder}/{stem}" if folder else stem
        if key != current and sample:
            yield current, sample
            sample = {}
        current = key
        name, kind = _column_of(extension.lower())
        if fields is not None and extension.lower() not in fields and name not in fields:
            continue
        if kind is None:
            raise SourceError(
                f"{path}:{file.name}: cannot tell how to serve .{extension}; name the fields that you want: "
                "open_source(..., fields=('jpg', 'cls'))."
            )
        if name in sample:
            raise SourceError(
                f"{path}:{file.name}: the sample has this field already, as {sample[name][1].name}; "
                "remove one, or prefix it: <key>.left.jpg, <key>.right.jpg."
            )
        sample[name] = (kind, file)
    if sample:
        yield current, sample


def _column_of(extension: str) -> tuple[str, Kind | None]:
    """Name and kind of the column for an extension; kind None if it is not known."""
    prefix, _, last = extension.rpartition(".")
    name = prefix.replace(".", "_")
    if is_image_name(f".{last}"):
        return ("mask", "mask") if name in _MASKS else (name or "image", "image")
    if last == "cls":
        return name or "label", "label"
    if last == "npy":
        return name or "npy", "array"
    return extension, None


class TarColumn:
    """Where one field of every sample lies, in C integers: a million samples take 24 MB and their names."""

    def __init__(self, kind: Kind) -> None:
        self._kind: Kind = kind
        self._shards, self._offsets, self._sizes = array("q"), array("q"), array("q")
        self._names = PathTableBuilder()

    def append(self, shard: int, file: FileInTar) -> None:
        self._shards.append(shard)
        self._offsets.append(file.offset)
        self._sizes.append(file.size)
        self._names.append(file.name)

    def identity(self) -> tuple[bytes, npt.NDArray[np.int64]]:
        """For fingerprints: digest of the names, and sizes [bytes]."""
        return self._names.build().digest(), np.frombuffer(self._sizes, dtype=np.int64)

    def images(self, paths: Sequence[str]) -> EncodedImages:
        """The column as byte ranges of the shards."""
        shards = np.frombuffer(self._shards, dtype=np.int64)
        return EncodedImages(
            PathTable.of(paths).take(shards),
            "mask" if self._kind == "mask" else "image",
            np.frombuffer(self._offsets, dtype=np.int64),
            np.frombuffer(self._sizes, dtype=np.int64),
            self._names.build(),
        )

    def served(self, paths: Sequence[str], classes: Sequence[str] | None) -> EncodedImages | Values:
        """The column as the source has it; labels and arrays are read now.

        Raises:
            SourceError: a label that is no number or out of range; arrays that are damaged or not of one shape.
        """
        files = self.images(paths)
        if self._kind in ("image", "mask"):
            return files
        if self._kind == "label":
            numbers = array("q", (_number(data, files, row) for row, data in enumerate(_contents(files))))
            count = None if classes is None else len(classes)
            return Values(class_labels(numbers, classes=count, name="tar shards", describe=files.describe))
        return Values(_stacked(files))


def _contents(files: EncodedImages) -> Iterator[bytes]:
    """The files one after the other, each shard opened once for as long as they come from it."""
    for path, located in itertools.groupby(map(files.locate, range(len(files))), key=operator.itemgetter(0)):
        with open(path, "rb", buffering=0) as shard:
            for _, offset, length in located:
                yield os.pread(shard.fileno(), length, offset)


def _number(data: bytes, files: EncodedImages, row: int) -> int:
    try:
        return int(data[:32])
    except ValueError:
        raise SourceError(
            f"{files.describe(row)}: expected a label as a decimal number, got {data[:32]!r}; "
            "write the class's number, or leave the field out: open_source(..., fields=('jpg',))."
        ) from None


def _stacked(files: EncodedImages) -> npt.NDArray[Any]:
    result: npt.NDArray[Any] | None = None
    for row, data in enumerate(_contents(files)):
        try:
            value = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise SourceError(f"{files.describe(row)}: cannot be read as an array of numbers ({error}).") from error
        if result is None:
            result = np.empty((len(files), *value.shape), value.dtype)
        if (value.shape, value.dtype) != (result.shape[1:], result.dtype):
            raise SourceError(
                f"{files.describe(row)}: {value.dtype} of shape {value.shape}, but {result.dtype} of shape "
                f"{result.shape[1:]} in {files.describe(0)}; store arrays of one shape, or leave the field out."
            )
        result[row] = value
    assert result is not None, "a column has samples"
    return result
