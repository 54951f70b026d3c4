"""Images in Parquet files, read where they lie, a piece at a time.

A piece (`Pieces`) is read and decoded whole when one of its rows is needed, and kept while others
of it are needed soon: those that were announced. Of rows that nobody has announced, as in order,
the last few pieces are kept. An order that asks for rows at random would read a piece for each:
such columns are read from what was unpacked once (`for_any_order`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from fastload import stores
from fastload.errors import SourceError
from fastload.files import is_remote
from fastload.sources.buffers import Int64Array, PathTable, PickledByReference
from fastload.sources.columns import EncodedFiles, EncodedImages
from fastload.sources.parquet_pieces import Pieces, needs_dictionary, state_of_file
from fastload.stores import Data
from fastload.stores.reads import LOOK, current

_RECENT = 64 << 20
"""Bytes of pieces that are kept though nobody has announced their rows; two pieces at least."""
_AT_ONCE = 64 << 20
"""Bytes that are read at once: the pieces of a first batch may be many."""
_LARGEST = 16 << 20
"""Bytes of a request; also, the local tier keeps no more as one."""


@dataclass(frozen=True)
class ParquetImages(PickledByReference, EncodedImages):
    """A column of compressed images in Parquet files."""

    files: PathTable
    name: str
    """Of the column."""
    pieces: Pieces
    states: Int64Array
    """(F, 4): the `state_of_file` of each when it was opened."""
    role: str = "image"
    any_order: ClassVar[bool] = False  # type: ignore[misc]

    def __len__(self) -> int:
        return self.pieces.rows

    def describe(self, index: int) -> str:
        """The file, the column, and the row in the file."""
        file = int(self.pieces.file[self._piece_of(index)])
        before = int(np.searchsorted(self.pieces.file, file))
        return f"{self.files[file]}:{self.name}[{index - int(self.pieces.first[before])}]"

    def read(self, index: int) -> bytes:
        return bytes(self.views(np.array([index]))[0])

    def read_many(self, indices: Int64Array) -> Sequence[bytes]:
        return [bytes(data) for data in self.views(indices)]

    def views(self, indices: Int64Array) -> Sequence[Data]:
        return self.reader.views(indices)

    def read_from(self, indices: Int64Array) -> Sequence[stores.Range]:
        """The pieces that the samples are in."""
        return [self.ranges_of(piece)[0] for piece in self.pieces.of_rows(indices).tolist()]

    @cached_property
    def waits(self) -> bool:
        return is_remote(self.files[0])

    @property
    def survives_fork(self) -> bool:
        return not self.waits

    @property
    def grouped(self) -> bool:
        return self.reader.announced

    @property
    def groups(self) -> ParquetImages:
        return self

    @cached_property
    def reader(self) -> PieceReader:
        """Of this process, for this column object."""
        return PieceReader(self)

    @property
    def archives(self) -> list[str]:
        return [] if self.waits else self.files.all_held()

    def for_any_order(self) -> EncodedFiles:
        from fastload.sources.parquet_unpacked import unpacked

        paths = self.files.all_held()
        versions = self.states[:, 0].tolist() if self.waits else [0] * len(paths)
        made = unpacked(paths, versions, self.name, self.pieces, self.views, self.role)
        try:  # another process may have unpacked what was written since this one read the numbers
            self.check(range(len(paths)))
        except OSError as error:
            raise SourceError(f"{error}.") from error
        return made

    def ranges_of(self, piece: int) -> list[stores.Range]:
        """What is read for a piece, in parts that are not too long."""
        start, length = int(self.pieces.start[piece]), int(self.pieces.length[piece])
        return self._ranges(int(self.pieces.file[piece]), start, length)

    def dictionary_of(self, piece: int) -> list[stores.Range]:
        """What is read for the dictionary of a page, if it needs one."""
        pieces = self.pieces
        start, length = int(pieces.dictionary[piece]), int(pieces.dictionary_length[piece])
        return self._ranges(int(pieces.file[piece]), start, length)

    def _ranges(self, file: int, start: int, length: int) -> list[stores.Range]:
        path = self.files[file]
        version = int(self.states[file, 0]) if is_remote(path) else 0
        return [
            stores.Range(path, start + at, min(_LARGEST, length - at), version)
            for at in range(0, length, _LARGEST)
        ]

    def check(self, files: Sequence[int]) -> None:
        """Raises OSError: a file on a disk was written again since it was opened. (Remote ones have
        versions.)"""
        for file in files:
            path = self.files[file]
            if is_remote(path) or (state := state_of_file(path))[0] < 0:
                continue
            if state != tuple(self.states[file].tolist()):
                raise OSError(
                    f"{path} was written again since it was opened, so that its samples lie "
                    "elsewhere; open the data set again"
                )

    def _piece_of(self, index: int) -> int:
        return int(self.pieces.of_rows(np.array([index]))[0])


@dataclass
class _Kept:
    """A piece that is in memory, or being read."""

    left: set[int] = field(default_factory=set)
    """Its rows that were announced, and not read yet."""
    values: list[Data | None] | None = None
    """Of each row; None where it has none, or before it was read."""
    size: int = 0
    """Bytes."""
    error: OSError | None = None
    """Why it cannot be decoded."""
    started: bool = False
    announced: bool = False
    over: threading.Event = field(default_factory=threading.Event)
    """Set when it was read, or could not be."""


class PieceReader:
    """Reads and keeps the pieces of a column. All methods may be called by several threads."""

    def __init__(self, column: ParquetImages) -> None:
        self._column, self._pieces = column, column.pieces
        self._lock = threading.Lock()
        self._kept: dict[int, _Kept] = {}
        self._recent: OrderedDict[int, None] = OrderedDict()
        """Pieces that nobody has announced, the oldest first."""
        self.announced = False
        """Whether rows ever were."""
        self.decoded = 0
        """Pieces, so far."""

    def announce(self, groups: Sequence[Int64Array], most: int) -> None:
        """The rows of each of these are needed soon. `most`: pieces that are kept for such; of
        more, those announced first are read again when they are needed."""
        if not groups:
            return
        rows = np.concatenate(groups)
        with self._lock:
            self.announced = True
            for piece, row in zip(self._pieces.of_rows(rows).tolist(), rows.tolist(), strict=True):
                have = self._kept.setdefault(piece, _Kept())
                have.announced = True
                have.left.add(row)
                self._recent.pop(piece, None)
            announced = [piece for piece, have in self._kept.items() if have.announced]
            for piece in announced[: max(0, len(announced) - most)]:
                del self._kept[piece]

    def forget(self) -> None:
        """None of what was announced is needed any more."""
        with self._lock:
            self._kept.clear()
            self._recent.clear()

    def views(self, rows: Int64Array) -> list[Data]:
        """The bytes of these rows. Raises OSError: one cannot be read, or has none."""
        pieces = self._pieces.of_rows(rows).tolist()
        have = self._read(dict.fromkeys(pieces))
        with self._lock:
            for piece, row in zip(pieces, rows.tolist(), strict=True):
                one = have[piece]
                one.left.discard(row)
                if one.announced and not one.left and self._kept.get(piece) is one:
                    del self._kept[piece]
        contents: list[Data] = []
        for piece, row in zip(pieces, rows.tolist(), strict=True):
            one = have[piece]
            if one.error is not None:
                raise OSError(str(one.error))
            assert one.values is not None, "it was read"
            value = one.values[row - int(self._pieces.first[piece])]
            if value is None:
                raise OSError(
                    f"it has no bytes; images that are stored as paths are not in the file (row "
                    f"{row:,})"
                )
            contents.append(value)
        return contents

    def _read(self, pieces: dict[int, None]) -> dict[int, _Kept]:
        """Pieces in memory, read by this thread or waited for."""
        got: dict[int, _Kept] = {}
        left = list(pieces)
        while left:
            with self._lock:
                some = {piece: self._kept.setdefault(piece, _Kept()) for piece in left}
                mine, size = list[int](), 0
                for piece in left:
                    if not some[piece].started and (not mine or size < _AT_ONCE):
                        some[piece].started = True
                        mine.append(piece)
                        size += int(self._pieces.length[piece])
            if mine:
                self._load({piece: some[piece] for piece in mine})
            else:  # other threads read them
                while not some[left[0]].over.wait(LOOK):
                    current().check()
            for piece, one in some.items():
                if one.over.is_set() and (one.values is not None or one.error is not None):
                    got[piece] = one
            left = [piece for piece in left if piece not in got]
        return got

    def _load(self, mine: dict[int, _Kept]) -> None:
        """Read and decode pieces. Raises OSError: they cannot be read; the next who needs them
        tries again."""
        column, pieces = self._column, self._pieces
        try:
            files = sorted({int(pieces.file[piece]) for piece in mine})
            column.check(files)
            data = self._parts([column.ranges_of(piece) for piece in mine])
            lacking, damaged = list[int](), dict[int, OSError]()
            for piece, parts in zip(mine, data, strict=True):
                try:
                    if pieces.dictionary_length[piece] and needs_dictionary(parts[0]):
                        lacking.append(piece)
                except OSError as error:
                    damaged[piece] = error
            found = self._parts([column.dictionary_of(piece) for piece in lacking])
            column.check(files)  # it may have been written again since the check above
            dictionaries = dict(zip(lacking, map(b"".join, found), strict=True))
            for (piece, one), parts in zip(mine.items(), data, strict=True):
                one.error = damaged.get(piece)
                if one.error is None:
                    self._decode(piece, one, parts, dictionaries.get(piece))
        finally:
            with self._lock:
                for piece, one in mine.items():
                    if one.values is None and one.error is None:
                        if self._kept.get(piece) is one:
                            self._kept[piece] = _Kept(one.left, announced=one.announced)
                    elif not one.announced:
                        self._recent[piece] = None
                self._trim()
            for one in mine.values():
                one.over.set()

    def _decode(
        self, piece: int, one: _Kept, parts: Sequence[Data], dictionary: bytes | None
    ) -> None:
        try:
            one.values = self._pieces.decoded(piece, parts, dictionary)
            one.size = sum(len(value) for value in one.values if value is not None)
        except OSError as error:
            one.error = error
        self.decoded += 1

    def _parts(self, wanted: Sequence[Sequence[stores.Range]]) -> list[list[Data]]:
        """The bytes of several ranges for each."""
        flat = iter(stores.read_views([each for ranges in wanted for each in ranges]))
        return [[next(flat) for _ in ranges] for ranges in wanted]

    def _trim(self) -> None:
        """Drop the oldest of the pieces that nobody has announced. The lock is held."""
        total = sum(self._kept[piece].size for piece in self._recent if piece in self._kept)
        while len(self._recent) > 2 and total > _RECENT:
            piece, _ = self._recent.popitem(last=False)
            with suppress(KeyError):
                total -= self._kept.pop(piece).size
