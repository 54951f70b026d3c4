"""The header of a `.safetensors` file, which says where its tensors lie."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fastload import stores
from fastload.errors import SourceError
from fastload.sources.file_rows import BFLOAT16

_DTYPES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    BFLOAT16: BFLOAT16,
    "F32": "<f4",
    "F64": "<f8",
}
"""numpy's dtypes by those of the format."""
_LARGEST_HEADER = 100_000_000
"""Bytes, of the format's own description."""


class Tensor(NamedTuple):
    stored: str
    """`FileRows.stored`."""
    shape: tuple[int, ...]
    begin: int
    end: int


def tensors_in(path: str) -> tuple[dict[str, Tensor], int]:
    """The tensors of a file by name, in the order of their bytes, and where the first byte of all
    is.

    Format: 8 bytes with the length of the header, little-endian; the header, JSON; and the bytes of
    the tensors, at places relative to the header's end (its README by Hugging Face).

    Raises SourceError: the file cannot be read, or is damaged.
    """
    size = stores.size_of(path)
    try:
        (length,) = struct.unpack("<Q", stores.read(path, 0, 8))
        if not 2 <= length <= min(_LARGEST_HEADER, size - 8):
            raise ValueError(f"a header of {length:,} bytes")
        header = json.loads(stores.read(path, 8, length))
        header.pop("__metadata__", None)
        tensors = {key: _tensor_of(path, key, one) for key, one in header.items()}
    except (
        *(OSError, ValueError, LookupError, AttributeError, TypeError),
        *(OverflowError, RecursionError),
    ) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{path}: cannot be read as safetensors ({error}).") from error
    start = 8 + length
    for key, one in tensors.items():
        count = math.prod(one.shape)
        width = 2 if one.stored == BFLOAT16 else np.dtype(one.stored).itemsize
        inside = 0 <= one.begin <= one.end and start + one.end <= size
        if not inside or count * width != one.end - one.begin or min(one.shape, default=0) < 0:
            raise SourceError(
                f"{path}: {key} is not where its header says; the file is truncated or damaged, "
                "write it again."
            )
    tensors = dict(sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)))
    ends = [0, *(one.end for one in tensors.values())]
    for (key, one), end in zip(tensors.items(), ends, strict=False):
        if one.begin != end:
            what = "overlaps another one" if one.begin < end else "begins after bytes of no tensor"
            raise SourceError(
                f"{path}: {key} {what}, which the format forbids (or two have one name); write the "
                "file again."
            )
    return tensors, start


def _tensor_of(path: str, key: str, said: Mapping[str, Any]) -> Tensor:
    stored = _DTYPES.get(said["dtype"])
    if stored is None:
        raise SourceError(f"{path}: {key} is of {said['dtype']}, which is not read; convert it.")
    (begin, end), shape = said["data_offsets"], said["shape"]
    if not all(type(number) is int for number in (begin, end, *shape)):
        raise ValueError(f"{key}: shape {shape}, bytes {begin} to {end}, not all whole numbers")
    np.empty((0, *shape), np.uint8)  # ValueError: numpy has no such shape
    return Tensor(stored, tuple(shape), begin, end)
