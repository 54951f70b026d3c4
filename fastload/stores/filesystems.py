"""Whatever fsspec reads, for the schemes that obstore does not have: `hf://`, `memory://`,
`sftp://`..."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from fastload.stores.base import Piece, Store
from fastload.stores.seen import Entry


class FileSystemStore(Store):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._system: Any = importlib.import_module("fsspec").url_to_fs(url)[0]  # the host, too

    def by_whom(self) -> str:
        return "by fsspec"

    def _path(self, name: str) -> str:
        return str(self._system._strip_protocol(f"{self.url}/{name}" if name else self.url))

    def _read(self, name: str, start: int, length: int | None) -> Piece:
        end = None if length is None else start + length
        data = bytes(self._system.cat_file(self._path(name), start=start or None, end=end))
        return Piece(data)  # fsspec does not say of which version they are

    def _list(self, folder: str) -> list[Entry]:
        path = self._path(folder)
        try:
            self._system.invalidate_cache(path)  # fsspec keeps the first listing.
            listed = self._system.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [_entry(item) for item in listed if item["name"].strip("/") != path.strip("/")]

    def _info(self, name: str) -> Entry | None:
        path = self._path(name)
        try:
            self._system.invalidate_cache(self._system._parent(path))
            item = self._system.info(path)
        except FileNotFoundError:
            return None
        return None if item["type"] == "directory" else _entry(item)

    def _write(self, name: str, data: bytes | Path) -> None:
        if isinstance(data, Path):
            self._system.put_file(str(data), self._path(name))
        else:
            self._system.pipe_file(self._path(name), data)

    def _remove(self, name: str) -> None:
        self._system.rm_file(self._path(name))


def _entry(item: dict[str, Any]) -> Entry:
    etag = str(item.get("ETag") or item.get("etag") or item.get("blob_id") or "")
    name = item["name"].rstrip("/").rpartition("/")[2]
    return Entry(name, item["type"] == "directory", int(item.get("size") or 0), etag)
