"""Columns of several sources, one after the other, as one column.

Files stay files and small arrays become one array, so that the native core reads them as it reads
those of one source. Everything else is asked of the column that a row is of.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload import stores
from fastload.errors import DecodeError, SourceError, counted
from fastload.sources.buffers import (
    Int64Array,
    PathTable,
    PickledByReference,
    RowSelection,
)
from fastload.sources.columns import (
    Buffer,
    Column,
    EncodedFiles,
    EncodedImages,
    ImageColumn,
    Objects,
    PixelArray,
    PixelImages,
    ValueArray,
    Values,
)
from fastload.sources.ragged import Ragged, concatenated

# Bytes. Arrays of more stay where they are.
_COPIED = 256 << 20
# Paths that are written again at once.
_AT_ONCE = 1 << 18


def starts_of(sizes: Sequence[int]) -> Int64Array:
    """(parts + 1,): where each part begins, and where the last ends."""
    return np.concatenate([[0], np.cumsum(np.asarray(sizes, dtype=np.int64))])


def column_of(name: str, parts: Sequence[Column], names: Sequence[str]) -> Column:
    """One column of several. `names`: of the sources, for messages. Raises SourceError: they do not
    hold the same."""
    _check(name, parts, names)
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, EncodedImages):
        return _files_of(parts) or _Encoded(tuple(parts))
    if isinstance(first, PixelImages):
        return _pixels_of(parts) or _Pixels(tuple(parts))
    if isinstance(first, Values):
        return _values_of(parts) or _Values(tuple(parts))
    return _Items(tuple(parts))


def _check(name: str, parts: Sequence[Column], names: Sequence[str]) -> None:
    """Raise SourceError if columns do not hold the same."""
    said = [_said(part) for part in parts]
    for other, words in zip(names[1:], said[1:], strict=True):
        if words != said[0]:
            raise SourceError(
                f"column {name!r} of {names[0]!r} has {said[0]}, and that of {other!r} {words}. "
                "Open them alike (open_source: mode, roles, target, fields), convert one of them, "
                "or leave the column out."
            )


def _said(column: Column) -> str:
    """What its rows are, in words that are equal where they can be in one batch."""
    if isinstance(column, ImageColumn):
        stored = getattr(column, "stored", None)
        how = "compressed" if column.storage == "encoded" else "decoded"
        pixels = stored or f"{counted(column.channels, 'channel')} of {column.dtype}"
        return f"{how} {column.role} pixels ({pixels})"
    if isinstance(column, Values):
        row = column.at(np.zeros(min(1, len(column)), dtype=np.int64))
        shape = (
            "rows of any length" if isinstance(row, Ragged) else f"rows of shape {row.shape[1:]}"
        )
        return f"{column.role} {_dtype_of(row)}, {shape}"
    return "samples that Python makes"


def _dtype_of(rows: Any) -> str:
    if isinstance(rows, Ragged):
        inner = rows.values
        within = "" if isinstance(inner, Ragged) else f"{list(inner.shape[1:])}"
        return f"{_dtype_of(inner)}{within}"
    return str(rows.dtype)


def _files_of(parts: Sequence[Any]) -> EncodedFiles | None:
    """The files of all, where they can be in one table."""
    alike = all(type(part) is EncodedFiles for part in parts)
    if not alike or len({part.is_remote for part in parts}) > 1:
        return None
    for field in ("names", "versions"):
        if len({getattr(part, field) is None for part in parts}) > 1:
            return None
    ranges = any(part.offsets is not None for part in parts)
    first, sized = parts[0], any(part.object_sizes is not None for part in parts)
    return EncodedFiles(
        _table_of([part.paths for part in parts]),
        first.role,
        np.concatenate([_numbers(part.offsets, part, 0) for part in parts]) if ranges else None,
        np.concatenate([_numbers(part.lengths, part, -1) for part in parts]) if ranges else None,
        None if first.names is None else _table_of([part.names for part in parts]),
        None if first.versions is None else np.concatenate([part.versions for part in parts]),
        np.concatenate([_numbers(part.object_sizes, part, -1) for part in parts])
        if sized
        else None,
    )


def _numbers(given: Int64Array | None, part: EncodedFiles, otherwise: int) -> Int64Array:
    return np.full(len(part), otherwise, dtype=np.int64) if given is None else given


def _table_of(tables: Sequence[PathTable]) -> PathTable:
    """The strings of several tables, in one."""
    root = tables[0].root
    if any(table.root != root for table in tables):
        absolute = all(table.root.startswith("/") for table in tables)
        root = os.path.commonpath([table.root for table in tables]) if absolute else ""
        root = "" if root == "/" else root
    blobs, ends, rows, size, count = [], [], [], 0, 0
    selected = any(table.rows is not None for table in tables)
    for table in tables:
        prefix = ""
        if table.root != root:
            prefix = table.root[len(root) + 1 :] if root else table.root
            prefix += "/" if prefix else ""
        for blob, end in _prefixed(table, prefix.encode("utf-8", "surrogateescape")):
            blobs.append(blob)
            ends.append(end + size)
            size += len(blob)
        if selected:
            mine = np.arange(len(table)) if table.rows is None else table.rows
            rows.append(mine + count)
        count += len(table.ends)
    return PathTable(
        root,
        np.concatenate(blobs),
        np.concatenate(ends),
        np.concatenate(rows) if selected else None,
    )


def _prefixed(
    table: PathTable, prefix: bytes
) -> Iterator[tuple[npt.NDArray[np.uint8], Int64Array]]:
    """All strings of a table with something before each: (blob, ends) of pieces of it."""
    letters = np.frombuffer(prefix, dtype=np.uint8)
    for first in range(0, len(table.ends), _AT_ONCE):
        ends = table.ends[first : first + _AT_ONCE]
        begin = int(table.ends[first - 1]) if first else 0
        blob, ends = table.blob[begin : int(ends[-1])], ends - begin
        if len(letters):
            starts = np.concatenate([[0], ends[:-1]])
            number = np.arange(len(ends), dtype=np.int64)
            longer = np.empty(len(blob) + len(ends) * len(letters), dtype=np.uint8)
            places = (starts + number * len(letters))[:, None] + np.arange(len(letters))
            kept = np.ones(len(longer), dtype=np.bool_)
            kept[places] = False
            longer[places] = letters
            longer[kept] = blob
            blob, ends = longer, ends + (number + 1) * len(letters)
        yield blob, ends


def _pixels_of(parts: Sequence[Any]) -> PixelArray | None:
    """Decoded images of one size in one array, where they are few."""
    stored = [part.in_array() for part in parts]
    if not all(one is not None and one.sizes is None and not one.failed for one in stored):
        return None
    if len({one.array.shape[1:] for one in stored}) > 1:
        return None
    if sum(len(one) * one.array[:1].nbytes for one in stored) > _COPIED:
        return None
    rows = [one.array if one.rows is None else one.array[one.rows] for one in stored]
    return PixelArray(np.concatenate(rows), stored[0].role, channels=stored[0].channels)


def _values_of(parts: Sequence[Any]) -> ValueArray | None:
    """Rows of numbers in one array, where they are few."""
    stored = [part.in_array() for part in parts]
    if not all(one is not None for one in stored):
        return None
    if sum(len(one) * one.array[:1].nbytes for one in stored) > _COPIED:
        return None
    rows = [one.array if one.rows is None else one.array[one.rows] for one in stored]
    return ValueArray(np.concatenate(rows), role=stored[0].role)


@dataclass(frozen=True)
class _Parts(RowSelection, PickledByReference):
    """Rows of several columns."""

    parts: tuple[Any, ...]
    rows: Int64Array | None = None

    @cached_property
    def starts(self) -> Int64Array:
        return starts_of([len(part) for part in self.parts])

    def __len__(self) -> int:
        return int(self.starts[-1]) if self.rows is None else len(self.rows)

    @property
    def within(self) -> tuple[Any, ...]:
        """The parts, and the columns that these read."""
        return tuple(one for part in self.parts for one in (part, *getattr(part, "within", ())))

    @property
    def role(self) -> str:
        role: str = self.parts[0].role
        return role

    def of(self, index: int) -> tuple[Any, int]:
        """The column that a row is of, and its number there."""
        row = self.row_of(index)
        number = int(np.searchsorted(self.starts, row, "right")) - 1
        return self.parts[number], row - int(self.starts[number])

    def each(self, indices: Int64Array) -> Iterator[tuple[Any, Int64Array, Int64Array]]:
        """(column, which of the rows are of it, their numbers there)."""
        inside = self.rows_of(indices)
        numbers = np.searchsorted(self.starts, inside, "right") - 1
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            yield self.parts[number], rows, inside[rows] - int(self.starts[number])

    def listed(self, indices: Int64Array, read: str) -> list[Any]:
        """What a method of each column gives for its rows, in the order of the rows."""
        made: list[Any] = [None] * len(indices)
        for part, rows, within in self.each(indices):
            for row, one in zip(rows.tolist(), getattr(part, read)(within), strict=True):
                made[row] = one
        return made

    def describe(self, index: int) -> str:
        part, within = self.of(index)
        words: str = part.describe(within)
        return words


@dataclass(frozen=True)
class _Encoded(_Parts, EncodedImages):
    """Compressed images that lie in different ways."""

    @property
    def stored(self) -> Any:  # type: ignore[override]
        return self.parts[0].stored

    def read(self, index: int) -> bytes:
        part, within = self.of(index)
        data: bytes = part.read(within)
        return data

    def read_many(self, indices: Int64Array) -> Sequence[bytes]:
        return self.listed(indices, "read_many")

    def views(self, indices: Int64Array) -> Sequence[Buffer]:
        return self.listed(indices, "views")

    def read_start(self, index: int, length: int) -> bytes:
        part, within = self.of(index)
        data: bytes = part.read_start(within, length)
        return data

    def read_from(self, indices: Int64Array) -> Sequence[stores.Range]:
        return [one for part, _, within in self.each(indices) for one in part.read_from(within)]

    def fetched_bytes(self, indices: Int64Array) -> int:
        return sum(part.fetched_bytes(within) for part, _, within in self.each(indices))

    def length(self, index: int) -> int:
        part, within = self.of(index)
        length: int = part.length(within)
        return length

    @property
    def survives_fork(self) -> bool:
        return all(part.survives_fork for part in self.parts)

    @property
    def waits(self) -> bool:
        return any(part.waits for part in self.parts)

    @property
    def any_order(self) -> bool:  # type: ignore[override]
        return all(part.any_order for part in self.parts)

    def for_any_order(self) -> _Encoded:
        return replace(self, parts=tuple(part.for_any_order() for part in self.parts))


@dataclass(frozen=True)
class _Pixels(_Parts, PixelImages):
    """Decoded images in several arrays."""

    @property
    def channels(self) -> int:
        channels: int = self.parts[0].channels
        return channels

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = self.parts[0].dtype
        return dtype

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        sizes = {part.fixed_size for part in self.parts}
        return sizes.pop() if len(sizes) == 1 else None

    def pixels(self, index: int) -> npt.NDArray[Any]:
        part, within = self.of(index)
        pixels: npt.NDArray[Any] = part.pixels(within)
        return pixels

    def sizes_of(self, indices: Int64Array) -> npt.NDArray[np.int32]:
        sizes = np.ones((len(indices), 2), dtype=np.int32)
        for part, rows, within in self.each(indices):
            sizes[rows] = part.sizes_of(within)
        return sizes

    def failures_of(self, indices: Int64Array) -> dict[int, DecodeError]:
        return {
            int(rows[position]): error
            for part, rows, within in self.each(indices)
            for position, error in part.failures_of(within).items()
        }


@dataclass(frozen=True)
class _Values(_Parts, Values):
    """Rows of numbers in several arrays."""

    @property
    def ragged(self) -> bool:  # type: ignore[override]
        return bool(self.parts[0].ragged)

    def at(self, indices: Int64Array) -> Any:
        if self.ragged:
            each = list(self.each(indices))
            if not each:
                return self.parts[0].at(indices)
            order = np.argsort(np.concatenate([rows for _, rows, _ in each]), kind="stable")
            return concatenated([part.at(within) for part, _, within in each]).take(order)
        made = None
        for part, rows, within in self.each(indices):
            some = part.at(within)
            if made is None:
                made = np.empty((len(indices), *some.shape[1:]), dtype=some.dtype)
            made[rows] = some
        return self.parts[0].at(indices) if made is None else made

    @property
    def lengths(self) -> Int64Array:
        """(N,) int64: of a ragged column, how many elements each row has."""
        lengths = np.concatenate([part.lengths for part in self.parts])
        return lengths if self.rows is None else lengths[self.rows]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


@dataclass(frozen=True)
class _Items(_Parts, Objects):
    """Samples that the code of several data sets makes."""

    role = "object"

    @property
    def producer(self) -> str:
        return " or ".join(dict.fromkeys(part.producer for part in self.parts))

    def item(self, index: int) -> Any:
        part, within = self.of(index)
        return part.item(within)
