"""What of a Parquet file is read for some rows of a column of bytes: its pieces, each a column's
part of a row group, or, where the file has an offset index, a page of it.

A piece is decoded by pyarrow, whatever its encoding and compression: its bytes are put into a small
Parquet file in memory, of one column and one row group, with metadata of our own. So as much is
read, from a disk or a store, as has the rows, and nothing depends on how pyarrow reads files.

The metadata are those of Parquet's own description (github.com/apache/parquet-format,
src/main/thrift/parquet.thrift); the numbers of fields below are its.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastload import stores
from fastload.errors import SourceError, counted
from fastload.machine import file_system_of
from fastload.sources.buffers import Int64Array, PickledByReference
from fastload.sources.thrift_compact import I32, Struct, ThriftError, read_struct, written
from fastload.stores import Data

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_PLAINLY = "fastload has no keys: write the file again without encryption"
_BYTE_ARRAY, _PLAIN = 6, 0
"""Of the types of values, and of encodings."""
_DICTIONARY = (2, 8)
"""The encodings PLAIN_DICTIONARY and RLE_DICTIONARY."""
_TAIL = 32 << 10
"""Bytes from the end of a file that are asked for first: the metadata of some 100 row groups, and
offset indexes."""
_AT_ONCE = 256
"""Files whose ends are read by one call."""
_FIELDS = ("first", "start", "length", "file", "codec", "dictionary", "dictionary_length")


class Footer(NamedTuple):
    """The end of a Parquet file."""

    path: str
    size: int
    """Bytes of the file."""
    state: tuple[int, ...]
    """See `state_of_file`."""
    start: int
    """Where `data` begins in the file."""
    data: bytes
    """The last bytes, all metadata among them."""
    metadata: bytes
    """FileMetaData, as it is stored."""


def footers(paths: Sequence[str]) -> list[Footer]:
    """The ends of files, read at once. Raises SourceError: one cannot be read, or is no Parquet."""
    made: list[Footer] = []
    for first in range(0, len(paths), _AT_ONCE):
        made += _some_footers(paths[first : first + _AT_ONCE])
    return made


def _some_footers(paths: Sequence[str]) -> list[Footer]:
    sizes = [stores.size_of(path) for path in paths]
    for path, size in zip(paths, sizes, strict=True):
        if size < 12:
            raise _unreadable(path, "there is no such file" if size < 0 else "it is too short")
    states = [state_of_file(path) for path in paths]
    starts = [max(0, size - _TAIL) for size in sizes]
    tails = _read(paths, starts, sizes, states)
    longer = []
    for number, (path, size, tail) in enumerate(zip(paths, sizes, tails, strict=True)):
        if tail[-4:] == _ENCRYPTED:
            raise _unreadable(path, f"its metadata are encrypted; {_PLAINLY}")
        if tail[-4:] != _MAGIC:
            raise _unreadable(path, "it does not end as a Parquet file does")
        length = int.from_bytes(tail[-8:-4], "little")
        if length + 12 > size:
            raise _unreadable(path, "its metadata would begin before it does")
        if length + 8 > len(tail):
            longer.append(number)
            starts[number] = size - 8 - length
    if longer:
        some = (
            [paths[number] for number in longer],
            [starts[number] for number in longer],
            [sizes[number] for number in longer],
            [states[number] for number in longer],
        )
        again = _read(*some)
        for number, tail in zip(longer, again, strict=True):
            tails[number] = tail
    made = []
    for row, tail in enumerate(tails):
        length = int.from_bytes(tail[-8:-4], "little")
        metadata = tail[-8 - length : -8]
        made.append(Footer(paths[row], sizes[row], states[row], starts[row], tail, metadata))
    return made


def state_of_file(path: str) -> tuple[int, ...]:
    """By which it is seen whether a file was written again while it is open: of a remote one (its
    version, 0, 0, 0); else (size [bytes], time of change of its content and of its entry in the
    file system [ns], inode), the last two 0 where the file system gives files other inodes as it
    likes (FUSE). All -1: there is none."""
    if stores.is_remote(path):
        return int(stores.versions_of([path])[0]), 0, 0, 0
    try:
        status = os.stat(path)
    except OSError:
        return -1, -1, -1, -1
    state = status.st_size, status.st_mtime_ns
    if not _has_inodes(os.path.dirname(os.path.abspath(path))):
        return *state, 0, 0
    return *state, status.st_ctime_ns, status.st_ino & (1 << 63) - 1


@functools.lru_cache
def _has_inodes(folder: str) -> bool:
    return not file_system_of(folder).startswith("fuse")


def _read(
    paths: Sequence[str],
    starts: Sequence[int],
    ends: Sequence[int],
    states: Sequence[tuple[int, ...]],
) -> list[bytes]:
    ranges = [
        stores.Range(path, start, end - start, state[0] if stores.is_remote(path) else 0)
        for path, start, end, state in zip(paths, starts, ends, states, strict=True)
    ]
    try:
        return stores.read_many(ranges, by_tier=False)
    except OSError as error:  # it names the file
        raise SourceError(f"{paths[0]}: cannot be read as Parquet ({error}).") from error


def _unreadable(path: str, why: object) -> SourceError:
    return SourceError(f"{path}: cannot be read as Parquet ({why}).")


class HeldFile(io.RawIOBase):
    """A file for pyarrow, some parts of which are in memory; of the others each read is one of the
    disk, or a request. Parts that are given are not copied."""

    def __init__(
        self, path: str, size: int, parts: Sequence[tuple[int, Data]], version: int = 0
    ) -> None:
        """`parts`: (first byte, bytes), in order, none over another."""
        self._path, self._size, self._version, self._at = path, size, version, 0
        self._parts = [(start, memoryview(data)) for start, data in parts]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> Any:
        """Bytes, or a view of them. Raises OSError."""
        left = max(0, self._size - self._at)
        end = self._at + (left if size is None or size < 0 else min(size, left))
        pieces, at = list[Data](), self._at
        for start, data in self._parts:
            if at < end and start + len(data) > at:
                if start > at:
                    pieces.append(self._asked(at, min(start, end)))
                    at = min(start, end)
                if at < end:
                    pieces.append(data[at - start : end - start])
                    at += len(pieces[-1])
        if at < end:
            pieces.append(self._asked(at, end))
        self._at = end
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _asked(self, start: int, end: int) -> bytes:
        return stores.read(self._path, start, end - start, self._version)


# -- Where the pieces of a column lie --------------------------------------------------------------


@dataclass(frozen=True)
class Pieces(PickledByReference):
    """The pieces of a column of bytes, or of structs with a field `bytes`, of several files."""

    names: tuple[str, ...]
    """Of that column: its own, and that of the field in its structs."""
    optional: tuple[bool, ...]
    """Of each of these: whether values may be missing."""
    first: Int64Array
    """(P + 1,): the first row of each piece, over all files; last the number of rows."""
    start: Int64Array
    """(P,): first byte in its file."""
    length: Int64Array
    """(P,) bytes."""
    file: Int64Array
    """(P,): which file."""
    codec: Int64Array
    """(P,): how it is compressed (CompressionCodec)."""
    dictionary: Int64Array
    """(P,): of pages, where the dictionary page of their row group begins."""
    dictionary_length: Int64Array
    """(P,) bytes; 0: there is none, or it is a part of the piece."""
    groups: Int64Array
    """(G,): the first row of each row group."""
    by_page: bool
    """Whether some are pages."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def rows(self) -> int:
        return int(self.first[-1])

    def of_rows(self, rows: Int64Array) -> Int64Array:
        """The piece of each row."""
        return np.searchsorted(self.first, rows, "right") - 1

    @property
    def usual_rows(self) -> float:
        """Rows of the piece that a row is in, on average."""
        rows = np.diff(self.first)
        return float((rows.astype(np.float64) ** 2).sum() / max(1, rows.sum()))

    def decoded(
        self, piece: int, data: Sequence[Data], dictionary: Data | None
    ) -> list[Data | None]:
        """The bytes of each of its rows, None where it has none.

        Args:
            data: of the piece, in parts.
            dictionary: the page that its pages need; see `needs_dictionary`.

        Raises:
            OSError: it is damaged.
        """
        rows = int(self.first[piece + 1] - self.first[piece])
        parts = [_MAGIC, *([] if dictionary is None else [dictionary]), *data]
        length = sum(map(len, parts)) - len(_MAGIC)
        metadata = self._metadata(rows, int(self.codec[piece]), length)
        parts += [metadata + len(metadata).to_bytes(4, "little") + _MAGIC]
        places = np.cumsum([0, *map(len, parts)]).tolist()
        file: Any = HeldFile("", places[-1], list(zip(places, parts, strict=False)))
        parquet = importlib.import_module("pyarrow.parquet")
        try:
            # Pages have checksums if their writer was asked for them.
            opened = parquet.ParquetFile(file, page_checksum_verification=True)
            column = opened.read(use_threads=False).column(0)
            column.validate(full=True)
        except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
            raise OSError(f"it is damaged ({error})") from error
        values = [value for chunk in column.chunks for value in _values_of(chunk)]
        if len(values) != rows:
            raise OSError(f"it is damaged (it has {counted(len(values), 'row')} of {rows:,})")
        return values

    def _metadata(self, rows: int, codec: int, length: int) -> bytes:
        """FileMetaData of a file with one row group of this column alone, of so many bytes, after
        the mark that it begins with."""
        names, schema = [name.encode() for name in self.names], list[Struct]()
        for depth, (name, optional) in enumerate(zip(names, self.optional, strict=True)):
            inner = depth + 1 < len(names)
            element = {5: I32(1)} if inner else {1: I32(_BYTE_ARRAY)}
            schema.append({**element, 3: I32(optional), 4: name})
        column = {
            1: I32(_BYTE_ARRAY),
            2: [I32(_PLAIN)],
            3: names,
            4: I32(codec),
            5: rows,
            6: length,
            7: length,
            9: len(_MAGIC),
        }
        group = {1: [{2: len(_MAGIC), 3: column}], 2: length, 3: rows}
        root = {4: b"schema", 5: I32(1)}
        return written({1: I32(2), 2: [root, *schema], 3: rows, 4: [group]})


def _values_of(array: Any) -> list[Data | None]:
    """Views of the values of an Arrow array of binary values, or of structs of one such field."""
    while str(array.type).startswith("struct"):
        (array,) = array.flatten()
    _, ends, data = array.buffers()
    wide = np.dtype(np.int64 if str(array.type).startswith("large") else np.int32)
    if not len(array):
        return []
    places = np.frombuffer(ends, wide, len(array) + 1, array.offset * wide.itemsize).tolist()
    view = memoryview(b"" if data is None else data)
    values: list[Data | None] = [view[start:end] for start, end in pairwise(places)]
    if array.null_count:
        for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[row] = None
    return values


def needs_dictionary(page: Data) -> bool:
    """Whether the values of a data page are numbers of entries of a dictionary. Raises OSError: it
    is none."""
    try:
        header, _ = read_struct(page)
        encoding = header[5][2] if 5 in header else header[8][4]
    except (ThriftError, TypeError, LookupError) as error:
        raise OSError(f"it is damaged (no page of data: {error})") from error
    return encoding in _DICTIONARY


class _Chunk(NamedTuple):
    """A column's part of a row group."""

    row: int
    """Its first, over all files."""
    rows: int
    start: int
    """First byte."""
    length: int
    codec: int
    missing: bool
    """Whether the file says that values are missing."""
    offset_index: tuple[int, int] | None
    """First byte and length of its offset index."""


def pieces_of(files: Sequence[Footer], field: str) -> tuple[Pieces, int]:
    """The pieces of a column of these files, whose columns are the same; and the first row of the
    first row group that lacks a value, as far as the files say, or -1.

    Raises:
        SourceError: the metadata of one are damaged; or the column is encrypted, or in another
            file.
    """
    names, optional, row = tuple[str, ...](), tuple[bool, ...](), 0
    chunks_of = list[list[_Chunk]]()
    for file in files:
        try:
            metadata, _ = read_struct(file.metadata)
            leaf, names, nulls = _leaf_of(metadata[2], field)
            if optional not in ((), nulls):
                raise TypeError("another schema")
            optional = nulls
            chunks = _chunks(metadata[4], leaf, row)
            rows = sum(chunk.rows for chunk in chunks)
            if rows != metadata[3]:
                raise TypeError(f"{counted(rows, 'row')} in row groups, {metadata[3]!r} in all")
        except NotImplementedError as error:
            raise _unreadable(file.path, error) from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise _unreadable(file.path, f"its metadata are damaged: {error!r}") from error
        chunks_of.append(chunks)
        row += rows
    pages_of = _pages_of(files, chunks_of)
    every, lacking = [c for chunks in chunks_of for c in chunks], -1
    parts = []
    for number, (file, chunks) in enumerate(zip(files, chunks_of, strict=True)):
        for chunk in chunks:
            part = _part(chunk, number, pages_of.get(chunk.row))
            _check(part, chunk, file)
            parts.append(part)
            lacking = chunk.row if chunk.missing and lacking < 0 else lacking
    table = np.concatenate([np.empty((0, len(_FIELDS)), np.int64), *parts])
    columns = {name: np.ascontiguousarray(table[:, at]) for at, name in enumerate(_FIELDS)}
    first = np.append(columns.pop("first"), row)
    groups = np.array([chunk.row for chunk in every], np.int64)
    return Pieces(names, optional, first, **columns, groups=groups, by_page=bool(pages_of)), lacking


def _leaf_of(elements: list[Struct], field: str) -> tuple[int, tuple[str, ...], tuple[bool, ...]]:
    """(which of the columns of a row group, the names that lead to it, whether each may be
    missing)."""
    at = leaf = 0
    path: list[tuple[Struct, int]] = []
    """Those around an element, and how many of their children are left."""
    for at, element in enumerate(elements):
        while path and not path[-1][1]:
            path.pop()
        if path:
            path[-1] = (path[-1][0], path[-1][1] - 1)
        if element.get(5):
            path.append((element, element[5]))
            continue
        above = [each for each, _ in path[1:]]  # without the root
        names = tuple(each[4].decode() for each in (*above, element)) if at else ()
        if names in ((field,), (field, "bytes")):
            levels = [each.get(3, 0) for each in (*above, element)]
            if element[1] != _BYTE_ARRAY or max(levels) > 1:
                raise TypeError(f"{'.'.join(names)} is not of bytes")
            return leaf, names, tuple(level == 1 for level in levels)
        leaf += 1
    raise KeyError(field)


def _chunks(groups: list[Struct], leaf: int, row: int) -> list[_Chunk]:
    chunks = []
    for group in groups:
        rows, chunk = _number(group[3]), group[1][leaf]
        if chunk.get(8) is not None or chunk.get(9) is not None:
            raise NotImplementedError(f"a column is encrypted; {_PLAINLY}")
        if chunk.get(1):
            raise NotImplementedError(f"a column is in another file, {chunk[1]!r}; open that one")
        column = chunk[3]
        data, dictionary = _number(column[9]), _number(column.get(11, 0))
        start = dictionary if 0 < dictionary < data else data
        missing = bool((column.get(12) or {}).get(3))
        index = (_number(chunk[4]), _number(chunk[5])) if 4 in chunk and 5 in chunk else None
        length, codec = _number(column[7]), _number(column[4])
        if rows:
            chunks.append(_Chunk(row, rows, start, length, codec, missing, index))
        row += rows
    return chunks


def _number(value: Any) -> int:
    """A number that the metadata give. Raises TypeError: it is none, or can be no place in a
    file: sums of these fit into 64 bits."""
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise TypeError(f"{value!r} in the place of a number")
    return value


def _pages_of(
    files: Sequence[Footer], chunks_of: Sequence[Sequence[_Chunk]]
) -> dict[int, npt.NDArray[np.int64]]:
    """By the first row of a row group that has an offset index: (pages, 3) of first byte, bytes,
    and first row in the row group. Raises SourceError."""
    pages, asked = dict[int, npt.NDArray[np.int64]](), list[tuple[Footer, _Chunk]]()
    for file, chunks in zip(files, chunks_of, strict=True):
        for chunk in chunks:
            if chunk.offset_index is None:
                continue
            start, length = chunk.offset_index
            if start + length > file.size:
                raise _unreadable(file.path, "its metadata name bytes that it does not have")
            at = start - file.start
            if at >= 0:
                pages[chunk.row] = _pages_in(file, file.data[at : at + length])
            else:
                asked.append((file, chunk))
    spans = [chunk.offset_index or (0, 0) for _, chunk in asked]
    starts, ends = [start for start, _ in spans], [sum(span) for span in spans]
    data = _read([f.path for f, _ in asked], starts, ends, [f.state for f, _ in asked])
    for (file, chunk), each in zip(asked, data, strict=True):
        pages[chunk.row] = _pages_in(file, each)
    return pages


def _pages_in(file: Footer, data: Data) -> npt.NDArray[np.int64]:
    try:
        index, _ = read_struct(data)
        rows = [[_number(page[field]) for field in (1, 2, 3)] for page in index[1]]
        return np.array(rows, np.int64).reshape(-1, 3)
    except (ThriftError, LookupError, TypeError) as error:
        raise _unreadable(file.path, f"an offset index is damaged: {error!r}") from error


def _part(chunk: _Chunk, file: int, pages: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    """(pieces, fields) of a row group: its pages, or all of it."""
    if pages is None or not len(pages):
        whole = (chunk.row, chunk.start, chunk.length, file, chunk.codec, 0, 0)
        return np.array([whole], np.int64)
    part = np.zeros((len(pages), len(_FIELDS)), np.int64)
    part[:, 0] = chunk.row + pages[:, 2]
    part[:, 1:3] = pages[:, :2]
    part[:, 3:5] = file, chunk.codec
    if pages[0, 0] > chunk.start:
        part[:, 5:7] = chunk.start, pages[0, 0] - chunk.start
    return part


def _check(part: npt.NDArray[np.int64], chunk: _Chunk, file: Footer) -> None:
    """Raises SourceError: the pieces of a row group are not one after the other in its bytes."""
    first, start, length = part[:, 0], part[:, 1], part[:, 2]
    end = chunk.start + chunk.length
    good = (
        4 <= chunk.start <= end <= file.size
        and first[0] == chunk.row
        and (np.diff(first) > 0).all()
        and first[-1] < chunk.row + chunk.rows
        and (length > 0).all()
        and start[0] >= chunk.start
        and (start[1:] >= start[:-1] + length[:-1]).all()
        and start[-1] + length[-1] <= end
    )
    if not good:
        raise _unreadable(file.path, "its metadata name bytes that it does not have")
