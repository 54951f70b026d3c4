"""Data sets by URL of which only local files are read: those of the formats that have `copies`.
They are copied to the local disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastload import stores
from fastload.errors import SourceError
from fastload.sources.base import Opened
from fastload.sources.formats import Format
from fastload.stores.copies import copied


def open_copy(
    place: Any, forms: Sequence[Format], opened: Callable[[str], Opened]
) -> Opened | None:
    """Open what a URL names by a copy of its files; None where it is of none of these formats.

    Args:
        forms: the formats that it may be of.
        opened: opens a path.

    Raises:
        SourceError: it can be read from a local disk only, and is too large to copy.
    """
    files = files_to_copy(place, forms)
    if not files:
        return None
    # A file that is named, and what lies beside it; or a folder.
    top, file = os.path.split(place) if place in files else (place, "")
    path = str(copied(files, top) / file)
    try:
        local = opened(path)
    except SourceError as error:  # the user knows the URL, not the copy
        raise SourceError(str(error).replace(path, place)) from error
    notes = (*local.notes, f"copied from {place} to the local disk, where it is read")
    return replace(local, source=replace(local.source, name=place), notes=notes)


def files_to_copy(place: Any, forms: Sequence[Format]) -> list[str]:
    """The files of which `open_copy` reads copies; none of what is read where it lies. Raises
    SourceError as `open_copy` does."""
    if not isinstance(place, str):
        return []
    asked = (form.copies for form in forms if form.copies is not None)
    return next((files for copies in asked if (files := copies(place))), [])


def local_arrays(spec: Any) -> Any:
    """Arrays with local copies of the `.npy` files that URLs among them name. Raises
    SourceError."""
    if isinstance(spec, Mapping):
        return {key: local_arrays(value) for key, value in spec.items()}
    if type(spec) in (tuple, list):
        return type(spec)(map(local_arrays, spec))
    if not isinstance(spec, str) or not stores.is_remote(spec) or not spec.endswith(".npy"):
        return spec
    url = stores.located(spec)
    if not stores.is_file(url):
        raise SourceError(f"{url}: no such file or folder; check the URL and the credentials.")
    folder, name = os.path.split(url)
    return str(copied([url], folder) / name)
