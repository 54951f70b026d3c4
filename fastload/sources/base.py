"""What a source is: columns of samples, by index.

Every format, from a folder of JPEGs to a file of token ids, is opened into one `Source`: a few columns of equal
length. Four kinds of column are enough, and a backend says which kinds it can serve:

- `EncodedImages`: images still compressed (JPEG, PNG...), as files or byte ranges of files;
- `PixelImages`: images as uint8 arrays, all of one size or each of its own;
- `Values`: one numpy row a sample: labels, token ids, anything that needs no decoding;
- `Objects`: the items of a torch Dataset that only Python can produce.

Columns keep their metadata in numpy arrays, so that a source of millions of samples is a few large buffers: cheap to
pickle, and not copied into forked workers by reference counting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fastload.errors import DecodeError, SourceError
from fastload.fingerprint import fingerprint_of
from fastload.geometry import Role
from fastload.sources.buffers import PickledByReference
from fastload.sources.paths import PathTable

__all__ = [
    "Column",
    "EncodedImages",
    "Objects",
    "OpenOptions",
    "Opened",
    "PixelImages",
    "Role",
    "Source",
    "Values",
    "fingerprint_of",
]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class EncodedImages(PickledByReference):
    """Compressed images in files, or in byte ranges of larger files."""

    paths: PathTable
    """One path a sample; of a shard, the path of the shard."""
    role: Literal["image", "mask"] = "image"
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
        """The compressed bytes of one sample. Raises OSError as the system words it."""
        path, offset, length = self.locate(index)
        with open(path, "rb", buffering=0) as file:
            if length < 0:
                return file.read()
            file.seek(offset)
            data = file.read(length)
        if len(data) != length:
            raise OSError(f"{self.describe(index)}: the file ends after {len(data)} of {length} bytes.")
        return data

    def describe(self, index: int) -> str:
        """How to name this sample to a person: its path, or `shard.tar:member`."""
        return self.paths[index] if self.names is None else f"{self.paths[index]}:{self.names[index]}"

    def take(self, indices: Int64Array) -> EncodedImages:
        return EncodedImages(
            self.paths.take(indices),
            self.role,
            None if self.offsets is None else self.offsets[indices],
            None if self.lengths is None else self.lengths[indices],
            None if self.names is None else self.names.take(indices),
        )


@dataclass(frozen=True)
class PixelImages(PickledByReference):
    """Decoded uint8 images: one array (N, H, W, C) of equal sizes, or a flat buffer with a size for each."""

    array: npt.NDArray[np.uint8]
    """(N, H, W, C) uint8; or (total bytes,) uint8 when `sizes` and `offsets` are given. May be a memory map."""
    role: Literal["image", "mask"] = "image"
    sizes: npt.NDArray[np.int32] | None = None
    """(N, 2) int32: height, width of each image in the flat buffer."""
    offsets: Int64Array | None = None
    """(N,) int64: first byte of each image in the flat buffer."""
    channels: int = 3
    rows: Int64Array | None = None
    """(N,) int64: which row of `array` (or of `sizes`) each sample is, for subsets; None for all, in order."""
    names: PathTable | None = None
    """What to call each row in messages: the files that the pixels were decoded from."""
    failed: Mapping[int, str] = field(default_factory=dict)
    """Rows that could not be decoded when a cache was built, and the message of the DecodeError; they hold zeros."""

    def __post_init__(self) -> None:
        if self.array.dtype != np.uint8:
            raise SourceError(f"PixelImages needs uint8 pixels, got {self.array.dtype}; convert them first.")
        if self.sizes is None and (self.array.ndim != 4 or self.array.shape[3] != self.channels):
            raise SourceError(
                f"PixelImages needs an array (N, H, W, {self.channels}), got shape {self.array.shape}; "
                "reshape it, or give sizes and offsets for images of different sizes."
            )

    def __len__(self) -> int:
        if self.rows is not None:
            return len(self.rows)
        return len(self.array) if self.sizes is None else len(self.sizes)

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """(height, width) shared by all images, or None when they differ."""
        return (self.array.shape[1], self.array.shape[2]) if self.sizes is None else None

    def rows_of(self, indices: Int64Array) -> Int64Array:
        """Positions in `array` (or in `sizes` and `offsets`) of these samples."""
        return indices if self.rows is None else self.rows[indices]

    def sizes_of(self, indices: Int64Array) -> npt.NDArray[np.int32]:
        """(B, 2) int32: height, width of these samples."""
        if self.sizes is None:
            return np.broadcast_to(np.array(self.array.shape[1:3], dtype=np.int32), (len(indices), 2))
        return self.sizes[self.rows_of(indices)]

    def pixels(self, index: int) -> npt.NDArray[np.uint8]:
        """(H, W, C) uint8 view of one image. Raises DecodeError if it could not be decoded in the first place."""
        row = index if self.rows is None else int(self.rows[index])
        if row in self.failed:
            raise DecodeError(self.failed[row])
        if self.sizes is None or self.offsets is None:
            view: npt.NDArray[np.uint8] = self.array[row]
            return view
        height, width = (int(n) for n in self.sizes[row])
        start = int(self.offsets[row])
        return self.array[start : start + height * width * self.channels].reshape(height, width, self.channels)

    def failures_of(self, indices: Int64Array) -> dict[int, DecodeError]:
        """The samples that could not be decoded in the first place, by position in `indices`."""
        if not self.failed:
            return {}
        rows = enumerate(self.rows_of(indices).tolist())
        return {position: DecodeError(self.failed[row]) for position, row in rows if row in self.failed}

    def describe(self, index: int) -> str:
        """How to name this sample to a person."""
        if self.names is None:
            return f"image {index}"
        return self.names[index if self.rows is None else int(self.rows[index])]

    def take(self, indices: Int64Array) -> PixelImages:
        return replace(self, rows=self.rows_of(indices))


@dataclass(frozen=True)
class Values(PickledByReference):
    """One row of numbers a sample, passed on as it is: labels (N,) int64, token ids (N, length)..."""

    array: npt.NDArray[Any]
    """(N, ...) of any dtype that torch has. May be a memory map."""
    role: Literal["value"] = "value"
    rows: Int64Array | None = None
    """(N,) int64: which row of `array` each sample is, for subsets of a memory map; None for all, in order."""

    def __len__(self) -> int:
        return len(self.array) if self.rows is None else len(self.rows)

    def at(self, indices: Int64Array) -> npt.NDArray[Any]:
        """(B, ...): a copy of these rows."""
        result: npt.NDArray[Any] = self.array[indices if self.rows is None else self.rows[indices]]
        return result

    def describe(self, index: int) -> str:
        return f"row {index}"

    def take(self, indices: Int64Array) -> Values:
        return Values(self.array, rows=indices if self.rows is None else self.rows[indices])


@dataclass(frozen=True)
class Objects:
    """Items of a map-style torch Dataset, produced one at a time by its own Python code."""

    dataset: Any
    """Has `__getitem__(int)` and `__len__`."""
    role: Literal["object"] = "object"
    rows: Int64Array | None = None

    def __len__(self) -> int:
        return len(self.dataset) if self.rows is None else len(self.rows)

    def item(self, index: int) -> Any:
        return self.dataset[index if self.rows is None else int(self.rows[index])]

    def describe(self, index: int) -> str:
        return f"{type(self.dataset).__name__}[{index}]"

    def take(self, indices: Int64Array) -> Objects:
        return Objects(self.dataset, rows=indices if self.rows is None else self.rows[indices])


Column = EncodedImages | PixelImages | Values | Objects


@dataclass(frozen=True)
class Source:
    """Random access to the samples of a data set: named columns of equal length.

    Raises:
        SourceError: the columns differ in length, or there are none.
    """

    columns: Mapping[str, Column]
    """In the order in which a batch yields them: {"image": ..., "label": ...}."""
    fingerprint: str
    """Changes when the samples change; kept in saved states and caches. See `fingerprint_of`."""
    name: str
    """For messages: the folder or file it was opened from."""
    layout: Literal["tuple", "dict"] = "tuple"
    """Whether a batch is a tuple in column order or a dict by column name."""
    classes: tuple[str, ...] | None = None
    """Class names by label, where there are any."""
    format: str = "arrays"
    """What it was recognised as ("class folder", "CIFAR-10 python archive"...), for `explain()`."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Anything else worth telling a person."""

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) != 1:
            raise SourceError(f"{self.name}: the columns must have one length each other, got {lengths}.")
        if not len(self):
            raise SourceError(f"{self.name}: no samples found.")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def images(self) -> dict[str, EncodedImages | PixelImages]:
        """The columns that geometry applies to: images and masks."""
        return {k: c for k, c in self.columns.items() if isinstance(c, EncodedImages | PixelImages)}

    def describe(self, index: int) -> str:
        """How to name a sample to a person: by its first column."""
        return next(iter(self.columns.values())).describe(index)

    def take(self, indices: Int64Array) -> Source:
        """The source of these samples alone, in this order (as torch.utils.data.Subset)."""
        return Source(
            {name: column.take(indices) for name, column in self.columns.items()},
            fingerprint_of(self.fingerprint, indices),
            f"{self.name} (subset of {len(indices)})",
            self.layout,
            self.classes,
            self.format,
            self.details,
        )


@dataclass(frozen=True)
class Opened:
    """A source, and what else the thing it was opened from said about how to use it."""

    source: Source
    transform: Callable[[Any], Any] | None = None
    """The transform of a torchvision dataset whose samples are served natively, so without it: the caller must lower
    and apply it. None for everything else; in particular an `Objects` column applies its dataset's transform itself."""
    notes: tuple[str, ...] = field(default=())
    """Decisions a person may want to know ("the training split, as no split was named"), for `explain()`."""


@dataclass(frozen=True)
class OpenOptions:
    """What a caller may add to the specification; a format refuses what it does not list in `Format.options`."""

    split: str | None = None
    """Which part of a data set that holds several: "train", "test"..."""
    labels: Literal["fine", "coarse"] | None = None
    """Which labels of CIFAR-100; None is "fine"."""
    fields: tuple[str, ...] | None = None
    """Extensions to serve from tar shards, in order; None: all, which must then be of known kinds."""
    classes: tuple[str, ...] | None = None
    """Class names by label, where the data do not say; labels out of their range are refused."""
