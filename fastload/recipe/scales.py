"""Operations that resize and pad by drawn amounts, as detectors are trained with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from torchvision.transforms import v2

from fastload.draws import BoolArray, Draws, Float64Array, Int64Array
from fastload.geometry import Fill, Interpolation, Padding, Resampling
from fastload.geometry.boxes import fitting_sizes, pick, rescaled_sizes, shortest_edges
from fastload.geometry.plan import Composition, MaskInterpolation
from fastload.recipe import transforms as own
from fastload.recipe.attributes import (
    ROUNDED,
    Rounding,
    check_settings,
    read_antialias,
    read_bounds,
    read_fill,
    read_floats,
    read_interpolation,
    read_mask_fill,
    read_mask_interpolation,
    read_pair,
)
from fastload.recipe.operation import GeometryOperation, ImageState, Size, register


@dataclass(frozen=True, kw_only=True)
class _RandomSize(GeometryOperation, ABC):
    """A resize to a size that is drawn. Define `sizes`."""

    cuts = False
    clips = "nothing"
    draws_size = True
    uniforms = 1

    interpolation: Interpolation = "bilinear"
    antialias: bool = True
    mask_interpolation: MaskInterpolation = field(default="nearest", repr=False)

    def __post_init__(self) -> None:
        check_settings(self)

    @staticmethod
    def read_filter(transform: Any, image: ImageState) -> dict[str, Any]:
        return {
            "interpolation": read_interpolation(transform.interpolation, image),
            "antialias": read_antialias(transform.antialias, image),
            "mask_interpolation": read_mask_interpolation(
                getattr(transform, "mask_interpolation", transform.interpolation)
            ),
        }

    @property
    def resampling(self) -> Resampling:
        return Resampling(self.interpolation, self.antialias, of_masks=self.mask_interpolation)

    @abstractmethod
    def sizes(self, before: Int64Array, uniforms: Float64Array) -> Int64Array:
        """(B, 2) from (B, 2) sizes and (B,) random numbers; a side may come out as 0."""

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        composition.resize(self.sizes(composition.extent, uniforms[:, 0]))


@register
@dataclass(frozen=True, kw_only=True)
class ScaleJitter(_RandomSize):
    transforms: ClassVar[tuple[type, ...]] = (v2.ScaleJitter,)

    target_size: Size
    """As torchvision has it: the second number is for the height, the first for the width."""
    scale_range: tuple[float, float] = (0.1, 2.0)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> ScaleJitter:
        return cls(
            target_size=read_pair(transform.target_size),
            scale_range=read_bounds(transform.scale_range),
            **cls.read_filter(transform, image),
        )

    def sizes(self, before: Int64Array, uniforms: Float64Array) -> Int64Array:
        low, high = self.scale_range
        fitting = (np.array(self.target_size[::-1]) / before).min(axis=1)
        ratio = fitting * (low + uniforms * (high - low))
        scaled: Int64Array = (before * ratio[:, None]).astype(np.int64)
        return scaled


@register
@dataclass(frozen=True, kw_only=True)
class RandomShortestSize(_RandomSize):
    transforms = (v2.RandomShortestSize,)

    min_size: tuple[int, ...]
    """One of these is the length of the shorter side [pixels], or less where the longer side would
    exceed `max_size`."""
    max_size: int | None = None

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> RandomShortestSize:
        return cls(
            min_size=tuple(int(length) for length in transform.min_size),
            max_size=None if transform.max_size is None else int(transform.max_size),
            **cls.read_filter(transform, image),
        )

    def sizes(self, before: Int64Array, uniforms: Float64Array) -> Int64Array:
        count = np.full(len(before), len(self.min_size))
        ratio = np.array(self.min_size)[pick(uniforms, count)] / before.min(axis=1)
        if self.max_size is not None:
            ratio = np.minimum(ratio, self.max_size / before.max(axis=1))
        scaled: Int64Array = (before * ratio[:, None]).astype(np.int64)
        return scaled


@register
@dataclass(frozen=True, kw_only=True)
class RandomResize(_RandomSize):
    transforms = (v2.RandomResize, own.RandomResize)

    min_size: int
    max_size: int
    """The shorter side is from `min_size` to `max_size` - 1 [pixels]; the longer follows."""

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> RandomResize:
        return cls(
            min_size=int(transform.min_size),
            max_size=int(transform.max_size),
            **cls.read_filter(transform, image),
        )

    def sizes(self, before: Int64Array, uniforms: Float64Array) -> Int64Array:
        count = np.full(len(before), self.max_size - self.min_size)
        shorter = self.min_size + pick(uniforms, count)
        longer = (shorter * before.max(axis=1) / before.min(axis=1)).astype(np.int64)
        wide = before[:, 1] > before[:, 0]
        sides = [np.where(wide, shorter, longer), np.where(wide, longer, shorter)]
        return np.stack(sides, axis=1)


@register
@dataclass(frozen=True, kw_only=True)
class ResizeScale(_RandomSize):
    """See `fastload.recipe.transforms.ResizeScale`."""

    transforms = (own.ResizeScale,)

    size: Size
    scale: tuple[float, float] = (0.1, 2.0)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> ResizeScale:
        return cls(size=transform.size, scale=transform.scale, **cls.read_filter(transform, image))

    def sizes(self, before: Int64Array, uniforms: Float64Array) -> Int64Array:
        low, high = self.scale
        return fitting_sizes(before, self.size, low + uniforms * (high - low))


@register
@dataclass(frozen=True, kw_only=True)
class ResizeShortestEdge(_RandomSize):
    """See `fastload.recipe.transforms.ResizeShortestEdge`."""

    transforms = (own.ResizeShortestEdge,)

    lengths: tuple[int, ...]
    max_size: int | None = None

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> ResizeShortestEdge:
        return cls(
            lengths=transform.lengths,
            max_size=transform.max_size,
            **cls.read_filter(transform, image),
        )

    def sizes(self, before: Int64Array, uniforms: Float64Array) -> Int64Array:
        picked = pick(uniforms, np.full(len(before), len(self.lengths)))
        return shortest_edges(before, np.array(self.lengths)[picked], self.max_size)


@register
@dataclass(frozen=True, kw_only=True)
class RandomRescale(_RandomSize):
    """See `fastload.recipe.transforms.RandomRescale`."""

    transforms = (own.RandomRescale,)

    sides: tuple[int, int]
    ratios: tuple[float, float] = (0.5, 2.0)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> RandomRescale:
        return cls(
            sides=transform.scale, ratios=transform.ratio, **cls.read_filter(transform, image)
        )

    def sizes(self, before: Int64Array, uniforms: Float64Array) -> Int64Array:
        low, high = self.ratios
        return rescaled_sizes(before, self.sides, low + uniforms * (high - low))


@register
@dataclass(frozen=True, kw_only=True)
class RandomZoomOut(GeometryOperation):
    transforms = (v2.RandomZoomOut,)
    cuts = False
    draws_size = True
    fits_every_image = True
    uniforms = 4

    side_range: tuple[float, float] = (1.0, 4.0)
    p: float = 0.5
    fill: Fill = (0.0,)
    mask_fill: Fill = (0.0,)

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> RandomZoomOut:
        return cls(
            side_range=read_bounds(transform.side_range),
            p=float(transform.p),
            fill=read_fill(transform.fill, image) or (0.0,),
            mask_fill=read_mask_fill(transform.fill),
        )

    def padding_for(self, size: Size | None) -> Padding:
        return Padding("constant", self.fill, self.mask_fill)

    def clipped_rows(self, sizes: Int64Array, draws: Draws, stream: int) -> BoolArray:
        return draws.uniform(stream, self.uniforms)[:, 0] < self.p

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        low, high = self.side_range
        ratio = (low + uniforms[:, 1] * (high - low))[:, None]
        canvas = (composition.extent * ratio).astype(np.int64)
        canvas = np.where(uniforms[:, :1] < self.p, canvas, composition.extent)
        missing = canvas - composition.extent
        # Left, then top.
        before = (missing * uniforms[:, [3, 2]]).astype(np.int64)
        composition.pad(before, missing - before)


@dataclass(frozen=True, kw_only=True)
class _PaddedTo(GeometryOperation):
    """What makes all images one size, by cutting or by resizing, and by padding."""

    size: Size
    fill: Fill = (0.0,)
    mask_fill: Fill = (0.0,)

    def __post_init__(self) -> None:
        check_settings(self)

    @staticmethod
    def read_common(transform: Any) -> dict[str, Any]:
        return {
            "size": read_pair(transform.size),
            "fill": read_floats(transform.fill),
            "mask_fill": read_floats(transform.mask_fill),
        }

    @property
    def out_size(self) -> Size:
        return self.size

    def padding_for(self, size: Size | None) -> Padding:
        return Padding("constant", self.fill, self.mask_fill)


@register
@dataclass(frozen=True, kw_only=True)
class FixedSizeCrop(_PaddedTo):
    transforms = (own.FixedSizeCrop,)
    clips = "both"
    fits_every_image = True
    uniforms = 2

    apart: bool = field(default=False, repr=False)
    """Whether top and left have a random number each."""
    rounding: Rounding = field(default="down", repr=False)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> FixedSizeCrop:
        return cls(apart=transform.apart, rounding=transform.rounding, **cls.read_common(transform))

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        """An axis is padded, or cut; so to pad first makes the same."""
        target = np.array([self.size], dtype=np.int64)
        missing = np.maximum(target - composition.extent, 0)
        if missing.any():
            composition.pad(np.zeros_like(missing), missing)
        spare = composition.extent - target
        if self.apart:
            start = pick(uniforms, spare + 1)
        else:
            start = ROUNDED[self.rounding](spare * uniforms[:, :1]).astype(np.int64)
        composition.crop(start, target)


@register
@dataclass(frozen=True, kw_only=True)
class Letterbox(_PaddedTo):
    transforms = (own.Letterbox,)
    cuts = False
    fits_every_image = True

    fill: Fill = (114.0,)
    scale_up: bool = True
    interpolation: Interpolation = "bilinear"
    antialias: bool = True
    mask_interpolation: MaskInterpolation = field(default="nearest", repr=False)
    rounding: Rounding = field(default="nearest", repr=False)
    corner: bool = field(default=False, repr=False)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> Letterbox:
        return cls(
            rounding=transform.rounding,
            corner=transform.corner,
            scale_up=bool(transform.scale_up),
            interpolation=read_interpolation(transform.interpolation, image),
            antialias=read_antialias(transform.antialias, image),
            mask_interpolation=read_mask_interpolation(transform.interpolation),
            **cls.read_common(transform),
        )

    @property
    def resampling(self) -> Resampling:
        return Resampling(self.interpolation, self.antialias, of_masks=self.mask_interpolation)

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        target = np.array([self.size], dtype=np.int64)
        ratio = (target / composition.extent).min(axis=1, keepdims=True)
        ratio = ratio if self.scale_up else np.minimum(ratio, 1.0)
        resized = ROUNDED[self.rounding](composition.extent * ratio).astype(np.int64)
        resized = np.clip(resized, 1, target)
        composition.resize(resized)
        before = (target - resized) // 2 * (not self.corner)
        composition.pad(before, target - resized - before)
