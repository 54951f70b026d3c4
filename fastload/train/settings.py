"""The settings of a run, one by one, and every way in and out: options of a command, TOML files, values by name.

A setting is known here by its own name alone (`lr`), whichever group it is in. Its kind, default and text are those of
its field in `fastload.train.config`; nothing is listed a second time.
"""

from __future__ import annotations

import ast
import inspect
import os
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from fastload.errors import ConfigurationError
from fastload.train.config import TrainConfig

NONE = "none"
"""What stands for None on the command line and in TOML, which has no word of its own for it."""


# -- What settings there are -------------------------------------------------------------------------------------------


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


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        kinds = [part for part in get_args(hint) if part is not type(None)]
        return (kinds[0] if len(kinds) == 1 else float | str), True
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


# -- Values ------------------------------------------------------------------------------------------------------------


def convert(field: Field, value: object) -> Any:
    """A value as the field has it, from what was typed (always a string) or read from TOML.

    Raises:
        ConfigurationError: it is not of the field's kind. (Which words of a Literal are meant, its group checks.)
    """
    if value is None or value == NONE:
        if field.optional:
            return None
        if NONE not in field.choices:
            raise ConfigurationError(f"{field.name}: must have a value, got {value!r}.")
    given = os.fspath(value) if isinstance(value, os.PathLike) else value
    if get_origin(field.kind) is tuple:
        given = _several(field.kind, given)
    elif isinstance(given, float):
        given = float(given)  # numpy's too
    typed = isinstance(value, str) and field.kind is not bool
    try:
        return msgspec.convert(given, str if field.choices else field.kind, strict=not typed)
    except msgspec.ValidationError:
        raise ConfigurationError(f"{field.name}: must be {_wanted(field)}, got {value!r}.") from None


def _several(kind: Any, value: object) -> object:
    """Also "30,60", and one number for both of two."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        value = [value]
    several = get_args(kind)[-1] is not ...
    if several and isinstance(value, list | tuple) and len(value) == 1:
        return [*value] * len(get_args(kind))
    return value


def _wanted(field: Field) -> str:
    if get_origin(field.kind) is tuple:
        inner, last = get_args(field.kind)
        what = {int: "whole numbers", float: "numbers", str: "words"}[inner]
        return f"{what} with commas between" if last is ... else "a whole number, or two as 224,224"
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "a string",
        float | str: "a number or a name",
    }
    what = words.get(field.kind, "one of " + ", ".join(field.choices))
    return f'{what}, or "{NONE}"' if field.optional else what


# -- Configurations and files ------------------------------------------------------------------------------------------


def merged(
    preset: Mapping[str, Any], toml: str | os.PathLike[str] | None = None, given: Mapping[str, Any] | None = None
) -> TrainConfig:
    """The configuration that these make, later ones before earlier ones.

    Args:
        preset: settings by field name; {} for the defaults.
        toml: a file as `to_toml` writes it, or with some of its lines. None: no file.
        given: settings by field name; strings, as typed, will do for values of any kind. "none" is None.

    Raises:
        ConfigurationError: a setting that does not exist, or a value that it cannot have; no such file, or no TOML.
    """
    settings = _over(_over(preset, {} if toml is None else read_toml(toml)), given or {})
    groups: dict[str, dict[str, Any]] = {"": {}, **{table: {} for table in tables()}}
    for name, value in settings.items():
        field = find_field(name)
        groups[field.table][name] = convert(field, value)
    return TrainConfig(**groups.pop(""), **{table: tables()[table](**values) for table, values in groups.items()})


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both, the second before the first. Another backend has not the options that the first one was given."""
    found = {**below, **above}
    if above.get("tune") is True and "backend" not in above:
        found["backend"] = "auto"
    if "backend_option" not in above and found.get("backend") != below.get("backend"):
        found.pop("backend_option", None)
    return found


def changed(config: TrainConfig, **changes: Any) -> TrainConfig:
    """The configuration with other values, by field name. Raises ConfigurationError as `merged`."""
    if changes.get("backend", config.data.backend) != config.data.backend:
        changes = {"backend_option": (), **changes}
    for name, value in changes.items():
        table = find_field(name).table
        if table:
            config = replace(config, **{table: replace(getattr(config, table), **{name: value})})
        else:
            config = replace(config, **{name: value})
    return config


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings in a TOML file by field name; each must be in the table of its group.

    Raises:
        ConfigurationError: as `merged`; the message names the file.
    """
    return read_tables(path)[0]


def read_tables(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Any]:
    """The settings in a TOML file by field name, and its table [preset], which says what they are for, as it is."""
    found: dict[str, Any] = {}
    file = _load(path)
    about = file.pop("preset", {})
    for name, value in file.items():
        if not isinstance(value, dict):
            _require(path, name, "")
            found[name] = value
            continue
        if name not in tables():
            raise ConfigurationError(f"{os.fspath(path)}: no table [{name}] is known{did_you_mean(name, tables())}.")
        for inner, setting in value.items():
            _require(path, inner, name)
            found[inner] = setting
    return found, about


def to_toml(config: TrainConfig) -> str:
    """All settings, as TOML that `merged` reads back to an equal configuration."""
    lines: list[str] = []
    table = ""
    for field in all_fields().values():
        if field.table != table:
            table = field.table
            lines += ["", f"[{table}]"]
        value = getattr(getattr(config, table) if table else config, field.name)
        lines.append(f"{field.name} = {_toml_value(value)}")
    return "\n".join(lines) + "\n"


def _load(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = msgspec.toml.decode(Path(path).read_bytes())
    except OSError as error:
        raise ConfigurationError(f"{os.fspath(path)}: cannot be read ({error.strerror}); check the path.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{os.fspath(path)}: is not TOML: {error}.") from error
    return found


def _require(path: str | os.PathLike[str], name: str, table: str) -> None:
    """Raise ConfigurationError unless the field is in this table."""
    field = all_fields().get(name)
    if field is None:
        place = f"[{table}] {name}" if table else name
        names = [*all_fields(), *tables()] if not table else all_fields()
        raise ConfigurationError(f"{os.fspath(path)}: {place}: no such setting{did_you_mean(name, names)}.")
    if field.table != table:
        wanted = f"under [{field.table}]" if field.table else "above the first table"
        raise ConfigurationError(f"{os.fspath(path)}: {name} is under [{table or 'no table'}]; put it {wanted}.")


def _toml_value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, float):
        return repr(value)  # also inf, which JSON has not
    return msgspec.json.encode(NONE if value is None else value).decode()  # TOML has JSON's strings, but for DEL
