"""Settings from several places made into one configuration: a preset, then a TOML file, then the command line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from fastload.errors import ConfigurationError
from fastload.train.config import TrainConfig
from fastload.train.fields import NONE, all_fields, convert, did_you_mean, find_field, tables

__all__ = ["merged", "read_toml", "to_toml"]


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
    settings = {**preset, **({} if toml is None else read_toml(toml)), **(given or {})}
    groups: dict[str, dict[str, Any]] = {"": {}, **{table: {} for table in tables()}}
    for name, value in settings.items():
        field = find_field(name)
        groups[field.table][name] = convert(field, value)
    return TrainConfig(**groups.pop(""), **{table: tables()[table](**values) for table, values in groups.items()})


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings in a TOML file by field name; each must be in the table of its group.

    Raises:
        ConfigurationError: as `merged`; the message names the file.
    """
    found: dict[str, Any] = {}
    for name, value in _load(path).items():
        if not isinstance(value, dict):
            _require(path, name, "")
            found[name] = value
            continue
        if name not in tables():
            raise ConfigurationError(f"{os.fspath(path)}: no table [{name}] is known{did_you_mean(name, tables())}.")
        for inner, setting in value.items():
            _require(path, inner, name)
            found[inner] = setting
    return found


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
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ModuleNotFoundError:
            raise ConfigurationError(
                f'{os.fspath(path)}: Python 3.10 reads no TOML by itself: pip install "fastload[train]".'
            ) from None
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigurationError(f"{os.fspath(path)}: cannot be read ({error.strerror}); check the path.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{os.fspath(path)}: is not TOML: {error}.") from error


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
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # TOML's basic strings have JSON's escapes
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    return repr(value)
