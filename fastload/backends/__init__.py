"""The backends by name. To add one: a file with a class and its options, and a line here or an entry point.

A third party registers its class under the entry-point group `fastload.backends`; the class takes
(context, options) and has an `Options` attribute, like ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from fastload.errors import BackendUnavailableError, ConfigurationError

__all__ = ["ENTRY_POINT_GROUP", "BackendStatus", "available_backends", "backend_class"]

ENTRY_POINT_GROUP = "fastload.backends"


@dataclass(frozen=True)
class _Spec:
    target: str
    """module:class"""
    requires: str | None = None
    """Import name of the optional package that it stands on."""
    install: str = ""


_BUILT_IN = {
    "torch": _Spec("fastload.backends.torch_workers:TorchBackend"),
    "turbojpeg": _Spec("fastload.backends.turbojpeg:TurboJpegBackend"),
    "cache": _Spec("fastload.backends.cache:CacheBackend"),
    "dali": _Spec("fastload.backends.dali:DaliBackend", "nvidia.dali", 'pip install "fastload[dali]"'),
}


@dataclass(frozen=True)
class BackendStatus:
    """Whether a backend can be used here."""

    name: str
    available: bool
    remedy: str = ""
    """The command that makes it available, if it is not."""


def available_backends() -> list[BackendStatus]:
    """All backends known here, the built-in ones first; imports none of them."""
    rows = [
        BackendStatus(name, spec.requires is None or _importable(spec.requires), spec.install)
        for name, spec in _BUILT_IN.items()
    ]
    third_party = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name)
    return rows + [BackendStatus(entry.name, True) for entry in third_party if entry.name not in _BUILT_IN]


def backend_class(name: str) -> Any:
    """The class of a backend.

    Raises:
        ConfigurationError: there is no backend of this name.
        BackendUnavailableError: its package is not installed; the message has the command.
    """
    spec = _BUILT_IN.get(name)
    if spec is not None:
        if spec.requires is not None and not _importable(spec.requires):
            raise BackendUnavailableError(
                f"backend {name!r} needs the package {spec.requires}, which is not installed: {spec.install}"
            )
        module, attribute = spec.target.split(":")
        return getattr(import_module(module), attribute)
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == name:
            return entry.load()
    known = ", ".join(repr(row.name) for row in available_backends())
    raise ConfigurationError(f"backend: {name!r} is not known; choose 'auto' or one of {known}.")


def _importable(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
