"""What a source is: columns of samples, by index.

Every format, from a folder of JPEGs to a file of token ids, is opened into one `Source`: a few
columns of equal length. There are four kinds of column, each a base class here; a backend asks a
column nothing but what these have. `columns.py` has those of files and arrays. A data set that is
stored in another way (a database, an object store) is a class derived from one of them: for
compressed images `__len__` and `read` are all it takes.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from fastload.errors import DecodeError, SourceError, counted
from fastload.fingerprint import fingerprint_of
from fastload.sources.buffers import Int64Array, PathTable
from fastload.sources.kinds import Kind, PixelKind, kind_named, pixel_kind

if TYPE_CHECKING:
    from fastload.sources.columns import EncodedFiles, PixelArray, ValueArray

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
        """How to name this sample to a person: where it is stored, if there is a word for it."""
        return f"{type(self).__name__}[{index}]"

    @abstractmethod
    def take(self, indices: Int64Array) -> Column:
        """The column of these samples alone, in this order."""


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
        """Of the pixels that are served."""
        return self.kind.channels

    @property
    def fixed_size(self) -> tuple[int, int] | None:
        """(height, width) shared by all images, or None when they differ or it takes their headers
        to know."""
        return None

    def name_table(self) -> PathTable | None:
        """What `describe` says of all samples, for a cache to keep; None where that is a mere
        number."""
        return PathTable.of(map(self.describe, range(len(self))))


class EncodedImages(ImageColumn):
    """Images still compressed: JPEG, PNG and whatever else Pillow reads."""

    storage = "encoded"

    @abstractmethod
    def read(self, index: int) -> bytes:
        """The compressed bytes of one sample. An OSError becomes a DecodeError that names
        `describe(index)`."""

    def read_many(self, indices: Int64Array) -> Sequence[bytes]:
        """Those of several samples, for storage that has them cheaper together."""
        return [self.read(index) for index in indices.tolist()]

    def read_start(self, index: int, length: int) -> bytes:
        """At least the first `length` bytes, or all there are: for the header."""
        return self.read(index)

    @property
    def survives_fork(self) -> bool:
        """Whether a forked process may read them; clients of object stores have threads, which do
        not fork."""
        return True

    def in_files(self, indices: Int64Array) -> EncodedFiles | None:
        """These samples as files or parts of files, if that is what they are: the native core then
        opens them."""
        return None

    def take(self, indices: Int64Array) -> EncodedImages:
        return _EncodedRows(self, indices)


class PixelImages(ImageColumn):
    """Images that are decoded already, as uint8 arrays."""

    storage = "pixels"

    @abstractmethod
    def pixels(self, index: int) -> npt.NDArray[np.uint8]:
        """(H, W, C) uint8 of one image, perhaps read-only. Raises DecodeError if it could not be
        decoded before."""

    def sizes_of(self, indices: Int64Array) -> npt.NDArray[np.int32]:
        """(B, 2) int32: height, width of these samples; of those that `failures_of` names, anything
        above 0."""
        if self.fixed_size is not None:
            return np.broadcast_to(np.array(self.fixed_size, dtype=np.int32), (len(indices), 2))
        sizes = np.ones((len(indices), 2), dtype=np.int32)
        for position, index in enumerate(indices.tolist()):
            with contextlib.suppress(
                DecodeError
            ):  # which is found again when the pixels are wanted
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
    length)..."""

    storage = "values"

    @property
    def role(self) -> str:
        return "value"

    @abstractmethod
    def at(self, indices: Int64Array) -> npt.NDArray[Any]:
        """(B, ...) of any dtype that torch has: a copy of these rows, all of one shape."""

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

    def items(self, indices: Int64Array | list[Any]) -> list[Any] | None:
        """Several samples, if there is a way of their own to make them together; else None. A list
        has keys in place of
        indices: what a user's own sampler gives, where it is an adopted DataLoader's."""
        return None


@dataclass(frozen=True)
class _EncodedRows(EncodedImages):
    """Some rows of a column that knows no better way to take them."""

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

    def read_start(self, index: int, length: int) -> bytes:
        return self.column.read_start(int(self.rows[index]), length)


@dataclass(frozen=True, repr=False)
class Source:
    """Random access to the samples of a data set: named columns of equal length.

    Raises:
        SourceError: the columns differ in length, there are none, or one is of no kind that
            fastload knows.
    """

    columns: Mapping[str, Column]
    """In the order in which a batch yields them: {"image": ..., "label": ...}."""
    fingerprint: str
    """Changes when the samples change; kept in saved states and caches. See `fingerprint_of`."""
    name: str
    """For messages: the folder or file it was opened from."""
    layout: Literal["tuple", "dict"] = "tuple"
    """Whether a sample is a tuple in column order or a dict by column name; of tuples a batch is a
    list, as torch's `default_collate` makes it."""
    classes: tuple[str, ...] | None = None
    """Class names by label, where there are any."""
    format: str = "arrays"
    """What it was recognised as ("class folder", "CIFAR-10 python archive"...), for `explain()`."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Anything else worth telling a person."""

    def __post_init__(self) -> None:
        for name, column in self.columns.items():
            if getattr(column, "storage", None) not in get_args(Storage):
                raise SourceError(
                    f"{self.name}: column {name!r} is a {type(column).__name__}, which is no "
                    "column; derive its class "
                    "from EncodedImages, PixelImages, Values or Objects of fastload.sources."
                )
            try:
                column.kind  # noqa: B018  # which complains of a role that nobody has registered
            except SourceError as error:
                raise SourceError(f"{self.name}: column {name!r}: {error}") from None
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) != 1:
            raise SourceError(
                f"{self.name}: the columns must have one length each other, got {lengths}."
            )
        if not len(self):
            raise SourceError(f"{self.name}: no samples found.")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @cached_property
    def images(self) -> dict[str, ImageColumn]:
        """The columns that geometry applies to: images and masks, compressed or not."""
        return self._stored_as("encoded", "pixels")

    @cached_property
    def encoded(self) -> dict[str, EncodedImages]:
        return self._stored_as("encoded")

    @cached_property
    def pixels(self) -> dict[str, PixelImages]:
        return self._stored_as("pixels")

    @cached_property
    def values(self) -> dict[str, Values]:
        return self._stored_as("values")

    @cached_property
    def objects(self) -> dict[str, Objects]:
        return self._stored_as("object")

    @cached_property
    def moved(self) -> dict[str, Values]:
        """The columns that say where something is in the images, so that geometry moves them."""
        return {name: column for name, column in self.values.items() if column.kind.moves}

    def _stored_as(self, *storages: Storage) -> dict[str, Any]:
        return {name: column for name, column in self.columns.items() if column.storage in storages}

    @cached_property
    def class_count(self) -> int | None:
        """Of the names of classes, or of a column `label` of whole numbers; None where there is
        neither."""
        if self.classes is not None:
            return len(self.classes)
        labels = self.values.get("label")
        stored = None if labels is None else labels.in_array()
        if stored is None or stored.array.ndim != 1 or stored.array.dtype.kind not in "iu":
            return None
        return 1 + int(stored.at(np.arange(len(self))).max())

    @property
    def summary(self) -> str:
        """For a person, in a line: the format, how many samples, how many classes and the first of
        them."""
        words, count = f"{self.format}, {counted(len(self), 'sample')}", self.class_count
        if count is None:
            return words
        names = f"labels 0 to {count - 1}"
        if self.classes is not None:
            names = ", ".join(self.classes[:3]) + (", ..." if self.classes[3:] else "")
        return f"{words}, {counted(count, 'class')} ({names})"

    def __repr__(self) -> str:
        return f"<fastload source {self.name}: {self.summary}; columns {', '.join(self.columns)}>"

    def describe(self, index: int) -> str:
        return next(iter(self.columns.values())).describe(index)

    def take(self, indices: Int64Array) -> Source:
        """The source of these samples alone, in this order (as torch.utils.data.Subset)."""
        return replace(
            self,
            columns={name: column.take(indices) for name, column in self.columns.items()},
            fingerprint=fingerprint_of(self.fingerprint, indices),
            name=f"{self.name} (subset of {len(indices)})",
        )


@dataclass(frozen=True, repr=False)
class Opened:
    """A source, and what else the thing it was opened from said about how to use it."""

    source: Source
    transform: Callable[[Any], Any] | None = None
    """The transform of a torchvision dataset whose samples are served natively, so without it: the
    caller must apply it. None for everything else."""
    notes: tuple[str, ...] = ()
    """Decisions a person may want to know ("the training split, as no split was named"), for
    `explain()`."""
    bare: Any = None
    """The torch Dataset that the source stands for, without its transform: where Python must run on
    single samples, it makes them. None for everything else."""

    def __repr__(self) -> str:
        transform = (
            "" if self.transform is None else f" with the transform {type(self.transform).__name__}"
        )
        return f"<opened {repr(self.source)[1:-1]}{transform}>"


@dataclass(frozen=True)
class OpenOptions:
    """What a caller may add to the specification, as `open_source` says; a format is given what is
    in `Format.options`, and the rest is refused."""

    split: str | None = None
    labels: Literal["fine", "coarse"] | None = None
    fields: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    strict: bool = False
    """Whether files that would be left out are an error. Given to every format."""
