"""Rows of numbers, or texts, that lie in files and are read when a batch needs them: latents and
embeddings in a file each, or side by side in one."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from fastload.errors import DecodeError, SourceError
from fastload.files import state_of
from fastload.sources.buffers import AnyArray, Int64Array
from fastload.sources.columns import EncodedFiles, Values
from fastload.sources.kinds import VALUE, check_rows
from fastload.sources.ragged import Ragged, offsets_of
from fastload.sources.texts import TEXT, text_of_file

BFLOAT16 = "BF16"
"""How a row of these is called: it is served as float32, which has all its values. numpy has no
such dtype."""
_AT_ONCE = 1024
"""Rows that are read together for their lengths."""


@dataclass(frozen=True)
class FileRows(Values):
    """Arrays of one dtype and shape, in `.npy` files, or as they are in parts of files."""

    files: EncodedFiles
    """The file, or the part of one, of each row."""
    dtype: np.dtype[Any]
    """As it is served."""
    shape: tuple[int, ...]
    """Of a row."""
    role: str = VALUE.name
    stored: str = ""
    """Of parts of files: the dtype there (numpy's, or `BFLOAT16`). Empty: each is a `.npy` file."""
    header: bytes = b""
    """How `.npy` files of this dtype and shape begin, as the first does: to read a header as numpy
    does takes 30 us. Empty: not known."""
    seen: tuple[int, ...] | None = None
    """Of parts of a file on a local disk: its `state_of` before it was read where they lie."""

    @property
    def within(self) -> tuple[EncodedFiles, ...]:
        """The columns of files that it reads."""
        return (self.files,)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def nbytes(self) -> int:
        return len(self) * int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def at(self, indices: Int64Array) -> Any:
        """Raises DecodeError: a row cannot be read, or is not as the first one."""
        rows = np.empty((len(indices), *self.shape), dtype=self.dtype)
        for row, array in enumerate(self.arrays(indices)):
            if array.shape != self.shape or array.dtype != self.dtype:
                raise self.unlike(int(indices[row]), array)
            rows[row] = array
        check_rows(self.kind, rows, self.files.paths[0])
        return rows

    def arrays(self, indices: Int64Array) -> Sequence[AnyArray]:
        """The rows one by one.

        Raises:
            DecodeError: one cannot be read.
            SourceError: the file of which they are parts was written again, so that these bytes may
                be of another row.
        """
        read = read_rows(self.files, indices)
        if self.seen is not None and state_of(path := self.files.paths[0]) != self.seen:
            raise SourceError(
                f"{path}: was written again since it was opened, so that its rows lie elsewhere; "
                "join it again."
            )
        return [
            self._array(index, data) for index, data in zip(indices.tolist(), read, strict=True)
        ]

    def unlike(self, index: int, array: AnyArray) -> DecodeError:
        """The error for a row that differs from the first one."""
        return DecodeError(
            f"{self.describe(index)}: holds {array.dtype}{list(array.shape)}, and the first row of "
            f"this column {self.dtype}{list(self.shape)}; make them alike. If they are to differ "
            "in their first dimension: fastload.Partner(..., ragged=True)."
        )

    def describe(self, index: int) -> str:
        return self.files.describe(index)

    def take(self, indices: Int64Array) -> FileRows:
        return replace(self, files=self.files.take(indices))

    def _array(self, index: int, data: bytes) -> AnyArray:
        if self.header and data.startswith(self.header):
            count = len(data) - len(self.header)
            if 0 < count == int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize:
                flat = np.frombuffer(data, self.dtype, offset=len(self.header))
                return flat.reshape(self.shape)
        if not self.stored:
            return array_of_npy(self.describe(index), data)
        return from_bytes(data, self.stored).reshape(self._shape_of(data))

    def _shape_of(self, data: bytes) -> tuple[int, ...]:
        """Of a row of a part of a file."""
        return self.shape


@dataclass(frozen=True)
class RaggedFileRows(FileRows):
    """The same, of arrays that differ in their first dimension: `shape` is without it."""

    ragged = True

    def at(self, indices: Int64Array) -> Ragged:
        """Raises DecodeError: a row cannot be read, or does not go with the first one."""
        arrays = self.arrays(indices)
        for row, array in enumerate(arrays):
            if array.shape[1:] != self.shape or array.dtype != self.dtype or not array.ndim:
                raise self.unlike(int(indices[row]), array)
        values = np.concatenate(arrays) if arrays else np.empty((0, *self.shape), self.dtype)
        rows = Ragged(values, offsets_of([len(array) for array in arrays]))
        check_rows(self.kind, rows, self.files.paths[0])
        return rows

    @property
    def nbytes(self) -> int:
        first = self.at(np.zeros(min(1, len(self)), dtype=np.int64))
        return len(self) * first.nbytes

    @cached_property
    def lengths(self) -> Int64Array:
        """(N,) int64: how many rows each array has. Of parts of files by their sizes; `.npy` files
        are read, all of them. Raises DecodeError: one cannot be read."""
        width = 2 if self.stored == BFLOAT16 else np.dtype(self.stored or self.dtype).itemsize
        row, bytes_of = width * int(np.prod(self.shape, dtype=np.int64)), self.files.lengths
        if self.stored and row and bytes_of is not None and (bytes_of >= 0).all():
            return np.asarray(bytes_of // row)
        return _lengths_read(self)

    def _shape_of(self, data: bytes) -> tuple[int, ...]:
        return (-1, *self.shape)


@dataclass(frozen=True)
class TextFiles(Values):
    """Texts in a file each, without spaces and line breaks at their ends."""

    files: EncodedFiles
    ragged = True

    @property
    def role(self) -> str:
        return TEXT.name

    @property
    def within(self) -> tuple[EncodedFiles, ...]:
        """The columns of files that it reads."""
        return (self.files,)

    def __len__(self) -> int:
        return len(self.files)

    def at(self, indices: Int64Array) -> Ragged:
        """Raises DecodeError: a text cannot be read, or is no UTF-8."""
        texts = []
        for index, data in zip(indices.tolist(), read_rows(self.files, indices), strict=True):
            try:
                texts.append(text_of_file(self.describe(index), data).strip().encode())
            except SourceError as error:
                raise DecodeError(str(error)) from None
        values = np.frombuffer(b"".join(texts), dtype=np.uint8)
        return Ragged(values, offsets_of([len(text) for text in texts]))

    @cached_property
    def lengths(self) -> Int64Array:
        """(N,) int64: bytes of each text in UTF-8; all files are read. Raises DecodeError: one
        cannot be read."""
        return _lengths_read(self)

    @property
    def nbytes(self) -> int:
        return len(self) * 256  # an estimate: a long caption

    def describe(self, index: int) -> str:
        return self.files.describe(index)

    def take(self, indices: Int64Array) -> TextFiles:
        return replace(self, files=self.files.take(indices))


def _lengths_read(column: RaggedFileRows | TextFiles) -> Int64Array:
    """By reading the column, in pieces."""
    starts = range(0, len(column), _AT_ONCE)
    ends = [np.arange(first, min(first + _AT_ONCE, len(column))) for first in starts]
    return np.concatenate([np.empty(0, np.int64), *(column.at(rows).lengths for rows in ends)])


def read_rows(files: EncodedFiles, indices: Int64Array) -> Sequence[bytes]:
    """The bytes of some rows. Raises DecodeError: one cannot be read; the message names it."""
    try:
        return files.read_many(indices)
    except OSError as error:
        for index in indices.tolist():  # which one?
            try:
                files.read(index)
            except OSError as own:
                raise DecodeError(f"{files.describe(index)}: cannot be read ({own}).") from own
        raise DecodeError(
            f"{files.describe(int(indices[0]))}: cannot be read ({error})."
        ) from error


def array_of_npy(name: str, data: bytes) -> AnyArray:
    """The array in the bytes of a `.npy` file. Raises DecodeError: there is none of numbers, or
    more than one."""
    try:
        file = io.BytesIO(data)
        array: AnyArray = np.lib.format.read_array(file, allow_pickle=False)
        if file.tell() < len(data):
            raise ValueError(f"{len(data) - file.tell():,} bytes follow the first array")
    except Exception as error:  # a header is a Python expression, and may be wrong in any way
        raise DecodeError(
            f"{name}: is no array of numbers ({error}); write it again with numpy.save."
        ) from None
    return array


def from_bytes(data: bytes, stored: str) -> AnyArray:
    """The numbers of a dtype in bytes, flat; of `BFLOAT16` as float32."""
    if stored != BFLOAT16:
        return np.frombuffer(data, dtype=np.dtype(stored))
    upper = np.left_shift(np.frombuffer(data, dtype="<u2").astype(np.uint32), np.uint32(16))
    array: AnyArray = upper.view(np.float32)
    return array
