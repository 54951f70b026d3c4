"""Data sets by URL of which only local files are read: built caches, CIFAR, IDX and `.npy` files,
compressed tar archives. They are copied to the local disk."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastload import stores
from fastload.errors import SourceError
from fastload.sources.archive import LARGEST_UNPACKED, compression_of, is_archive_name
from fastload.sources.base import Opened
from fastload.sources.cifar import remote_cifar
from fastload.sources.coco import is_coco
from fastload.sources.idx import remote_idx
from fastload.sources.panoptic import PANOPTIC_SIGNS, is_panoptic
from fastload.stores.copies import copied

_MANIFEST = "manifest.json"
"""What there is in every built cache; `fastload.cache`, which imports this package, writes it."""

_LANCE = "is a Lance data set"


def open_copy(place: Any, format: str | None, opened: Callable[[str], Opened]) -> Opened | None:
    """Open what a URL names by a copy of its files; None where it is of none of these formats.

    Args:
        format: the name of the one it is to be of.
        opened: opens a path.

    Raises:
        SourceError: it is of a format that is read from a local disk only, and too large to copy.
    """
    files = files_to_copy(place, format)
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


def files_to_copy(place: Any, format: str | None) -> list[str]:
    """The files of which `open_copy` reads copies; none of what is read where it lies. Raises
    SourceError as `open_copy` does."""
    if not isinstance(place, str):
        return []
    if format is None:
        _refuse_local_only(place)
    wanted = (asked for name, asked in FORMATS.items() if format in (None, name))
    return next((files for asked in wanted if (files := asked(place))), [])


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


def _cache_files(url: str) -> list[str]:
    """Of the URL of a built cache its files."""
    if not stores.is_folder(url):
        return []
    files = [name for name, is_folder in stores.entries(url) if not is_folder]
    return [f"{url}/{name}" for name in files] if _MANIFEST in files else []


def _npy_file(url: str) -> list[str]:
    """The URL itself, if it is of a `.npy` file."""
    return [url] if url.endswith(".npy") and stores.is_file(url) else []


def _compressed_archive(url: str) -> list[str]:
    """The URL itself, if it is of a compressed tar archive, which is read from front to back.

    Raises:
        SourceError: it is larger than what may be unpacked.
    """
    if not is_archive_name(url) or (url.lower().endswith(".tar") and compression_of(url) is None):
        return []
    size = stores.size_of(url)
    if size > LARGEST_UNPACKED:
        raise SourceError(
            f"{url}: a compressed archive is copied and unpacked at each start, and this one has "
            f"{size:,} bytes, more than {LARGEST_UNPACKED >> 30} GiB; unpack it once, and give the "
            "folder or an archive without compression."
        )
    return [url]


FORMATS = {
    "cache": _cache_files,
    "cifar": remote_cifar,
    "idx": remote_idx,
    "arrays": _npy_file,
    "tar": _compressed_archive,
}
"""By name, the remote files that are the data set of a URL; none where it is not of this format."""


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
