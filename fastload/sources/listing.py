"""The images in local folders and below, listed by the threads of the native core; and the listing
of a large folder, kept from run to run.

A folder's modification time changes when a file in it is made, removed or renamed. So a listing
that was kept holds while the times of its folders do: a thousand questions to the file system, not
a million. It is kept only on file systems that are known to note these times, and only if no folder
changed in the minute before it was listed: a second change at the same time would not show.

What needs judgement (links to folders, names that are no UTF-8, folders that may not be read) is
left to `folders.images_below`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.locks import one_of_node
from fastload.machine import cache_home, file_system_of, ranks_here
from fastload.sources.buffers import Int64Array, PathTable
from fastload.sources.image_files import NEVER_DATA, certain_endings, suffixes_of_pillow

logger = logging.getLogger("fastload")

KEPT_FROM = 20_000
"""Images from which on a listing is kept; fewer are listed in milliseconds."""
SETTLED = 60.0
"""Seconds since the last change of a folder before its time is believed: far above the resolution
of such times, for servers whose clock is another one."""
_NOTE_TIMES = frozenset(
    {"bcachefs", "beegfs", "btrfs", "ceph", "ext2", "ext3", "ext4", "f2fs", "gpfs", "jfs", "lustre"}
    | {"nfs", "nfs4", "overlay", "reiserfs", "tmpfs", "xfs", "zfs"}
)
"""File systems that change a folder's time with what is in it. Those made of object stores often
do not."""
_THREADS = 16
"""That list side by side: more than cores, as a network file system answers each after a while."""


@dataclass(frozen=True)
class Listing:
    """What lies in folders, and in those below them."""

    images: PathTable
    """Paths relative to the root, folder by folder, each folder's with all below it, in
    ImageFolder's order."""
    counts: Int64Array
    """How many of them are of each of the folders that were asked for."""
    others: tuple[str, ...]
    """Relative paths of what is no image, or never data, in any order."""


@dataclass
class Opening:
    """What was listed for the opening of one data set."""

    keep_from: int
    """Images from which on a listing is kept."""
    listings: dict[tuple[str, ...], Listing | None] = field(default_factory=dict)
    kept: Path | None = None
    """Where a listing is kept that this data set was opened by."""
    not_kept: str = ""
    """Why a listing of that many images was not kept."""


_opening: ContextVar[Opening | None] = ContextVar("_opening", default=None)


@contextlib.contextmanager
def each_listed_once(*, keep_from: int | None = None) -> Iterator[Opening]:
    """Within: what was listed is not listed again. For the opening of one data set."""
    opening = Opening(KEPT_FROM if keep_from is None else keep_from)
    token = _opening.set(opening)
    try:
        yield opening
    finally:
        _opening.reset(token)


def listing_of(root: str, folders: Sequence[str]) -> Listing | None:
    """What lies in these local folders, which are relative to `root`, and below them; None where
    `folders.images_below` must look, or there is no native core."""
    if _core() is None:
        return None
    opening, key = _opening.get() or Opening(KEPT_FROM), (root, *folders)
    if key not in opening.listings:
        opening.listings[key] = _of_this_machine(root, folders, opening)
    return opening.listings[key]


@functools.cache
def _core() -> Any:
    """The extension module of the native core, by name, as that package is above this one; None
    where it is not built."""
    try:
        return importlib.import_module("fastload.native._core")
    except ImportError:
        return None


def _of_this_machine(root: str, folders: Sequence[str], opening: Opening) -> Listing | None:
    """As it was kept, or listed; by one process of a machine, while the others wait for it."""
    where = _kept_place(root, folders)
    kept = _load(where, root, opening) if where.exists() else None
    if kept is not None or ranks_here() == 1:
        return kept or _list(root, folders, where, opening)
    with contextlib.suppress(OSError):
        where.parent.mkdir(parents=True, exist_ok=True)
    with one_of_node(where.with_name(where.name + ".lock"), "is listing the folder"):
        kept = _load(where, root, opening) if where.exists() else None
        return kept or _list(root, folders, where, opening)


# -- Listing ---------------------------------------------------------------------------------------


def _list(root: str, folders: Sequence[str], where: Path, opening: Opening) -> Listing | None:
    core, place = _core(), os.fsencode(root)
    names = [
        [ending.encode() for ending in endings]
        for endings in (certain_endings(), suffixes_of_pillow(), sorted(NEVER_DATA))
    ]
    levels: list[_Level] = []
    others: list[str] = []
    here = list(folders)
    while here:
        stamps = _stamps(root, here)
        listed = core.list_folders(place, list(map(os.fsencode, here)), *names, _THREADS)
        if listed is None:
            return None
        blob, ends, counts, below, left = listed
        levels.append(_Level(here, stamps, np.frombuffer(blob, np.uint8), ends, counts))
        others += [_join(here[number], os.fsdecode(name)) for number, name in left]
        here = [_join(here[number], os.fsdecode(name)) for number, name in below]
    if not levels:
        return None
    images, counts = _in_order(levels)
    listing = Listing(PathTable(root, *images), counts, tuple(others))
    if len(listing.images) >= opening.keep_from:
        try:
            opening.not_kept = _keep(where, listing, root, levels)
        except OSError as error:  # a full disk must not stop training
            opening.not_kept = f"{where} cannot be written ({error})"
        opening.kept = None if opening.not_kept else where
    return listing


@dataclass(frozen=True)
class _Level:
    """Folders of one depth, and the images in each."""

    folders: list[str]
    stamps: Int64Array
    """(N, 4): as of `_stamps`, from before they were listed."""
    blob: npt.NDArray[np.uint8]
    ends: Int64Array
    counts: Int64Array

    def parts(self) -> Iterator[tuple[str, bytes, Int64Array]]:
        """(folder, its paths one after the other, where each ends there)."""
        last = np.cumsum(self.counts)
        for folder, first, end in zip(self.folders, last - self.counts, last, strict=True):
            start = int(self.ends[first - 1]) if first else 0
            ends = self.ends[first:end]
            blob = self.blob[start : int(ends[-1]) if len(ends) else start]
            yield folder, blob.tobytes(), ends - start


def _in_order(
    levels: list[_Level],
) -> tuple[tuple[npt.NDArray[np.uint8], Int64Array], Int64Array]:
    """The images in ImageFolder's order, which is that of the folders' paths within each of the
    first level, and how many are below each of these."""
    first = levels[0]
    if not any(len(level.ends) for level in levels[1:]):
        return (first.blob, first.ends), first.counts
    numbers = {folder: number for number, folder in enumerate(first.folders)}
    parts: list[list[tuple[str, bytes, Int64Array]]] = [[] for _ in first.folders]
    for depth, level in enumerate(levels):
        for part in level.parts():
            above = part[0]
            for _ in range(depth):
                above = os.path.dirname(above)
            parts[numbers[above]].append(part)
    counts = np.array([sum(len(ends) for *_, ends in some) for some in parts], dtype=np.int64)
    ordered = [part for some in parts for part in sorted(some, key=lambda part: part[0])]
    blob = np.frombuffer(b"".join(part[1] for part in ordered), np.uint8)
    lengths = np.concatenate([np.diff(ends, prepend=0) for *_, ends in ordered])
    return (blob, np.cumsum(lengths)), counts


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


# -- Keeping ---------------------------------------------------------------------------------------


def _kept_place(root: str, folders: Sequence[str]) -> Path:
    """Where the listing of these folders is kept; the endings that are images are a part of the
    name."""
    key = json.dumps([root, folders, certain_endings(), suffixes_of_pillow()])
    digest = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16)
    return cache_home() / "listings" / f"{digest.hexdigest()}.index"


def _keep(where: Path, listing: Listing, root: str, levels: list[_Level]) -> str:
    """Write a listing, if the times of its folders tell of any later change; else say why not."""
    every = [folder for level in levels for folder in level.folders]
    stamps = np.concatenate([level.stamps for level in levels])
    file_system = file_system_of(root)
    if file_system not in _NOTE_TIMES:
        return f"it is on a file system ({file_system}) that may not note when a folder changes"
    if len(np.unique(stamps[:, 3])) > 1:
        return "another file system is mounted below it"
    settled = int(stamps[:, :2].max()) <= time.time_ns() - int(SETTLED * 1e9)
    if not settled or not np.array_equal(stamps, _stamps(root, every)):
        return f"a folder of it has changed in the last {SETTLED:.0f} s"
    from fastload.sources.index_file import Arrays, write_index

    tables = {"images": listing.images}
    tables |= {"folders": PathTable.of(every), "others": PathTable.of(listing.others)}
    arrays: Arrays = {f"{name}/blob": table.blob for name, table in tables.items()}
    arrays |= {f"{name}/ends": table.ends for name, table in tables.items()}
    where.parent.mkdir(parents=True, exist_ok=True)
    write_index(where, {"root": root}, {**arrays, "counts": listing.counts, "stamps": stamps})
    return ""


def _load(where: Path, root: str, opening: Opening) -> Listing | None:
    """A listing that was kept; None where it is damaged, or a folder has changed."""
    from fastload.errors import SourceError
    from fastload.sources.index_file import WRONG, read_index

    try:
        header, arrays = read_index(where)
        tables = [
            PathTable(at, arrays[f"{name}/blob"], arrays[f"{name}/ends"])
            for name, at in (("images", root), ("folders", ""), ("others", ""))
        ]
        images, every, others = tables
        if header["root"] != root or int(arrays["counts"].sum()) != len(images):
            raise ValueError("it is of another folder")
        now = _stamps(root, every.all_held())
        same = np.array_equal(now[:, :3], arrays["stamps"][:, :3])  # a device gets other numbers
    except (OSError, SourceError, *WRONG) as error:
        logger.warning("%s: the listing %s is not used: %s", root, where, error)
        return None
    if not same:
        return None
    opening.kept = where
    return Listing(images, arrays["counts"], tuple(others.all_held()))


def _stamps(root: str, folders: list[str]) -> Int64Array:
    """(N, 4): the modification time, the time of change [ns since 1970], the inode and the device
    of each folder."""
    names = list(map(os.fsencode, folders))
    stamps: Int64Array = _core().folder_stamps(os.fsencode(root), names, _THREADS)
    return stamps.reshape(-1, 4)
