"""A few large buffers in place of millions of objects: arrays that travel by reference, and paths
in two arrays.

numpy pickles every array by content, memory maps too: a worker started by spawn or forkserver would
receive, and hold, its own copy of the data set. Here an array that lives in a file travels as the
file's name and a position, and one in shared memory as a handle. Everything else is pickled as
numpy does it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from array import array as c_array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

AnyArray = npt.NDArray[Any]
Int64Array = npt.NDArray[np.int64]
T = TypeVar("T")
_AT_ONCE = 4096
"""Strings that are made at once."""


@dataclass(frozen=True)
class _ArrayReference:
    """An array as a window of bytes that another process can open for itself."""

    buffer: str | torch.Tensor
    """Name of a file, or a uint8 tensor in shared memory, which torch's reductions send as a
    handle."""
    start: int
    """First byte of the array in the buffer."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def open(self) -> AnyArray:
        lasts = (
            (length - 1) * stride for length, stride in zip(self.shape, self.strides, strict=True)
        )
        span = self.dtype.itemsize + sum(lasts)
        if isinstance(self.buffer, str):
            flat: AnyArray = np.memmap(
                self.buffer, np.uint8, mode="r", offset=self.start, shape=(span,)
            )
        else:
            flat = self.buffer.numpy()[self.start : self.start + span]
        return np.ndarray(self.shape, self.dtype, buffer=flat, strides=self.strides)


def _reference_to(array: AnyArray) -> _ArrayReference | None:
    """The reference by which this array can travel, or None if only its content can."""
    if array.size == 0 or any(stride < 0 for stride in array.strides):
        return None
    root: AnyArray = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    address = array.__array_interface__["data"][0]
    buffer: str | torch.Tensor
    if isinstance(root, np.memmap):
        # A slice of a map keeps the `offset` of the whole map, so the position comes from the
        # addresses. Mode "c" is private to this process: what was written there is not in the file.
        if root.filename is None or root.mode == "c":
            return None
        buffer = str(root.filename)
        start = root.offset + address - root.__array_interface__["data"][0]
    else:
        owner: Any = root.base  # tensor.numpy() keeps the tensor here
        if (
            not isinstance(owner, torch.Tensor)
            or owner.dtype != torch.uint8
            or not owner.is_shared()
        ):
            return None
        buffer, start = owner, address - owner.data_ptr()
    return _ArrayReference(buffer, int(start), array.dtype, array.shape, array.strides)


def is_by_reference(array: AnyArray) -> bool:
    """Whether the array reaches other processes without its content being copied."""
    return _reference_to(array) is not None


def shared_copy(array: AnyArray) -> AnyArray:
    """The same array in shared memory; itself if it is there already, or in a file."""
    if array.size == 0 or is_by_reference(array):
        return array
    # Bytes, because numpy has dtypes that torch cannot share.
    buffer = torch.empty(array.nbytes, dtype=torch.uint8).share_memory_()
    copy: AnyArray = np.ndarray(array.shape, array.dtype, buffer=buffer.numpy())
    np.copyto(copy, array)
    return copy


class PickledByReference:
    """Base of the frozen dataclasses that hold large arrays: see the docstring of the module."""

    def __reduce__(self) -> tuple[Any, ...]:
        # np.memmap would pickle its content even through a plain view, so asarray is used.
        state = {
            name: (_reference_to(value) or np.asarray(value))
            if isinstance(value, np.ndarray)
            else value
            for name, value in values_of(self).items()
        }
        return _rebuild, (type(self), state)


class RowSelection:
    """Base of the frozen dataclasses that serve some rows of what they hold; all, in order, where
    `rows` is None."""

    rows: Int64Array | None

    def rows_of(self, indices: Int64Array) -> Int64Array:
        """The rows of these samples in what is held."""
        return indices if self.rows is None else self.rows[indices]

    def row_of(self, index: int) -> int:
        return index if self.rows is None else int(self.rows[index])

    def take(self: T, indices: Int64Array) -> T:
        return dataclasses.replace(self, rows=self.rows_of(indices))  # type: ignore[attr-defined,type-var]


def _rebuild(cls: type[Any], state: dict[str, Any]) -> Any:
    return cls(
        **{name: v.open() if isinstance(v, _ArrayReference) else v for name, v in state.items()}
    )


def values_of(holder: Any) -> dict[str, Any]:
    return {item.name: getattr(holder, item.name) for item in dataclasses.fields(holder)}


@dataclass(frozen=True)
class PathTable(RowSelection, PickledByReference):
    """An immutable list of strings: one byte blob and where each string ends, under a common root.

    A Python list of a million paths takes some 150 MB and, in forked workers, is copied page by
    page as reference counts are touched. This takes the bytes of the names and 8 bytes each, and
    has no reference counts.
    """

    root: str
    """Prepended to every string with a "/"; "" for none."""
    blob: npt.NDArray[np.uint8]
    """All strings, UTF-8 (surrogateescape, as file names are), one after the other."""
    ends: Int64Array
    """(M,) int64: where each string ends in `blob`."""
    rows: Int64Array | None = None
    """(N,) int64: which string each entry is; None for all, in order."""

    @classmethod
    def of(cls, strings: Iterable[str], root: str = "") -> PathTable:
        """Store strings (relative to `root`), taking them one at a time."""
        builder, left = PathTableBuilder(), iter(strings)
        while some := list(islice(left, _AT_ONCE)):
            builder.extend(some)
        return builder.build(root)

    def __len__(self) -> int:
        return len(self.ends) if self.rows is None else len(self.rows)

    def __getitem__(self, index: int) -> str:
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"path {index} of {len(self)}")
        row = self.row_of(index)
        start = int(self.ends[row - 1]) if row else 0
        name = self.blob[start : int(self.ends[row])].tobytes().decode("utf-8", "surrogateescape")
        return f"{self.root}/{name}" if self.root else name

    def many(self, indices: Int64Array) -> list[str]:
        """Several entries, in less than half of the time of one after the other."""
        rows = self.rows_of(indices)
        starts = np.where(rows > 0, self.ends[rows - 1], 0).tolist()
        top = f"{self.root}/" if self.root else ""
        return [
            top + self.blob[start:end].tobytes().decode("utf-8", "surrogateescape")
            for start, end in zip(starts, self.ends[rows].tolist(), strict=True)
        ]

    def each(self) -> Iterator[str]:
        """All, one after the other, without a list of them."""
        for first in range(0, len(self), _AT_ONCE):
            yield from self.many(np.arange(first, min(first + _AT_ONCE, len(self))))

    def all_held(self) -> list[str]:
        """All M strings, each once, whichever are served."""
        whole = dataclasses.replace(self, rows=None)
        return whole.many(np.arange(len(whole), dtype=np.int64))

    def digest(self) -> bytes:
        """16 bytes (BLAKE2b) over all strings and their order, without the root."""
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.blob, self.ends, self.rows):
            if part is not None:
                digest.update(np.ascontiguousarray(part).data)
        return digest.digest()


class PathTableBuilder:
    """Collects strings one at a time, in as much memory as the table takes."""

    def __init__(self) -> None:
        self._blob = bytearray()
        self._ends = c_array("q")

    def extend(self, strings: Iterable[str]) -> None:
        encoded = [string.encode("utf-8", "surrogateescape") for string in strings]
        self._ends.extend(islice(accumulate(map(len, encoded), initial=len(self._blob)), 1, None))
        self._blob += b"".join(encoded)

    def build(self, root: str = "") -> PathTable:
        """The table of what was appended; ends the collection."""
        return PathTable(
            root,
            np.frombuffer(self._blob, dtype=np.uint8),
            np.frombuffer(self._ends, dtype=np.int64),
        )


def is_mapped(array: npt.NDArray[Any]) -> bool:
    """Whether an array is, or is a view of, a memory-mapped file."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return True
        base = base.base
    return False
