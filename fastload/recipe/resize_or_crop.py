"""A resize to one of several sizes, of some images after a first resize and a crop, as DETR is
trained with.

It is three operations: a resize, a crop, a resize. Which of two ways a sample goes is drawn once,
so that the later two take the random numbers of the first. A sample that is not cropped has its
only resize in the first: it is resampled once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fastload.draws import BoolArray, Draws, Float64Array, Int64Array
from fastload.geometry import Interpolation, Resampling
from fastload.geometry.boxes import pick, shorter_sides
from fastload.geometry.plan import Composition, MaskInterpolation
from fastload.recipe import transforms as own
from fastload.recipe.attributes import (
    check_settings,
    read_antialias,
    read_interpolation,
    read_mask_interpolation,
)
from fastload.recipe.operation import GeometryOperation, ImageState, Operation, register_lowering

_CROPPED, _FIRST, _LAST, _WIDTH, _HEIGHT, _TOP, _LEFT = range(7)
"""What each random number is for."""


@dataclass(frozen=True, kw_only=True)
class _Part(GeometryOperation):
    """The settings that all three have."""

    uniforms = 7
    draws_size = True

    sizes: tuple[int, ...]
    max_size: int | None = None
    first: tuple[int, ...] = (400, 500, 600)
    crop: tuple[int, int] = (384, 600)
    """Least and largest side."""
    p: float = 0.5
    """Probability of the crop."""
    square: bool = False
    """Whether both sides become one of the sizes."""

    @property
    def fits_every_image(self) -> bool:  # type: ignore[override]
        return False  # a resize may leave no pixel of a side

    def cropped(self, uniforms: Float64Array) -> BoolArray:
        """(B,): which samples are."""
        rows: BoolArray = uniforms[:, _CROPPED] >= 1.0 - self.p
        return rows

    def resized(self, sizes: Int64Array, uniforms: Float64Array) -> Int64Array:
        """(B, 2): the sizes in the end, of images that are resized from these."""
        picked = _picked(self.sizes, uniforms[:, _LAST])
        if self.square:
            return np.stack([picked, picked], axis=1)
        return shorter_sides(sizes, picked, self.max_size)

    @property
    def last_size(self) -> tuple[int, int] | None:
        """(height, width) of all images in the end, where that is not drawn."""
        return (self.sizes[0],) * 2 if self.square and len(self.sizes) == 1 else None


@dataclass(frozen=True, kw_only=True)
class _Resize(_Part):
    cuts = False
    clips = "nothing"

    interpolation: Interpolation = "bilinear"
    antialias: bool = True
    mask_interpolation: MaskInterpolation = field(default="nearest", repr=False)

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def resampling(self) -> Resampling:
        return Resampling(self.interpolation, self.antialias, of_masks=self.mask_interpolation)


@dataclass(frozen=True, kw_only=True)
class ResizeOrCrop(_Resize):
    """The first of the three: the resize before the crop, or the only one."""

    @property
    def out_size(self) -> tuple[int, int] | None:
        return self.last_size if self.p == 0 else None

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        before = composition.extent
        first = shorter_sides(before, _picked(self.first, uniforms[:, _FIRST]), None)
        cropped = self.cropped(uniforms)[:, None]
        composition.resize(np.where(cropped, first, self.resized(before, uniforms)))


@dataclass(frozen=True, kw_only=True)
class CropBetween(_Part):
    """The second of the three."""

    draws_with: ClassVar[int] = 1

    def clipped_rows(self, sizes: Int64Array, draws: Draws, stream: int) -> BoolArray:
        return self.cropped(draws.uniform(stream - self.draws_with, self.uniforms))

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        whole, (least, most) = composition.extent, self.crop
        spare = np.maximum(np.minimum(whole, most) - least, 0)
        extent = np.minimum(least + pick(uniforms[:, [_HEIGHT, _WIDTH]], spare + 1), whole)
        start = pick(uniforms[:, [_TOP, _LEFT]], whole - extent + 1)
        cropped = self.cropped(uniforms)[:, None]
        composition.crop(np.where(cropped, start, 0), np.where(cropped, extent, whole))


@dataclass(frozen=True, kw_only=True)
class ResizeCropped(_Resize):
    """The last of the three: the resize of what was cropped."""

    draws_with: ClassVar[int] = 2

    @property
    def out_size(self) -> tuple[int, int] | None:
        return self.last_size

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        before, cropped = composition.extent, self.cropped(uniforms)[:, None]
        composition.resize(np.where(cropped, self.resized(before, uniforms), before))


def _picked(among: tuple[int, ...], uniforms: Float64Array) -> Int64Array:
    picked: Int64Array = np.array(among)[pick(uniforms, np.full(len(uniforms), len(among)))]
    return picked


def _resize_or_crop(transform: Any, image: ImageState) -> tuple[Operation, ...]:
    names = ("sizes", "max_size", "first", "crop", "p", "square")
    common = {name: getattr(transform, name) for name in names}
    filters: dict[str, Any] = {
        "interpolation": read_interpolation(transform.interpolation, image),
        "antialias": read_antialias(transform.antialias, image),
        "mask_interpolation": read_mask_interpolation(transform.interpolation),
    }
    resize = ResizeOrCrop(**common, **filters)
    if transform.p == 0:
        return (resize,)
    return resize, CropBetween(**common), ResizeCropped(**common, **filters)


register_lowering("ResizeOrCrop", (own.ResizeOrCrop,), _resize_or_crop)
