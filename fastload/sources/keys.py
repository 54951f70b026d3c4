"""Which sample a key means: by the name of its file, by its number, or by a column of the data
set."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fastload.errors import ConfigurationError, SourceError, counted
from fastload.sources.base import Source
from fastload.sources.buffers import Int64Array
from fastload.sources.columns import EncodedFiles, PixelArray, ValueArray
from fastload.sources.texts import TEXT

Describe = Callable[[int], str]
"""How messages name a key, by its number: the file and the line that it is in."""


@dataclass(frozen=True)
class Found:
    """Which key each sample has."""

    keys: Int64Array
    """(N,): the number of the key; -1: it has none."""
    unused: int
    """Keys that are of no sample."""


def by_number(count: int, keys: Sequence[str], what: str, describe: Describe) -> Found:
    """Keys that are numbers of `count` samples. Raises SourceError: one is none, or there twice."""
    of_sample = np.full(count, -1, dtype=np.int64)
    for number, key in enumerate(keys):
        index = int(key) if key.isascii() and key.isdigit() and len(key) < 20 else -1
        if not 0 <= index < count:
            raise SourceError(
                f"{describe(number)}: {key!r} is no number of a sample, from 0 to {count - 1}; "
                f"correct it, or join {what} by='name'."
            )
        if of_sample[index] >= 0:
            raise _twice(describe, int(of_sample[index]), number, f"the sample {index}")
        of_sample[index] = number
    return Found(of_sample, 0)


def by_column(
    source: Source, column: str, keys: Sequence[str], describe: Describe
) -> tuple[Found, Describe]:
    """Keys that are values of a column of texts or whole numbers, of which several samples may have
    the same; and how messages name the value of a sample.

    Raises:
        ConfigurationError: there is no such column, or it has other values.
        SourceError: a key is there twice.
    """
    values = values_of(source, column)
    numbers: dict[str, int] = {}
    for number, key in enumerate(keys):
        if numbers.setdefault(key, number) != number:
            raise _twice(describe, numbers[key], number, f"the key {key!r}")
    of_sample = np.array([numbers.get(value, -1) for value in values], dtype=np.int64)
    used = len(np.unique(of_sample[of_sample >= 0]))
    return Found(of_sample, len(keys) - used), lambda row: f"{column} {values[row]!r}"


def by_name(source: Source, keys: Sequence[str], describe: Describe) -> Found:
    """Keys that are names of the samples' files: the end of a path, in whole names of folders, with
    its ending or without. Several samples of one file have the same key.

    Where keys have folders in them, one without is of a file that lies in the data set's own
    folder. Raises SourceError: a key may be several files, or two keys are one file; the samples
    have no names.
    """
    paths, path_of_sample = np.unique(names_of(source), return_inverse=True)
    names = _Names(paths.tolist(), folder_of(source))
    nested = any("/" in key for key in map(_plain, keys))
    of_path = np.full(len(paths), -1, dtype=np.int64)
    unused = 0
    for number, key in enumerate(keys):
        row = names.row_of(key, number, describe, nested=nested)
        if row < 0 and _plain(key) != key:
            row = names.row_of(_plain(key), number, describe, nested=nested)
        if row < 0:
            unused += 1
        elif of_path[row] >= 0:
            raise _twice(describe, int(of_path[row]), number, names.paths[row])
        else:
            of_path[row] = number
    return Found(of_path[path_of_sample], unused)


class _Names:
    """Files by their names."""

    def __init__(self, paths: list[str], folder: str) -> None:
        self.paths, self._folder = paths, folder
        self._by_name: dict[str, int | list[int]] = {}
        self._by_stem: dict[str, int | list[int]] = {}
        for row, path in enumerate(paths):
            name = path.rpartition("/")[2]
            _add(self._by_name, name, row)
            _add(self._by_stem, os.path.splitext(name)[0], row)

    def row_of(self, key: str, number: int, describe: Describe, *, nested: bool) -> int:
        """The file that a key names; -1: none. Raises SourceError: it may be several."""
        above, _, name = key.rpartition("/")
        for table in (self._by_name, self._by_stem):
            rows = [row for row in _rows(table, name) if self._lies(row, above)]
            own = [row for row in rows if self._above(row) == self._joined(above)]
            if not above and nested:
                rows = own
            if len(rows) > 1 and len(own) == 1:
                rows = own
            if len(rows) > 1:
                raise SourceError(
                    f"{describe(number)}: the key {key!r} may be {self.paths[rows[0]]} or "
                    f"{self.paths[rows[1]]}; write their folders, or their endings, into the keys."
                )
            if rows:
                return rows[0]
        return -1

    def _above(self, row: int) -> str:
        return self.paths[row].rpartition("/")[0]

    def _joined(self, above: str) -> str:
        return f"{self._folder}/{above}".rstrip("/") if self._folder else above

    def _lies(self, row: int, above: str) -> bool:
        folder = self._above(row)
        return not above or folder == above or folder.endswith(f"/{above}")


def names_of(source: Source) -> list[str]:
    """The path of each sample's file, or archive and name in it. Raises ConfigurationError: they
    have none."""
    for column in source.images.values():
        named = isinstance(column, PixelArray) and column.names is not None
        if isinstance(column, EncodedFiles):
            named = column.offsets is None or column.names is not None
        names = column.name_table() if named else None
        if names is None:
            continue
        if isinstance(column, EncodedFiles) and column.names is not None:
            every = np.arange(len(column), dtype=np.int64)
            pairs = zip(column.paths.many(every), column.names.many(every), strict=True)
            return [f"{archive}/{name}" for archive, name in pairs]
        paths = names.many(np.arange(len(column)))
        return [path.replace("\\", "/") for path in paths] if os.sep == "\\" else list(paths)
    raise ConfigurationError(
        f"by='name': the samples of {source.name} are in no files of their own, so they have no "
        "names; join by='index', or by the name of a column of keys."
    )


def folder_of(source: Source) -> str:
    """The folder below which the files of a data set lie, where it says so; else that which all
    have in common."""
    for column in source.images.values():
        if isinstance(column, EncodedFiles) and column.names is None and column.paths.root:
            return column.paths.root
    folders = {name.rpartition("/")[0] for name in names_of(source)}
    if any("://" in folder for folder in folders) or len({f[:1] == "/" for f in folders}) > 1:
        return ""
    return os.path.commonpath(folders)


def stem_in(folder: str, path: str) -> str:
    """The path of a file below a folder, without its ending: its key."""
    inside = path[len(folder) + 1 :] if folder and path.startswith(f"{folder}/") else path
    above, slash, name = inside.rpartition("/")
    return above + slash + os.path.splitext(name)[0]


def values_of(source: Source, name: str, argument: str = "by") -> list[str]:
    column = source.columns.get(name)
    if column is None:
        raise ConfigurationError(
            f"{argument}={name!r}: {source.name} has no such column; there are "
            f"{', '.join(source.columns)}. Or join by='name' or by='index'."
        )
    if column.role == TEXT.name:
        return TEXT.objects(source.values[name].at(np.arange(len(source))))
    stored = column.in_array() if name in source.values else None  # type: ignore[attr-defined]
    if (
        isinstance(stored, ValueArray)
        and stored.array.ndim == 1
        and stored.array.dtype.kind in "iu"
    ):
        return [str(value) for value in stored.at(np.arange(len(source))).tolist()]
    raise ConfigurationError(
        f"{argument}={name!r}: this column of {source.name} is of neither texts nor whole "
        "numbers, which keys are; name another."
    )


def _plain(key: str) -> str:
    """With slashes between folders, without "./" at its start, and spaces around it."""
    key = key.strip().replace("\\", "/")
    while key.startswith("./"):
        key = key[2:]
    return key


def _add(table: dict[str, int | list[int]], name: str, row: int) -> None:
    """A list only for names of several files: of a million names it takes half of the memory."""
    known = table.get(name)
    if known is None:
        table[name] = row
    elif isinstance(known, list):
        known.append(row)
    else:
        table[name] = [known, row]


def _rows(table: dict[str, int | list[int]], name: str) -> Iterable[int]:
    rows = table.get(name, ())
    return (rows,) if isinstance(rows, int) else rows


def _twice(describe: Describe, first: int, second: int, what: str) -> SourceError:
    return SourceError(
        f"{describe(second)}: is a second partner of {what}, after {describe(first)}; remove one "
        "of the two."
    )


def some_missing(what: str, found: Found, describe_sample: Describe, keys: Sequence[str]) -> str:
    """Which samples have no partner, for a message."""
    rows = np.flatnonzero(found.keys < 0)
    words = (
        f"{what}: has no partner of {counted(len(rows), 'sample')} of {len(found.keys):,}, the "
        f"first {describe_sample(int(rows[0]))}"
    )
    if len(rows) == len(found.keys) and keys:
        words += f" (its keys are such as {keys[0]!r})"
    return words
