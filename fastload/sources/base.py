"""A source: columns of samples, by index.

Every format, from a folder of JPEGs to a file of token ids, is opened as a `Source`: a few columns
of equal length (`columns.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from fastload.errors import ConfigurationError, SourceError, counted
from fastload.fingerprint import fingerprint_of
from fastload.sources.buffers import Int64Array
from fastload.sources.columns import (
    Column,
    EncodedFiles,
    EncodedImages,
    ImageColumn,
    Objects,
    PixelImages,
    Storage,
    Values,
)
from fastload.sources.instances import check_instances
from fastload.sources.kinds import JSON_NAME, PLACES, VALUE

if TYPE_CHECKING:
    from fastload.sampler.mixture import Mixture


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
    """Whether a sample is a tuple in column order, or a dict by column name. The batch is then a
    list or a dict, as torch's `default_collate` makes it."""
    classes: tuple[str, ...] | None = None
    """Class names by label, where there are any."""
    format: str = "arrays"
    """The format that was recognised ("class folder", "CIFAR-10 python archive", ...), for
    `explain()`."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further facts for people, by name."""
    upright: bool = False
    """Whether images are always turned upright by their EXIF orientation, because the library whose
    data set this is does so; the option `exif_orientation` is on then."""
    mixture: Mixture | None = field(default=None, kw_only=True)
    """By which weights its samples come, where it is a mix of several; None: each once."""

    def __post_init__(self) -> None:
        for name, column in self.columns.items():
            if getattr(column, "storage", None) not in get_args(Storage):
                raise SourceError(
                    f"{self.name}: column {name!r} is a {type(column).__name__}, which is no "
                    "column; derive its class from EncodedImages, PixelImages, Values or Objects "
                    "of fastload.sources."
                )
            try:
                column.kind  # noqa: B018  # raises SourceError if its role is not registered
            except SourceError as error:
                raise SourceError(f"{self.name}: column {name!r}: {error}") from None
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) != 1:
            raise SourceError(f"{self.name}: the columns must have equal lengths, got {lengths}.")
        # A DataLoader over an empty data set has no batches.
        if not len(self) and not self.objects:
            raise SourceError(f"{self.name}: no samples found.")
        if self.instances:
            check_instances(self.instances, self.name)

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
    def archives(self) -> list[str]:
        """The files on local disk that samples are parts of (tar and zip files, shards), or rows
        that are read when they are needed, sorted; remote ones are checked by their versions with
        every read."""
        parts = [
            column.paths
            for one in (self.encoded | self.values).values()
            for column in (one, *getattr(one, "within", ()))
            if isinstance(column, EncodedFiles) and column.offsets is not None
            if not column.is_remote
        ]
        grouped = [column.groups.archives for column in self.encoded.values() if column.groups]
        return sorted({path for paths in parts for path in paths.all_held()}.union(*grouped))

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
    def deep(self) -> dict[str, ImageColumn]:
        """The images of more than 8 bits, without masks, which only geometry is applied to."""
        return {
            name: column
            for name, column in self.images.items()
            if column.dtype != np.uint8 and column.kind.coloured
        }

    @cached_property
    def moved(self) -> dict[str, Values]:
        """The columns that say where something is in the images, so that geometry moves them."""
        return {name: column for name, column in self.values.items() if column.kind.moves}

    @cached_property
    def made(self) -> dict[str, Values]:
        """Those of `moved` that no data set has (`Kind.made`)."""
        return {name: column for name, column in self.moved.items() if column.kind.made}

    def without(self, names: Iterable[str]) -> Source:
        """The source without columns of these names; itself where there are none."""
        left = {name: column for name, column in self.columns.items() if name not in set(names)}
        return self if len(left) == len(self.columns) else replace(self, columns=left)

    @cached_property
    def grouped(self) -> dict[str, Values]:
        """The columns of plain numbers, or values of JSON's, of which a sample may have several."""
        several = {}
        for name, column in self.values.items():
            stored = column.in_array()
            if column.role in (VALUE.name, PLACES.name, JSON_NAME) and (
                stored is None or stored.array.ndim > 1
            ):
                several[name] = column
        return several

    @cached_property
    def decoded(self) -> list[str]:
        """The names of the columns of values that are decoded where they are read."""
        return [name for name, column in self.values.items() if column.kind.decodes]

    @cached_property
    def drawn(self) -> list[str]:
        """The names of those of `moved` from which masks are drawn."""
        return [name for name, column in self.moved.items() if column.kind.drawn]

    @cached_property
    def instances(self) -> dict[str, Values]:
        """The columns with one element for each object in an image, of which there is any
        number."""
        return {
            name: column
            for name, column in self.values.items()
            if column.ragged and column.kind.of_instances
        }

    def refuse_turning(self) -> None:
        """Raise ConfigurationError if images cannot be turned by their EXIF tag: it is not known
        whether boxes and the like are of the pictures before or after that."""
        placed = [name for name in self.moved if name not in self.made]
        if self.encoded and placed:
            raise ConfigurationError(
                f"exif_orientation: it turns images of {self.name}, and "
                f"{', '.join(map(repr, placed))} may be of the pictures before or after that. "
                "Save the images turned (PIL.ImageOps.exif_transpose) beside what belongs to "
                "those, or leave exif_orientation out."
            )
        if self.decoded:
            from fastload.sources.image_lists import refuse_turning_lists

            refuse_turning_lists(self.values, self.name)

    def _stored_as(self, *storages: Storage) -> dict[str, Any]:
        return {name: column for name, column in self.columns.items() if column.storage in storages}

    @cached_property
    def class_count(self) -> int | None:
        """How many classes: the number of names, or 1 + the largest value of a column `label` of
        whole numbers; None where there is neither."""
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
            mixture=None,
        )


@dataclass(frozen=True)
class Assumed:
    """What is still asked of the code of a Dataset that is otherwise skipped on the user's word
    (`assume_plain`)."""

    compared: Any
    """A Dataset: samples (image, label) by the user's code, images untransformed. Some are compared
    with what is served."""
    labels: Any = None
    """A Dataset: the same with placeholders for images, so that nothing is decoded; where the
    labels come from. None: from the data set's list of samples."""


@dataclass(frozen=True)
class TransformsBySource:
    """A transform for each source of a mix, in place of one of all samples."""

    names: tuple[str, ...]
    starts: tuple[int, ...]
    """The index of the first sample of each source."""
    transforms: tuple[Any, ...]
    """None: none."""


@dataclass(frozen=True)
class Asked:
    """A call of `open_source`."""

    spec: Any
    options: Mapping[str, Any]
    """The other arguments, without those that have their defaults."""


@dataclass(frozen=True, repr=False)
class Opened:
    """A source, and what is known about how to use it."""

    source: Source
    transform: Callable[[Any], Any] | TransformsBySource | None = None
    """The transform of a torchvision dataset whose files fastload reads itself, or those of a mix:
    the source does not apply it, the caller must. None for everything else."""
    notes: tuple[str, ...] = ()
    """Decisions that the user may want to know ("the training split, as no split was named"), for
    `explain()`."""
    bare: Any = None
    """The torch Dataset that the source was opened from, without its transform. It makes the
    samples where Python must run on single ones. None for everything else."""
    assumed: Assumed | None = None
    """What of a Dataset's code is still asked, where the user lets the rest be skipped. None for
    everything else."""
    asked: Asked | None = field(default=None, init=False, compare=False)
    """What `open_source` was asked for. None: something else has made it, or changed it by
    `dataclasses.replace`."""

    def __repr__(self) -> str:
        transform = (
            "" if self.transform is None else f" with the transform {type(self.transform).__name__}"
        )
        return f"<opened {repr(self.source)[1:-1]}{transform}>"


@dataclass(frozen=True)
class OpenOptions:
    """Optional arguments of `open_source`, which explains them. A format takes those that its
    `Format.options` names; the others are refused."""

    split: str | None = None
    labels: Literal["fine", "coarse"] | None = None
    fields: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    strict: bool = False
    """Whether files that would be left out are an error. Given to every format."""
    masks: bool = False
    """Whether masks of the objects are wanted in place of polygons. Given to every format."""
    by_name: bool = False
    """Whether `format=` names the format. Given to every format."""
    target: tuple[str, ...] | None = None
    """Names of columns of numbers, of a table."""
    image_root: str | None = None
    """The folder that relative paths of images start from, in a file that names them."""
    training: str | None = None
    """The folder of the training split beside the one that `split` has chosen. Given to every
    format."""


def columns_left_out(
    name: str, left_out: Sequence[str], served: Iterable[str], options: OpenOptions
) -> tuple[str, ...]:
    """The note that says which columns of a table are not served, if there are any.

    Raises SourceError: they were asked for, or `options.strict` wants all that there are.
    """
    if not left_out:
        return ()
    words = f"{counted(len(left_out), 'column')} of neither images nor numbers: "
    words += ", ".join(left_out)
    if options.strict or options.fields is not None:
        raise SourceError(
            f"{name}: {words}; name the columns that you want: "
            f"open_source(..., fields={tuple(served)})."
        )
    return (f"left out: {words}",)
