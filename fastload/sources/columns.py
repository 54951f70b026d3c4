"""The columns of files, arrays and torch Datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Subset

from fastload import stores
from fastload.errors import DecodeError, SourceError
from fastload.sources.base import EncodedImages, Objects, PixelImages, Values
from fastload.sources.buffers import InRows, Int64Array, PathTable, PickledByReference


@dataclass(frozen=True)
class EncodedFiles(PickledByReference, EncodedImages):
    """Compressed images in files, or in byte ranges of larger files."""

    paths: PathTable
    """One path a sample; of a shard, the path of the shard."""
    role: str = "image"
    offsets: Int64Array | None = None
    """(N,) int64: first byte within the file, or None for whole files."""
    lengths: Int64Array | None = None
    """(N,) int64: number of bytes, or None for whole files."""
    names: PathTable | None = None
    """Names to use in messages where they differ from the paths (members of a tar file)."""

    def __len__(self) -> int:
        return len(self.paths)

    def locate(self, index: int) -> tuple[str, int, int]:
        """(path, first byte, number of bytes); (path, 0, -1) for a whole file."""
        if self.offsets is None or self.lengths is None:
            return self.paths[index], 0, -1
        return self.paths[index], int(self.offsets[index]), int(self.lengths[index])

    def read(self, index: int) -> bytes:
        path, offset, length = self.locate(index)
        return stores.read(path, offset, None if length < 0 else length)

    def read_many(self, indices: Int64Array) -> Sequence[bytes]:
        located = [self.locate(index) for index in indices.tolist()]
        return stores.read_many(
            [(path, offset, None if length < 0 else length) for path, offset, length in located]
        )

    @cached_property
    def is_remote(self) -> bool:
        """Whether they lie in a store, and not in files: the native core opens only files."""
        return len(self) > 0 and stores.is_remote(self.paths[0])

    @property
    def survives_fork(self) -> bool:
        return not self.is_remote

    def read_start(self, index: int, length: int) -> bytes:
        path, offset, whole = self.locate(index)
        return stores.read_up_to(path, length if whole < 0 else min(length, whole), offset)

    def describe(self, index: int) -> str:
        """Its path, or `shard.tar:member`."""
        return (
            self.paths[index] if self.names is None else f"{self.paths[index]}:{self.names[index]}"
        )

    def name_table(self) -> PathTable:
        return (
            self.paths if self.names is None else PathTable.of(map(self.describe, range(len(self))))
        )

    def in_files(self, indices: Int64Array) -> EncodedFiles | None:
        return None if self.is_remote else self.take(indices)

    def take(self, indices: Int64Array) -> EncodedFiles:
        return EncodedFiles(
            self.paths.take(indices),
            self.role,
            None if self.offsets is None else self.offsets[indices],
            None if self.lengths is None else self.lengths[indices],
            None if self.names is None else self.names.take(indices),
        )


@dataclass(frozen=True)
class PixelArray(InRows, PickledByReference, PixelImages):
    """Decoded uint8 images: one array (N, H, W, C) of equal sizes, or a flat buffer with a size for
    each."""

    array: npt.NDArray[np.uint8]
    """(N, H, W, C) uint8; or (total bytes,) uint8 when `sizes` and `offsets` are given. May be a
    memory map."""
    role: str = "image"
    sizes: npt.NDArray[np.int32] | None = None
    """(N, 2) int32: height, width of each image in the flat buffer."""
    offsets: Int64Array | None = None
    """(N,) int64: first byte of each image in the flat buffer."""
    channels: int = 3
    rows: Int64Array | None = None
    """(N,) int64: which row of `array` (or of `sizes`) each sample is, for subsets; None for all,
    in order."""
    names: PathTable | None = None
    """What to call each row in messages: the files that the pixels were decoded from."""
    failed: Mapping[int, str] = field(default_factory=dict)
    """Rows that could not be decoded when a cache was built, and the message of the DecodeError;
    they hold zeros."""

    def __post_init__(self) -> None:
        if self.array.dtype != np.uint8:
            raise SourceError(
                f"PixelArray needs uint8 pixels, got {self.array.dtype}; convert them first."
            )
        if self.sizes is None and (self.array.ndim != 4 or self.array.shape[3] != self.channels):
            raise SourceError(
                f"PixelArray needs an array (N, H, W, {self.channels}), got shape "
                f"{self.array.shape}; "
                "reshape it, or give sizes and offsets for images of different sizes."
            )

    def __len__(self) -> int:
        if self.rows is not None:
            return len(self.rows)
        return len(self.array) if self.sizes is None else len(self.sizes)

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        return (self.array.shape[1], self.array.shape[2]) if self.sizes is None else None

    def sizes_of(self, indices: Int64Array) -> npt.NDArray[np.int32]:
        return (
            super().sizes_of(indices) if self.sizes is None else self.sizes[self.rows_of(indices)]
        )

    def pixels(self, index: int) -> npt.NDArray[np.uint8]:
        """A view."""
        row = self.row_of(index)
        if row in self.failed:
            raise DecodeError(self.failed[row])
        if self.sizes is None or self.offsets is None:
            view: npt.NDArray[np.uint8] = self.array[row]
            return view
        height, width = (int(n) for n in self.sizes[row])
        start = int(self.offsets[row])
        return self.array[start : start + height * width * self.channels].reshape(
            height, width, self.channels
        )

    def failures_of(self, indices: Int64Array) -> dict[int, DecodeError]:
        if not self.failed:
            return {}
        rows = enumerate(self.rows_of(indices).tolist())
        return {
            position: DecodeError(self.failed[row]) for position, row in rows if row in self.failed
        }

    def name_table(self) -> PathTable | None:
        return self.names if self.names is None or self.rows is None else self.names.take(self.rows)

    def in_array(self) -> PixelArray:
        return self

    def describe(self, index: int) -> str:
        return f"image {index}" if self.names is None else self.names[self.row_of(index)]


@dataclass(frozen=True)
class ValueArray(InRows, PickledByReference, Values):
    """Rows of one array."""

    array: npt.NDArray[Any]
    """(N, ...) of any dtype that torch has. May be a memory map."""
    rows: Int64Array | None = None
    role: str = "value"

    def __len__(self) -> int:
        return len(self.array) if self.rows is None else len(self.rows)

    def at(self, indices: Int64Array) -> npt.NDArray[Any]:
        result: npt.NDArray[Any] = self.array[self.rows_of(indices)]
        return result

    def in_array(self) -> ValueArray:
        return self


@dataclass(frozen=True)
class DatasetItems(InRows, Objects):
    """Items of a map-style torch Dataset, produced by its own Python code."""

    dataset: Any
    """Has `__getitem__(int)` and `__len__`."""
    rows: Int64Array | None = None

    @property
    def producer(self) -> str:
        return type(self.dataset).__name__

    def __len__(self) -> int:
        return len(self.dataset) if self.rows is None else len(self.rows)

    def item(self, index: int) -> Any:
        return self.dataset[self.row_of(index)]

    def items(self, indices: Int64Array | list[Any]) -> list[Any] | None:
        """By the dataset's `__getitems__`, if it has one. A list has the keys that a user's sampler
        gave."""
        inner = self.dataset.dataset if isinstance(self.dataset, Subset) else self.dataset
        if not callable(getattr(inner, "__getitems__", None)):
            return None  # a Subset always has one, of one item at a time
        if isinstance(indices, list):
            return list(self.dataset.__getitems__(indices))
        return list(self.dataset.__getitems__(self.rows_of(indices).tolist()))

    def describe(self, index: int) -> str:
        return f"{self.producer}[{index}]"


@dataclass(frozen=True)
class StreamItems(Objects):
    """The samples of an IterableDataset, which nobody can ask for by index."""

    dataset: Any

    def __len__(self) -> int:
        return 1  # there is something; how much, its end will tell

    def item(self, index: int) -> Any:
        raise TypeError(f"{type(self.dataset).__name__} can only be iterated")

    def take(self, indices: Int64Array) -> StreamItems:
        raise TypeError(f"{type(self.dataset).__name__} can only be iterated")
