"""Bytes from anywhere: one way to list and read what a path or a URL names.

A path is a local file, read as `fastload.files` reads it; `s3://`, `gs://`, `az://`, `http://` and
`https://` go by obstore, other schemes by fsspec. Nothing that calls this knows which it is.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fastload import files
from fastload.distribution import install_command
from fastload.errors import SourceError
from fastload.files import is_remote
from fastload.stores.base import ChangedError, Data, Range, Store, StoreError, words_of
from fastload.stores.seen import INDEX_NAME, Entry, Listed, Seen, requests_of, stamp_of
from fastload.stores.tier import Kept, Tier, digest_of, tier
from fastload.stores.urls import (
    SCHEMES,
    below,
    is_web,
    located,
    name_of,
    parent_of,
    resolved,
    spelt,
    top_of,
)

__all__ = [
    "INDEX_NAME",
    "ChangedError",
    "Data",
    "Digests",
    "Entry",
    "Kept",
    "Looked",
    "Range",
    "Seen",
    "Store",
    "StoreError",
    "ask_ahead",
    "below",
    "by_whom",
    "drop_kept",
    "each_in",
    "entries",
    "is_file",
    "is_folder",
    "is_remote",
    "is_web",
    "keeps",
    "kept_here",
    "list_ahead",
    "located",
    "look",
    "noted",
    "parent_of",
    "read",
    "read_many",
    "read_up_to",
    "read_views",
    "remove",
    "resolved",
    "seen_kept",
    "size_of",
    "spelt",
    "states_of",
    "store_of",
    "top_of",
    "unchanged",
    "versions_of",
    "write",
]


def store_of(url: str) -> tuple[Store, str]:
    """The store of a URL, and the name of the object in it. Raises SourceError."""
    scheme, _, rest = url.partition("://")
    authority, _, name = rest.partition("/")
    # The client would drop the slash and read another object.
    if name[:1] == "/" and scheme in SCHEMES:
        raise SourceError(
            f"{url}: two slashes after {authority}; write one. A key that begins with a slash "
            "cannot be read: copy the object to another key."
        )
    return _store(f"{scheme}://{authority}"), name_of(url, name).strip("/")


_making = threading.Lock()


def _store(url: str) -> Store:
    with _making:
        return _made(url)


@functools.cache
def _made(url: str) -> Store:
    scheme = url.partition("://")[0]
    try:
        if scheme in SCHEMES:
            from fastload.stores.objects import ObjectStore

            return ObjectStore(url)
        from fastload.stores.filesystems import FileSystemStore

        return FileSystemStore(url)
    except ImportError as error:
        # Another package is one that fsspec needs for the scheme.
        ours = error.name in ("obstore", "fsspec")
        remedy = install_command("remote") if ours else "install it."
        raise SourceError(
            f"{url}: reading from there needs a package that is not installed ({error}): {remedy}"
        ) from None
    except StoreError as error:
        raise SourceError(f"{url}: {error}") from None
    except Exception as error:
        # What the clients raise at a wrong name or setting.
        raise SourceError(
            f"{url}: cannot be opened ({words_of(error)}); check the URL and the settings in the "
            "environment."
        ) from None


# -- Folders ---------------------------------------------------------------------------------------


_seen: ContextVar[Seen | None] = ContextVar("fastload answers of stores", default=None)
"""Of the data set that is being opened by this thread, and by those of a `ReaderPool` for it."""


@contextlib.contextmanager
def seen_kept() -> Iterator[Seen]:
    """While a data set is opened each remote folder is listed once, each object asked for once."""
    seen = _seen.get() or Seen()
    before = _seen.set(seen)
    try:
        yield seen
    finally:
        _seen.reset(before)


def remote_entries(url: str) -> Listed:
    """What is in a remote folder, one level. Raises SourceError."""
    seen = _seen.get()
    if seen is not None and url in seen.folders:
        return seen.folders[url]
    store, name = store_of(url)
    try:
        listed = store.entries(name)
    except OSError as error:
        raise SourceError(f"{url}: this folder cannot be listed ({error}).") from error
    if seen is not None:
        seen.folders[url] = listed
    return listed


def list_ahead(urls: Sequence[str]) -> None:
    """List remote folders at once that are going to be asked for one after the other; of local ones
    nothing."""
    remote, seen = filter(is_remote, dict.fromkeys(urls)), _seen.get()
    wanted = [url for url in remote if seen is not None and url not in seen.folders]
    if len(wanted) < 2 or seen is None:
        return
    with contextlib.suppress(OSError):  # It is raised again when the folder is asked for.
        for store, urls in _by_store(wanted).items():
            listed = store.entries_of([store_of(url)[1] for url in urls])
            seen.folders.update(zip(urls, listed, strict=True))


def ask_ahead(urls: Sequence[str]) -> None:
    """Ask for size and version of objects at once, of servers that list nothing."""
    wanted, seen = [url for url in urls if is_web(url)], _seen.get()
    if len(wanted) < 2 or seen is None:
        return
    with contextlib.suppress(OSError):  # It is raised again when the object is asked for.
        for store, each in _by_store(wanted).items():
            infos = store.infos_of([store_of(url)[1] for url in each])
            seen.objects.update(zip(each, infos, strict=True))


def _by_store(urls: Iterable[str]) -> dict[Store, list[str]]:
    by_store: dict[Store, list[str]] = {}
    for url in urls:
        by_store.setdefault(store_of(url)[0], []).append(url)
    return by_store


def unchanged(
    stamp: Mapping[str, str], entries: Mapping[str, int], most: int, decisive: Collection[str] = ()
) -> tuple[bool, int]:
    """(whether the stores still answer as when `stamp` was taken, number of its URLs checked).

    Args:
        stamp: `Seen.stamp`.
        entries: how many there were in a folder, by its URL in the stamp.
        most: requests; where it takes more to check all, evenly spread ones are checked.
        decisive: URLs of the stamp that are checked in any case.

    Raises:
        SourceError: they cannot be asked.
    """
    costs = {url: requests_of(entries.get(url, 0)) for url in stamp}
    asked = list(stamp)
    if sum(costs.values()) > most:
        asked = [url for url in decisive if url in stamp]
        left = most - sum(costs[url] for url in asked)
        step, others = -(-sum(costs.values()) // most), stamp.keys() - {*asked}
        for url in [url for url in stamp if url in others][::step]:
            if costs[url] <= left:
                asked.append(url)
                left -= costs[url]
    with seen_kept():
        list_ahead([url[:-1] for url in asked if url.endswith("/")])
        ask_ahead([url for url in asked if not url.endswith("/")])
        for url in asked:
            if url.endswith("/"):
                now = remote_entries(url[:-1]).stamp
            else:
                entry = _answer(url)
                now = stamp_of(() if entry is None else (entry,))
            if now != stamp[url]:
                return False, len(asked)
    return True, len(asked)


def versions_of(urls: Iterable[str]) -> npt.NDArray[np.int64]:
    """The version (`version_of`) of each object, as seen while the data set is being opened; 0
    where that is not known. Makes no request."""
    versions: npt.NDArray[np.int64] = states_of(urls)[0]
    return versions


def states_of(urls: Iterable[str]) -> npt.NDArray[np.int64]:
    """(2, N): `versions_of`, and the bytes of each object; -1 where that is not known."""
    seen = _seen.get() or Seen()

    def state(url: str) -> tuple[int, int]:
        _, entry = seen.answer(url)
        none = entry is None or entry.is_folder
        return (0, -1) if none or entry is None else (entry.version, entry.size)

    def states() -> Iterator[tuple[int, int]]:
        for folder, some in groupby(urls, lambda url: url.rpartition("/")[0]):
            if folder in seen.folders:
                start = len(folder) + 1
                yield from seen.folders[folder].states_of(url[start:] for url in some)
            else:
                yield from map(state, some)

    found = np.fromiter(states(), dtype=[("version", np.int64), ("bytes", np.int64)])
    return np.stack([found["version"], found["bytes"]])


def noted(path: str) -> int:
    """The version of a file, to be read with; 0 of local ones and where it is not known.

    Called where what is read becomes a part of the opened data set (labels, boxes, which files
    belong to a split), and no read of a sample would tell that it has changed: an index is compared
    with the versions of these in any case. Raises SourceError: the store cannot be asked.
    """
    if not is_remote(path):
        return 0
    entry, seen = _answer(path), _seen.get()
    if seen is not None:
        seen.noted[path] = None
    return 0 if entry is None else entry.version


def _answer(url: str) -> Entry | None:
    """Size and ETag of an object, by the listing of its folder if there was one. Raises
    SourceError."""
    seen = _seen.get()
    known, entry = (False, None) if seen is None else seen.answer(url)
    return entry if known else _object(url)


def _object(url: str) -> Entry | None:
    """Size and ETag of an object. Raises SourceError."""
    seen = _seen.get()
    if seen is not None and url in seen.objects:
        return seen.objects[url]
    store, name = store_of(url)
    try:
        entry = store.info(name)
    except OSError as error:
        raise SourceError(f"{url}: cannot be asked for its size ({error}).") from error
    if seen is not None:
        seen.objects[url] = entry
    return entry


def _entry_of(url: str) -> Entry | None:
    """The entry of a URL in the listing of the folder above it."""
    if url == top_of(url):
        return None  # nothing is above it
    above, _, name = url.rpartition("/")
    seen = _seen.get()
    if seen is None:
        return next((entry for entry in remote_entries(above) if entry.name == name), None)
    remote_entries(above)
    return seen.entry(above, name)


def is_folder(path: str) -> bool:
    if not is_remote(path):
        return os.path.isdir(path)
    if is_web(path):
        return False
    entry = _entry_of(path)
    if entry is not None:
        return entry.is_folder
    return path == top_of(path) and bool(remote_entries(path))


def is_file(path: str) -> bool:
    if not is_remote(path):
        return os.path.isfile(path)
    if is_web(path):
        return size_of(path) >= 0
    entry = _entry_of(path)
    return entry is not None and not entry.is_folder


def entries(folder: str) -> list[tuple[str, bool]]:
    """(name, is a folder) of what is in a remote folder. Raises SourceError."""
    return [*each_in(folder)]


def each_in(folder: str) -> Iterator[tuple[str, bool]]:
    """`entries`, without a list of them."""
    return remote_entries(folder).named()


# -- Bytes -----------------------------------------------------------------------------------------


def size_of(path: str) -> int:
    """Bytes of a file; -1 where there is none."""
    if not is_remote(path):
        return files.size_of(path)
    entry = _answer(path)
    return -1 if entry is None else entry.size


def read_up_to(path: str, most: int, start: int = 0, version: int = 0) -> bytes:
    """At most so many bytes from `start` on, fewer where the file ends before. Raises OSError."""
    if is_remote(path):
        store, name = store_of(path)
        return bytes(store.read_up_to(name, start, most, version))
    with files.open_regular(path, buffering=0) as file:
        file.seek(start)
        return file.read(most)


def look(path: str, most: int, start: int = 0) -> bytes:
    """At most so many bytes, by which it is seen what a file is; none of a local one that cannot be
    read, which raises where it is needed. Raises SourceError: a store does not give them, so that
    nobody knows."""
    try:
        return read_up_to(path, most, start)
    except OSError as error:
        if is_remote(path):
            raise SourceError(f"{path}: cannot be read ({error}).") from error
        return b""


def read(path: str, start: int = 0, length: int | None = None, version: int = 0) -> bytes:
    """Bytes of a file; all from `start` on if `length` is None.

    Args:
        version: which version of a remote object they must be of (`version_of`); 0 for any. Not
            checked for local files.

    Raises:
        OSError: it cannot be read, or ends before. ChangedError: it is of another version.
    """
    if is_remote(path):
        return read_many([Range(path, start, length, version)])[0]
    return files.read_range(path, start, length)


def read_many(ranges: Sequence[Range], *, by_tier: bool = True) -> list[bytes]:
    """Several ranges at once; their names are paths or URLs. Raises OSError as `read`.

    `by_tier`: whether remote ones are read through the local tier, which keeps them.
    """
    return [bytes(data) for data in read_views(ranges, by_tier=by_tier)]


def read_views(ranges: Sequence[Range], *, by_tier: bool = True, lean: bool = False) -> list[Data]:
    """`read_many` without a copy: bytes of remote objects stay in memory of the client, where
    several ranges may share one block. `lean`: see `Store.read_many`."""
    contents: list[Data] = [b""] * len(ranges)
    by_store: dict[Store, tuple[list[int], list[Range]]] = {}
    known: dict[str, tuple[Store, str]] = {}
    for row, each in enumerate(ranges):
        if each.name in known or is_remote(each.name):
            store, name = known.get(each.name) or known.setdefault(each.name, store_of(each.name))
            rows, wanted = by_store.setdefault(store, ([], []))
            rows.append(row)
            wanted.append(Range(name, *each[1:]))
        else:
            contents[row] = read(*each)
    for store, (rows, wanted) in by_store.items():
        data = _by_tier(store, wanted, lean) if by_tier else store.read_many(wanted, lean=lean)
        for row, each_data in zip(rows, data, strict=True):
            contents[row] = each_data
    return contents


def _by_tier(store: Store, wanted: list[Range], lean: bool) -> list[Data]:
    """The bytes of ranges of one store: through the local tier if all versions are known."""
    kept = tier() if any(each.version for each in wanted) else None
    if kept is None or not all(each.version for each in wanted):
        return store.read_many(wanted, lean=lean)
    digests = [digest_of(f"{store.url}/{each.name}", *each[1:]) for each in wanted]
    return kept.read(
        digests,
        lambda rows: store.read_many([wanted[row] for row in rows], lean=lean),
        later=True,
    )


@dataclass(frozen=True)
class Looked:
    """Ranges of one store, and which of them the local tier had when it was looked at."""

    store: Store
    tier: Tier
    ranges_of: Callable[[npt.NDArray[np.int64]], Sequence[Range]]
    """By rows; their names are URLs."""
    rows: npt.NDArray[np.int64]
    """(N,)."""
    digests: npt.NDArray[np.uint8]
    """(N, 16)."""
    here: npt.NDArray[np.bool_]
    """(N,): whether the tier has them, or memory (`taken`)."""
    taken: Callable[[npt.NDArray[np.int64]], Sequence[Data | None]] | None = None
    """By rows: the bytes of those that are in memory, which are given once; None: none are."""
    fetched: Callable[[npt.NDArray[np.int64]], Sequence[Data]] | None = None
    """By rows: fetches and keeps them, in place of what `kept` does itself."""

    def take(self, rows: slice) -> Looked:
        return replace(self, rows=self.rows[rows], digests=self.digests[rows], here=self.here[rows])

    def kept(self) -> Kept:
        """All ranges, for the native core; those missing from the tier are fetched, and kept there.
        Raises OSError as `read`."""
        memory: list[Data | None] = [None] * len(self.rows)
        here = self.here & self.digests.any(axis=1)
        if self.taken is not None:
            memory = [*self.taken(self.rows)]
            here |= np.array([data is not None for data in memory], np.bool_)
        missing = np.flatnonzero(~here)
        if len(missing):
            for row, data in zip(missing.tolist(), self._fetched(missing), strict=True):
                memory[row] = data
        return Kept(str(self.tier.folder), self.digests, memory)

    def _fetched(self, missing: npt.NDArray[np.intp]) -> Sequence[Data]:
        if self.fetched is not None:
            return self.fetched(self.rows[missing])
        wanted = [
            each._replace(name=store_of(each.name)[1])
            for each in self.ranges_of(self.rows[missing])
        ]
        return self.tier.fetched(
            [digest.tobytes() for digest in self.digests[missing]],
            lambda rows: self.store.read_many([wanted[row] for row in rows]),
            later=True,
        )


class Digests:
    """The names that the ranges of a data set have in the local tier. Each is made once, when it is
    first looked for: that takes 2 us."""

    def __init__(
        self, count: int, ranges_of: Callable[[npt.NDArray[np.int64]], Sequence[Range]]
    ) -> None:
        """`ranges_of` gives remote ranges by rows, of which there are `count`."""
        self._ranges_of = ranges_of
        # 16 bytes each. Zeros: not made yet, and without memory until then.
        self._made = np.zeros((count, 16), np.uint8)
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._looked = False
        """Whether `look` could look for some."""

    def look(self, rows: npt.NDArray[np.int64]) -> Looked | None:
        """Which of these ranges the local tier has. None where they cannot be read through it:
        there is no tier, a version is not known, they lie in several stores, or the native core
        cannot read the tier."""
        kept = tier() if len(rows) else None
        digests = None if kept is None else self.of(rows)
        here = None if kept is None or digests is None else kept.look(digests)
        if kept is None or digests is None or here is None or self._store is None:
            return None
        self._looked = True
        return Looked(self._store, kept, self._ranges_of, rows, digests, here)

    def missing(self, rows: npt.NDArray[np.int64]) -> Looked | None:
        """As `look`, of ranges that are taken for missing: who fetches them looks for them. None,
        too, before the first `look`."""
        kept = tier() if self._looked else None
        if kept is None or self._store is None:
            return None
        digests, here = np.zeros((len(rows), 16), np.uint8), np.zeros(len(rows), np.bool_)
        return Looked(self._store, kept, self._ranges_of, rows, digests, here)

    def of(
        self, rows: npt.NDArray[np.int64], ranges: Sequence[Range] | None = None
    ) -> npt.NDArray[np.uint8] | None:
        """(N, 16): the digests of these ranges. None: a version is not known, or they lie in
        several stores. `ranges`: of the rows, where they are known already."""
        with self._lock:
            digests = self._made[rows]
            new = np.flatnonzero(~digests.any(axis=1))
            if len(new):
                some = (
                    self._ranges_of(rows[new])
                    if ranges is None
                    else [ranges[row] for row in new.tolist()]
                )
                fresh = self._make(some)
                if fresh is None:
                    return None
                digests[new] = self._made[rows[new]] = fresh
        return digests

    def _make(self, ranges: Sequence[Range]) -> npt.NDArray[np.uint8] | None:
        if not all(each.version for each in ranges):
            return None
        if self._store is None:
            self._store = store_of(ranges[0].name)[0]
        top, digests = f"{self._store.url}/", list[bytes]()
        for url, start, length, version in ranges:
            if not url.startswith(top):
                return None
            name = name_of(url, url[len(top) :]).strip("/")
            digests.append(digest_of(top + name, start, length, version))
        return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)


def by_whom(url: str) -> str:
    """By which client a remote object is read, and why, for a person. Raises SourceError."""
    return store_of(url)[0].by_whom()


def write(url: str, data: bytes | Path) -> None:
    """Put a remote object as a whole: these bytes, or those of a file. Raises OSError."""
    store, name = store_of(url)
    store.write(name, data)


def remove(url: str) -> None:
    """Remove a remote object, if it is there. Raises OSError."""
    store, name = store_of(url)
    store.remove(name)


def kept_here(wanted: Range) -> bytes | None:
    """The bytes of a remote range if they are in the local tier, else None."""
    kept = tier() if wanted.version else None
    if kept is None:
        return None
    store, name = store_of(wanted.name)
    data = kept.get(digest_of(f"{store.url}/{name}", *wanted[1:]))
    return None if data is None else bytes(data)


def keeps(wanted: Sequence[Range]) -> bool:
    """Whether the local tier keeps what is read of these remote ranges."""
    return tier() is not None and all(each.version for each in wanted)


def drop_kept(wanted: Range) -> None:
    """Remove a remote range from the local tier, so that the next read asks the store."""
    kept = tier() if wanted.version else None
    if kept is not None:
        store, name = store_of(wanted.name)
        kept.remove(digest_of(f"{store.url}/{name}", *wanted[1:]))


def forget() -> None:
    """Drop the clients that were made: the next ones read the settings in the environment again."""
    with _making:
        _made.cache_clear()
