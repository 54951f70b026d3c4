"""The fields of a run's configuration, one by one: what the command line, TOML files and their messages are made of.

A field is known here by its own name alone (`lr`), whichever group it is in.
"""

from __future__ import annotations

import ast
import inspect
import os
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fastload.errors import ConfigurationError
from fastload.train.config import TrainConfig

__all__ = ["NONE", "Field", "all_fields", "convert", "did_you_mean", "find_field", "tables"]

NONE = "none"
"""What stands for None on the command line and in TOML, which has no word of its own for it."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """One setting of a run."""

    name: str
    """As in the dataclass and in TOML: `batch_size`."""
    table: str
    """The group that it is in, `optimizer`; "" for what stands above all groups."""
    kind: Any
    """str, int, float, bool, a Literal, or a tuple of numbers; without the None of an optional one."""
    optional: bool
    """Whether it may be None."""
    default: Any
    doc: str
    """The text under the field, on one line."""

    @property
    def option(self) -> str:
        """As typed: `--batch-size`."""
        return "--" + self.name.replace("_", "-")

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that it may be, if only some may."""
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()


@cache
def tables() -> Mapping[str, type]:
    """The groups by name, in order."""
    hints = get_type_hints(TrainConfig)
    return {name: kind for name, kind in hints.items() if isinstance(kind, type) and hasattr(kind, "__post_init__")}


@cache
def all_fields() -> Mapping[str, Field]:
    """Every field by name, in the order of the groups."""
    found: dict[str, Field] = {}
    for table, group in {"": TrainConfig, **tables()}.items():
        hints, docs = get_type_hints(group), _docs(group)
        for field in fields(group):
            if not table and field.name in tables():
                continue  # the group itself
            assert field.name not in found, f"{field.name} is in two groups: the command line could not tell them apart"
            kind, optional = _without_none(hints[field.name])
            found[field.name] = Field(
                name=field.name,
                table=table,
                kind=kind,
                optional=optional,
                default=field.default,
                doc=docs.get(field.name, ""),
            )
    return found


def find_field(name: str) -> Field:
    """The field of this name. Raises ConfigurationError with the nearest name there is."""
    try:
        return all_fields()[name]
    except KeyError:
        raise ConfigurationError(f"{name}: no such setting of a run{did_you_mean(name, all_fields())}.") from None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message that names what may have been meant; nothing if no name is near."""
    near = get_close_matches(name, list(names), n=3, cutoff=0.6)
    return f"; the nearest: {', '.join(near)}" if near else ""


def convert(field: Field, value: object) -> Any:
    """A value as the field has it, from what was typed (always a string) or read from TOML.

    Raises:
        ConfigurationError: it is not of the field's kind.
    """
    if value is None or value == NONE:
        if field.optional:
            return None
        if NONE not in field.choices:
            raise ConfigurationError(f"{field.name}: must have a value, got {value!r}.")
    try:
        return _tuple(field.kind, value) if get_origin(field.kind) is tuple else _single(field.kind, value)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{field.name}: must be {_wanted(field)}, got {value!r}.") from None


def _single(kind: Any, value: object) -> Any:
    """Raises TypeError or ValueError if it is something else. Which words of a Literal are meant, its group checks."""
    if kind is bool or isinstance(value, bool):
        if kind is bool and isinstance(value, bool):
            return value
    elif kind is float and isinstance(value, str | int | float):
        return float(value)
    elif kind is int and isinstance(value, str | int):
        return int(value)
    elif kind not in (int, float) and isinstance(value, str | os.PathLike):
        return os.fspath(value)
    raise TypeError


def _tuple(kind: Any, value: object) -> tuple[Any, ...]:
    """Also "30,60", and one number for both of two."""
    inner, *rest = get_args(kind)
    if isinstance(value, str):
        value = [part for part in value.split(",") if part.strip()]
    elif isinstance(value, int | float):
        value = [value]
    if not isinstance(value, list | tuple):
        raise TypeError
    parts = tuple(_single(inner, part) for part in value)
    if rest == [...]:
        return parts
    if len(parts) == 1:
        parts *= 1 + len(rest)
    if len(parts) != 1 + len(rest):
        raise ValueError
    return parts


def _wanted(field: Field) -> str:
    if get_origin(field.kind) is tuple:
        what = "a whole number" if get_args(field.kind)[0] is int else "numbers"
        return f"{what}, or two as 224,224" if get_args(field.kind)[-1] is int else f"{what} with commas between"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    what = words.get(field.kind, "one of " + ", ".join(field.choices))
    return f'{what}, or "{NONE}"' if field.optional else what


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        (kind,) = (part for part in get_args(hint) if part is not type(None))
        return kind, True
    return hint, False


def _docs(group: type) -> dict[str, str]:
    """The string under each field, which Python itself does not keep."""
    (definition,) = ast.parse(inspect.getsource(group)).body
    assert isinstance(definition, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            docs[field.target.id] = " ".join(str(below.value.value).split())
    return docs
