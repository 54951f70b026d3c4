"""What stores answered while a data set was opened, and short fingerprints of it.

A listing takes some 45 bytes an object: names one after the other, and arrays of sizes and
versions. Python's objects for each, with their names and ETags, take 600.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

# An index of the data set, beside the data (`fastload index --output`).
INDEX_NAME = "fastload.index"
_FOLDER = -2
"""In place of the size of a folder."""
_AT_ONCE = 4096
_IN_ORDER = 8
"""Names that were asked for in order, before many are decoded at once."""
_MASK = (1 << 128) - 1
Int64Array = npt.NDArray[np.int64]


def version_of(size: int, etag: str) -> int:
    """A positive number of 63 bits for a version of an object, from its size [bytes] and ETag; 0 if
    it has no ETag.

    Stores write one ETag in several ways: `W/"5d"` (RFC 9110, weak), `"5d"`, and `5d` in listings
    of Azure.
    """
    tag = plain_etag(etag)
    if not tag:
        return 0
    digest = hashlib.blake2b(f"{size} {tag}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1 or 1


def plain_etag(etag: str) -> str:
    """An ETag without what stores write around it or leave out; "" for none."""
    return etag.removeprefix("W/").strip('"')


@dataclass(frozen=True)
class Entry:
    """An object or folder in a folder."""

    name: str
    """Without the folder."""
    is_folder: bool
    size: int = -1
    """Bytes, of an object."""
    etag: str = ""
    """What the store says to tell versions apart; "" where it says nothing."""
    known_version: int | None = None
    """Its version, where the ETag is not kept."""

    @property
    def version(self) -> int:
        """See `version_of`."""
        known = self.known_version
        return version_of(self.size, self.etag) if known is None else known


class Listing:
    """Collects entries that come in the order of their names."""

    def __init__(self) -> None:
        self._names, self._ends = bytearray(), array("q")
        self._sizes, self._versions = array("q"), array("q")
        self._last: bytes | None = None
        self.sums, self.versioned = 0, True

    def __len__(self) -> int:
        return len(self._ends)

    def extend(self, entries: Iterable[Entry]) -> bool:
        """Whether all came after those that are here, in order; of one that does not, and those
        after it, none is taken."""
        names, ends, last = self._names, self._ends, self._last
        for entry in entries:
            name = _encoded(entry.name)
            if last is not None and name < last:
                return False
            self._last = last = name
            names += name
            ends.append(len(names))
            self._sizes.append(_FOLDER if entry.is_folder else entry.size)
            self._versions.append(entry.version)
            self.sums += digest_of_entry(entry)
            self.versioned &= entry.is_folder or bool(plain_etag(entry.etag))
        return True

    def built(self) -> Listed:
        """What was collected; ends the collection."""
        return Listed(
            np.frombuffer(self._names, np.uint8),
            np.frombuffer(self._ends, np.int64),
            np.frombuffer(self._sizes, np.int64),
            np.frombuffer(self._versions, np.int64),
            self.sums & _MASK,
            self.versioned,
        )


@dataclass(frozen=True, eq=False)
class Listed(Sequence[Entry]):
    """Entries of a folder, sorted by name; each is made when it is asked for, with its version and
    without its ETag."""

    names: npt.NDArray[np.uint8]
    """One after the other, UTF-8 (surrogateescape)."""
    ends: Int64Array
    """(N,): where each ends."""
    sizes: Int64Array
    """(N,) bytes; -2 for folders."""
    versions: Int64Array
    """(N,)."""
    sums: int
    """Of the `digest_of_entry` of all, modulo 2^128: another one if any is another, in whatever
    order they came."""
    versioned: bool
    """Whether all objects have an ETag or a time."""

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Listed:
        """Of entries in any order."""
        listing = Listing()
        if not listing.extend(entries):
            listing = Listing()
            listing.extend(sorted(entries, key=lambda entry: _encoded(entry.name)))
        return listing.built()

    @classmethod
    def joined(cls, parts: Sequence[Listed]) -> Listed:
        """Those of several, each of which comes after the one before."""
        before = np.cumsum([0, *(len(part.names) for part in parts)])
        ends = [part.ends + start for part, start in zip(parts, before.tolist(), strict=False)]
        empty = np.empty(0, np.int64)
        return cls(
            np.concatenate([np.empty(0, np.uint8), *(part.names for part in parts)]),
            np.concatenate([empty, *ends]),
            np.concatenate([empty, *(part.sizes for part in parts)]),
            np.concatenate([empty, *(part.versions for part in parts)]),
            sums=sum(part.sums for part in parts) & _MASK,
            versioned=all(part.versioned for part in parts),
        )

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> Entry:  # type: ignore[override]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        at = index % len(self)
        size, name = int(self.sizes[at]), self._name(at).decode("utf-8", "surrogateescape")
        known = int(self.versions[at])
        return Entry(name, size == _FOLDER, max(-1, size), known_version=known)

    def __iter__(self) -> Iterator[Entry]:
        return chain.from_iterable(map(self._some, range(0, len(self), _AT_ONCE)))

    def named(self) -> Iterator[tuple[str, bool]]:
        """(name, is a folder) of each, in a quarter of the time of entries."""
        for first in range(0, len(self), _AT_ONCE):
            folders = self.sizes[first : first + _AT_ONCE] == _FOLDER
            yield from zip(self._names(first), folders.tolist(), strict=True)

    def states_of(self, names: Iterable[str]) -> Iterator[tuple[int, int]]:
        """(version, bytes) of each of these objects; (0, -1) where there is none, and of folders.
        Names that come in order take a fifth of the time of `place_of`."""
        near, in_order, block = 0, 0, -1
        decoded, known = list[str](), list[tuple[int, int]]()
        for name in names:
            if in_order >= _IN_ORDER:
                number, at = divmod(near, _AT_ONCE)
                if number != block:
                    block, rows = number, slice(number * _AT_ONCE, (number + 1) * _AT_ONCE)
                    decoded = self._names(rows.start)
                    known = [*map(_state, self.versions[rows].tolist(), self.sizes[rows].tolist())]
                # Of several of one name the last one counts.
                if at + 1 < len(decoded) and decoded[at] == name != decoded[at + 1]:
                    yield known[at]
                    near += 1
                    continue
            place = self.place_of(name, near)
            in_order = in_order + 1 if place == near else 0
            yield _state(int(self.versions[place]), int(self.sizes[place])) if place >= 0 else _NONE
            near = place + 1 if place >= 0 else near

    def _some(self, first: int) -> list[Entry]:
        rows = slice(first, first + _AT_ONCE)
        columns = self._names(first), self.sizes[rows].tolist(), self.versions[rows].tolist()
        return [
            Entry(name, size == _FOLDER, max(-1, size), known_version=version)
            for name, size, version in zip(*columns, strict=True)
        ]

    def _names(self, first: int) -> list[str]:
        """The names of some from there on."""
        ends = self.ends[first : first + _AT_ONCE].tolist()
        start = int(self.ends[first - 1]) if first else 0
        blob = self.names[start : ends[-1] if ends else start].tobytes()
        starts = [start, *ends[:-1]]
        return [
            blob[begin - start : end - start].decode("utf-8", "surrogateescape")
            for begin, end in zip(starts, ends, strict=False)
        ]

    def _name(self, at: int) -> bytes:
        start = int(self.ends[at - 1]) if at else 0
        return self.names[start : int(self.ends[at])].tobytes()

    def place_of(self, name: str, near: int = 0) -> int:
        """The place of an entry, of several of one name the last; -1 where there is none. `near`: a
        place that is looked at first: where names are asked for in order, that after the last
        one."""
        wanted, count = _encoded(name), len(self)
        if near < count and self._name(near) == wanted:
            near += 1
            if near == count or self._name(near) != wanted:
                return near - 1
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if self._name(middle) <= wanted:
                low = middle + 1
            else:
                high = middle
        return low - 1 if low and self._name(low - 1) == wanted else -1

    @property
    def stamp(self) -> str:
        """A short fingerprint of all, without the index that may lie among them."""
        count = len(self) - (self.place_of(INDEX_NAME) >= 0)
        return hashlib.blake2b(f"{count} {self.sums}".encode(), digest_size=8).hexdigest()


def digest_of_entry(entry: Entry) -> int:
    """128 bits of an entry's name, size and version; 0 for the index."""
    if entry.name == INDEX_NAME:
        return 0
    text = f"{entry.name}\0{entry.is_folder}\0{entry.size}\0{entry.version}"
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return int.from_bytes(digest, "little")


def stamp_of(entries: Sequence[Entry]) -> str:
    """As `Listed.stamp`, of a few entries."""
    return Listed.of(entries).stamp


def _encoded(name: str) -> bytes:
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half of a character, as JSON may have it: no name of an object
        return name.encode("utf-8", "surrogatepass")


@dataclass
class Seen:
    """What stores answered while a data set was opened."""

    folders: dict[str, Listed] = field(default_factory=dict)
    """By URL, what is in them."""
    objects: dict[str, Entry | None] = field(default_factory=dict)
    """By URL, objects that were asked for one by one; None where there is none."""
    noted: dict[str, None] = field(default_factory=dict)
    """URLs of objects of which what was read is a part of what was opened (`noted`)."""
    _places: dict[str, int] = field(default_factory=dict)
    """By folder, the place in its listing after that of the entry that was asked for last."""

    def entry(self, folder: str, name: str) -> Entry | None:
        """The entry of this name in a folder that was listed; None where there is none."""
        listed = self.folders[folder]
        place = listed.place_of(name, self._places.get(folder, 0))
        if place < 0:
            return None
        self._places[folder] = place + 1
        return listed[place]

    def answer(self, url: str) -> tuple[bool, Entry | None]:
        """(whether it is known, the entry of an object; None where there is none)."""
        folder, _, name = url.rpartition("/")
        if folder in self.folders:
            return True, self.entry(folder, name)
        return url in self.objects, self.objects.get(url)

    def stamp(self) -> dict[str, str]:
        """A short fingerprint by URL, of folders (which end in a slash here) and objects; without
        the index that may be stored with them."""
        folders = {f"{url}/": listed.stamp for url, listed in self.folders.items()}
        alone = [url for url in self.objects if url.rpartition("/")[0] not in self.folders]
        alone += [url for url in self.decisive() if not url.endswith("/")]
        return folders | {url: _stamp_of_object(self.answer(url)[1]) for url in alone}

    def decisive(self) -> list[str]:
        """The URLs of the stamp that say of which versions the objects in `noted` are."""
        by_folder: dict[str, list[str]] = {}
        for url in self.noted:
            by_folder.setdefault(url.rpartition("/")[0], []).append(url)
        decisive = []
        for folder, urls in by_folder.items():
            # Each alone, where that takes no more requests than to list the folder.
            listed = self.folders.get(folder)
            alone = listed is None or len(urls) <= requests_of(len(listed))
            decisive += urls if alone else [f"{folder}/"]
        return decisive

    def has_versions(self) -> bool:
        """Whether the stores said of all objects which version they are."""
        alone = (entry for entry in self.objects.values() if entry is not None)
        known = all(each.version for each in alone if not each.is_folder)
        return known and all(listed.versioned for listed in self.folders.values())


_NONE = 0, -1


def _state(version: int, size: int) -> tuple[int, int]:
    return _NONE if size == _FOLDER else (version, size)


def requests_of(entries: int) -> int:
    """How many it takes to list a folder: a listing has 1,000 entries a request."""
    return 1 + entries // 1000


def _stamp_of_object(entry: Entry | None) -> str:
    return stamp_of(() if entry is None else (entry,))
