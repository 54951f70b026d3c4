"""Parquet files with images in them, as Hugging Face and others write them (extra `parquet`).

A Parquet file cannot be read at random: its row groups are compressed as a whole. So each row group
is read once, when the data set is opened for the first time, and the bytes of the images are
written one after the other to a file under `~/.cache/fastload/parquet`, as they are. From there
they are read by offset, as members of a tar file are. Numbers are read at each opening.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import io
import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload import stores
from fastload.distribution import install_command
from fastload.errors import SourceError, counted
from fastload.files import replacing
from fastload.fingerprint import fingerprint_of
from fastload.machine import cache_home
from fastload.sources import folders
from fastload.sources.arrays import class_labels
from fastload.sources.base import Opened, OpenOptions, Source
from fastload.sources.buffers import Int64Array, PathTable
from fastload.sources.columns import Column, EncodedFiles, RaggedArray, ValueArray
from fastload.sources.index import read_index, write_index
from fastload.sources.kinds import VALUE, PixelKind, check_rows, kind_of_key, role_of_images
from fastload.sources.packed import about, check_samples, in_order, with_classes
from fastload.sources.ragged import Ragged

logger = logging.getLogger("fastload")

_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"RIFF", b"GIF8", b"BM", b"II*\0", b"MM\0*")
"""How JPEG, PNG, WebP, GIF, BMP and TIFF begin."""
_ROWS_AT_ONCE = 1024


def is_parquet(spec: object) -> bool:
    """A `.parquet` file, a list of them, or a folder with such files and without folders."""
    if isinstance(spec, list):
        return bool(spec) and all(isinstance(p, str) and p.endswith(".parquet") for p in spec)
    if not isinstance(spec, str):
        return False
    if stores.is_folder(spec):
        return bool(_files_in(spec)) and not folders.subfolders(spec)
    return spec.endswith(".parquet") and stores.is_file(spec)


def open_parquet(spec: str | list[str], options: OpenOptions) -> Opened:
    """Open Parquet files: rows in the order of the files given (of a folder: sorted).

    - Columns of images are those of bytes, or of structs with a field `bytes`, whose first value is
      an image. One called mask, seg, segmentation, annotation or label holds masks.
    - Columns of numbers are served as they are, lists of them as rows of variable length, which
      are of objects where they are called `boxes`, `labels` and so on. `ClassLabel` of Hugging
      Face gives the classes.
    - A column of words called `label` is one of classes, sorted.
    - Others are left out, which the notes say, or an error with `options.strict`.

    Images come first in a batch, then the rest in the order of the file; or all in the order of
    `options.fields`.

    Raises:
        SourceError: no such column, no images, a value that is missing, files of different columns,
            or a file that cannot be read; or pyarrow is not installed.
    """
    name = spec if isinstance(spec, str) else f"{spec[0]} and {len(spec) - 1} more files"
    packed = about(spec)
    options = with_classes(options, packed)
    files, notes = _files(spec, options.split)
    opened = [_open_file(path) for path in files]
    schema = opened[0].schema_arrow
    for path, file in zip(files, opened, strict=True):
        if not file.schema_arrow.equals(schema):
            raise SourceError(
                f"{path}: has other columns than {files[0]} ({', '.join(file.schema_arrow.names)}; "
                f"{', '.join(schema.names)}); give the files of one data set."
            )
    if not sum(file.metadata.num_rows for file in opened):
        raise SourceError(f"{name}: has no rows.")
    wanted = schema.names if options.fields is None else list(options.fields)
    unknown = [field for field in wanted if field not in schema.names]
    if unknown:
        raise SourceError(
            f"{name}: has no column {unknown[0]!r}; there are {', '.join(schema.names)}."
        )
    pictures = [field for field in wanted if _holds_images(opened, field)]
    if not pictures:
        raise SourceError(
            f"{name}: no column of images (bytes, or a struct with bytes, that begin as a JPEG, "
            f"PNG, WebP, GIF, BMP or TIFF does) among {', '.join(wanted)}."
        )
    labels = _class_labels(schema)
    if options.classes is not None:
        labels["label"] = options.classes
    named = [field for field in wanted if field in labels]
    counted_by = "label" if "label" in named else named[0] if len(named) == 1 else ""
    columns: dict[str, Column] = {}
    left_out, classes, identity = [], options.classes, list[Any]()
    order = (
        wanted if options.fields is not None else sorted(wanted, key=lambda f: f not in pictures)
    )
    for field in order:
        if field in pictures:
            column = _unpacked(files, opened, field, role_of_images(field))
            columns[field] = column
            identity += [field, column.lengths, *folders.sampled_bytes(column)]
            continue
        if _is_list(schema.field(field).type):
            rows = _ragged(name, opened, field)
            columns[field] = rows
            identity += [field, *rows.array.arrays()]
            continue
        values, names = _values(name, opened, field, options.classes)
        if values is None:
            left_out.append(f"{field} ({schema.field(field).type})")
            continue
        names = names or labels.get(field)
        if names is not None:
            describe = f"{name}: column {field!r}, row {{}}".format
            values = class_labels(values, classes=len(names), name=name, describe=describe)
            classes = names if field in (counted_by, "label") else classes
        columns[field] = ValueArray(values)
        identity += [field, values]
    if left_out:
        words = f"{counted(len(left_out), 'column')} of neither images nor numbers: "
        words += ", ".join(left_out)
        if options.strict or options.fields is not None:
            raise SourceError(
                f"{name}: {words}; name the columns that you want: "
                f"open_source(..., fields={tuple(columns)})."
            )
        notes += (f"left out: {words}",)
    details = {"files": len(files)}
    source = Source(
        in_order(columns, packed, options),
        fingerprint_of("parquet", *identity),
        name,
        classes=classes,
        layout="tuple" if packed is None else packed.layout,
        upright=packed is not None and packed.upright,
        format="Parquet files",
        details=details,
    )
    check_samples(packed, len(source), spec)
    return Opened(source, notes=notes)


# -- Files -----------------------------------------------------------------------------------------


def _files_in(folder: str) -> list[str]:
    names = [name for name in folders.files_in(folder) if name.endswith(".parquet")]
    return [os.path.join(folder, name) for name in names]


def _files(spec: str | list[str], split: str | None) -> tuple[list[str], tuple[str, ...]]:
    """The files of a split, and notes. Hugging Face names them `train-00000-of-00002.parquet`."""
    is_folder = isinstance(spec, str) and stores.is_folder(spec)
    files = _files_in(str(spec)) if is_folder else [spec] if isinstance(spec, str) else spec
    by_split: dict[str | None, list[str]] = {}
    for path in files:
        begin = os.path.basename(path).removesuffix(".parquet").partition("-")[0]
        by_split.setdefault(folders.split_of(begin), []).append(path)
    named = [str(each) for each in by_split if each is not None]
    if split is None and len(by_split) < 2:
        return files, ()
    wanted = folders.split_of(split) if split is not None else None
    if wanted is None or wanted not in by_split:
        if not named:
            raise SourceError(f"split={split!r}: the files of {spec} name no splits; leave it out.")
        folders.refuse_splits(spec if isinstance(spec, str) else spec[0], named, split)
    return by_split[wanted], ()


class _RangeFile(io.RawIOBase):
    """A file of a store or a disk, for pyarrow."""

    def __init__(self, path: str) -> None:
        self._path, self._at, self._size = path, 0, stores.size_of(path)
        remote = stores.is_remote(path)
        self._version = int(stores.versions_of([path])[0]) if remote else 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        length = max(0, min(len(view), self._size - self._at))
        view[:length] = stores.read_up_to(self._path, length, self._at, self._version)
        self._at += length
        return length


def _open_file(path: str) -> Any:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise SourceError(
            f"{path}: Parquet is read by pyarrow, which is not installed: "
            f"{install_command('parquet')}"
        ) from None
    try:
        if stores.is_remote(path):
            return parquet.ParquetFile(io.BufferedReader(_RangeFile(path), 1 << 20))
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise SourceError(f"{path}: cannot be read as Parquet ({error}).") from error


# -- Columns ---------------------------------------------------------------------------------------


def _batches(opened: Sequence[Any], field: str) -> Iterator[Any]:
    """The values of a column, some rows at a time, as Arrow arrays; of a struct its bytes."""
    for file in opened:
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[field]):
            values = batch.column(0)
            if str(values.type).startswith("struct"):
                field_of = importlib.import_module("pyarrow.compute").struct_field
                values = field_of(values, "bytes")
            yield values


def _holds_images(opened: Sequence[Any], field: str) -> bool:
    """Whether it holds bytes, and those of the first row begin as an image does."""
    kind = opened[0].schema_arrow.field(field).type
    types = importlib.import_module("pyarrow.types")
    if types.is_struct(kind):
        if kind.get_field_index("bytes") < 0:
            return False
        kind = kind.field("bytes").type
    if not (types.is_binary(kind) or types.is_large_binary(kind)):
        return False
    first = next((values[0].as_py() for values in _batches(opened, field) if len(values)), None)
    if first is None:
        raise SourceError(
            f"column {field!r}: the first row has no bytes; images that are stored as paths are "
            "not in the file: give the folder that has them."
        )
    return bytes(first).startswith(_MAGIC)


def _is_list(kind: Any) -> bool:
    """Whether it is a list of numbers, or of lists of them."""
    types = importlib.import_module("pyarrow.types")
    depth = 0
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        # One of equal lengths alone is a row of an array, which is not served so far.
        if depth == 0 and types.is_fixed_size_list(kind):
            return False
        kind, depth = kind.value_type, depth + 1
    return depth > 0 and (types.is_integer(kind) or types.is_floating(kind))


def _ragged(name: str, opened: Sequence[Any], field: str) -> RaggedArray:
    """A column of lists as rows of variable length; of boxes and points the inner lists, which are
    of one length, as a dimension of the array. Raises SourceError."""
    pa = importlib.import_module("pyarrow")
    where = f"{name}: column {field!r}"
    chunks = [chunk for file in opened for chunk in file.read(columns=[field]).column(0).chunks]
    kind = kind_of_key(field, ragged=True)
    try:
        found = Ragged.from_arrow(pa.chunked_array(chunks))
        inner = found.values
        if kind.name in ("boxes", "keypoints") and isinstance(inner, Ragged):
            found = Ragged(_rectangular(inner), found.offsets)
    except SourceError as error:
        raise SourceError(f"{where}: {error}") from None
    role = VALUE.name if isinstance(kind, PixelKind) else kind.name
    column = RaggedArray(found, role=role)
    check_rows(column.kind, column.array, where)
    return column


def _rectangular(rows: Ragged) -> npt.NDArray[Any]:
    """Rows of one length as an array (n, length, ...)."""
    values = _rectangular(rows.values) if isinstance(rows.values, Ragged) else rows.values
    lengths = set(rows.lengths.tolist())
    if len(lengths) > 1:
        raise SourceError(
            f"its elements have {', '.join(map(str, sorted(lengths)[:4]))} numbers, and must have "
            "as many each."
        )
    count = lengths.pop() if lengths else 0
    values = values[int(rows.offsets[0]) : int(rows.offsets[-1])]
    return np.asarray(values.reshape(len(rows), count, *values.shape[1:]))


def _class_labels(schema: Any) -> dict[str, tuple[str, ...]]:
    """Names of classes by column, as Hugging Face's datasets write them into the schema."""
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return {
            name: tuple(feature["names"])
            for name, feature in features.items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    return {}


def _values(
    name: str, opened: Sequence[Any], field: str, classes: Sequence[str] | None
) -> tuple[npt.NDArray[Any] | None, tuple[str, ...] | None]:
    """(rows of numbers, names of classes); (None, None) of a column that is not served."""
    types = importlib.import_module("pyarrow.types")
    kind = opened[0].schema_arrow.field(field).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    is_label = field == "label" and (types.is_string(kind) or types.is_large_string(kind))
    if not is_number and not is_label:
        return None, None
    parts, row = [], 0
    for file in opened:
        for batch in file.iter_batches(_ROWS_AT_ONCE * 64, columns=[field]):
            values = batch.column(0)
            if values.null_count:
                at = row + values.is_null().to_pylist().index(True)
                raise SourceError(
                    f"{name}: column {field!r} has no value in row {at:,}; fill it, or leave the "
                    "column out: open_source(..., fields=...)."
                )
            row += len(values)
            parts.append(np.array(values.to_pylist()) if is_label else values.to_numpy(False))
    found = np.concatenate(parts)
    if is_number:
        return np.ascontiguousarray(found), None
    names = tuple(classes) if classes is not None else tuple(sorted(set(found.tolist())))
    numbers = {label: number for number, label in enumerate(names)}
    unknown = sorted(set(found.tolist()) - numbers.keys())
    if unknown:
        raise SourceError(f"{name}: the label {unknown[0]!r} is not among classes={list(names)}.")
    return np.array([numbers[label] for label in found.tolist()], dtype=np.int64), names


# -- Images, unpacked once -------------------------------------------------------------------------


def _unpacked(files: Sequence[str], opened: Sequence[Any], field: str, role: str) -> EncodedFiles:
    """The images of a column, in a file of their bytes; made now if there is none."""
    key = hashlib.blake2b(repr((field, *map(_state_of, files))).encode(), digest_size=16)
    folder = cache_home() / "parquet"
    data, table = (folder / f"{key.hexdigest()}.{ending}" for ending in ("bytes", "index"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"{key.hexdigest()}.lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the other ranks wait for the one that unpacks
            found = _ends(data, table)
            if found is None:
                logger.info("%s: the images are written to %s, once.", files[0], data)
                _unpack(opened, field, files, data, table)
                found = _ends(data, table)
    except OSError as error:
        raise SourceError(
            f"{files[0]}: its images cannot be written to {data} ({error.strerror or error}); free "
            "some space, or set XDG_CACHE_HOME to a folder on another disk."
        ) from error
    assert found is not None, "it was just written"
    starts = np.concatenate([np.zeros(1, np.int64), found[:-1]])
    counts = [file.metadata.num_rows for file in opened]
    names = PathTable.of(
        f"{os.path.basename(path)}:{field}[{row}]"
        for path, count in zip(files, counts, strict=True)
        for row in range(count)
    )
    paths = PathTable.of([str(data)]).take(np.zeros(len(found), dtype=np.int64))
    return EncodedFiles(paths, role, starts, found - starts, names)


def _state_of(path: str) -> tuple[Any, ...]:
    """What tells whether a file is the one that was unpacked."""
    if stores.is_remote(path):
        return path, stores.size_of(path), int(stores.versions_of([path])[0])
    status = os.stat(path)
    return os.path.realpath(path), status.st_size, status.st_mtime_ns


def _ends(data: Path, table: Path) -> Int64Array | None:
    """(N,) int64: where each image ends; None where it is not unpacked, or not whole."""
    try:
        _, arrays = read_index(table)
        size = data.stat().st_size
    except (OSError, SourceError):
        return None
    ends: Int64Array = arrays["ends"]
    return ends if size == (int(ends[-1]) if len(ends) else 0) else None


def _unpack(
    opened: Sequence[Any], field: str, files: Sequence[str], data: Path, table: Path
) -> None:
    lengths: list[Int64Array] = []
    row = 0
    with replacing(data) as beside, open(beside, "xb") as out:
        for values in _batches(opened, field):
            if values.null_count:
                at = row + values.is_null().to_pylist().index(True)
                raise SourceError(
                    f"{files[0]}: column {field!r} has no bytes in row {at:,}; images that are "
                    "stored as paths are not in the file."
                )
            row += len(values)
            pieces = [scalar.as_buffer() for scalar in values]
            lengths.append(np.array([len(piece) for piece in pieces], dtype=np.int64))
            out.writelines(pieces)
        out.flush()
        os.fsync(out.fileno())
    write_index(table, {}, {"ends": np.cumsum(np.concatenate(lengths))})


def unpacked() -> list[Path]:
    """The files that hold unpacked images, of all data sets."""
    return sorted((cache_home() / "parquet").glob("*.bytes"))
