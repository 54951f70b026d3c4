"""One short fingerprint of anything that states and caches are checked against: samples, recipes,
orders."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

FULLY_FINGERPRINTED = 16 << 20
"""Bytes of an array of which all count."""
_BLOCK = 4096
"""Bytes of the blocks that are taken of a larger one, at least."""


def fingerprint_of(*parts: Any) -> str:
    """32 hex digits (BLAKE2b) over strings, bytes, ints and numpy arrays; stable over processes and
    machines.

    It must be cheap to take at each start, from a file of any size: of an array above 16 MiB, only
    blocks of rows count, some 256 of them spread evenly. Metadata (labels, paths) is below that at
    a million samples.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype.str}{part.shape}".encode())
            for block in _blocks_of(part):
                digest.update(np.ascontiguousarray(block).tobytes())
        else:
            data = part if isinstance(part, bytes) else repr(part).encode()
            digest.update(f"{type(part).__name__}{len(data)}:".encode() + data)
    return digest.hexdigest()


def _blocks_of(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """The array, or evenly spread blocks of rows of a large one."""
    if array.nbytes <= FULLY_FINGERPRINTED:
        yield array
        return
    row_bytes = array.nbytes // len(array)
    rows = max(1, _BLOCK // row_bytes)
    count = max(16, min(256, FULLY_FINGERPRINTED // (rows * row_bytes)))
    for start in np.linspace(0, max(0, len(array) - rows), count).astype(np.int64):
        yield array[start : start + rows]
