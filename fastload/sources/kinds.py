"""What becomes of the rows of a column: one class a kind, and the registry of them.

A column has its rows from somewhere (files, arrays, a Dataset's code), and a kind, which says how
rows are transformed under the geometry of a recipe, and how they are handed over. Nothing outside a
kind asks which one it is; a package of your own adds one with `register_kind`.
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fastload.draws import Draws
from fastload.errors import ConfigurationError, DecodeError, SourceError
from fastload.geometry import GeometryPlan, Resampling
from fastload.geometry.points import PointMap
from fastload.sources.ragged import Ragged

AnyArray = npt.NDArray[Any]
Rows = Any
"""Rows of a column: an array (n, ...), or a Ragged of n rows of numpy arrays."""


class BatchOperation(Protocol):
    """What a kind of pixels asks of an operation (`fastload.recipe.Operation`)."""

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor: ...

    def apply_to_masks(self, masks: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor: ...


JSON_NAME = "json"
"""The role of values of JSON's (`sources.json_values`)."""


class Kind:
    """Rows of numbers that geometry has nothing to do with: labels, token ids. The base of all
    kinds."""

    name: ClassVar[str] = "value"
    keys: ClassVar[tuple[str, ...]] = ()
    """Names by which an array in a dict of arrays is known to be of this kind."""
    moves: ClassVar[bool] = False
    """Whether rows say where something is in the image: then `transform` is called for each
    batch."""

    of_instances: ClassVar[bool] = False
    """Whether, in rows of variable length, each element belongs to one object in the image: where
    an object is dropped, those of all such columns are."""
    only_ragged: ClassVar[bool] = False
    """Whether only rows of variable length are known by `keys`."""

    made: ClassVar[bool] = False
    """Whether rows hold nothing: what is delivered says how the image was placed, of which
    `transform` is given all steps, those of pixels included (`PointMap.identity`)."""

    drawn: ClassVar[bool] = False
    """Whether rows are shapes, of which masks of the size of the images are delivered."""

    python_objects: ClassVar[bool] = False
    """Whether a batch has a list of Python objects, made by `objects`, and no tensor of it."""

    decodes: ClassVar[bool] = False
    """Whether its rows are to be decoded (`decoded`) where they are read, before `objects`."""

    drops_objects: ClassVar[bool] = False
    """Whether its `transform_and_kept` decides which objects are dropped."""

    rectangular: ClassVar[bool] = False
    """Whether, in rows of variable length, all elements have as many numbers: lists of lists, as
    tables have them, become an array."""

    def of(self, setting: str) -> Kind:
        """The kind of columns whose role is the name of this one, a colon, and a setting. Raises
        SourceError: there is none such."""
        raise SourceError(
            f"role '{self.name}:{setting}': columns of {self.name!r} have no settings; leave out "
            "the colon and what comes after it."
        )

    def check(self, rows: AnyArray, name: str) -> None:
        """Raise SourceError if some of (n, ...) rows cannot be of this kind; `name`: of the column,
        for messages. Of rows of variable length it is given the elements."""

    def transform(self, rows: AnyArray, points: PointMap) -> AnyArray:
        """(B, ...) rows of the source images as they are for the images that the trainer gets. Of
        rows of variable length it is given the elements, and for each the map of its image."""
        return rows

    def transform_and_kept(
        self, rows: AnyArray, points: PointMap
    ) -> tuple[AnyArray, npt.NDArray[np.bool_]]:
        """What `transform` makes of (B, ...) elements; and (B,) which of them are still objects to
        learn from, as the transform asks (`SanitizeBoundingBoxes`). Only of kinds that
        `drops_objects`."""
        raise NotImplementedError

    def decoded(self, rows: Any) -> tuple[Any, dict[int, DecodeError]]:
        """Rows of variable length, decoded; and the rows that cannot be, by number, with the
        reason. Only for kinds that have to be (`decodes`)."""
        raise NotImplementedError

    def objects(self, rows: Rows) -> list[Any]:
        """A Python object for each row of a batch. Only for kinds with `python_objects`."""
        raise NotImplementedError

    def for_code(self, value: Any) -> Any:
        """One of `objects` as functions of the user's get it, that take single samples."""
        return value

    def delivered(
        self, column: Any, dtype: torch.dtype | None, memory_format: torch.memory_format | None
    ) -> Any:
        """A column of a batch as the trainer gets it; `dtype` and `memory_format` are of images,
        None where those stay as they are."""
        return column


class PixelKind(Kind):
    """Images or masks: made by a renderer under the geometry, then changed by operations on
    batches."""

    channels: ClassVar[int]
    """How many channels are served."""
    as_stored: ClassVar[bool] = False
    """Whether compressed pixels are taken as the numbers in the file (grey values, palette
    indices), not as RGB."""
    coloured: ClassVar[bool] = False
    """Whether mixing and a dtype asked for apply."""

    def resampling(self, plan: GeometryPlan) -> Resampling:
        """How the pixels are made under a plan."""
        raise NotImplementedError

    def planes(self, name: str, pixels: torch.Tensor) -> torch.Tensor:
        """A batch as (B, C, H, W). Raises ConfigurationError: it is none; `name`: of the column,
        for messages."""
        if pixels.ndim != 4:
            raise ConfigurationError(
                f"column {name!r} ({self.name}) must be a batch (B, C, H, W), got shape "
                f"{tuple(pixels.shape)}; add the missing dimension."
            )
        return pixels

    def apply(
        self, op: BatchOperation, pixels: torch.Tensor, draws: Draws, stream: int
    ) -> torch.Tensor:
        """What an operation does to (B, C, H, W) pixels of this kind."""
        raise NotImplementedError


class ImageKind(PixelKind):
    name = "image"
    keys = ("image", "images")
    channels = 3
    coloured = True

    def resampling(self, plan: GeometryPlan) -> Resampling:
        return plan.resampling

    def apply(
        self, op: BatchOperation, pixels: torch.Tensor, draws: Draws, stream: int
    ) -> torch.Tensor:
        return op.apply(pixels, draws, stream)

    def delivered(
        self, column: Any, dtype: torch.dtype | None, memory_format: torch.memory_format | None
    ) -> Any:
        if dtype is not None and column.is_floating_point() and not dtype.is_floating_point:
            raise ConfigurationError(
                f"dtype: the images are {column.dtype}, and {dtype} would cut off their fractions. "
                "Give a floating point dtype, or leave dtype out."
            )
        column = column if dtype is None else column.to(dtype)
        if memory_format is None:
            return column
        column = column.contiguous(memory_format=memory_format)
        # (8, 1, 28, 28) with strides (784, 1, 28, 1) counts as contiguous, but a convolution takes
        # it for channels_last, and its output cannot be viewed as (8, -1). The strides of
        # (784, 784, 28, 1) are unambiguous: those of a view of the flat tensor.
        contiguous = memory_format == torch.contiguous_format
        return column.flatten().view(column.shape) if contiguous else column


class MaskKind(PixelKind):
    """A class number for each pixel: the same geometry, the nearest pixel, never colour. Delivered
    as (B, H, W)."""

    name = "mask"
    keys = ("mask", "masks")
    channels = 1
    as_stored = True

    def resampling(self, plan: GeometryPlan) -> Resampling:
        return plan.mask_resampling

    def planes(self, name: str, pixels: torch.Tensor) -> torch.Tensor:
        pixels = super().planes(name, pixels.unsqueeze(1) if pixels.ndim == 3 else pixels)
        if pixels.shape[1] != 1:
            raise ConfigurationError(
                f"column {name!r} (mask) must be (B, H, W) or (B, 1, H, W), got shape "
                f"{tuple(pixels.shape)}; give one class number for each pixel."
            )
        return pixels

    def apply(
        self, op: BatchOperation, pixels: torch.Tensor, draws: Draws, stream: int
    ) -> torch.Tensor:
        return op.apply_to_masks(pixels, draws, stream)

    def delivered(
        self, column: Any, dtype: torch.dtype | None, memory_format: torch.memory_format | None
    ) -> Any:
        return column[:, 0].contiguous()


class UnmovedKind(Kind):
    """Rows that stay as they are while the pixels of their image are moved, on the user's word:
    their name may say that they are places in it (`sources.places`)."""

    name = "unmoved"


class PlacesKind(Kind):
    """Numbers that are places in their image by the names of several columns of a table, x and y.
    They stay as they are, so that they are refused where pixels are moved (`sources.places`)."""

    name = "places"


class ObjectKind(Kind):
    """Samples that only Python code can make; what they hold is known by the samples themselves."""

    name = "object"


IMAGE, MASK, VALUE, OBJECT = ImageKind(), MaskKind(), Kind(), ObjectKind()
PLACES = PlacesKind()

_kinds: dict[str, Kind] = {
    kind.name: kind for kind in (IMAGE, MASK, VALUE, OBJECT, PLACES, UnmovedKind())
}
_ELSEWHERE = {
    "boxes": "fastload.sources.boxes",
    "crop_corner": "fastload.sources.placements",
    "image_list": "fastload.decode.lists",
    "instance_masks": "fastload.sources.masks",
    "instances": "fastload.sources.instances",
    "json": "fastload.sources.json_values",
    "keypoints": "fastload.sources.keypoints",
    "original_size": "fastload.sources.placements",
    "padding_mask": "fastload.sources.placements",
    "polygons": "fastload.sources.instances",
    "text": "fastload.sources.texts",
}
"""Names of kinds that are registered by a module of ours, loaded when the first column of them is
met."""
_KEYS_ELSEWHERE = _ELSEWHERE | dict.fromkeys(
    ("labels", "area", "iscrowd", "ids"), "fastload.sources.instances"
)
"""Names and keys of such kinds."""


def register_kind(kind: Kind) -> None:
    """Make a kind known: columns may have its name as `role`, and arrays named by its `keys` are of
    it.

    Raises:
        ConfigurationError: another kind has its name or one of its keys.
    """
    for known in _kinds.values():
        if type(known) is not type(kind) and (
            known.name == kind.name or set(known.keys) & set(kind.keys)
        ):
            raise ConfigurationError(
                f"register_kind({type(kind).__name__}): {type(known).__name__} has the name "
                f"{known.name!r} and the keys {', '.join(known.keys) or 'none'} already; choose "
                "others."
            )
    _kinds[kind.name] = kind


def kind_named(role: str) -> Kind:
    """The kind of a column. Raises SourceError: there is none of this name, or it has no such
    setting."""
    name, colon, setting = role.partition(":")
    kind = _found(name)
    if kind is None:
        raise SourceError(
            f"{name!r} is no kind of column; there are "
            f"{', '.join(sorted({*_kinds, *_ELSEWHERE}))}. Derive one from "
            "fastload.sources.Kind and make it known with fastload.sources.register_kind."
        )
    return kind.of(setting) if colon else kind


def pixel_kind(name: str) -> PixelKind:
    """The kind of a column of images. Raises SourceError: there is none of this name, or it is not
    of pixels."""
    kind = kind_named(name)
    if not isinstance(kind, PixelKind):
        raise SourceError(
            f"{name!r} is no kind of pixels; give the role 'image' or 'mask', or one of your own."
        )
    return kind


def kind_of_key(key: str, *, ragged: bool = False) -> Kind:
    """The kind of an array in a dict of arrays, by its name; plain values where no kind has that
    name among its keys. `ragged`: whether its rows are of variable length."""
    _found(key)
    known = (kind for kind in _kinds.values() if ragged or not kind.only_ragged)
    return next((kind for kind in known if key in kind.keys), VALUE)


def role_of_values(column: str, *, ragged: bool = False) -> str:
    """The role of a column of numbers in a table, by its name."""
    kind = kind_of_key(column, ragged=ragged)
    return VALUE.name if isinstance(kind, PixelKind) else kind.name


_MASK_COLUMNS = ("mask", "masks", "seg", "segmentation", "annotation", "label")


def role_of_images(column: str) -> str:
    """The role of a column of images in a table, "image" or "mask", by its name."""
    return (MASK if column in _MASK_COLUMNS else IMAGE).name


def check_rows(kind: Kind, rows: Rows, name: str) -> None:
    """`Kind.check`, of rows of variable length too: the message names the sample."""
    if not isinstance(rows, Ragged):
        kind.check(rows, name)
        return
    try:
        check_rows(kind, rows.values, name)
    except SourceError:
        for sample, row in enumerate(rows):  # Find the sample, for the message.
            check_rows(kind, row, f"{name}, sample {sample}")
        raise


def transformed(kind: Kind, rows: Rows, points: PointMap) -> Rows:
    """`Kind.transform`, of rows of variable length too."""
    if not isinstance(rows, Ragged):
        return kind.transform(rows, points)
    if type(kind).transform is Kind.transform:  # it changes nothing: no need to find the points
        return rows
    values = transformed(kind, rows.values, points.take(rows.rows_of_values))
    return Ragged(values, rows.offsets)


def _found(name: str) -> Kind | None:
    if name in _KEYS_ELSEWHERE:
        importlib.import_module(_KEYS_ELSEWHERE[name])
    return _kinds.get(name)


def first_bad_row(bad: npt.NDArray[np.bool_]) -> int | None:
    """The first of (n, ...) rows in which anything is True."""
    rows = np.flatnonzero(bad.any(axis=tuple(range(1, bad.ndim))))
    return int(rows[0]) if len(rows) else None
