"""The settings of a run, one by one, and every way in and out: options of a command, TOML files,
presets.

A setting is known here by its own name alone (`lr`), whichever group it is in. Its kind, default
and text are those of its field in `fastload.train.config`; nothing is listed a second time.

A preset is one TOML file: settings as `fastload train --dry-run` prints them, and a table [preset]
that says what they are for, and whose settings and texts it has where it says nothing else (`like =
"cracks-unet16"`). Those in the folder presets come with fastload; another package adds its own by
naming the package that they are in:

    [project.entry-points."fastload.presets"]
    mine = "my_package.presets"

The `num_workers` of a preset with a name is at most the cores that this process may use; that of a
file, a command line or a call is taken as it is.

A path that ends in .toml stands for a name anywhere: `fastload train ~/jobs/mine.toml`.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from fastload.errors import ConfigurationError, did_you_mean
from fastload.machine import usable_cores
from fastload.train.config import TrainConfig

# What stands for None on the command line and in TOML, which has no word of its own for it.
NONE = "none"


# -- What settings there are -----------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """One setting of a run, such as `batch_size`."""

    name: str
    table: str
    """The group that it is in, `optimizer`; "" for what stands above all groups."""
    kind: Any
    """str, int, float, bool, a Literal, or a tuple; without the None of an optional one."""
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
def tables() -> Mapping[str, Any]:
    """The groups by name, in order."""
    return {
        group.name: group.default_factory
        for group in fields(TrainConfig)
        if group.default_factory is not MISSING
    }


@cache
def all_fields() -> Mapping[str, Field]:
    """Every field by name, in the order of the groups."""
    by_name: dict[str, Field] = {}
    for table, group in {"": TrainConfig, **tables()}.items():
        hints, docs = get_type_hints(group), _docs(group)
        for field in fields(group):
            if not table and field.name in tables():
                continue  # the group itself
            assert field.name not in by_name, (
                f"{field.name} is in two groups: the command line could not tell them apart"
            )
            hint, optional = _without_none(hints[field.name])
            by_name[field.name] = Field(
                field.name, table, hint, optional, field.default, docs.get(field.name, "")
            )
    return by_name


def find_field(name: str) -> Field:
    """The field of this name. Raises ConfigurationError with the nearest name there is."""
    if name not in all_fields():
        raise ConfigurationError(
            f"{name}: no such setting of a run.{did_you_mean(name, all_fields())}"
        )
    return all_fields()[name]


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, types.UnionType):
        hints = [each for each in get_args(hint) if each is not type(None)]
        return (hints[0] if len(hints) == 1 else float | str), True
    return hint, False


@cache
def _classes() -> dict[str, ast.ClassDef]:
    """The groups' definitions by name. Their file is parsed once: `inspect.getsource` of a class
    parses it for each."""
    parsed = ast.parse(inspect.getsource(sys.modules[TrainConfig.__module__]))
    return {node.name: node for node in parsed.body if isinstance(node, ast.ClassDef)}


def _docs(group: type) -> dict[str, str]:
    """The string under each field, which Python itself does not keep."""
    definition = _classes()[group.__name__]
    docs: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            assert isinstance(field.target, ast.Name)
            docs[field.target.id] = " ".join(str(below.value.value).split())
    return docs


# -- Values ----------------------------------------------------------------------------------------


def convert(field: Field, value: object) -> Any:
    """A value as the field has it, from what was typed (always a string) or read from TOML.

    Raises ConfigurationError if it is not of the field's kind; which words of a Literal are meant,
    its group checks.
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
        raise ConfigurationError(
            f"{field.name}: must be {_wanted(field)}, got {value!r}."
        ) from None


_PARTS = re.compile(r"(?:\[[^\]]*\]|[^,])+")
"""Between commas, those in brackets left out."""


def _several(hint: Any, value: object) -> object:
    """Also "30,60", "a=[1,2],b=3", and one number for both of two."""
    if isinstance(value, str):
        value = [part.strip() for part in _PARTS.findall(value) if part.strip()]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        value = [value]
    if get_args(hint)[-1] is not ... and isinstance(value, list | tuple) and len(value) == 1:
        return [*value] * len(get_args(hint))
    return value


def _wanted(field: Field) -> str:
    if get_origin(field.kind) is tuple:
        inner, last = get_args(field.kind)
        what = {int: "whole numbers", float: "numbers", str: "words"}[inner]
        return f"{what} separated by commas" if last is ... else "a whole number, or two as 224,224"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
    what = words.get(
        field.kind, ", ".join(("one of", *field.choices)) if field.choices else "a number or a name"
    )
    return f'{what}, or "{NONE}"' if field.optional else what


# -- Configurations and files ----------------------------------------------------------------------


def merged(
    preset: Mapping[str, Any],
    toml: str | os.PathLike[str] | None = None,
    given: Mapping[str, Any] | None = None,
) -> TrainConfig:
    """The configuration that these make, later ones before earlier ones.

    Args:
        preset: settings by field name.
        toml: a file as `to_toml` writes it, or with some of its lines.
        given: settings by field name; strings, as typed, will do for values of any kind. "none" is
            None.

    Raises:
        ConfigurationError: a setting that does not exist, or a value that it cannot have; no such
            file, or no TOML.
    """
    settings = _over(_over(preset, {} if toml is None else read_toml(toml)[0]), given or {})
    groups: dict[str, dict[str, Any]] = {"": {}, **{table: {} for table in tables()}}
    for name, value in settings.items():
        field = find_field(name)
        groups[field.table][name] = convert(field, value)
    return TrainConfig(
        **groups.pop(""), **{table: tables()[table](**values) for table, values in groups.items()}
    )


_OF_STEPS = ("milestones", "step_epochs", "gamma")
"""The settings of the step schedule alone."""


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`below`, overridden by `above`. A backend's options are dropped where `above` names another
    backend, settings of the step schedule where it names another schedule, and `milestones` where
    it gives `step_epochs`, or the reverse."""
    together = {**below, **above}
    if above.get("tune") is True and "backend" not in above:
        together["backend"] = "auto"
    outdated: tuple[str, ...] = ()
    if together.get("backend") != below.get("backend"):
        outdated += ("backend_option",)
    if together.get("schedule") != below.get("schedule"):
        outdated += _OF_STEPS
    if above.get("milestones") or above.get("step_epochs") not in (None, NONE):
        outdated += ("milestones", "step_epochs")
    return {
        name: value for name, value in together.items() if name in above or name not in outdated
    }


def changed(config: TrainConfig, **changes: Any) -> TrainConfig:
    """The configuration with other values, by field name. Raises ConfigurationError as `merged`."""
    return merged(_settings_of(config), given=changes)


def read_toml(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Any]:
    """The settings in a file by field name, and its table [preset] as it is."""
    where = os.fspath(path)
    try:
        file: dict[str, Any] = msgspec.toml.decode(Path(path).read_bytes())
    except OSError as error:
        raise ConfigurationError(
            f"{where}: cannot be read ({error.strerror}); check the path."
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{where}: is not TOML: {error}.") from error
    about = file.pop("preset", {})
    above = {name: value for name, value in file.items() if not isinstance(value, dict)}
    by_name: dict[str, Any] = {}
    for table, settings in {
        "": above,
        **{name: file[name] for name in file if name not in above},
    }.items():
        if table and table not in tables():
            raise ConfigurationError(
                f"{where}: no table [{table}] is known.{did_you_mean(table, tables())}"
            )
        for name in settings:
            field = all_fields().get(name)
            if field is None:
                place, names = (
                    (f"[{table}] {name}", [*all_fields()])
                    if table
                    else (name, [*all_fields(), *tables()])
                )
                raise ConfigurationError(
                    f"{where}: {place}: no such setting.{did_you_mean(name, names)}"
                )
            if field.table != table:
                wanted = f"under [{field.table}]" if field.table else "above the first table"
                raise ConfigurationError(
                    f"{where}: {name} is under [{table or 'no table'}]; put it {wanted}."
                )
        by_name |= settings
    return by_name, about


def to_toml(config: TrainConfig) -> str:
    """All settings, as TOML that `merged` reads back to an equal configuration."""
    lines: list[str] = []
    table = ""
    for name, value in _settings_of(config).items():
        if find_field(name).table != table:
            table = find_field(name).table
            lines += ["", f"[{table}]"]
        lines.append(f"{name} = {_toml_value(value)}")
    return "\n".join(lines) + "\n"


def _settings_of(config: TrainConfig) -> dict[str, Any]:
    """By field name."""
    groups = {"": config, **{table: getattr(config, table) for table in tables()}}
    return {name: getattr(groups[field.table], name) for name, field in all_fields().items()}


def _toml_value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, float):
        return repr(value)  # also inf, which JSON has not
    return msgspec.json.encode(
        NONE if value is None else value
    ).decode()  # TOML has JSON's strings, except for DEL


# -- Presets ---------------------------------------------------------------------------------------

_Key = Literal["about", "data", "command", "departs", "reported", "like"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A job: its settings, and how to run it on the real data."""

    name: str
    settings: Mapping[str, Any]
    """By field name; what is not here is as `TrainConfig` has it."""
    about: str = ""
    """What is trained on what, and whose recipe it is."""
    data: str = ""
    """Where the data come from, and in which form they are to lie on the disk."""
    command: str = ""
    """The whole job, as one would type it."""
    departs: str = ""
    """In what it is not the recipe that `about` names."""
    reported: str = ""
    """What others have seen this job do."""

    def describe(self) -> str:
        """For a person: a line for each of these."""
        lines = {"data": self.data, "departs": self.departs, "reported": self.reported}
        rest = [f"  {name}: {text}" for name, text in lines.items() if text]
        return "\n".join([f"{self.name}: {self.about}", *rest, f"  {self.command}"])


def preset(name: str, **changes: Any) -> TrainConfig:
    """The configuration of a preset, with changes by field name: `preset("cifar10-vgg19",
    data="cifar", lr=0.05)`.

    Args:
        name: of a preset (`fastload train --presets`), or a TOML file.
        **changes: settings by the names of their fields, whatever part of TrainConfig they are in.

    Raises:
        ConfigurationError: no such preset, no such setting, or a value that it cannot have.
    """
    return merged(find_preset(name).settings, given=changes)


def preset_files() -> dict[str, Path]:
    """The file of every preset that has a name, by name. Fastload's own cannot be replaced."""
    others = [
        resources.files(point.value) for point in metadata.entry_points(group="fastload.presets")
    ]
    presets: dict[str, Path] = {}
    for folder in (Path(__file__).parent / "presets", *others):
        files = {
            file.name[:-5]: Path(str(file))
            for file in folder.iterdir()
            if file.name.endswith(".toml")
        }
        presets = dict(sorted(files.items())) | presets
    return presets


def find_preset(name: str) -> Preset:
    """The preset of this name, or in this file."""
    files = preset_files()
    if name.endswith(".toml"):
        return read_preset(Path(name).expanduser(), files)
    if name not in files:
        rest = did_you_mean(name, files) or f" There are {', '.join(files)}."
        raise ConfigurationError(
            f"preset {name!r}: not known.{rest} A file of your own ends in .toml."
        )
    return _on_this_machine(read_preset(files[name], files))


def _on_this_machine(job: Preset) -> Preset:
    """A preset's `num_workers` is for the machine of its author: here no more than there are cores
    for this process."""
    wanted = job.settings.get("num_workers")
    if not isinstance(wanted, int) or wanted <= usable_cores():
        return job
    return replace(job, settings={**job.settings, "num_workers": usable_cores()})


def read_preset(path: Path, files: Mapping[str, Path]) -> Preset:
    """The preset in a file, which may be like one of `files`."""
    settings, about = read_toml(path)
    try:
        texts: dict[str, str] = msgspec.convert(about, dict[_Key, str])
    except msgspec.ValidationError as error:
        raise ConfigurationError(
            f"{path}: [preset] has {', '.join(get_args(_Key))}, all texts: {error}."
        ) from error
    if "like" not in texts:
        return Preset(name=path.stem, settings=settings, **texts)
    like = texts.pop("like")
    if like not in files:
        raise ConfigurationError(
            f"{path}: like {like!r}: no such preset.{did_you_mean(like, files)}"
        )
    # Nobody twice: none is like itself.
    rest = {name: file for name, file in files.items() if name != like}
    other = _on_this_machine(read_preset(files[like], rest))
    return replace(other, name=path.stem, settings={**other.settings, **settings}, **texts)
