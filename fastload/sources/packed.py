"""`fastload.json`, the file beside shards that `fastload pack` writes: what shards cannot say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import msgspec

from fastload import stores
from fastload.errors import SourceError, counted
from fastload.sources.base import OpenOptions
from fastload.sources.kinds import JSON_NAME
from fastload.sources.texts import TEXT

ABOUT_NAME = "fastload.json"


class About(msgspec.Struct, frozen=True):
    """What is known of the shards of a folder."""

    whole: bool
    """Whether all shards are there."""
    samples: int
    columns: dict[str, str]
    """Roles by name, in the order of a batch."""
    classes: tuple[str, ...] | None = None
    layout: Literal["tuple", "dict"] = "tuple"
    upright: bool = False
    """`Source.upright`."""


def about(spec: Any) -> About | None:
    """What `fastload.json` says of a folder or URL; None where there is none. Raises SourceError:
    the shards are not all there yet, or the file cannot be read."""
    if not isinstance(spec, str) or not stores.is_folder(spec):
        return None
    path = f"{spec}/{ABOUT_NAME}"
    if stores.size_of(path) < 0:
        return None
    try:
        packed = msgspec.json.decode(stores.read(path), type=About)
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{path}: cannot be read ({error}); copy it again, or remove it: the shards are then "
            "read without the names of classes."
        ) from error
    if not packed.whole:
        raise SourceError(
            f"{spec}: `fastload pack` has not finished: some shards are missing. Run the same "
            "command again; it goes on with what is missing."
        )
    return packed


def refuse_without_shards(folder: str) -> None:
    """For a folder without shards: raises SourceError if it has `fastload.json`."""
    if about(folder) is not None:
        raise SourceError(
            f"{folder}: has the {ABOUT_NAME} of `fastload pack`, and no shards. Copy them again, "
            "or run the same command again: it writes what is missing."
        )


def with_classes(options: OpenOptions, packed: About | None) -> OpenOptions:
    """The options, with the classes that the file names where none are given."""
    if packed is None or packed.classes is None or options.classes is not None:
        return options
    return replace(options, classes=packed.classes)


def in_order(columns: dict[str, Any], packed: About | None, options: OpenOptions) -> dict[str, Any]:
    """The columns in the order of the data set that was packed, unless `options.fields` says
    otherwise. Raises SourceError: they are not those that were packed."""
    if packed is None or options.fields is not None:
        return columns
    if columns.keys() != packed.columns.keys():
        raise SourceError(
            f"fastload.json: the columns {', '.join(packed.columns)} were packed, and the shards "
            f"have {', '.join(columns)}. Copy both again, or name the columns that you want: "
            "fields=(...)."
        )
    return {name: _as_packed(columns[name], role) for name, role in packed.columns.items()}


def _as_packed(column: Any, role: str) -> Any:
    """Shards have a text where a value of JSON's was."""
    if role.partition(":")[0] == JSON_NAME and column.role == TEXT.name:
        return replace(column, role=role)
    return column


def check_samples(packed: About | None, count: int, spec: object) -> None:
    """Raises SourceError: there are more or fewer samples than were packed."""
    if packed is not None and packed.samples != count:
        raise SourceError(
            f"{spec}: packed: {counted(packed.samples, 'sample')}; in the shards there: {count:,}. "
            "Copy them again, or remove fastload.json if it is meant so."
        )
