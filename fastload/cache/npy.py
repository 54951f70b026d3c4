"""`.npy` files that are written front to back, before their shape is known."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["NpyWriter", "write_npy"]

_HEADER_BYTES = 256
"""Of the whole header: room for any shape; a multiple of 64, as the format asks, so that pixels are aligned."""


class NpyWriter:
    """Appends arrays to a new `.npy` file; `finish` says what shape they have together.

    It uses `write` and not a writable memory map, because a full disk is an OSError for the one and a SIGBUS for the
    other.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.nbytes = 0
        """Bytes appended so far."""
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by `finish` or `close`
        self._file.write(bytes(_HEADER_BYTES))

    def append(self, array: npt.NDArray[Any]) -> None:
        """Write the bytes of an array behind the others. Raises OSError, such as ENOSPC."""
        rest = np.ascontiguousarray(array).data.cast("B")
        self.nbytes += len(rest)
        while len(rest):
            rest = rest[self._file.write(rest) :]

    def skip(self, nbytes: int) -> None:
        """Leave a gap of zeros."""
        self._file.seek(nbytes, os.SEEK_CUR)
        self.nbytes += nbytes

    def finish(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> None:
        """Write the header and flush to the disk; the bytes appended must be those of this dtype and shape."""
        dtype = np.dtype(dtype)
        assert int(np.prod(shape, dtype=np.int64)) * dtype.itemsize == self.nbytes
        # Format version 1.0: magic, version, length of the text, the text padded with spaces and ended by a newline
        # (numpy.lib.format describes it).
        text = repr({"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape})
        header = b"\x93NUMPY\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little")
        header += text.encode("latin1").ljust(_HEADER_BYTES - 11) + b"\n"
        assert len(header) == _HEADER_BYTES
        self._file.truncate(_HEADER_BYTES + self.nbytes)
        self._file.seek(0)
        self._file.write(header)
        os.fsync(self._file.fileno())
        self.close()

    def close(self) -> None:
        """Close the file as it is. May be called twice."""
        self._file.close()


def write_npy(path: Path, array: npt.NDArray[Any], rows: npt.NDArray[np.int64] | None = None) -> None:
    """Write an array, or these rows of it, some 16 MiB at a time: it may be a memory map larger than memory."""
    count = len(array) if rows is None else len(rows)
    row_bytes = max(1, array.nbytes // max(1, len(array)))
    step = max(1, (16 << 20) // row_bytes)
    writer = NpyWriter(path)
    try:
        for start in range(0, count, step):
            piece = slice(start, start + step)
            writer.append(array[piece] if rows is None else array[rows[piece]])
        writer.finish(array.dtype, (count, *array.shape[1:]))
    finally:
        writer.close()
