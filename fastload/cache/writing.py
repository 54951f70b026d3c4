"""The files of a cache, column by column: `.npy` files that are written front to back, before their shape is known."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.cache.samples import ImageSpec
from fastload.errors import DecodeError
from fastload.files import open_regular
from fastload.sources.base import Values
from fastload.sources.built_cache import ArrayFile, ColumnEntry

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
        self.checksum = 0
        """CRC-32 of them, and of the header once it is written: of what was given, whatever the disk makes of it."""
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by `finish` or `close`
        self._file.write(bytes(_HEADER_BYTES))

    def append(self, array: npt.NDArray[Any]) -> None:
        """Write the bytes of an array behind the others. Raises OSError, such as ENOSPC."""
        rest = np.ascontiguousarray(array).data.cast("B")
        self.nbytes += len(rest)
        self.checksum = zlib.crc32(rest, self.checksum)
        while len(rest):
            rest = rest[self._file.write(rest) :]

    def skip(self, nbytes: int) -> None:
        """Leave a gap of zeros."""
        self._file.seek(nbytes, os.SEEK_CUR)
        self.nbytes += nbytes
        self.checksum = zlib.crc32(bytes(nbytes), self.checksum)

    def finish(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> ArrayFile:
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
        self.checksum = zlib.crc32(header, self.checksum)
        return ArrayFile(self.path.name, dtype.str, shape, self.checksum)

    def close(self) -> None:
        """Close the file as it is. May be called twice."""
        self._file.close()


def file_stem(name: str, position: int) -> str:
    """What the files of a column are called: its name, where that is a safe file name."""
    safe = name.isascii() and name.replace("_", "").isalnum() and len(name) <= 64
    return name if safe else f"column{position}"


def checksum_of(path: Path) -> int:
    """What `NpyWriter.checksum` was for the file, if it holds what was written. Raises OSError."""
    with open_regular(path, buffering=0) as file:
        header = file.read(_HEADER_BYTES)
        checksum = 0
        while block := file.read(4 << 20):
            checksum = zlib.crc32(block, checksum)
    return zlib.crc32(header, checksum)


class ColumnWriter:
    """Takes the images of one column in order, and finds out by itself whether all have one size."""

    def __init__(self, directory: Path, stem: str, column: ImageSpec, count: int, typical: tuple[int, int]) -> None:
        self._directory, self._stem, self._column = directory, stem, column
        self._pixels = NpyWriter(directory / f"{stem}.npy")
        self._sizes = np.empty((count, 2), dtype=np.int32)
        self._offsets = np.empty(count, dtype=np.int64)
        self._row = 0
        self._typical = typical
        self._failed: dict[int, str] = {}

    def append(self, image: npt.NDArray[np.uint8] | DecodeError) -> None:
        """Write the next image; in place of a failed one, zeros of the typical size. Raises OSError."""
        self._offsets[self._row] = self._pixels.nbytes
        if isinstance(image, DecodeError):
            self._failed[self._row] = str(image)
            self._sizes[self._row] = self._typical
            self._pixels.skip(self._typical[0] * self._typical[1] * self._column.channels)
        else:
            self._sizes[self._row] = image.shape[:2]
            self._pixels.append(image)
        self._row += 1

    def finish(self) -> ColumnEntry:
        """Write everything else, flush to the disk, and say what was written. Raises OSError."""
        assert self._row == len(self._sizes)
        arrays: dict[str, ArrayFile] = {}
        if (self._sizes == self._sizes[0]).all():
            shape: tuple[int, ...] = (self._row, *map(int, self._sizes[0]), self._column.channels)
        else:
            shape = (self._pixels.nbytes,)
            arrays["sizes"] = _save(self._directory, f"{self._stem}.sizes.npy", self._sizes)
            arrays["offsets"] = _save(self._directory, f"{self._stem}.offsets.npy", self._offsets)
        arrays["array"] = self._pixels.finish(np.uint8, shape)
        names = self._column.names
        if names is not None:
            for key, array in (("blob", names.blob), ("ends", names.ends), ("rows", names.rows)):
                if array is not None:
                    arrays[f"name_{key}"] = _save(self._directory, f"{self._stem}.name_{key}.npy", array)
        return ColumnEntry(
            kind="pixels",
            role=self._column.role,
            arrays=arrays,
            channels=self._column.channels,
            name_root="" if names is None else names.root,
            failed=self._failed,
        )

    def close(self) -> None:
        """Let go of the file of a build that failed."""
        with contextlib.suppress(OSError):
            self._pixels.close()


def write_values(directory: Path, stem: str, column: Values) -> ColumnEntry:
    """Write a column of values, some 16 MiB at a time: it may be larger than memory. Raises OSError."""
    one = column.at(np.zeros(1, dtype=np.int64))
    step = max(1, (16 << 20) // max(1, one.nbytes))
    shape = (len(column), *one.shape[1:])
    with contextlib.closing(NpyWriter(directory / f"{stem}.npy")) as writer:
        for start in range(0, len(column), step):
            writer.append(column.at(np.arange(start, min(start + step, len(column)))))
        return ColumnEntry("values", "value", {"array": writer.finish(one.dtype, shape)})


def _save(directory: Path, file: str, array: npt.NDArray[Any]) -> ArrayFile:
    with contextlib.closing(NpyWriter(directory / file)) as writer:
        writer.append(array)
        return writer.finish(array.dtype, array.shape)
