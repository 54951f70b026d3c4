"""Jobs by name: the settings that a practitioner would use, and the command that runs the real thing.

A preset is one TOML file: settings as `fastload train --dry-run` prints them, and a table [preset] that says what they
are for, and whose settings and texts it has where it says nothing else (`like = "cracks-unet16"`). Those beside this
file come with fastload; another package adds its own by naming the package that they are in:

    [project.entry-points."fastload.presets"]
    mine = "my_package.presets"

A path that ends in .toml stands for a name anywhere: `fastload train ~/jobs/mine.toml`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata, resources
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from fastload.errors import ConfigurationError
from fastload.train.config import TrainConfig
from fastload.train.settings import did_you_mean, merged, read_tables

__all__ = ["Preset", "find_preset", "preset", "preset_files", "read_preset"]

_Key = Literal["about", "data", "command", "departs", "reported", "like"]
_ENTRY_POINTS = "fastload.presets"


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A job: its settings, and how to run it on the real data."""

    name: str
    """Of its file."""
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


def preset_files() -> dict[str, Path]:
    """The file of every preset that has a name, by name. Fastload's own cannot be replaced."""
    packages = [__name__, *(point.value for point in metadata.entry_points(group=_ENTRY_POINTS))]
    found: dict[str, Path] = {}
    for package in packages:
        files = [Path(str(file)) for file in resources.files(package).iterdir() if file.name.endswith(".toml")]
        found = {file.stem: file for file in sorted(files, key=lambda file: file.stem)} | found
    return found


def find_preset(name: str) -> Preset:
    """The preset of this name, or in this file.

    Raises:
        ConfigurationError: there is none, with the names that there are; or its file cannot be read.
    """
    if name.endswith(".toml"):
        return read_preset(Path(os.path.expanduser(name)))
    files = preset_files()
    if name not in files:
        rest = did_you_mean(name, files) or "; there are " + ", ".join(files)
        raise ConfigurationError(f"preset {name!r}: not known{rest}. A file of your own ends in .toml.")
    return read_preset(files[name])


def read_preset(path: Path, *, files: dict[str, Path] | None = None) -> Preset:
    """The preset in a file.

    Args:
        path: of the file.
        files: which other ones it may be like, by name. None: all that have a name.

    Raises:
        ConfigurationError: not a file of settings, or its table [preset] says something else than it can.
    """
    files = preset_files() if files is None else files
    settings, about = read_tables(path)
    try:
        texts: dict[str, str] = msgspec.convert(about, dict[_Key, str])
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}: [preset] has {', '.join(get_args(_Key))}, all texts: {error}.") from error
    if "like" not in texts:
        return Preset(name=path.stem, settings=settings, **texts)
    like = texts.pop("like")
    if like not in files:
        raise ConfigurationError(f"{path}: like {like!r}: no such preset{did_you_mean(like, files)}.")
    other = read_preset(files.pop(like), files=files)  # nobody twice: none is like itself
    return replace(other, name=path.stem, settings={**other.settings, **settings}, **texts)


def preset(name: str, **changes: Any) -> TrainConfig:
    """The configuration of a preset, with changes by field name: `preset("cifar10-vgg19", data="cifar", lr=0.05)`.

    Raises:
        ConfigurationError: no such preset, no such setting, or a value that it cannot have.
    """
    return merged(find_preset(name).settings, given=changes)
