"""What a library is asked for, and how it says that it has no such thing."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType

from fastload.errors import BackendUnavailableError, ConfigurationError
from fastload.train.fields import did_you_mean

__all__ = ["ModelRequest", "import_library", "unknown"]


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """One network."""

    name: str
    """Without the library."""
    weights: str | None
    """Pretrained weights to download; None: none."""
    task: str
    num_classes: int
    in_channels: int
    image_size: tuple[int, int]
    """(height, width) [pixels]."""


def import_library(module: str, package: str) -> ModuleType:
    """An optional package. Raises BackendUnavailableError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] != module:
            raise  # it is there, and something that it needs is not
        raise BackendUnavailableError(
            f'{package} is not installed, which has this network: pip install "fastload[train]" (or {package}).'
        ) from None


def unknown(what: str, name: str, names: Iterable[str]) -> ConfigurationError:
    """The error of a name that a library does not have."""
    names = list(names)
    few = f"; there are {', '.join(names)}" if len(names) <= 12 else ""
    return ConfigurationError(f"{what}: no such name{did_you_mean(name, names) or few}.")
