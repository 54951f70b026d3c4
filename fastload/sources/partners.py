"""Columns that are joined to a data set, with a key for each row: of arrays, dicts, and other data
sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from fastload.errors import ConfigurationError, SourceError, counted
from fastload.fingerprint import fingerprint_of
from fastload.sources import keys
from fastload.sources.base import Opened, Source
from fastload.sources.buffers import PathTable
from fastload.sources.columns import (
    Column,
    EncodedFiles,
    EncodedImages,
    ImageColumn,
    RaggedArray,
    ValueArray,
    Values,
)
from fastload.sources.image_lists import listed
from fastload.sources.keyed_tables import identity_of
from fastload.sources.kinds import PixelKind, check_rows, kind_named, role_of_images
from fastload.sources.opening import open_source
from fastload.sources.ragged import Ragged
from fastload.sources.texts import is_texts, text_column


@dataclass(frozen=True, kw_only=True)
class Partner:
    """What `join` takes a column from, where the path or object alone does not say it all.

    Raises:
        ConfigurationError: an argument is no text.
    """

    data: Any = field(kw_only=False)
    """A path, array, dict or data set, see `join`."""
    key: str | None = None
    """The column of a table, or of a data set, that holds the keys."""
    value: str | None = None
    """The column of a table or of a data set, or the array of a `.npz` or `.safetensors` file, that
    is joined."""
    ending: str | None = None
    """How the names of a folder's files end, such as "_mask.png": the others are left out, and the
    keys are the names without it."""
    role: str | None = None
    """What the rows are, as `roles` of `open_source` has it: "mask", "boxes", "unmoved"..."""
    ragged: bool = False
    """Whether arrays may differ in their first dimension: rows of variable length
    (`fastload.Ragged`)."""

    def __post_init__(self) -> None:
        for name in ("key", "value", "ending", "role"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, str):
                raise ConfigurationError(f"Partner: {name} must be a str or None, got {given!r}.")


class Rows(NamedTuple):
    """A column to be joined, whole, in its own order."""

    name: str
    """For messages."""
    column: Column
    keys: Sequence[str] | None
    """Of each row; None: the number of the row."""
    describe: keys.Describe
    """How messages name a row."""
    identity: Sequence[Any]
    """What a fingerprint covers, beside the keys."""


def rows_of_array(name: str, data: Any) -> Rows:
    """Row i of an array, a tensor, a list of texts, a Ragged, or a `.npy` file."""
    where = data if isinstance(data, str) else f"the array for {name!r}"
    if is_texts(data):
        column = text_column(data, lambda row: f"{where}, row {row}")
        return Rows(where, column, None, f"{where}, row {{}}".format, identity_of(column))
    if isinstance(data, list | tuple) and data and all(type(x) in (int, float, bool) for x in data):
        data = np.array(data)
    arrow = type(data).__module__.partition(".")[0] == "pyarrow"
    if not (isinstance(data, str | np.ndarray | torch.Tensor | Ragged) or arrow):
        raise ConfigurationError(
            f"{name!r}: rows are taken from a path, an array, a tensor, a list of texts, a dict by "
            f"key, or what fastload.open_source has opened; got a {type(data).__name__}."
        )
    try:
        source = open_source({name: data}).source
    except SourceError as error:
        raise SourceError(f"{name!r}: {error}") from None
    (only,) = source.columns.values()
    return Rows(where, only, None, f"{where}, row {{}}".format, [source.fingerprint])


def rows_of_mapping(name: str, partner: Partner, data: Mapping[Any, Any]) -> Rows:
    """Arrays, texts or numbers by key."""
    for key in data:
        if type(key) not in (str, int):
            raise ConfigurationError(
                f"{name!r}: the key {key!r} is neither a text nor an int; give a dict by such keys."
            )
    if not data:
        raise SourceError(f"{name!r}: the dict is empty.")
    given, where = list(data), f"the dict for {name!r}"
    values = list(data.values())

    def describe(row: int) -> str:
        return f"{where}: {given[row]!r}"

    if all(isinstance(value, str) for value in values):
        rows = rows_of_array(name, values)
    else:
        arrays = [_as_array(value, describe(row)) for row, value in enumerate(values)]
        rows = rows_of_array(name, _together(name, partner, arrays, describe))
    return rows._replace(name=where, keys=list(map(str, given)), describe=describe)


def _as_array(value: Any, where: str) -> Any:
    array = value.detach().cpu() if isinstance(value, torch.Tensor) else value
    if isinstance(array, torch.Tensor) and array.dtype == torch.bfloat16:
        array = array.float()
    array = np.asarray(array)
    check_dtype(array.dtype, where)
    return array


def _together(
    name: str, partner: Partner, arrays: Sequence[Any], describe: Callable[[int], str]
) -> Any:
    """Arrays one after the other."""
    cut, first = int(partner.ragged), arrays[0]
    for row, array in enumerate(arrays):
        if array.dtype != first.dtype or array.shape[cut:] != first.shape[cut:]:
            raise SourceError(
                f"{describe(row)}: is {array.dtype}{list(array.shape)}, and {describe(0)} is "
                f"{first.dtype}{list(first.shape)}; make them alike. If they are to differ in "
                "their first dimension: fastload.Partner(..., ragged=True)."
            )
    return Ragged.of(arrays) if partner.ragged else np.stack(arrays)


def rows_of_source(name: str, partner: Partner, given: Source | Opened, by: str) -> Rows:
    opened = given if isinstance(given, Opened) else Opened(given)
    source = opened.source
    if opened.transform is not None:
        raise ConfigurationError(
            f"{name!r}: {source.name} has a transform of its own, which would be left out; open it "
            "without one."
        )
    if source.objects:
        raise ConfigurationError(
            f"{name!r}: the samples of {source.name} are made by its own Python code, which has no "
            "columns; open its files."
        )
    key = partner.key if partner.key is not None else by if by in source.columns else None
    others = [column for column in source.columns if column != key]
    value = partner.value or (name if name in others else others[0] if len(others) == 1 else None)
    if value is None or value not in source.columns:
        raise ConfigurationError(
            f"{name!r}: which column of {source.name} ({', '.join(source.columns)}) it is to be is "
            "not known; name it: fastload.Partner(opened, value=...)."
        )
    column: Any = source.columns[value]
    if isinstance(column, EncodedImages):
        column = column.for_any_order()
    if isinstance(column, EncodedFiles) and column.role == "image":
        column = replace(column, role=role_of_images(name))
    keyed = None
    if key is not None:
        keyed = keys.values_of(source, key, argument="key")
    elif by == "name":
        folder = keys.folder_of(source)
        keyed = [keys.stem_in(folder, each) for each in keys.names_of(source)]
    elif by != "index":
        raise ConfigurationError(
            f"{name!r}: {source.name} has no column {by!r} of keys; name one: "
            "fastload.Partner(opened, key=...)."
        )
    return Rows(source.name, column, keyed, source.describe, [source.fingerprint, value])


def in_role(rows: Rows, role: str) -> Column:
    """The column as the user says what it is."""
    column: Any = rows.column
    kind = kind_named(role)
    if kind.decodes:
        return listed(column, role, rows.name)
    if isinstance(column, ImageColumn) != isinstance(kind, PixelKind):
        what = "images" if isinstance(column, ImageColumn) else "values"
        raise ConfigurationError(f"role={role!r}: {rows.name} holds {what}, which cannot be that.")
    ragged = isinstance(column, Values) and column.ragged
    if kind.only_ragged and not ragged:
        raise ConfigurationError(
            f"role={role!r}: it is for rows of variable length, and those of {rows.name} have one."
        )
    try:
        given: Column = replace(column, role=role)
    except TypeError:  # it says itself what it holds
        raise ConfigurationError(
            f"role={role!r}: {rows.name} holds {column.role}, which it stays; leave role out."
        ) from None
    if isinstance(column, ValueArray | RaggedArray):
        check_rows(kind, column.array, rows.name)
    return given


def check_dtype(dtype: np.dtype[Any], where: str) -> None:
    try:
        torch.from_numpy(np.empty(0, dtype=dtype))
    except (TypeError, ValueError):  # ValueError: not in this machine's byte order
        raise SourceError(
            f"{where}: dtype {dtype} has no counterpart in torch; convert it."
        ) from None


def fingerprint_of_rows(rows: Rows) -> str:
    """Of the rows and their keys."""
    keyed = b"" if rows.keys is None else PathTable.of(rows.keys).digest()
    return fingerprint_of("partner", rows.column.role, len(rows.column), keyed, *rows.identity)


def number_of(rows: Rows) -> str:
    """How many rows, for messages."""
    return counted(len(rows.column), "row")
