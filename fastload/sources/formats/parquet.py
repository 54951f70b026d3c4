"""Parquet files with images in them, as Hugging Face and others write them (extra `parquet`).

    data/
    ├── train-00000-of-00002.parquet    image: bytes; label: numbers; ...
    ├── train-00001-of-00002.parquet
    └── test-00000-of-00001.parquet

Gives a column for each one of the table that is served: images, numbers, lists of numbers; `label`
as classes; words where `fields=` names them.

A Parquet file cannot be read at random: its row groups are compressed as a whole. So each row group
is read once, when the data set is opened for the first time, and the bytes of the images are
written one after the other to a file under `~/.cache/fastload/parquet`, as they are. From there
they are read by offset, as members of a tar file are. Numbers are read at each opening.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import io
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastload import stores
from fastload.distribution import install_command
from fastload.errors import FastloadError, SourceError, counted
from fastload.files import replacing
from fastload.machine import cache_home
from fastload.sources import folders
from fastload.sources.arrow_table import (
    ArrowTable,
    class_labels_of,
    open_table,
    words_of_training,
)
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.buffers import Int64Array, PathTable
from fastload.sources.columns import EncodedFiles
from fastload.sources.formats import Format
from fastload.sources.index_file import read_index, write_index
from fastload.sources.names import refuse_splits, split_of
from fastload.sources.packed import about, check_samples, with_classes
from fastload.stores.range_file import RangeFile

logger = logging.getLogger("fastload")

_ROWS_AT_ONCE = 1024
# Bytes that are looked at to tell a file from another one.
_END, _PIECE = 64 << 10, 512
_NUMBERS_AT_ONCE = 64 * _ROWS_AT_ONCE


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
    """Open Parquet files: rows in the order of the files given (of a folder: sorted), columns as
    `open_table` says.

    Raises:
        SourceError: as `open_table`; files of different columns, or a file that cannot be read; or
            pyarrow is not installed.
    """
    name = spec if isinstance(spec, str) else f"{spec[0]} and {len(spec) - 1} more files"
    packed = about(spec)
    options = with_classes(options, packed)
    files, notes = _files(spec, options.split)
    opened = [_open_file(path) for path in files]
    schema = opened[0].schema
    names = class_labels_of(schema)
    for path, file in zip(files, opened, strict=True):
        if not file.schema.equals(schema):
            raise SourceError(
                f"{path}: has other columns than {files[0]} ({_shown(file.schema)}; "
                f"{_shown(schema)}); give the files of one data set."
            )
        _check_class_names(path, class_labels_of(file.schema), files[0], names)
    for column in schema.names if options.fields is None else options.fields:
        if schema.names.count(column) > 1:
            raise SourceError(
                f"{files[0]}: has {counted(schema.names.count(column), 'column')} named "
                f"{column!r}; give each a name of its own, or say which to read: "
                "open_source(..., fields=...)."
            )
    if not sum(map(len, opened)):
        raise SourceError(f"{name}: has no rows.")
    table, details = _ParquetTable(name, opened), {"files": len(files)}
    served = open_table(table, options, packed=packed, notes=notes, details=details)
    check_samples(packed, len(served.source), spec)
    return served


def _check_class_names(
    path: str, theirs: dict[str, tuple[str, ...]], first: str, names: dict[str, tuple[str, ...]]
) -> None:
    """Raises SourceError: a number is the label of one class in this file, of another in the
    first."""
    for column in theirs.keys() & names.keys():
        if theirs[column] != names[column]:
            number = next(
                (
                    n
                    for n, pair in enumerate(zip(theirs[column], names[column], strict=False))
                    if pair[0] != pair[1]
                ),
                min(len(theirs[column]), len(names[column])),
            )
            one, other = (
                repr(each[number]) if number < len(each) else "no class"
                for each in (theirs[column], names[column])
            )
            raise SourceError(
                f"{path}: {number} in column {column!r} is {one}, and in {first} it is {other} "
                "(the names of the ClassLabel); write the files with one list of classes."
            )


def _shown(schema: Any) -> str:
    """The columns, with their types."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


class _ParquetTable(ArrowTable):
    """The rows of Parquet files, one file after the other."""

    format = "Parquet files"
    kind = "parquet"

    def __init__(self, name: str, files: Sequence[_File]) -> None:
        self.name, self.schema, self._files = name, files[0].schema, files

    def arrays(self, field: str) -> Iterator[Any]:
        for file in self._files:
            yield from file.values(field, _NUMBERS_AT_ONCE)

    def words(self) -> tuple[str, ...] | None:
        """The labels of the training split beside it, where this is another split."""
        split = _split_of(self._files[0].path)
        if split in (None, "train"):
            return None
        training = map(_open_file, _training_files(self._files[0].path))
        return words_of_training(
            self.name,
            split,
            (
                values
                for file in training
                if "label" in file.schema.names
                for values in file.values("label", _NUMBERS_AT_ONCE)
            ),
            "Put the files of the training split beside it (train-*.parquet, or a folder train)",
        )

    def first(self, field: str) -> bytes | None:
        images = (values[0].as_py() for values in _images_in(self._files, field) if len(values))
        return next(images, None)

    def images(self, field: str, role: str) -> tuple[EncodedFiles, list[Any]]:
        column = _unpacked(self._files, field, role)
        return column, [column.lengths, *folders.sampled_bytes(column)]


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
        by_split.setdefault(_named_split(path), []).append(path)
    named = [str(each) for each in by_split if each is not None]
    if split is None and len(by_split) < 2:
        return files, ()
    wanted = split_of(split) if split is not None else None
    if wanted is None or wanted not in by_split:
        if not named:
            raise SourceError(f"split={split!r}: the files of {spec} name no splits; leave it out.")
        refuse_splits(spec if isinstance(spec, str) else spec[0], named, split)
    return by_split[wanted], ()


def _named_split(path: str) -> str | None:
    """The split that the name of a file says."""
    begin = os.path.basename(path).removesuffix(".parquet").partition("-")[0]
    return split_of(begin)


def _split_of(path: str) -> str | None:
    """The split that the name of a file says, or that of its folder."""
    return _named_split(path) or split_of(os.path.basename(os.path.dirname(path)))


def _training_files(path: str) -> list[str]:
    """The files of the training split beside a file of another one, or in a folder beside its
    own."""
    folder = os.path.dirname(path)
    training = [each for each in _files_in(folder) if _named_split(each) == "train"]
    above = folders.split_folder(stores.parent_of(folder), "train")
    return training or ([] if above in (None, folder) else _files_in(str(above)))


@dataclass(frozen=True)
class _File:
    """A Parquet file, by pyarrow."""

    path: str
    opened: Any

    def __len__(self) -> int:
        rows: int = self.opened.metadata.num_rows
        return rows

    @property
    def schema(self) -> Any:
        """Its columns, as Arrow names their types."""
        return self.opened.schema_arrow

    def values(self, column: str, rows: int) -> Iterator[Any]:
        """A column as Arrow arrays of so many rows. Raises SourceError: it is damaged."""
        batches = self.opened.iter_batches(rows, columns=[column])
        while True:
            try:
                if (batch := next(batches, None)) is None:
                    return
                batch.validate(full=True)
            except FastloadError:  # of the store
                raise
            except stores.StoreError as error:
                raise SourceError(
                    f"{self.path}: column {column!r} cannot be read ({error})."
                ) from error
            except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
                raise SourceError(
                    f"{self.path}: column {column!r} cannot be read ({error}); the file is "
                    "damaged: copy or write it again."
                ) from error
            # By its name: where the column `image.bytes` is asked for, pyarrow gives the field
            # `bytes` of a struct `image`, too.
            yield batch.column(batch.schema.get_field_index(column))


def _open_file(path: str) -> _File:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise SourceError(
            f"{path}: Parquet is read by pyarrow, which is not installed: "
            f"{install_command('parquet')}"
        ) from None
    try:
        remote = stores.is_remote(path)
        file: Any = io.BufferedReader(RangeFile(path), 1 << 20) if remote else path
        # Pages have checksums if their writer was asked for them.
        return _File(path, parquet.ParquetFile(file, page_checksum_verification=True))
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise SourceError(f"{path}: cannot be read as Parquet ({error}).") from error


def _images_in(files: Sequence[_File], field: str) -> Iterator[Any]:
    """The bytes of a column of images, some rows at a time, as Arrow arrays."""
    for file in files:
        for values in file.values(field, _ROWS_AT_ONCE):
            if str(values.type).startswith("struct"):
                field_of = importlib.import_module("pyarrow.compute").struct_field
                values = field_of(values, "bytes")
            if str(values.type).startswith("dictionary"):
                values = values.dictionary_decode()
            yield values


# -- Images, unpacked once -------------------------------------------------------------------------


def _unpacked(files: Sequence[_File], field: str, role: str) -> EncodedFiles:
    """The images of a column, in a file of their bytes; made now if there is none."""
    states = [_state_of(file.path) for file in files]
    key = hashlib.blake2b(repr((field, *states)).encode(), digest_size=16)
    folder = cache_home() / "parquet"
    data, table = (folder / f"{key.hexdigest()}.{ending}" for ending in ("bytes", "index"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / f"{key.hexdigest()}.lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the other ranks wait for the one that unpacks
            ends = _ends(data, table)
            if ends is None:
                logger.info("%s: the images are written to %s, once.", files[0].path, data)
                _unpack(files, field, data, table)
                ends = _ends(data, table)
    except OSError as error:
        raise SourceError(
            f"{files[0].path}: its images cannot be written to {data} "
            f"({error.strerror or error}); free some space, or set XDG_CACHE_HOME to a folder on "
            "another disk."
        ) from error
    assert ends is not None, "it was just written"
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    names = PathTable.of(
        f"{os.path.basename(file.path)}:{field}[{row}]"
        for file in files
        for row in range(len(file))
    )
    paths = PathTable.of([str(data)]).take(np.zeros(len(ends), dtype=np.int64))
    return EncodedFiles(paths, role, starts, ends - starts, names)


def _state_of(path: str) -> tuple[Any, ...]:
    """Identifies the file that was unpacked. Raises OSError."""
    size = stores.size_of(path)
    if stores.is_remote(path):
        version = int(stores.versions_of([path])[0])
        return path, size, version, b"" if version else _some_of(path, size)
    # Not by its time alone: copies that keep it (rsync -t, cp -p) replace one file by another.
    return os.path.realpath(path), size, os.stat(path).st_mtime_ns, _some_of(path, size)


def _some_of(path: str, size: int) -> bytes:
    """Digest of a file's end, where Parquet says how large each part is and which numbers are in
    it, and of 32 pieces spread evenly over the rest. Raises OSError."""
    least = max(0, size - _END)
    starts = [least, *np.linspace(0, max(0, least - _PIECE), 32).astype(np.int64).tolist()]
    lengths = [size - least, *[min(_PIECE, least)] * 32]
    ranges = [stores.Range(path, *each) for each in zip(starts, lengths, strict=True)]
    return hashlib.blake2b(b"".join(stores.read_many(ranges)), digest_size=16).digest()


def _ends(data: Path, table: Path) -> Int64Array | None:
    """(N,) int64: where each image ends; None where it is not unpacked, or not whole."""
    try:
        _, arrays = read_index(table)
        size = data.stat().st_size
    except (OSError, SourceError):
        return None
    ends: Int64Array = arrays["ends"]
    return ends if size == (int(ends[-1]) if len(ends) else 0) else None


def _unpack(files: Sequence[_File], field: str, data: Path, table: Path) -> None:
    lengths: list[Int64Array] = []
    row = 0
    with replacing(data) as beside, open(beside, "xb") as out:
        for values in _images_in(files, field):
            if values.null_count:
                at = row + values.is_null().to_pylist().index(True)
                raise SourceError(
                    f"{files[0].path}: column {field!r} has no bytes in row {at:,}; images "
                    "that are stored as paths are not in the file."
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


FORMAT = Format(
    name="parquet",
    title="Parquet files with images",
    recognise=is_parquet,
    open=open_parquet,
    options=("split", "fields", "classes"),
    remote=True,
    signs=("*.parquet", ".*.parquet"),
    files=("*.parquet",),
    lists=(".parquet",),
    packages=(),
    kept=unpacked,
)
