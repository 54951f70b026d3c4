"""Parquet files with images in them, as Hugging Face and others write them (extra `parquet`).

    data/
    ├── train-00000-of-00002.parquet    image: bytes; label: numbers; ...
    ├── train-00001-of-00002.parquet
    └── test-00000-of-00001.parquet

Gives a column for each one of the table that is served: images, numbers, lists of numbers; `label`
as classes; words where `fields=` names them.

Numbers are read at each opening, images when a batch needs them: a Parquet file is read by row
groups, or by pages where it has an offset index (`parquet_images`).
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastload import stores
from fastload.distribution import install_command
from fastload.errors import FastloadError, SourceError, counted
from fastload.sources import folders
from fastload.sources.arrow_table import (
    ArrowTable,
    class_labels_of,
    open_table,
    words_of_training,
)
from fastload.sources.base import Opened, OpenOptions
from fastload.sources.buffers import PathTable
from fastload.sources.formats import Format
from fastload.sources.names import refuse_splits, split_of
from fastload.sources.packed import about, check_samples, with_classes
from fastload.sources.parquet_images import ParquetImages
from fastload.sources.parquet_pieces import Footer, HeldFile, footers, pieces_of
from fastload.sources.parquet_unpacked import all_unpacked

_NUMBERS_AT_ONCE = 65_536
"""Rows."""
_SAMPLED = 512
"""Bytes of a piece."""


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
    opened = _open_files(files)
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
        self._columns: dict[str, ParquetImages] = {}
        self._lacking: dict[str, int] = {}
        """By column: the first row of a row group that lacks a value, or -1."""

    def arrays(self, field: str) -> Iterator[Any]:
        for file in self._files:
            yield from file.values(field, _NUMBERS_AT_ONCE)

    def _column(self, field: str) -> ParquetImages:
        if field not in self._columns:
            footers = [file.footer for file in self._files]
            pieces, self._lacking[field] = pieces_of(footers, field)
            self._columns[field] = ParquetImages(
                PathTable.of(file.path for file in self._files),
                field,
                pieces,
                np.array([footer.state for footer in footers], np.int64),
            )
        return self._columns[field]

    def words(self) -> tuple[str, ...] | None:
        """The labels of the training split beside it, where this is another split."""
        split = _split_of(self._files[0].path)
        if split in (None, "train"):
            return None
        beside = _training_files(self._files[0].path)
        training = _open_files(beside) if beside else []
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
        column = self._column(field)
        try:
            return column.read(0) if len(column) else None
        except OSError as error:
            if self._lacking[field] >= 0:
                return None
            raise _unreadable(self._files[0].path, field, error) from error

    def images(self, field: str, role: str) -> tuple[ParquetImages, list[Any]]:
        column = self._column(field)
        lacking = self._lacking[field]
        for row in range(lacking, len(column)) if lacking >= 0 else ():
            try:
                column.read(row)
            except OSError as error:
                raise SourceError(
                    f"{self.name}: column {field!r} has no bytes in row {row:,}; images that are "
                    f"stored as paths are not in the file ({error})."
                ) from error
        column = column if column.role == role else replace(column, role=role)
        return column, _identity(column, self._files)


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

    footer: Footer
    opened: Any

    @property
    def path(self) -> str:
        return self.footer.path

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
            except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
                raise _unreadable(self.path, column, error) from error
            # By its name: where the column `image.bytes` is asked for, pyarrow gives the field
            # `bytes` of a struct `image`, too.
            yield batch.column(batch.schema.get_field_index(column))


def _unreadable(path: str, column: str, error: Exception) -> SourceError:
    damaged = "" if isinstance(error, stores.StoreError) else "; the file is damaged: copy or write"
    again = f"{damaged} it again" if damaged else ""
    return SourceError(f"{path}: column {column!r} cannot be read ({error}){again}.")


def _open_files(paths: Sequence[str]) -> list[_File]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise SourceError(
            f"{paths[0]}: Parquet is read by pyarrow, which is not installed: "
            f"{install_command('parquet')}"
        ) from None
    files = []
    for footer in footers(paths):
        path, version = footer.path, footer.state[0] if stores.is_remote(footer.path) else 0
        file: Any = HeldFile(path, footer.size, [(footer.start, footer.data)], version)
        try:
            # Pages have checksums if their writer was asked for them.
            opened = parquet.ParquetFile(file, page_checksum_verification=True)
        except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
            raise SourceError(f"{path}: cannot be read as Parquet ({error}).") from error
        files.append(_File(footer, opened))
    return files


def _identity(column: ParquetImages, files: Sequence[_File]) -> list[Any]:
    """What the fingerprint covers of a column of images, wherever its files lie: where its pieces
    are, and some bytes of some. Raises SourceError."""
    pieces = column.pieces
    ranges = []
    for piece in folders.sampled_rows(len(pieces), folders.IMAGES_SAMPLED).tolist():
        start, length = int(pieces.start[piece]), int(pieces.length[piece])
        footer = files[int(pieces.file[piece])].footer
        begin, size = start + max(0, length - _SAMPLED) // 2, min(_SAMPLED, length)
        version = footer.state[0] if stores.is_remote(footer.path) else 0
        ranges.append(stores.Range(footer.path, begin, size, version))
    try:
        sampled = stores.read_many(ranges, by_tier=False)
    except OSError as error:
        raise SourceError(f"{files[0].path}: cannot be read ({error}).") from error
    return [pieces.first, pieces.length, *sampled]


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
    kept=all_unpacked,
)
