"""The backends by name. To add one: a file with a class and its options, and a line here or an entry point.

A third party registers its class under the entry-point group `fastload.backends`; the class takes
(context, options) and has an `Options` attribute, like ours. What it says of itself in `traits` and `fit` (see
`fastload.backends.base`) is all that anybody asks: it takes part in `backend="auto"`, `fastload bench`, `demo` and
`doctor` like ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from fastload.backends.base import Traits, traits_of
from fastload.errors import BackendUnavailableError, ConfigurationError

__all__ = ["ENTRY_POINT_GROUP", "BackendStatus", "available_backends", "backend_class"]

ENTRY_POINT_GROUP = "fastload.backends"

_BUILT_IN = {
    "torch": "fastload.backends.torch_workers:TorchBackend",
    "turbojpeg": "fastload.backends.turbojpeg:TurboJpegBackend",
    "cache": "fastload.backends.cache:CacheBackend",
    "dali": "fastload.backends.dali:DaliBackend",
}


@dataclass(frozen=True)
class BackendStatus:
    """Whether a backend can be used here, and what it says of itself."""

    name: str
    available: bool
    remedy: str = ""
    """The command that makes it available, or what is wrong with it, if it is not."""
    traits: Traits = field(default_factory=Traits)


def available_backends() -> list[BackendStatus]:
    """All backends known here, the built-in ones first; imports no optional package."""
    return [_status(name, load) for name, load in _registered().items()]


def backend_class(name: str) -> Any:
    """The class of a backend.

    Raises:
        ConfigurationError: there is no backend of this name.
        BackendUnavailableError: its package is not installed; the message has the command.
    """
    load = _registered().get(name)
    if load is None:
        known = ", ".join(map(repr, _registered()))
        raise ConfigurationError(f"backend: {name!r} is not known; choose 'auto' or one of {known}.")
    cls = load()
    needs = traits_of(cls).needs
    if needs is not None and not _importable(needs.package):
        raise BackendUnavailableError(
            f"backend {name!r} needs the package {needs.package}, which is not installed: {needs.install}"
        )
    return cls


def _registered() -> dict[str, Callable[[], Any]]:
    """What loads the class of each backend, by name."""
    third_party = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name)
    built_in: dict[str, Callable[[], Any]] = {name: partial(_load, target) for name, target in _BUILT_IN.items()}
    return built_in | {entry.name: entry.load for entry in third_party if entry.name not in built_in}


def _status(name: str, load: Callable[[], Any]) -> BackendStatus:
    try:
        traits = traits_of(load())
    except Exception as error:  # somebody else's code, or a broken torch: to be told, not to be stopped by
        return BackendStatus(name, False, f"its import failed with {type(error).__name__}: {error}")
    needs = traits.needs
    if needs is None or _importable(needs.package):
        return BackendStatus(name, True, "" if needs is None else needs.install, traits)
    return BackendStatus(name, False, needs.install, traits)


def _load(target: str) -> Any:
    module, attribute = target.split(":")
    return getattr(import_module(module), attribute)


def _importable(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
