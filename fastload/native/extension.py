"""The extension module of the native core: whether it is there, and what to do if it is not."""

from __future__ import annotations

import importlib
import re
import sys
from typing import TYPE_CHECKING

from fastload.errors import BackendUnavailableError

if TYPE_CHECKING:
    from types import ModuleType

_NAME = "fastload.native._core"
_PACKAGES = {"libjpeg": "libjpeg62-turbo", "libisal": "libisal2", "libwebp": "libwebp7"}
"""Debian's names of the libraries that the core is linked with."""


def available() -> bool:
    """Whether the extension was built and can be loaded here."""
    try:
        load()
    except BackendUnavailableError:
        return False
    return True


def load() -> ModuleType:
    """The extension module `fastload.native._core`.

    Raises:
        BackendUnavailableError: it was not built, or its libraries are missing; the message says
            how to build it.
    """
    if (loaded := sys.modules.get(_NAME)) is not None:
        return loaded
    try:
        return importlib.import_module(_NAME)
    except ImportError as error:
        if library := re.search(r"(lib\w+)\.so[.\d]*", str(error)):
            raise BackendUnavailableError(
                "fastload's native core is installed, and a library that it needs is not "
                f"({error}). Install it (Debian: apt-get install "
                f"{_PACKAGES.get(library[1], library[1])}). Everything works without, through "
                "slower decoders."
            ) from error
        raise BackendUnavailableError(
            f"fastload's native core cannot be loaded ({error}). Install a C++ compiler and the "
            "libjpeg-turbo headers (Debian, Ubuntu: apt-get install g++ libjpeg-dev python3-dev), "
            "then install fastload again with FASTLOAD_REQUIRE_NATIVE=1 set to see what the build "
            "says. Everything works without it, through slower decoders."
        ) from error
