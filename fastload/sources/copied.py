"""Data sets by URL of which only local files are read: those of the formats that have `copies`.
They are copied to the local disk."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from fastload import stores
from fastload.errors import SourceError
from fastload.sources.base import Opened
from fastload.sources.coco import is_coco
from fastload.sources.panoptic import PANOPTIC_SIGNS, is_panoptic
from fastload.stores.copies import copied

_LANCE = "is a Lance data set"


class Copied(Protocol):
    """What is asked of a format (`fastload.sources.formats.Format`)."""

    @property
    def copies(self) -> Callable[[str], list[str]] | None: ...


def open_copy(
    place: Any, forms: Sequence[Copied], opened: Callable[[str], Opened], *, by_name: bool
) -> Opened | None:
    """Open what a URL names by a copy of its files; None where it is of none of these formats.

    Args:
        forms: the formats that it may be of.
        opened: opens a path.
        by_name: whether the user names the format.

    Raises:
        SourceError: it is of a format that is read from a local disk only, and too large to copy.
    """
    files = files_to_copy(place, forms, by_name=by_name)
    if not files:
        return None
    # A file that is named, and what lies beside it; or a folder.
    top, file = os.path.split(place) if place in files else (place, "")
    path = str(copied(files, top) / file)
    try:
        found = opened(path)
    except SourceError as error:  # the user knows the URL, not the copy
        raise SourceError(str(error).replace(path, place)) from error
    notes = (*found.notes, f"copied from {place} to the local disk, where it is read")
    return replace(found, source=replace(found.source, name=place), notes=notes)


def files_to_copy(place: Any, forms: Sequence[Copied], *, by_name: bool) -> list[str]:
    """The files of which `open_copy` reads copies; none of what is read where it lies. Raises
    SourceError as `open_copy` does."""
    if not isinstance(place, str):
        return []
    if not by_name:
        _refuse_local_only(place)
    asked = (form.copies for form in forms if form.copies is not None)
    return next((files for copies in asked if (files := copies(place))), [])


def _refuse_local_only(url: str) -> None:
    """Raise SourceError for formats that are read from a local disk only; else another format would
    serve their images without the annotations."""
    what = _local_only(url)
    if what:
        given = "give lance.dataset(URL) in place of the URL, " if what == _LANCE else ""
        raise SourceError(
            f"{url}: {what}, which are read from a local disk only; {given}download or mount it, "
            "or write it as shards that are read from anywhere: fastload pack."
        )


def _local_only(url: str) -> str:
    """What it is, by its names; empty where it is none of these."""
    if not stores.is_folder(url):
        return ""
    names = dict(stores.entries(url))
    if url.endswith(".lance") or names.get("_versions", False):
        return _LANCE
    signs = ("annotations/*.json", *PANOPTIC_SIGNS)
    if _has_any(url, names, signs) and not is_coco(url) and not is_panoptic(url):
        return "has annotations of COCO other than of objects"
    return ""


def _has_any(url: str, names: Mapping[str, bool], signs: Sequence[str]) -> bool:
    """Whether a folder, in which there are these names, has one of the signs of a format
    (`Format.signs`) in it, or in a folder that the sign names."""
    for sign in signs:
        folder, slash, _ = sign.partition("/")
        if not slash:
            there: Sequence[str] = [*names]
        elif names.get(folder, False):
            there = [f"{folder}/{name}" for name, _ in stores.entries(f"{url}/{folder}")]
        else:
            continue
        if fnmatch.filter(there, sign):
            return True
    return False


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
