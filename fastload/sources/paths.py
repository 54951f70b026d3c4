"""Millions of paths in two numpy arrays."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, islice

import numpy as np
import numpy.typing as npt

from fastload.sources.buffers import PickledByReference


@dataclass(frozen=True)
class PathTable(PickledByReference):
    """An immutable list of strings: one byte blob and where each string ends, under a common root.

    A Python list of a million paths takes some 150 MB and, in forked workers, is copied page by page as reference
    counts are touched. This takes the bytes of the names and 8 bytes each, and has no reference counts.
    """

    root: str
    """Prepended to every string with a "/"; "" for none."""
    blob: npt.NDArray[np.uint8]
    """All strings, UTF-8 (surrogateescape, as file names are), one behind the other."""
    ends: npt.NDArray[np.int64]
    """(M,) int64: where each string ends in `blob`."""
    rows: npt.NDArray[np.int64] | None = None
    """(N,) int64: which string each entry is; None for all, in order."""

    @classmethod
    def of(cls, strings: Iterable[str], root: str = "") -> PathTable:
        """Store strings (relative to `root`), taking them one at a time."""
        builder, left = PathTableBuilder(), iter(strings)
        while some := list(islice(left, 4096)):
            builder.extend(some)
        return builder.build(root)

    def __len__(self) -> int:
        return len(self.ends) if self.rows is None else len(self.rows)

    def __getitem__(self, index: int) -> str:
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"path {index} of {len(self)}")
        row = index if self.rows is None else int(self.rows[index])
        start = int(self.ends[row - 1]) if row else 0
        name = self.blob[start : int(self.ends[row])].tobytes().decode("utf-8", "surrogateescape")
        return f"{self.root}/{name}" if self.root else name

    def take(self, indices: npt.NDArray[np.int64]) -> PathTable:
        return PathTable(self.root, self.blob, self.ends, indices if self.rows is None else self.rows[indices])

    def digest(self) -> bytes:
        """16 bytes (BLAKE2b) over all strings and their order, without the root. Some 50 ms for a million paths."""
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.blob, self.ends, self.rows):
            if part is not None:
                digest.update(np.ascontiguousarray(part).data)
        return digest.digest()


class PathTableBuilder:
    """Collects strings one at a time, in as much memory as the table takes."""

    def __init__(self) -> None:
        self._blob = bytearray()
        self._ends = array("q")

    def append(self, string: str) -> None:
        self.extend((string,))

    def extend(self, strings: Iterable[str]) -> None:
        encoded = [string.encode("utf-8", "surrogateescape") for string in strings]
        self._ends.extend(islice(accumulate(map(len, encoded), initial=len(self._blob)), 1, None))
        self._blob += b"".join(encoded)

    def build(self, root: str = "") -> PathTable:
        """The table of what was appended; ends the collection."""
        return PathTable(root, np.frombuffer(self._blob, dtype=np.uint8), np.frombuffer(self._ends, dtype=np.int64))
