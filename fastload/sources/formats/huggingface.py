"""Data sets of Hugging Face's `datasets`: images and numbers read from their Arrow tables, which
are memory-mapped, without their Python code.

    datasets.load_dataset("beans", split="train")
    datasets.load_from_disk("beans")["train"]

Gives the columns of the Dataset, under their names.

What their code would give is kept: the order of `select`, `shuffle` and `filter`, dicts, Python's
widths of numbers (int64, float64), images turned upright by their EXIF tag. What of it is not
understood, a transform of the data set's own above all, runs as it is (`datasets.py`).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import SourceError
from fastload.fingerprint import fingerprint_of
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.buffers import Int64Array, PathTable, RowSelection
from fastload.sources.checked import class_labels
from fastload.sources.columns import Column, EncodedFiles, EncodedImages, RaggedArray, ValueArray
from fastload.sources.datasets import COST, NotNativeError, open_dataset
from fastload.sources.folders import (
    BYTES_SAMPLED,
    IMAGES_SAMPLED,
    sampled_bytes,
    sampled_rows,
)
from fastload.sources.formats import Format
from fastload.sources.given import is_huggingface
from fastload.sources.kinds import role_of_images
from fastload.sources.texts import text_of_arrow


def open_huggingface(dataset: Any, options: OpenOptions) -> Opened:
    """Open a `datasets.Dataset`: its samples in its order, as dicts by column.

    Columns of the feature `Image` are served as RGB, upright; whole, real and truth values as
    int64, float64 and bool, strings as texts; `ClassLabel` gives the classes. If it has other
    columns, or a format or a transform, its own Python code makes the samples, and a note says why
    and what frees it.

    Raises SourceError: `options.fields` names a column that there is not, or that is not served.
    """
    try:
        return Opened(_source(dataset, options), notes=_NOTES)
    except NotNativeError as error:
        if options.fields is not None:
            raise SourceError(f"fields={options.fields}: {error}.") from error
        return open_dataset(dataset, reason=f"{error}. {COST}")


_NOTES = (
    "images are served as RGB, turned upright by their EXIF tag as datasets.Image does; a grey "
    "image has three equal channels",
)


def _source(dataset: Any, options: OpenOptions) -> Source:
    cls = type(dataset)
    if (cls.__module__, cls.__name__) != ("datasets.arrow_dataset", "Dataset"):
        raise NotNativeError(f"{cls.__name__} is derived from datasets.Dataset")
    if dataset.format["type"] is not None or dataset.format["output_all_columns"]:
        how = "its transform" if dataset.format["type"] == "custom" else "its format"
        raise NotNativeError(
            f"{how} makes them; give dataset.with_format(None), and what is done to images as "
            "create_loader(transform=...)"
        )
    known = sys.modules["datasets"]
    # `concatenate_datasets` and what follows it sort those of the format by name.
    chosen = set(dataset.format["columns"])
    served = [name for name in dataset.column_names if name in chosen]
    wanted = served if options.fields is None else list(options.fields)
    unknown = [name for name in wanted if name not in served]
    if unknown:
        raise SourceError(f"fields: no column {unknown[0]!r}; there are {', '.join(served)}.")
    rows = None
    if dataset._indices is not None:
        rows = dataset._indices.column(0).to_numpy().astype(np.int64)
    columns: dict[str, Column] = {}
    classes: dict[str, tuple[str, ...]] = {}
    # Nothing else would say that images of equal lengths have another order.
    identity: list[Any] = [] if rows is None else [rows]
    for name in wanted:
        feature = dataset.features[name]
        if type(feature) is known.Image:
            column, content = _images(dataset, name, feature, rows)
            columns[name], identity = column, [*identity, name, *content]
            continue
        if type(feature) is known.Value and feature.dtype in ("string", "large_string"):
            words = _texts(dataset.data.column(name), name, rows)
            columns[name], identity = words, [*identity, name, *words.array.arrays()]
            continue
        values = _numbers(dataset.data.column(name), name, rows)
        if type(feature) is known.ClassLabel:
            classes[name] = tuple(feature.names)
            values = _labels(values, name, classes[name])
            identity += classes[name]
        columns[name] = ValueArray(values)
        identity += [name, values]
    if not any(isinstance(column, EncodedImages) for column in columns.values()):
        raise NotNativeError("it has no column of images")
    named = classes.get("label", next(iter(classes.values())) if len(classes) == 1 else None)
    return Source(
        columns,
        fingerprint_of("huggingface", *identity),
        f"datasets.Dataset of {len(dataset):,}",
        layout="dict",
        classes=named,
        format="Hugging Face Dataset",
        upright=True,
    )


def _images(
    dataset: Any, name: str, feature: Any, rows: Int64Array | None
) -> tuple[EncodedImages, list[Any]]:
    """The column, and what of it goes into the fingerprint."""
    if not feature.decode:
        raise NotNativeError(
            f"its column {name!r} is not to be decoded; "
            f"dataset.cast_column({name!r}, datasets.Image()) frees it"
        )
    if feature.mode not in (None, "RGB"):
        raise NotNativeError(f"its column {name!r} is of the mode {feature.mode!r}, not RGB")
    if dataset.data.column(name).null_count:
        raise NotNativeError(f"its column {name!r} has rows without an image")
    role = role_of_images(name)
    held, paths = _fields(dataset.data.column(name))
    if not held.null_count:
        column = ArrowImages(dataset.data.select([name]), role, rows)
        return column, [column.lengths, *column.sampled()]
    files: list[str] = paths.to_pylist()
    if held.null_count < len(held) or not all(map(_is_local, files)):
        raise NotNativeError(
            f"the images of its column {name!r} are stored under URLs, or some of them as bytes "
            "and some as paths"
        )
    table = PathTable.of(map(os.path.abspath, files))
    encoded = EncodedFiles(table if rows is None else table.take(rows), role)
    return encoded, [*map(encoded.describe, range(len(encoded))), *sampled_bytes(encoded)]


def _is_local(path: str | None) -> bool:
    """A path, and neither a URL nor a chain of them (`zip://a.jpg::https://...`)."""
    return path is not None and "://" not in path


def _fields(images: Any) -> tuple[Any, Any]:
    """The bytes and the paths in the structs of the feature `Image`."""
    field_of = importlib.import_module("pyarrow.compute").struct_field
    return field_of(images, "bytes"), field_of(images, "path")


def _texts(stored: Any, name: str, rows: Int64Array | None) -> RaggedArray:
    try:
        return text_of_arrow(stored, f"its column {name!r}", rows)
    except SourceError as error:
        raise NotNativeError(str(error).rstrip(".")) from error


def _numbers(stored: Any, name: str, rows: Int64Array | None) -> npt.NDArray[Any]:
    """(N,) int64, float64 or bool, as a DataLoader makes them of Python's numbers."""
    types = importlib.import_module("pyarrow.types")
    arrow = stored.type
    if types.is_boolean(arrow):
        dtype: Any = np.bool_
    elif types.is_integer(arrow):
        dtype = np.int64
    elif types.is_floating(arrow):
        dtype = np.float64
    else:
        raise NotNativeError(
            f"its column {name!r} ({arrow}) is neither of images nor of numbers or strings; "
            f"dataset.remove_columns([{name!r}, ...]) frees it"
        )
    if stored.null_count:
        raise NotNativeError(f"its column {name!r} has rows without a value")
    array = stored.to_numpy()
    if arrow.bit_width == 64 and array.dtype == np.uint64 and len(array) and array.max() >= 1 << 63:
        raise NotNativeError(f"its column {name!r} has numbers that int64 cannot hold")
    return np.ascontiguousarray(array if rows is None else array[rows], dtype=dtype)


def _labels(values: npt.NDArray[Any], name: str, classes: Sequence[str]) -> npt.NDArray[np.int64]:
    try:
        return class_labels(values, classes=len(classes), name=f"column {name!r}")
    except SourceError as error:  # -1 stands for "not known" in many a test split
        raise NotNativeError(str(error).rstrip(".")) from error


@dataclass(frozen=True)
class ArrowImages(RowSelection, EncodedImages):
    """Compressed images in the cells of a table that is mapped from Arrow files."""

    table: Any
    """Of `datasets.table`, one column of structs: it travels to another process as the names of
    its files."""
    role: str = "image"
    rows: Int64Array | None = None

    def __len__(self) -> int:
        return len(self.table) if self.rows is None else len(self.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.table, self.role, self.rows)

    @cached_property
    def _chunks(self) -> tuple[list[npt.NDArray[np.uint8]], list[npt.NDArray[Any]], Int64Array]:
        """Of each chunk of the table the bytes of all images, where each image begins and the last
        one ends in them (int32 or int64), and its first row. All three keep the mapped file
        open."""
        column = _fields(self.table.column(0))[0]
        wide = importlib.import_module("pyarrow.types").is_large_binary(column.type)
        blobs, ends = [], []
        for chunk in column.chunks:
            _, offsets, blob = chunk.buffers()
            starts = np.frombuffer(offsets, dtype=np.int64 if wide else np.int32)
            ends.append(starts[chunk.offset : chunk.offset + len(chunk) + 1])
            blobs.append(np.frombuffer(b"" if blob is None else blob, dtype=np.uint8))
        firsts = np.cumsum([0, *map(len, column.chunks)])[:-1].astype(np.int64)
        return blobs, ends, firsts

    @property
    def lengths(self) -> Int64Array:
        """(N,) int64: bytes of each image."""
        length_of = importlib.import_module("pyarrow.compute").binary_length
        every = length_of(_fields(self.table.column(0))[0]).to_numpy()
        return np.asarray(every if self.rows is None else every[self.rows], dtype=np.int64)

    def sampled(self) -> Iterator[bytes]:
        """Some bytes from the middle of some images, as `sampled_bytes` of files."""
        for data in self.views(sampled_rows(len(self), IMAGES_SAMPLED)):
            begin = max(0, len(data) - BYTES_SAMPLED) // 2
            yield data[begin : begin + BYTES_SAMPLED].tobytes()

    def views(self, indices: Int64Array) -> list[npt.NDArray[np.uint8]]:
        blobs, ends, firsts = self._chunks
        rows = self.rows_of(indices)
        if len(blobs) == 1:
            starts, stops, blob = ends[0][rows].tolist(), ends[0][rows + 1].tolist(), blobs[0]
            return [blob[start:stop] for start, stop in zip(starts, stops, strict=True)]
        chunks = np.searchsorted(firsts, rows, side="right") - 1
        images = []
        for chunk, row in zip(chunks.tolist(), (rows - firsts[chunks]).tolist(), strict=True):
            within = ends[chunk]
            images.append(blobs[chunk][within[row] : within[row + 1]])
        return images

    def _view(self, index: int) -> npt.NDArray[np.uint8]:
        return self.views(np.array([index]))[0]

    def read(self, index: int) -> bytes:
        return self._view(index).tobytes()

    def read_start(self, index: int, length: int) -> bytes:
        return self._view(index)[:length].tobytes()

    def describe(self, index: int) -> str:
        row = self.row_of(index)
        path = self.table.column(0)[row]["path"].as_py()
        return f"{self.table.column_names[0]} of row {row:,}" + (
            "" if path is None else f" ({path})"
        )


FORMAT = Format(
    name="huggingface",
    title="a Dataset of Hugging Face's datasets",
    recognise=is_huggingface,
    open=open_huggingface,
    options=("fields",),
    signs=(),
    files=(),
    packages=("datasets",),
)
