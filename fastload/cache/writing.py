"""The files of a cache: `.npy` files written front to back before their shape is known, and checked
afterwards.

Disks and copies lose and flip bytes without saying so.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.cache import stamps
from fastload.cache.manifest import (
    HEADER_BYTES,
    ArrayFile,
    ColumnEntry,
    Manifest,
    checksum_of,
    read_manifest,
    remedy,
    sampled_checksum_of,
)
from fastload.cache.progress import ColumnProgress
from fastload.cache.reading import source_of
from fastload.cache.samples import ImageSpec
from fastload.checksum import crc32
from fastload.errors import CacheError, DecodeError
from fastload.files import open_regular
from fastload.geometry.points import PointMap
from fastload.sources.columns import Values
from fastload.sources.kinds import Rows, transformed
from fastload.sources.ragged import Ragged, offsets_of


class NpyWriter:
    """Appends arrays to a `.npy` file, a new one or in place of what a killed build has left;
    `finish` says what shape they have together.

    It uses `write` and not a writable memory map, because a full disk is an OSError for the one and
    a SIGBUS for the other.
    """

    def __init__(self, path: Path, *, kept: int = 0, checksum: int = 0) -> None:
        """`kept`: how many of the bytes that an earlier writer appended stay, and their CRC-32.
        Raises ValueError: they are not there, or others."""
        self.path = path
        self.nbytes = kept
        """Bytes appended so far."""
        self.checksum = checksum
        """CRC-32 of them, and of the header once it is written: of what was given, whatever the
        disk makes of it."""
        # Closed by `finish` or `close`.
        self._file = open(path, "r+b" if kept else "wb", buffering=0)  # noqa: SIM115
        if kept and _begins_with(path, kept, checksum):
            self._file.truncate(HEADER_BYTES + kept)
            self._file.seek(HEADER_BYTES + kept)
        elif kept:
            self._file.close()
            raise ValueError(f"{path}: not the {kept} bytes that were written")
        else:
            self._file.write(bytes(HEADER_BYTES))

    def append(self, array: npt.NDArray[Any]) -> None:
        """Write the bytes of an array after the others. Raises OSError, such as ENOSPC."""
        if not array.size:
            return  # memoryview casts none of these
        rest = np.ascontiguousarray(array).data.cast("B")
        self.nbytes += len(rest)
        self.checksum = crc32(rest, self.checksum)
        while len(rest):
            rest = rest[self._file.write(rest) :]

    def finish(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> ArrayFile:
        """Write the header and flush to the disk; the bytes appended must be those of this dtype
        and shape."""
        dtype = np.dtype(dtype)
        assert int(np.prod(shape, dtype=np.int64)) * dtype.itemsize == self.nbytes
        # Format version 1.0: magic, version, length of the text, the text padded with spaces and
        # ended by a newline (numpy.lib.format describes it).
        text = repr(
            {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        )
        header = b"\x93NUMPY\x01\x00" + (HEADER_BYTES - 10).to_bytes(2, "little")
        header += text.encode("latin1").ljust(HEADER_BYTES - 11) + b"\n"
        assert len(header) == HEADER_BYTES
        self._file.truncate(HEADER_BYTES + self.nbytes)
        self._file.seek(0)
        self._file.write(header)
        os.fsync(self._file.fileno())
        self.close()
        self.checksum = crc32(header, self.checksum)
        sampled = sampled_checksum_of(self.path)
        return ArrayFile(self.path.name, dtype.str, shape, self.checksum, sampled)

    def close(self) -> None:
        """Close the file as it is. May be called twice."""
        self._file.close()


class ColumnWriter:
    """Takes the images of one column in order, and finds out by itself whether all have one
    size."""

    def __init__(
        self,
        stem: Path,
        column: ImageSpec,
        count: int,
        typical: tuple[int, int],
        before: ColumnProgress | None = None,
    ) -> None:
        """`count` images go to files whose paths begin with `stem`; `typical`: (height, width) of
        what stands for images that cannot be decoded; `before`: what an earlier writer has written.
        Raises ValueError: that is not what is there."""
        self._stem, self._column = stem, column
        self._sizes = np.empty((count, 2), dtype=np.int32)
        self._offsets = np.empty(count, dtype=np.int64)
        self._row, kept = 0, 0
        self._typical = typical
        self._failed: dict[int, str] = {}
        if before is not None:
            self._row = len(before.sizes)
            lengths = before.sizes.astype(np.int64).prod(axis=1) * column.channels
            ends = lengths.cumsum()
            kept = int(lengths.sum()) * column.dtype.itemsize
            self._sizes[: self._row] = before.sizes
            self._offsets[: self._row] = ends - lengths
            self._failed.update(before.failed)
        checksum = 0 if before is None else before.checksum
        self._pixels = NpyWriter(Path(f"{stem}.npy"), kept=kept, checksum=checksum)

    @property
    def progress(self) -> ColumnProgress:
        """What is written by now."""
        return ColumnProgress(self._sizes[: self._row], self._failed, self._pixels.checksum)

    def append(self, image: npt.NDArray[Any] | DecodeError) -> None:
        """Write the next image; in place of a failed one, zeros of the typical size. Raises
        OSError."""
        self._offsets[self._row] = self._pixels.nbytes // self._column.dtype.itemsize
        if isinstance(image, DecodeError):
            self._failed[self._row] = str(image)
            image = np.zeros((*self._typical, self._column.channels), self._column.dtype)
        assert (image.shape[2], image.dtype) == (self._column.channels, self._column.dtype)
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
            shape = (self._pixels.nbytes // self._column.dtype.itemsize,)
            arrays["sizes"] = _save(f"{self._stem}.sizes.npy", self._sizes)
            arrays["offsets"] = _save(f"{self._stem}.offsets.npy", self._offsets)
        arrays["array"] = self._pixels.finish(self._column.dtype, shape)
        names = self._column.names
        if names is not None:
            for key, array in (("blob", names.blob), ("ends", names.ends), ("rows", names.rows)):
                if array is not None:
                    arrays[f"name_{key}"] = _save(f"{self._stem}.name_{key}.npy", array)
        return ColumnEntry(
            kind="pixels",
            role=self._column.role,
            arrays=arrays,
            channels=self._column.channels,
            name_root="" if names is None else names.root,
            failed=self._failed,
        )

    def close(self) -> None:
        """Close the file of a build that failed."""
        with contextlib.suppress(OSError):
            self._pixels.close()


def write_values(
    stem: Path, column: Values, points: Callable[[npt.NDArray[np.int64]], PointMap] | None = None
) -> ColumnEntry:
    """Write a column of values, some 16 MiB at a time: it may be larger than memory. `points`: how
    samples of these indices are transformed, if they are. Raises OSError."""

    def rows(indices: npt.NDArray[np.int64]) -> Rows:
        values = column.at(indices)
        return values if points is None else transformed(column.kind, values, points(indices))

    count = len(column)
    step = max(1, (16 << 20) * count // max(1, column.nbytes))
    parts = (rows(np.arange(start, min(start + step, count))) for start in range(0, count, step))
    if column.ragged:
        return _write_ragged(stem, column.role, parts)
    one = rows(np.zeros(1, dtype=np.int64))
    with contextlib.closing(NpyWriter(Path(f"{stem}.npy"))) as writer:
        for part in parts:
            writer.append(part)
        return ColumnEntry(
            "values", column.role, {"array": writer.finish(one.dtype, (count, *one.shape[1:]))}
        )


def _write_ragged(stem: Path, role: str, parts: Iterator[Ragged]) -> ColumnEntry:
    """Write rows of variable length: the elements as `array`, the offsets as `offsets0`, of rows
    that consist of such rows `offsets1`, and so on."""
    lengths: list[list[npt.NDArray[np.int64]]] = []
    dtype, trailing, elements = np.dtype(np.uint8), tuple[int, ...](), 0
    with contextlib.closing(NpyWriter(Path(f"{stem}.npy"))) as writer:
        for part in parts:
            rows: Any = part
            level = 0
            while isinstance(rows, Ragged):
                lengths += [[]] * (level == len(lengths))
                lengths[level] = [*lengths[level], rows.lengths]
                rows, level = rows.values, level + 1
            writer.append(rows)
            dtype, trailing, elements = rows.dtype, rows.shape[1:], elements + len(rows)
        arrays = {"array": writer.finish(dtype, (elements, *trailing))}
    for level, of_level in enumerate(lengths):
        offsets = offsets_of(np.concatenate(of_level))
        arrays[f"offsets{level}"] = _save(f"{stem}.offsets{level}.npy", offsets)
    return ColumnEntry("ragged", role, arrays)


def _save(path: str, array: npt.NDArray[Any]) -> ArrayFile:
    with contextlib.closing(NpyWriter(Path(path))) as writer:
        writer.append(array)
        return writer.finish(array.dtype, array.shape)


def verify_cache(directory: str | os.PathLike[str]) -> Manifest:
    """Read a cache whole and check every file against the checksum (CRC-32) that was noted when it
    was written.

    It takes as long as reading takes, or a second a gigabyte. Returns what the cache says of
    itself.

    Raises:
        CacheError: there is none, it is damaged (the message names the file), or too old to have
            checksums.
    """
    path = Path(directory)
    manifest = read_manifest(path)
    source_of(path, manifest)
    arrays = [array for column in manifest.columns.values() for array in column.arrays.values()]
    if any(array.checksum is None for array in arrays):
        raise CacheError(
            f"{path}: an older fastload built this cache, without checksums. {remedy(path)}"
        )
    for array in arrays:
        try:
            actual = checksum_of(path / array.file)
        except OSError as error:
            raise CacheError(
                f"{path / array.file}: cannot be read: {error}. {remedy(path)}"
            ) from error
        if actual != array.checksum:
            raise CacheError(
                f"{path / array.file}: is not what was written: its checksum is {actual:08x}, not "
                f"{array.checksum:08x}. The disk, a copy or another program has changed it. "
                f"{remedy(path)}"
            )
    if stamps.is_damaged(path):
        raise CacheError(f"{path / stamps.FILE_NAME}: is not what was written. {remedy(path)}")
    return manifest


def _begins_with(path: Path, count: int, checksum: int) -> bool:
    """Whether so many bytes of this CRC-32 follow the header. Raises OSError."""
    computed = 0
    with open_regular(path, buffering=0) as file:
        file.seek(HEADER_BYTES)
        while count and (block := file.read(min(count, 4 << 20))):
            computed = crc32(block, computed)
            count -= len(block)
    return count == 0 and computed == checksum
