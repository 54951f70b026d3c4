"""Ranges of bytes that lie side by side and are needed soon, read by one request when the first of
them is needed; the others are kept in memory until each is asked for, once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastload import stores
from fastload.stores.base import Data, Range
from fastload.stores.reads import LOOK, current
from fastload.stores.tier import tier

Int64Array = npt.NDArray[np.int64]


class Ranges(NamedTuple):
    """Of the rows of a column, which all lie in stores."""

    of: Callable[[Int64Array], Sequence[Range]]
    """By rows; their names are URLs."""
    digests: stores.Digests


class _Group:
    """Rows that are read together."""

    def __init__(self, rows: Int64Array, places: Sequence[int]) -> None:
        self.rows = rows
        self.left = set(places)
        """Those that were not asked for yet."""
        self.bytes_of: dict[int, Data] = {}
        """The bytes of these, except for those that are in the local tier."""
        self.started = False
        self.over = threading.Event()
        """Set when they were read, or could not be."""


class Together:
    """The groups of a data set, whose rows have a range in each of some columns. All methods may be
    called by several threads."""

    def __init__(self, columns: Sequence[Ranges], count: int, most: int) -> None:
        """`count`: rows. `most`: groups that are kept at once; a row of one that had to go is read
        by itself."""
        self._columns, self._count, self._most = columns, count, most
        self._lock = threading.Lock()
        self._groups: OrderedDict[int, _Group] = OrderedDict()
        """By `id`, the oldest first."""
        self._group_of: dict[int, _Group] = {}
        """By place: the number of the column times `count`, and the row."""

    def announce(self, groups: Sequence[Int64Array]) -> None:
        """The rows of each of these are needed soon."""
        with self._lock:
            for rows in groups:
                starts = range(0, len(self._columns) * self._count, self._count)
                places = [start + row for start in starts for row in rows.tolist()]
                group = _Group(rows, places)
                self._groups[id(group)] = group
                self._group_of.update(dict.fromkeys(places, group))
            while len(self._groups) > self._most:
                self._drop(next(iter(self._groups.values())))

    def forget(self) -> None:
        """None of what was announced is needed any more."""
        with self._lock:
            self._groups.clear()
            self._group_of.clear()

    def views(self, column: int, rows: Int64Array) -> list[Data]:
        """The bytes of these rows, each from memory, the local tier or the store. Raises OSError as
        `stores.read`."""
        contents = self._taken(column, rows)
        left = _missing(contents)
        if len(left):
            looked = self._columns[column].digests.look(rows[left])
            if looked is not None:
                here = left[looked.here]
                for row, data in zip(here, self._alone(column, rows[here]), strict=True):
                    contents[row] = data
                left = _missing(contents)
            for row, data in zip(left, self.fetched(column, rows[left]), strict=True):
                contents[row] = data
        return [b"" if data is None else data for data in contents]

    def looked(self, column: int, rows: Int64Array) -> stores.Looked | None:
        """As `stores.Digests.look`, of rows that may be in memory; None, too, where all are."""
        kept, begin = self._kept(column, rows)
        left, names = np.flatnonzero(~kept), self._columns[column].digests
        # Beside samples of groups that were fetched, those that begin a group are of one that will
        # be, and are looked for then: to look for two takes 0.2 ms.
        looked = names.missing(rows[left]) if begin and len(left) else None
        looked = looked or names.look(rows[left])
        if looked is None:
            return None
        digests, here = np.zeros((len(rows), 16), np.uint8), kept
        digests[left], here[left] = looked.digests, looked.here
        return stores.Looked(
            looked.store,
            looked.tier,
            self._columns[column].of,
            rows,
            digests,
            here,
            taken=lambda rows: self._taken(column, rows),
            fetched=lambda rows: self.fetched(column, rows),
        )

    def fetched(self, column: int, rows: Int64Array) -> list[Data]:
        """The bytes of rows that were neither in memory nor in the local tier a moment ago, read
        with the others of their groups. Raises OSError as `stores.read`: the groups that could not
        be read are dropped, so that each row is read by itself from then on."""
        places = self._places(column, rows)
        with self._lock:
            groups = dict.fromkeys(
                group for place in places if (group := self._group_of.get(place)) is not None
            )
            mine = [group for group in groups if not group.started]
            for group in mine:
                group.started = True
        if mine:
            with self._reading(mine):
                self._read(mine)
        for group in groups:
            while not group.over.wait(LOOK):  # another thread reads it
                current().check()
        contents = self._taken(column, rows)
        left = _missing(contents)
        for row, data in zip(left, self._alone(column, rows[left]), strict=True):
            contents[row] = data
        return [b"" if data is None else data for data in contents]

    def _places(self, column: int, rows: Int64Array) -> list[int]:
        places: list[int] = (rows + column * self._count).tolist()
        return places

    def _kept(self, column: int, rows: Int64Array) -> tuple[npt.NDArray[np.bool_], bool]:
        """(N,) bool: which of these rows are in memory; and whether some are, and all others are of
        groups that nobody reads yet."""
        kept, begin = list[bool](), True
        with self._lock:
            for place in self._places(column, rows):
                group = self._group_of.get(place)
                kept.append(group is not None and place in group.bytes_of)
                begin = begin and (kept[-1] or (group is not None and not group.started))
        return np.array(kept, np.bool_), begin and True in kept

    def _taken(self, column: int, rows: Int64Array) -> list[Data | None]:
        """The bytes of those rows that are in memory, which are not kept any longer."""
        places = self._places(column, rows)
        contents: list[Data | None] = []
        with self._lock:
            for place in places:
                group = self._group_of.get(place)
                data = None if group is None else group.bytes_of.pop(place, None)
                contents.append(data)
                if data is not None and group is not None:
                    self._used(group, place)
        return contents

    def _used(self, group: _Group, place: int) -> None:
        """This row of it is not asked for again. The lock is held."""
        group.left.discard(place)
        if self._group_of.get(place) is group:
            del self._group_of[place]
        if not group.left:
            self._groups.pop(id(group), None)

    def _drop(self, group: _Group) -> None:
        """The lock is held."""
        for place in [*group.left]:
            self._used(group, place)

    @contextmanager
    def _reading(self, groups: Sequence[_Group]) -> Iterator[None]:
        """While they are read by the block; if it raises, they are dropped."""
        try:
            yield
        except BaseException:
            with self._lock:
                for group in groups:
                    self._drop(group)
            raise
        finally:
            for group in groups:
                group.over.set()

    def _read(self, groups: Sequence[_Group]) -> None:
        """Read groups into memory, except for what is in the local tier, and the rest into that,
        too."""
        owner = np.repeat(np.arange(len(groups)), [len(group.rows) for group in groups])
        rows = np.concatenate([group.rows for group in groups])
        kept = tier()
        wanted, digests, owners, places = list[Range](), list[bytes](), list[int](), list[int]()
        for number, column in enumerate(self._columns):
            ranges = column.of(rows)
            wanted += ranges
            owners += owner.tolist()
            places += self._places(number, rows)
            names = None if kept is None else column.digests.of(rows, ranges)
            if names is not None:
                digests += [digest.tobytes() for digest in names]
        data: Sequence[Data | None]
        if kept is None or len(digests) < len(wanted):
            data = stores.read_views(wanted, lean=True)
        else:
            data = kept.fetched_if_missing(
                digests,
                lambda some: stores.read_views(
                    [wanted[row] for row in some], by_tier=False, lean=True
                ),
                later=True,
            )
        with self._lock:
            for one, place, each in zip(owners, places, data, strict=True):
                if each is not None:
                    groups[one].bytes_of[place] = each
            for group in groups:
                for place in [*group.left - group.bytes_of.keys()]:  # the tier has it
                    self._used(group, place)

    def _alone(self, column: int, rows: Int64Array) -> list[Data]:
        """The bytes of rows that are in no group, or in the tier."""
        return stores.read_views(self._columns[column].of(rows)) if len(rows) else []


def _missing(contents: Sequence[Data | None]) -> npt.NDArray[np.intp]:
    return np.flatnonzero([data is None for data in contents])
