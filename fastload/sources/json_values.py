"""Columns of values as JSON has them: numbers, lists of numbers, texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastload.errors import SourceError
from fastload.sources.columns import RaggedArray, ValueArray
from fastload.sources.kinds import check_rows, kind_named, role_of_values
from fastload.sources.ragged import Ragged
from fastload.sources.texts import text_column


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
    if numbers.dtype.kind not in "bif":
        row = next(row for row, value in enumerate(values) if abs(value) > np.iinfo(np.int64).max)
        raise SourceError(f"{describe(row)}: {name!r} is a number beyond 64 bits; correct it.")
    column = ValueArray(numbers, role=role_of_values(name))
    check_rows(column.kind, numbers, f"{path}: column {name!r}")
    return column


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
    role = role_of_values(name, ragged=True)
    try:
        rows = Ragged.of(arrays)
    except SourceError as error:
        raise SourceError(f"{path}: column {name!r}: {error}") from None
    check_rows(kind_named(role), rows, f"{path}: column {name!r}")
    return RaggedArray(rows, role=role)
