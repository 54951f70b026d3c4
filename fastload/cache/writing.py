"""The files of a cache, column by column."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.cache.npy import NpyWriter, write_npy
from fastload.cache.samples import ImageColumn
from fastload.errors import DecodeError
from fastload.sources.built_cache import ArrayFile, ColumnEntry
from fastload.sources.columns import ValueArray

__all__ = ["ColumnWriter", "file_stem", "write_values"]


def file_stem(name: str, position: int) -> str:
    """What the files of a column are called: its name, where that is a safe file name."""
    safe = name.isascii() and name.replace("_", "").isalnum() and len(name) <= 64
    return name if safe else f"column{position}"


class ColumnWriter:
    """Takes the images of one column in order, and finds out by itself whether all have one size."""

    def __init__(self, directory: Path, stem: str, column: ImageColumn, count: int, typical: tuple[int, int]) -> None:
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
        self._pixels.finish(np.uint8, shape)
        arrays["array"] = ArrayFile(f"{self._stem}.npy", "|u1", shape)
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


def write_values(directory: Path, stem: str, column: ValueArray) -> ColumnEntry:
    """Write a column of values. Raises OSError."""
    return ColumnEntry("values", "value", {"array": _save(directory, f"{stem}.npy", column.array, column.rows)})


def _save(directory: Path, file: str, array: npt.NDArray[Any], rows: npt.NDArray[np.int64] | None = None) -> ArrayFile:
    write_npy(directory / file, array, rows)
    count = len(array) if rows is None else len(rows)
    return ArrayFile(file, array.dtype.str, (count, *array.shape[1:]))
