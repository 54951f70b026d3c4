"""Tables of which a column holds keys: CSV, JSON lines, JSON and Parquet files."""

from __future__ import annotations

import csv
import importlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from fastload import stores
from fastload.errors import ConfigurationError, SourceError, counted, did_you_mean
from fastload.files import open_regular
from fastload.sources.columns import RaggedArray, ValueArray
from fastload.sources.image_tables import FILES
from fastload.sources.json_values import column_of_values, json_column
from fastload.sources.kinds import role_of_values
from fastload.sources.ragged import Ragged
from fastload.sources.texts import TEXT, text_column, text_of_arrow
from fastload.stores.contents import open_text

_LARGEST = 1 << 30
"""Bytes of a JSON file, which is read as one."""


@dataclass(frozen=True)
class Table:
    """A table, opened: its titles are known, and its columns can be asked for."""

    path: str
    titles: Sequence[str]
    column: Callable[[str], Sequence[Any]]
    """The values of a column; of a row that has none, None."""
    describe: Callable[[int], str]
    """How messages name a row."""
    words: bool = False
    """Whether all values are texts, as those of CSV are."""
    arrow: Callable[[str], Any] | None = None
    """Of Parquet: the pyarrow.ChunkedArray of a column."""
    own_keys: str | None = None
    """The title of keys that are not a column of the file: those of a JSON object."""

    def key_title(self, given: str | None, wanted: str) -> str | None:
        """The column of keys: the one that is given, the keys of a JSON object, the column called
        as `wanted`, or, of names, the one with a title for names of files. None: `wanted` is
        "index", and row i is of sample i. Raises ConfigurationError: it is not known which."""
        if given is not None:
            return self._known(given, "key")
        if self.own_keys is not None:
            return self.own_keys
        if wanted in self.titles:
            return wanted
        if wanted == "index":
            return None
        named = [title for title in self.titles if title.lower() in FILES]
        if wanted == "name" and len(named) == 1:
            return named[0]
        raise ConfigurationError(
            f"{self.path}: which of its columns ({', '.join(self.titles)}) holds the keys is not "
            "known; name it: fastload.Partner(path, key=...)."
        )

    def value_title(self, given: str | None, name: str, key: str | None) -> str:
        """The column of values for a column called `name`. Raises ConfigurationError: it is not
        known which."""
        if given is not None:
            return self._known(given, "value")
        if name in self.titles:
            return name
        others = [title for title in self.titles if title != key]
        if len(others) == 1:
            return others[0]
        raise ConfigurationError(
            f"{self.path}: which of its columns ({', '.join(self.titles)}) is to be {name!r} is "
            "not known; name it: fastload.Partner(path, value=...)."
        )

    def keys(self, title: str) -> list[str]:
        """The keys, as text. Raises SourceError: a row has none, or one that is neither a text nor
        a whole number."""
        keys = self.column(title)
        for row, key in enumerate(keys):
            if type(key) not in (str, int) or key == "":
                raise SourceError(
                    f"{self.describe(row)}: has the key {key!r} in {title!r}, and keys are texts "
                    "or whole numbers; write one, or remove the row."
                )
        return [str(key) for key in keys]

    def values(self, title: str, name: str) -> ValueArray | RaggedArray:
        """The column of values: numbers, lists of numbers, texts, or objects of Python's. Raises
        SourceError: a row has none."""
        if self.arrow is not None and (column := self._of_arrow(title, name)) is not None:
            return column
        values = self.column(title)
        missing = next((row for row, value in enumerate(values) if value is None), None)
        if missing is not None:
            raise SourceError(
                f"{self.describe(missing)}: has no {title!r}; write it, or remove the row: "
                "missing='drop' then leaves the sample out."
            )
        if self.words:
            numbers = _numbers(values)
            if numbers is not None:
                return ValueArray(numbers, role=role_of_values(name))
            return text_column(values, self.describe)
        column = column_of_values(name, values, self.path, self.describe)
        return json_column(values, self.describe) if column is None else column

    def _of_arrow(self, title: str, name: str) -> ValueArray | RaggedArray | None:
        """Texts and lists of numbers, without making objects of them; None: other values."""
        assert self.arrow is not None
        array, where = self.arrow(title), f"{self.path}: column {title!r}"
        types = importlib.import_module("pyarrow.types")
        if types.is_string(array.type) or types.is_large_string(array.type):
            return text_of_arrow(array, where)
        if types.is_list(array.type) or types.is_large_list(array.type):
            inner = array.type.value_type
            if types.is_integer(inner) or types.is_floating(inner):
                role = role_of_values(name, ragged=True)
                try:
                    return RaggedArray(Ragged.from_arrow(array), role=role)
                except SourceError as error:
                    raise SourceError(f"{where}: {error}") from None
        if not _as_in_json(array.type, types):
            raise SourceError(
                f"{where} is of {array.type}, which JSON does not have; cast it to a number or a "
                "text, or name another."
            )
        return None

    def _known(self, title: str, argument: str) -> str:
        if title not in self.titles:
            raise ConfigurationError(
                f"{argument}={title!r}: {self.path} has no such column; there are "
                f"{', '.join(self.titles)}.{did_you_mean(title, self.titles)}"
            )
        return title


def open_keyed_table(path: str) -> Table:
    """Open a table by the ending of its name. Raises SourceError: it cannot be read."""
    suffix = os.path.splitext(path)[1].lower()
    try:
        if suffix == ".parquet":
            return _parquet(path)
        if suffix in (".csv", ".tsv"):
            return _csv(path, "\t" if suffix == ".tsv" else "")
        return _json(path) if suffix == ".json" else _lines(path)
    except UnicodeDecodeError as error:
        raise SourceError(f"{path}: is no UTF-8 ({error}); save it as such.") from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error}).") from error


def _as_in_json(kind: Any, types: Any) -> bool:
    """Whether the objects that pyarrow makes of a type are written in JSON as they are."""
    if types.is_struct(kind):
        return all(_as_in_json(kind.field(n).type, types) for n in range(kind.num_fields))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _as_in_json(kind.value_type, types)
    if types.is_dictionary(kind):
        return _as_in_json(kind.value_type, types)
    texts = types.is_string(kind) or types.is_large_string(kind)
    numbers = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return bool(texts or numbers or types.is_null(kind))


def _numbers(values: Sequence[str]) -> Any:
    """Cells as int64 or float64, where all are numbers; else None."""
    for dtype in (np.int64, np.float64):
        try:
            return np.array(values, dtype=np.str_).astype(dtype)
        except ValueError:
            continue
        except OverflowError:  # a whole number beyond 64 bits, which float64 would round
            return None
    return None


def _csv(path: str, delimiter: str) -> Table:
    with open_text(path) as file:
        first = file.readline()
        file.seek(0)
        mark = delimiter or next(
            (mark for mark in "\t;" if mark in first and "," not in first), ","
        )
        try:
            rows = [row for row in csv.reader(file, delimiter=mark, strict=True) if row]
        except csv.Error as error:
            raise SourceError(
                f"{path}: is no CSV ({error}); correct it, or write it as JSON lines."
            ) from None
    if len(rows) < 2:
        raise SourceError(f"{path}: has no rows below its titles; add them.")
    titles = [title.strip() for title in rows[0]]
    if len(set(titles)) < len(titles):
        raise SourceError(f"{path}: two columns have one title ({', '.join(titles)}); rename one.")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(titles):
            raise SourceError(
                f"{path}: row {number} has {counted(len(row), 'cell')}, the first {len(titles)}; "
                "correct it (a text with commas in it is written in quotes)."
            )

    def column(title: str) -> list[str]:
        place = titles.index(title)
        return [row[place] for row in rows[1:]]

    return Table(path, titles, column, lambda row: f"{path}: row {row + 2}", words=True)


def _lines(path: str) -> Table:
    records, numbers = [], []
    with open_text(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                records.append(_record(line, f"{path}: line {number}"))
                numbers.append(number)
    return _of_records(path, records, lambda row: f"{path}: line {numbers[row]}")


def _json(path: str) -> Table:
    """A list of objects; or one object, by key: of texts, numbers, or objects. Raises SourceError:
    it is neither, or has a key twice."""
    if stores.size_of(path) > _LARGEST:
        raise SourceError(f"{path}: has more than {_LARGEST:,} bytes; write it as JSON lines.")
    try:
        data = bytes(stores.read(path)).removeprefix(b"\xef\xbb\xbf")
        content = msgspec.json.decode(data)
        keys = _outermost_keys(data) if isinstance(content, Mapping) else []
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: is no JSON ({error}); correct it.") from None
    if isinstance(content, list):
        wrong = next((n for n, one in enumerate(content) if not isinstance(one, Mapping)), None)
        if wrong is None:
            return _of_records(path, content, lambda row: f"{path}: entry {row}")
        raise SourceError(f"{path}: entry {wrong} is no object; write objects with a key each.")
    if not isinstance(content, Mapping):
        raise SourceError(
            f"{path}: is neither a list of objects nor an object of keys; correct it."
        )
    if len(keys) > len(content):
        twice = next(key for key, count in Counter(keys).items() if count > 1)
        raise SourceError(f"{path}: has the key {twice!r} twice; remove one of the two.")
    each = [content[key] for key in keys]
    if not each or not all(isinstance(one, Mapping) for one in each):
        each = [{"value": one} for one in each]
    title = "" if any("name" in one for one in each) else "name"
    records = [{**one, title: key} for key, one in zip(keys, each, strict=True)]
    table = _of_records(path, records, lambda row: f"{path}: {keys[row]!r}")
    return replace(table, own_keys=title)


def _outermost_keys(data: bytes) -> list[str]:
    """The keys of a JSON object, as often as they are in it: decoders keep the last of several."""
    keys: list[str] = []

    def noted(pairs: list[tuple[str, Any]]) -> None:
        keys[:] = [key for key, _ in pairs]  # the outermost object ends last

    json.loads(data, object_pairs_hook=noted)
    return keys


def _record(line: str, where: str) -> Mapping[str, Any]:
    try:
        record = msgspec.json.decode(line)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{where} is no JSON ({error}); correct it.") from None
    if not isinstance(record, Mapping):
        raise SourceError(f"{where} is no object; write one with a key and a value.")
    return record


def _of_records(
    path: str, records: Sequence[Mapping[str, Any]], describe: Callable[[int], str]
) -> Table:
    if not records:
        raise SourceError(f"{path}: has no rows; add them.")
    titles = list(dict.fromkeys(title for record in records for title in record))
    return Table(path, titles, lambda title: [one.get(title) for one in records], describe)


def _parquet(path: str) -> Table:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise SourceError(f"{path}: to read it pyarrow is needed: pip install pyarrow.") from error
    if stores.is_remote(path):
        raise SourceError(f"{path}: copy this table to a local disk, or write it as JSON lines.")
    with open_regular(path):
        pass
    try:
        schema = parquet.read_schema(path)
    except Exception as error:  # pyarrow's own, of many kinds
        raise SourceError(f"{path}: cannot be read as Parquet ({error}).") from error

    def arrow(title: str) -> Any:
        try:
            return parquet.read_table(path, columns=[title]).column(title)
        except Exception as error:  # pyarrow's own, of many kinds
            raise SourceError(f"{path}: column {title!r} cannot be read ({error}).") from error

    return Table(
        path,
        schema.names,
        lambda title: arrow(title).to_pylist(),
        lambda row: f"{path}: row {row}",
        arrow=arrow,
    )


def identity_of(column: ValueArray | RaggedArray) -> list[Any]:
    """What a fingerprint covers."""
    stored: Any = column.array
    arrays = stored.arrays() if isinstance(stored, Ragged) else [stored]
    return [column.role == TEXT.name, *arrays]
