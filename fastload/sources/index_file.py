"""The file of an index: named arrays, memory-mapped, and a header.

16 bytes that name the format, the length of the header (8 bytes, little endian), the header (JSON:
what the arrays are called, their dtype, shape and place, and all else), the arrays, each at a
multiple of 64 bytes, and 16 bytes (BLAKE2b) over everything before.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import SourceError
from fastload.files import open_regular, replacing

Arrays = dict[str, npt.NDArray[Any]]

_MAGIC = b"fastload index 2"
NUMBERS = "biufc"
"""Kinds of dtypes that an index holds."""
WRONG = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What a header that is not as it should be raises where it is read."""
_ALIGNED = 64
_MOST_HEADER = 1 << 30


def write_index(path: Path, header: Mapping[str, Any], arrays: Arrays) -> None:
    """Write named arrays and a header (whatever JSON has) to one file, whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    sections, at = {}, 0
    for name, array in arrays.items():
        sections[name] = {"dtype": array.dtype.str, "shape": array.shape, "at": at}
        at += -(-array.nbytes // _ALIGNED) * _ALIGNED
    text = json.dumps({**header, "sections": sections}).encode()
    text += b" " * (-(len(_MAGIC) + 8 + len(text)) % _ALIGNED)
    path.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.blake2b(digest_size=16)
    with replacing(path) as beside, open(beside, "xb") as file:

        def write(data: bytes | memoryview) -> None:
            digest.update(data)
            file.write(data)

        write(_MAGIC + len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            if array.nbytes:
                write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            write(bytes(-array.nbytes % _ALIGNED))
        file.write(digest.digest())
        file.flush()
        os.fsync(file.fileno())


def read_index(path: Path) -> tuple[dict[str, Any], Arrays]:
    """(header, arrays mapped from the file).

    Raises:
        OSError: it cannot be read.
        SourceError: it is no index, of another version, or damaged.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(len(_MAGIC)) != _MAGIC:
            raise SourceError(f"{path}: no index of this version of fastload; make it again.")
        length = int.from_bytes(file.read(8), "little")
        text = file.read(min(length, _MOST_HEADER))
        digest = hashlib.blake2b(_MAGIC + length.to_bytes(8, "little") + text, digest_size=16)
        tail = b""
        while block := file.read(1 << 20):
            block = tail + block
            tail = block[-16:]
            digest.update(memoryview(block)[:-16])
    if digest.digest() != tail:
        raise SourceError(f"{path}: this index is damaged or not whole; make it again.")
    begin, end = len(_MAGIC) + 8 + length, size - len(tail)
    arrays: Arrays = {}
    try:
        header: dict[str, Any] = json.loads(text)
        for name, section in header.pop("sections").items():
            arrays[name] = _mapped(path, section, begin, end)
    except WRONG as error:
        raise SourceError(f"{path}: this is no index ({error}); make it again.") from None
    return header, arrays


def _mapped(path: Path, section: Mapping[str, Any], begin: int, end: int) -> npt.NDArray[Any]:
    """An array of the file, which has them from `begin` to `end`. Raises ValueError."""
    dtype, shape, at = np.dtype(section["dtype"]), tuple(section["shape"]), section["at"]
    counts = [at, *shape]
    sound = dtype.kind in NUMBERS and all(type(count) is int and count >= 0 for count in counts)
    if not sound or at % _ALIGNED or begin + at + math.prod(shape) * dtype.itemsize > end:
        raise ValueError(f"an array that is not in it: {dict(section)}")
    if not math.prod(shape):
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", begin + at, shape)
