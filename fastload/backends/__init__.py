"""The backends by name. To add one: a file with a class and its options, and a line here or an
entry point.

A third party registers its class under the entry-point group `fastload.backends`; the class takes
(context, options) and has an `Options` attribute, like ours. Its `traits` and `fit` (see
`fastload.backends.base`) are all that other code reads: it takes part in `backend="auto"`,
`fastload bench`, `demo` and `doctor` as the built-in ones do.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from fastload.backends.base import Traits, Workload, fit_of, traits_of
from fastload.errors import BackendUnavailableError, ConfigurationError

__all__ = [
    "ENTRY_POINT_GROUP",
    "BackendStatus",
    "available_backends",
    "backend_by_rule",
    "backend_class",
]

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
    return [_status(entry) for entry in _registered().values()]


def backend_class(name: str) -> Any:
    """The class of a backend.

    Raises:
        ConfigurationError: there is no backend of this name.
        BackendUnavailableError: its package is not installed; the message has the command.
    """
    registered = _registered()
    if name not in registered:
        known = ", ".join(map(repr, registered))
        raise ConfigurationError(
            f"backend: {name!r} is not known; choose 'auto' or one of {known}."
        )
    cls = registered[name].load()
    needs = traits_of(cls).needs
    if needs is not None and not _importable(needs.package):
        raise BackendUnavailableError(
            f"backend {name!r} needs the package {needs.package}, which is not installed: "
            f"{needs.install}"
        )
    return cls


def backend_by_rule(workload: Workload) -> tuple[str, str]:
    """(backend, reason): the one whose `fit` has the highest score. The reason has that of the
    backend whose options were given, if it is declined."""
    names = [status.name for status in available_backends() if status.available]
    fits = {name: fit_of(backend_class(name), workload) for name in names}
    best = max(names, key=lambda name: fits[name].score)  # of equals the first
    if fits[best].score <= 0:
        raise ConfigurationError(
            f"backend: 'auto' finds none that can do this ({workload.needs_python or 'no fit'})."
        )
    reasons, options = [fits[best].reason], workload.options
    if getattr(options, "may_be_declined", False):  # what is no options is refused later
        reasons += [
            f"{name}: {fits[name].reason}"
            for name in names
            if name != best and isinstance(options, backend_class(name).Options)
        ]
    return best, "\n".join(reasons)


def _registered() -> dict[str, EntryPoint]:
    built_in = {
        name: EntryPoint(name, target, ENTRY_POINT_GROUP) for name, target in _BUILT_IN.items()
    }
    others = _third_party(tuple(sys.path))
    return built_in | {entry.name: entry for entry in others if entry.name not in built_in}


@functools.lru_cache(maxsize=1)
def _third_party(path: tuple[str, ...]) -> list[EntryPoint]:
    """Those of other packages on the search path, `sys.path`, by name. Read once for each path: the
    metadata of all installed packages are looked through, 3.6 ms for 220 packages, and a Loader
    asks six times."""
    return sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name)


def _status(entry: EntryPoint) -> BackendStatus:
    try:
        traits = traits_of(entry.load())
    except Exception as error:
        # Code of a third party, or a broken torch: it is reported, and the others go on.
        return BackendStatus(
            entry.name, False, f"its import failed with {type(error).__name__}: {error}"
        )
    needs = traits.needs
    present = needs is None or _importable(needs.package)
    return BackendStatus(entry.name, present, "" if needs is None else needs.install, traits)


def _importable(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
