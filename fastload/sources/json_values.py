"""Columns of values as JSON has them: numbers, lists of numbers, texts; and any others, as objects
of Python's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from fastload.errors import SourceError
from fastload.sources.columns import RaggedArray, ValueArray
from fastload.sources.kinds import (
    JSON_NAME,
    Kind,
    check_rows,
    kind_named,
    register_kind,
    role_of_values,
)
from fastload.sources.ragged import Ragged, offsets_of
from fastload.sources.texts import text_column


class Json(Kind):
    """A value of JSON's for each sample: rows of its text where it is stored, a list of Python's
    objects (dicts, lists, numbers, strings, None) in a batch."""

    name = JSON_NAME
    python_objects = True

    def of(self, setting: str) -> Kind:
        """The same: "unmoved" is the user's word that places in them stay as they are."""
        return self if setting == "unmoved" else super().of(setting)

    def objects(self, rows: Any) -> list[Any]:
        """Raises SourceError: a row is no JSON."""
        bounds, data = rows.bounds.tolist(), np.ascontiguousarray(rows.values).data
        try:
            return [
                msgspec.json.decode(data[start:end]) for start, end in itertools.pairwise(bounds)
            ]
        except ValueError as error:
            raise SourceError(f"a value is no JSON ({error}); write it again.") from None


JSON = Json()
register_kind(JSON)


_DEEPEST = 64
"""Objects within objects: batches are gone through by functions that call themselves."""


def json_column(values: Iterable[Any], describe: Callable[[int], str]) -> RaggedArray:
    """A column of these values, as `json.loads` gives them. Raises SourceError: one is nested more
    than 64 deep; `describe` names the row."""
    encoded = []
    for row, value in enumerate(values):
        text = msgspec.json.encode(value)
        if text.count(b"[") + text.count(b"{") > _DEEPEST and _is_deeper(value, _DEEPEST):
            raise SourceError(
                f"{describe(row)}: has objects within objects, more than {_DEEPEST} deep; write "
                "them flatter, or leave the column out."
            )
        encoded.append(text)
    data = np.frombuffer(b"".join(encoded), dtype=np.uint8)
    return RaggedArray(Ragged(data, offsets_of([len(each) for each in encoded])), role=JSON.name)


def _is_deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_is_deeper(one, depth - 1) for one in inner)


def column_of_values(
    name: str, values: Sequence[Any], path: str, describe: Callable[[int], str]
) -> ValueArray | RaggedArray | None:
    """A column called `name`; None of values that are neither numbers, lists of these, nor texts,
    or not all of one kind.

    Whole numbers become int64, other numbers float64. Lists become rows of variable length,
    whatever their lengths here are: another split may have others.

    Raises:
        SourceError: a value is missing, a number is too large, or lists do not go together.
            `path` and `describe` name the file and the row.
    """
    types = {type(value) for value in values}
    if type(None) in types:
        row = next(row for row, value in enumerate(values) if value is None)
        raise SourceError(
            f"{describe(row)}: has no {name!r}; write it, or leave the column out: "
            "open_source(..., fields=...)."
        )
    if types == {str}:
        return text_column(values, lambda row: f"{describe(row)}: {name!r}")
    if types == {list}:
        return _lists(name, values, path, describe)
    if types not in ({bool}, {int}, {float}, {int, float}):
        return None
    try:
        numbers = np.array(values, dtype=np.float64 if float in types else None)
    except OverflowError:
        numbers = np.empty(0, dtype=object)
    if numbers.dtype.kind not in ("f" if float in types else "bi"):
        row = next(row for row, value in enumerate(values) if abs(value) > np.iinfo(np.int64).max)
        raise SourceError(f"{describe(row)}: {name!r} is a number beyond 64 bits; correct it.")
    rounded = _rounded(numbers, values)
    if rounded is not None:
        raise SourceError(
            f"{describe(rounded)}: {name!r} is {values[rounded]}, which float64 rounds, and other "
            "rows have fractions; write it as a text, or leave the column out."
        )
    column = ValueArray(numbers, role=role_of_values(name))
    check_rows(column.kind, numbers, f"{path}: column {name!r}")
    return column


def _rounded(numbers: Any, values: Sequence[Any]) -> int | None:
    """The first row whose whole numbers, beyond 2^53, are not those in its array; None: none."""
    if numbers.dtype.kind != "f" or not (np.abs(numbers) >= 2.0**53).any():
        return None
    for row, (number, value) in enumerate(zip(numbers, values, strict=True)):
        if isinstance(value, list):
            if _rounded(number, value) is not None:
                return row
        elif type(value) is int and value != float(number):
            return row
    return None


def _lists(
    name: str, values: Sequence[list[Any]], path: str, describe: Callable[[int], str]
) -> RaggedArray | None:
    arrays = []
    for row, value in enumerate(values):
        try:
            arrays.append(np.array(value))
        except ValueError:
            raise SourceError(
                f"{describe(row)}: the lists in {name!r} differ in length; write them alike, or "
                "leave the column out: open_source(..., fields=...)."
            ) from None
    if any(array.size and array.dtype.kind not in "bif" for array in arrays):
        return None
    if any(_rounded(array, value) is not None for array, value in zip(arrays, values, strict=True)):
        return None
    role = role_of_values(name, ragged=True)
    try:
        rows = Ragged.of(arrays)
    except SourceError as error:
        raise SourceError(f"{path}: column {name!r}: {error}") from None
    check_rows(kind_named(role), rows, f"{path}: column {name!r}")
    return RaggedArray(rows, role=role)
