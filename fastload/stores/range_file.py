"""A file of a store or a disk, for libraries that read files."""

from __future__ import annotations

import io
import os
from typing import Any

from fastload import stores


class RangeFile(io.RawIOBase):
    """A file to read at random; of a store each read is a request. Opened while a data set is being
    opened, it is of the version that was seen then. Reading and seeking raise OSError."""

    def __init__(self, path: str) -> None:
        """Raises OSError: there is no such file."""
        self._path, self._at, self._size = path, 0, stores.size_of(path)
        if self._size < 0:
            raise FileNotFoundError(f"{path}: no such file")
        remote = stores.is_remote(path)
        self._version = int(stores.versions_of([path])[0]) if remote else 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if at < 0:
            raise OSError(f"{self._path}: has no byte {at}")
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        length = max(0, min(len(view), self._size - self._at))
        data = stores.read_up_to(self._path, length, self._at, self._version) if length else b""
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
