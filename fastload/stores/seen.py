"""What stores answered while a data set was opened, and short fingerprints of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from fastload.stores.base import Entry, plain_etag

# An index of the data set, beside the data (`fastload index --output`).
INDEX_NAME = "fastload.index"


@dataclass
class Seen:
    """What stores answered while a data set was opened."""

    folders: dict[str, tuple[Entry, ...]] = field(default_factory=dict)
    """By URL, what is in them."""
    objects: dict[str, Entry | None] = field(default_factory=dict)
    """By URL, objects that were asked for one by one; None where there is none."""
    noted: dict[str, None] = field(default_factory=dict)
    """URLs of objects of which what was read is a part of what was opened (`noted`)."""
    _names: dict[str, dict[str, Entry]] = field(default_factory=dict)

    def entry(self, folder: str, name: str) -> Entry | None:
        """The entry of this name in a folder that was listed; None where there is none."""
        if folder not in self._names:
            self._names[folder] = {entry.name: entry for entry in self.folders[folder]}
        return self._names[folder].get(name)

    def answer(self, url: str) -> tuple[bool, Entry | None]:
        """(whether it is known, the entry of an object; None where there is none)."""
        folder, _, name = url.rpartition("/")
        if folder in self.folders:
            return True, self.entry(folder, name)
        return url in self.objects, self.objects.get(url)

    def stamp(self) -> dict[str, str]:
        """A short fingerprint by URL, of folders (which end in a slash here) and objects; without
        the index that may be stored with them."""
        folders = {f"{url}/": stamp_of(entries) for url, entries in self.folders.items()}
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
        listed = (entry for entries in self.folders.values() for entry in entries)
        alone = (entry for entry in self.objects.values() if entry is not None)
        return all(plain_etag(e.etag) for e in (*listed, *alone) if not e.is_folder)


def requests_of(entries: int) -> int:
    """How many it takes to list a folder: a listing has 1,000 entries a request."""
    return 1 + entries // 1000


def _stamp_of_object(entry: Entry | None) -> str:
    return stamp_of(() if entry is None else (entry,))


def stamp_of(entries: Sequence[Entry]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for entry in entries:
        if entry.name == INDEX_NAME:
            continue
        text = f"{entry.name}\0{entry.is_folder}\0{entry.size}\0{plain_etag(entry.etag)}\n"
        digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
