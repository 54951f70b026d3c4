"""Data sets by URL of which only local files are read: arrays in `.npy` files, and the formats that
say which files they are (`Format.copied`). Their files are copied to the local disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastload import stores
from fastload.errors import SourceError
from fastload.stores.copies import copied


def local_copy(place: Any, files_of: Sequence[Callable[[str], list[str]]]) -> str | None:
    """The path of a local copy of what a URL names; None where nobody says which files that are.

    `files_of`: of each format, see `Format.copied`.
    """
    if not isinstance(place, str):
        return None
    for asked in files_of:
        files = asked(place)
        if files:
            # A file that is named, and what lies beside it; or a folder.
            top, name = os.path.split(place) if place in files else (place, "")
            return str(copied(files, top) / name)
    return None


def local_arrays(spec: Any) -> Any:
    """The same with local copies of the `.npy` files that URLs in it name. Raises SourceError."""
    if isinstance(spec, Mapping):
        return {key: local_arrays(value) for key, value in spec.items()}
    if type(spec) in (tuple, list):
        return type(spec)(map(local_arrays, spec))
    if not isinstance(spec, str) or not stores.is_remote(spec) or not spec.endswith(".npy"):
        return spec
    url = stores.located(spec)
    if not stores.is_file(url):
        raise SourceError(f"{url}: no such file; check the URL and the credentials.")
    folder, name = os.path.split(url)
    return str(copied([url], folder) / name)
