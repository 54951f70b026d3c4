"""The columns of a source: where rows come from, and how to read them by index.

There are four ways to store a column, each a base class here; a backend asks a column nothing but
what these have. Those of files, arrays and torch Datasets follow. A data set that is stored in
another way (a database, an object store) is a class derived from one of them: for compressed images
`__len__` and `read` are all it takes. What becomes of the rows is a column's kind (`kinds.py`).
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from torch.utils.data import Subset

from fastload import stores
from fastload.errors import DecodeError, SourceError
from fastload.files import is_remote, size_of
from fastload.sources.buffers import Int64Array, PathTable, PickledByReference, RowSelection
from fastload.sources.kinds import Kind, PixelKind, Rows, kind_named, pixel_kind
from fastload.sources.ragged import Ragged

if TYPE_CHECKING:
    from fastload.stores.together import Ranges, Together

Buffer = bytes | memoryview | npt.NDArray[np.uint8]
Storage = Literal["encoded", "pixels", "values", "object"]


class Column(ABC):
    """One field of every sample. Read by several threads at once; pickled for the workers of the
    `torch` backend, so that metadata belong into numpy arrays (see
    `buffers.PickledByReference`)."""

    storage: ClassVar[Storage]

    @property
    @abstractmethod
    def role(self) -> str:
        """Name of its kind."""

    @property
    def kind(self) -> Kind:
        """What becomes of its rows: how geometry moves them, how they are handed over."""
        return kind_named(self.role)

    @abstractmethod
    def __len__(self) -> int: ...

    def describe(self, index: int) -> str:
        """How messages name this sample: where it is stored, if that has a name."""
        return f"{type(self).__name__}[{index}]"

    @abstractmethod
    def take(self, indices: Int64Array) -> Column:
        """The column of these samples alone, in this order."""


@dataclass(frozen=True)
class PixelFormat:
    """What one pixel is, as it is stored."""

    channels: int
    """1 (grey) or 3 (RGB)."""
    dtype: np.dtype[Any]
    """uint8, uint16 or float32."""

    def __str__(self) -> str:
        bits = self.dtype.itemsize * 8
        real = " of floating point" if self.dtype.kind == "f" else ""
        return f"{'grey' if self.channels == 1 else 'RGB'} of {bits} bits{real}"


class ImageColumn(Column):
    """Images or masks, however they are stored."""

    @property
    def role(self) -> str:
        return "image"

    @property
    def kind(self) -> PixelKind:
        """Raises SourceError: it is of no kind of pixels."""
        return pixel_kind(self.role)

    @property
    def channels(self) -> int:
        """How many channels the pixels that are served have."""
        return self.kind.channels

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the pixels that are served: uint8; in some columns uint16 or float32."""
        return np.dtype(np.uint8)

    @property
    def usual_format(self) -> bool:
        """Whether pixels are as every backend makes them: of 8 bits, and RGB where they are
        compressed (masks: one channel)."""
        return self.dtype == np.uint8

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """(height, width) shared by all images, or None when they differ or it takes their headers
        to know."""
        return None

    def name_table(self) -> PathTable | None:
        """What `describe` says of all samples, for a cache to keep; None where that is only a
        number."""
        return PathTable.of(map(self.describe, range(len(self))))


class EncodedImages(ImageColumn):
    """Images still compressed: JPEG, PNG and whatever else Pillow reads."""

    storage = "encoded"
    stored: PixelFormat | None = None
    """The format of the pixels, where they are served as they are stored; None: RGB of 8 bits, and
    masks of 8 bits."""

    any_order: bool = True
    """Whether samples are read at random as well as in order; see `for_any_order`."""

    @property
    def usual_format(self) -> bool:
        return self.stored is None

    @abstractmethod
    def read(self, index: int) -> bytes:
        """The compressed bytes of one sample. An OSError becomes a DecodeError with its name."""

    def read_many(self, indices: Int64Array) -> Sequence[bytes]:
        """The bytes of several samples, for storage where reading them together is cheaper."""
        return [self.read(index) for index in indices.tolist()]

    def views(self, indices: Int64Array) -> Sequence[Buffer]:
        """`read_many` for the native core, without a copy: memory of the client of a store, or
        uint8 arrays (length,) in a mapped file."""
        return self.read_many(indices)

    def read_start(self, index: int, length: int) -> bytes:
        """At least the first `length` bytes, or all there are: for the header."""
        return self.read(index)

    def read_from(self, indices: Int64Array) -> Sequence[stores.Range]:
        """The files or objects, or parts of them, whose bytes these samples are, or are made of;
        none where they are not of such."""
        return ()

    def fetched_bytes(self, indices: Int64Array) -> int:
        """Bytes that are fetched from a store for these samples alone, as far as that is known."""
        return 0

    def length(self, index: int) -> int:
        """Bytes of a sample, where that is known without reading it; else -1."""
        return -1

    @property
    def survives_fork(self) -> bool:
        """Whether a forked process may read them; clients of object stores have threads, which do
        not fork."""
        return True

    @property
    def waits(self) -> bool:
        """Whether reading them is mostly waiting for a store: then many are requested at once."""
        first = self.read_from(np.zeros(min(1, len(self)), dtype=np.int64))
        return len(first) > 0 and is_remote(first[0].name)

    @property
    def grouped(self) -> bool:
        """Whether a read of one sample brings others that are needed soon, so that most reads do
        not wait for a store."""
        return False

    def in_files(self, indices: Int64Array) -> EncodedFiles | None:
        """These samples as files or parts of files, if that is what they are: the native core then
        opens them."""
        return None

    def looked(self, indices: Int64Array) -> stores.Looked | None:
        """These samples, and which of them are in the local tier, where they are read by way of it:
        the native core reads those."""
        return None

    @property
    def parts_in_stores(self) -> EncodedFiles | None:
        """The same samples as parts of remote files, if that is what they are: neighbours are then
        best read together."""
        return None

    @property
    def groups(self) -> Any:
        """The same samples as rows of pieces that are read whole, a `parquet_images.ParquetImages`,
        if that is what they are; else None."""
        return None

    def for_any_order(self) -> EncodedImages:
        """The same samples, to be read at random. May write all of them to a disk. Raises
        SourceError."""
        return self

    def take(self, indices: Int64Array) -> EncodedImages:
        return _EncodedRows(self, indices)


class PixelImages(ImageColumn):
    """Images that are decoded already, as arrays."""

    storage = "pixels"

    @abstractmethod
    def pixels(self, index: int) -> npt.NDArray[Any]:
        """(H, W, C) of `dtype`: one image, perhaps read-only. Raises DecodeError if it could not be
        decoded before."""

    def sizes_of(self, indices: Int64Array) -> npt.NDArray[np.int32]:
        """(B, 2) int32: height, width of these samples; of those that `failures_of` names, anything
        above 0."""
        if self.fixed_size is not None:
            return np.broadcast_to(np.array(self.fixed_size, dtype=np.int32), (len(indices), 2))
        sizes = np.ones((len(indices), 2), dtype=np.int32)
        for position, index in enumerate(indices.tolist()):
            with contextlib.suppress(DecodeError):  # `pixels` raises it again, when it is served.
                sizes[position] = self.pixels(index).shape[:2]
        return sizes

    def size(self, index: int) -> tuple[int, int]:
        """(height, width) of one image. Raises DecodeError as `pixels`."""
        for error in self.failures_of(np.array([index])).values():
            raise error
        height, width = self.sizes_of(np.array([index]))[0].tolist()
        return height, width

    def failures_of(self, indices: Int64Array) -> dict[int, DecodeError]:
        """The samples that could not be decoded in the first place, by position in `indices`."""
        return {}

    def in_array(self) -> PixelArray | None:
        """All samples in one array, if that is what they are: the native core then cuts batches out
        of it."""
        return None


class Values(Column):
    """One row of numbers a sample, passed on as it is: labels (N,) int64, token ids (N,
    length)... Or, where it is `ragged`, a variable number of such rows: boxes."""

    storage = "values"
    ragged: ClassVar[bool] = False
    """Whether samples have rows of different lengths: `at` gives a Ragged then."""

    @property
    def role(self) -> str:
        return "value"

    @abstractmethod
    def at(self, indices: Int64Array) -> Rows:
        """(B, ...) of any dtype that torch has: a copy of these rows, all of one shape; or, of a
        `ragged` column, a Ragged of numpy arrays."""

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, in memory or on disk; may be an estimate."""
        return len(self) * int(self.at(np.zeros(1, dtype=np.int64)).nbytes)

    def in_array(self) -> ValueArray | None:
        """All rows in one array, if that is what they are."""
        return None

    def describe(self, index: int) -> str:
        return f"row {index}"


class Objects(Column):
    """Samples that only Python code can produce, one at a time."""

    storage = "object"
    role: ClassVar[str] = "object"

    @property
    def producer(self) -> str:
        """Whose code that is, for messages."""
        return type(self).__name__

    @abstractmethod
    def item(self, index: int) -> Any:
        """One sample: usually (image, label). What it raises is taken for a fault of this
        sample."""

    def items(self, indices: Int64Array | list[Any]) -> Any:
        """Several samples, if there is a way of their own to make them together; else None. Usually
        a list of them; it may be a whole batch, or anything that a collate function takes.

        Args:
            indices: of the samples; as a list, the keys in their place that the user's own sampler
                gives, where it is an adopted DataLoader's.
        """
        return None


@dataclass(frozen=True)
class _EncodedRows(EncodedImages):
    """Some rows of a column that does not define `take` itself."""

    column: EncodedImages
    rows: Int64Array

    @property
    def role(self) -> str:
        return self.column.role

    def __len__(self) -> int:
        return len(self.rows)

    def describe(self, index: int) -> str:
        return self.column.describe(int(self.rows[index]))

    def read(self, index: int) -> bytes:
        return self.column.read(int(self.rows[index]))

    def read_many(self, indices: Int64Array) -> Sequence[bytes]:
        return self.column.read_many(self.rows[indices])

    def views(self, indices: Int64Array) -> Sequence[Buffer]:
        return self.column.views(self.rows[indices])

    def looked(self, indices: Int64Array) -> stores.Looked | None:
        return self.column.looked(self.rows[indices])

    def read_start(self, index: int, length: int) -> bytes:
        return self.column.read_start(int(self.rows[index]), length)

    def read_from(self, indices: Int64Array) -> Sequence[stores.Range]:
        return self.column.read_from(self.rows[indices])

    def fetched_bytes(self, indices: Int64Array) -> int:
        return self.column.fetched_bytes(self.rows[indices])

    @property
    def survives_fork(self) -> bool:
        return self.column.survives_fork

    @property
    def any_order(self) -> bool:  # type: ignore[override]
        return self.column.any_order

    def for_any_order(self) -> EncodedImages:
        return self.column.for_any_order().take(self.rows)


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
    versions: Int64Array | None = None
    """(N,) int64: of remote files, the version that was there when the data set was opened; 0 where
    the store does not say. None: not checked."""
    object_sizes: Int64Array | None = None
    """(N,) int64: of whole remote files, how many bytes they have; -1 where that is not known.
    None: of none."""
    own_arrays: ClassVar[tuple[str, ...]] = ()
    """Fields of a class derived from this one that are arrays of a number a sample."""
    _together: ClassVar[tuple[Together, int] | None] = None
    """See `read_by`."""

    def __len__(self) -> int:
        return len(self.paths)

    def locate(self, index: int) -> tuple[str, int, int]:
        """(path, first byte, number of bytes); (path, 0, -1) for a whole file."""
        if self.offsets is None or self.lengths is None:
            return self.paths[index], 0, -1
        return self.paths[index], int(self.offsets[index]), int(self.lengths[index])

    def range_of(self, index: int) -> stores.Range:
        """The bytes to read for a sample."""
        path, offset, length = self.locate(index)
        version = 0 if self.versions is None else int(self.versions[index])
        return stores.Range(path, offset, None if length < 0 else length, version)

    def read(self, index: int) -> bytes:
        return stores.read(*self.range_of(index))

    def read_many(self, indices: Int64Array) -> Sequence[bytes]:
        return [bytes(data) for data in self.views(indices)]

    def ranges_of(self, indices: Int64Array) -> list[stores.Range]:
        """The ranges of several samples."""
        count = len(indices)
        starts, lengths, versions = [0] * count, list[int | None]([None]) * count, [0] * count
        if self.offsets is not None and self.lengths is not None:
            starts = self.offsets[indices].tolist()
            lengths = [None if n < 0 else n for n in self.lengths[indices].tolist()]
        if self.versions is not None:
            versions = self.versions[indices].tolist()
        paths = self.paths.many(indices)
        return list(map(stores.Range, paths, starts, lengths, versions))

    def views(self, indices: Int64Array) -> Sequence[stores.Data]:
        if self._together is None:
            return stores.read_views(self.ranges_of(indices))
        together, number = self._together
        return together.views(number, indices)

    @cached_property
    def is_remote(self) -> bool:
        """Whether they lie in a store, and not in files: the native core opens only files."""
        return len(self) > 0 and is_remote(self.paths[0])

    @property
    def survives_fork(self) -> bool:
        return not self.is_remote

    def read_start(self, index: int, length: int) -> bytes:
        wanted = self.range_of(index)
        kept = stores.kept_here(wanted)
        if kept is not None:
            return kept
        path, offset, whole, version = wanted
        return stores.read_up_to(
            path, length if whole is None else min(length, whole), offset, version
        )

    def read_from(self, indices: Int64Array) -> Sequence[stores.Range]:
        return self.ranges_of(indices)

    def length(self, index: int) -> int:
        path, _, length = self.locate(index)
        return length if length >= 0 or self.is_remote else size_of(path)

    def fetched_bytes(self, indices: Int64Array) -> int:
        known = self.object_sizes if self.lengths is None else self.lengths
        if known is None or self.grouped or not self.is_remote:
            return 0
        return int(known[indices].clip(0).sum())

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

    @cached_property
    def _digests(self) -> stores.Digests:
        return stores.Digests(len(self), self.ranges_of)

    def looked(self, indices: Int64Array) -> stores.Looked | None:
        if self._together is None:
            return self._digests.look(indices) if self.is_remote else None
        together, number = self._together
        return together.looked(number, indices)

    @property
    def parts_in_stores(self) -> EncodedFiles | None:
        return self if self.is_remote and self.offsets is not None else None

    @property
    def grouped(self) -> bool:
        return self._together is not None

    @property
    def ranges(self) -> Ranges:
        """Of remote files."""
        from fastload.stores.together import Ranges

        return Ranges(self.ranges_of, self._digests)

    def read_by(self, together: Together | None, number: int = 0) -> None:
        """From now on its samples are read by the groups that are announced there, where this is
        the column of that number; None: each by itself. Not in other processes."""
        object.__setattr__(self, "_together", None if together is None else (together, number))

    def take(self, indices: Int64Array) -> EncodedFiles:
        return EncodedFiles(
            self.paths.take(indices),
            self.role,
            None if self.offsets is None else self.offsets[indices],
            None if self.lengths is None else self.lengths[indices],
            None if self.names is None else self.names.take(indices),
            None if self.versions is None else self.versions[indices],
            None if self.object_sizes is None else self.object_sizes[indices],
        )


@dataclass(frozen=True)
class PixelArray(RowSelection, PickledByReference, PixelImages):
    """Decoded images of uint8, uint16 or float32: one array (N, H, W, C) of equal sizes, or a flat
    buffer with a size for each."""

    array: npt.NDArray[Any]
    """(N, H, W, C); or (total numbers,) when `sizes` and `offsets` are given. May be a memory
    map."""
    role: str = "image"
    sizes: npt.NDArray[np.int32] | None = None
    """(N, 2) int32: height, width of each image in the flat buffer."""
    offsets: Int64Array | None = None
    """(N,) int64: first number of each image in the flat buffer."""
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
        if self.array.dtype not in (np.uint8, np.uint16, np.float32):
            raise SourceError(
                f"PixelArray needs pixels of uint8, uint16 or float32, got {self.array.dtype}; "
                "convert them first."
            )
        if self.sizes is None and (self.array.ndim != 4 or self.array.shape[3] != self.channels):
            raise SourceError(
                f"PixelArray needs an array (N, H, W, {self.channels}), got shape "
                f"{self.array.shape}; reshape it, or give sizes and offsets for images of "
                "different sizes."
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

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

    def pixels(self, index: int) -> npt.NDArray[Any]:
        """A view."""
        row = self.row_of(index)
        if row in self.failed:
            raise DecodeError(self.failed[row])
        if self.sizes is None or self.offsets is None:
            view: npt.NDArray[Any] = self.array[row]
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
class ValueArray(RowSelection, PickledByReference, Values):
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

    @property
    def nbytes(self) -> int:
        return self.array.nbytes


@dataclass(frozen=True)
class RaggedArray(RowSelection, PickledByReference, Values):
    """Rows of variable length: boxes, labels, polygons of the objects of each image."""

    array: Ragged
    """N rows of numpy arrays, which may be memory maps."""
    rows: Int64Array | None = None
    role: str = "value"
    ragged = True

    def __len__(self) -> int:
        return len(self.array) if self.rows is None else len(self.rows)

    def at(self, indices: Int64Array) -> Ragged:
        return self.array.take(self.rows_of(indices))

    @property
    def lengths(self) -> Int64Array:
        """(N,) int64: how many elements each sample has."""
        lengths = self.array.lengths
        return lengths if self.rows is None else lengths[self.rows]

    @property
    def nbytes(self) -> int:
        return self.array.nbytes


@dataclass(frozen=True)
class DatasetItems(RowSelection, Objects):
    """Items of a map-style torch Dataset, produced by its own Python code."""

    dataset: Any
    """Has `__getitem__(int)` and `__len__`."""
    rows: Int64Array | None = None
    one_by_one: bool = False
    """Whether its `__getitems__` is not called."""

    @property
    def producer(self) -> str:
        return type(self.dataset).__name__

    def __len__(self) -> int:
        return len(self.dataset) if self.rows is None else len(self.rows)

    def item(self, index: int) -> Any:
        return self.dataset[self.row_of(index)]

    def items(self, indices: Int64Array | list[Any]) -> Any:
        """By the dataset's `__getitems__`, if it has one. A list has the keys that a user's sampler
        gave."""
        inner = self.dataset.dataset if isinstance(self.dataset, Subset) else self.dataset
        if self.one_by_one or not callable(getattr(inner, "__getitems__", None)):
            return None  # a Subset always has one, of one item at a time
        if isinstance(indices, list):
            return self.dataset.__getitems__(indices)
        return self.dataset.__getitems__(self.rows_of(indices).tolist())

    def describe(self, index: int) -> str:
        return f"{self.producer}[{index}]"


@dataclass(frozen=True)
class StreamItems(Objects):
    """The samples of an IterableDataset, which nobody can ask for by index."""

    dataset: Any

    def __len__(self) -> int:
        return 1  # at least one; how many is known at the end

    def item(self, index: int) -> Any:
        raise TypeError(f"{type(self.dataset).__name__} can only be iterated")

    def take(self, indices: Int64Array) -> StreamItems:
        raise TypeError(f"{type(self.dataset).__name__} can only be iterated")
