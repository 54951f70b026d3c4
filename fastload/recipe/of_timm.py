"""timm's own transforms: loaded when one of them is met, see `operation.lowering_of`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from timm.data import random_erasing as timm_erasing
from timm.data import transforms as timm

from fastload.draws import BoolArray, Float64Array
from fastload.geometry import Fill, Interpolation, Padding, PaddingMode, Resampling
from fastload.geometry.boxes import RANDOM_RESIZED_CROP_UNIFORMS
from fastload.geometry.plan import Composition
from fastload.recipe.attributes import read_bounds, read_floats, read_interpolation, read_pair
from fastload.recipe.convert import ToDtype
from fastload.recipe.crops import CenterCrop, RandomResizedCrop
from fastload.recipe.erase import RandomErasing
from fastload.recipe.operation import (
    GeometryOperation,
    ImageState,
    NotLowerableError,
    Operation,
    Size,
    register,
    register_lowering,
)


@dataclass(frozen=True)
class MixedResizedCrop(RandomResizedCrop):
    """RandomResizedCrop with a filter drawn for each sample: bilinear or bicubic, equally
    likely."""

    transforms: ClassVar[tuple[type, ...]] = ()
    uniforms = RANDOM_RESIZED_CROP_UNIFORMS + 1
    mixes_filters = True

    def bicubic_rows(self, uniforms: Float64Array) -> BoolArray:
        return np.ascontiguousarray(uniforms[:, -1] >= 0.5)

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        super().compose(composition, uniforms[:, :-1])
        composition.bicubic = self.bicubic_rows(uniforms)

    def native(
        self, core: Any, uniforms: Float64Array, flips: BoolArray, then: tuple[Any, ...]
    ) -> Any:
        if then:
            return None
        return self.native_crops(
            core, np.ascontiguousarray(uniforms[:, :-1]), flips, self.bicubic_rows(uniforms)
        )


@register
@dataclass(frozen=True)
class ResizeKeepRatio(GeometryOperation):
    """A side as long as asked, the shorter (longest=0), the longer (1), or between; both sides
    rounded."""

    transforms = (timm.ResizeKeepRatio,)
    cuts = False
    clips = "nothing"

    size: Size
    longest: float = 0.0
    interpolation: Interpolation = "bilinear"

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> ResizeKeepRatio:
        if transform.random_scale_prob > 0 or transform.random_aspect_prob > 0:
            raise NotLowerableError(
                "of ResizeKeepRatio fastload has the form without random scale and aspect"
            )
        return cls(read_pair(transform.size), float(transform.longest), _filter(transform, image))

    @property
    def resampling(self) -> Resampling:
        return Resampling(self.interpolation, True)

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        extent = composition.extent.astype(np.float64)
        ratios = extent / np.array([self.size], dtype=np.float64)
        ratio = ratios.max(axis=1) * self.longest + ratios.min(axis=1) * (1.0 - self.longest)
        composition.resize(np.rint(extent / ratio[:, None]).astype(np.int64))


@register
@dataclass(frozen=True)
class CenterCropOrPad(CenterCrop):
    """CenterCrop that says what lies around smaller images."""

    transforms: ClassVar[tuple[type, ...]] = (timm.CenterCropOrPad,)

    fill: Fill = (0.0,)
    padding_mode: PaddingMode = "constant"

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> CenterCropOrPad:
        fill = (0.0,) if transform.padding_mode != "constant" else read_floats(transform.fill)
        return cls(read_pair(transform.size), fill, transform.padding_mode)

    def padding_for(self, size: Size | None) -> Padding | None:
        pads = super().padding_for(size)
        return None if pads is None else Padding(self.padding_mode, self.fill)


def _filter(transform: Any, image: ImageState) -> Interpolation:
    if image.tensor:
        raise NotLowerableError("on a tensor it resizes without antialiasing in some versions")
    if isinstance(transform.interpolation, tuple | list):
        raise NotLowerableError("its interpolation is drawn at random")
    return read_interpolation(transform.interpolation, image)


def _random_resized_crop(transform: Any, image: ImageState) -> tuple[Operation, ...]:
    size = read_pair(transform.size)
    scale = read_bounds(transform.scale)
    ratio = read_bounds(transform.ratio)
    if isinstance(transform.interpolation, tuple | list):
        names = [read_interpolation(one, image) for one in transform.interpolation]
        if names != ["bilinear", "bicubic"] or image.tensor:
            raise NotLowerableError(f"it draws among the filters {', '.join(names)}")
        return (MixedResizedCrop(size, scale, ratio),)
    return (RandomResizedCrop(size, scale, ratio, _filter(transform, image), True),)


def _to_tensor(transform: Any, image: ImageState) -> tuple[Operation, ...]:
    """Nothing to do where it is one already, or where an array or uint8 tensor is made: that is
    what a batch holds."""
    known, image.tensor = image.tensor, True
    if type(transform) is timm.ToTensor:
        return (ToDtype(transform.dtype, scale=False),)
    return (
        (ToDtype(torch.float32, scale=True),)
        if type(transform) is timm.MaybeToTensor and not known
        else ()
    )


def _erasing(transform: Any, image: ImageState) -> tuple[Operation, ...]:
    if transform.rand_color or transform.min_count != 1 or transform.max_count != 1:
        raise NotLowerableError(
            "of timm's RandomErasing fastload has one box, of zeros (re_mode='const') or 'pixel'"
        )
    low, high = transform.log_aspect_ratio
    value: Any = "random" if transform.per_pixel else (0.0,)
    scale = (float(transform.min_area), float(transform.max_area))
    return (
        RandomErasing(float(transform.probability), scale, (math.exp(low), math.exp(high)), value),
    )


register_lowering(
    "a random resized crop", (timm.RandomResizedCropAndInterpolation,), _random_resized_crop
)
register_lowering("ToDtype", (timm.MaybeToTensor, timm.ToTensor), _to_tensor)
register_lowering("no operation", (timm.MaybePILToTensor,), _to_tensor)
register_lowering("no operation", (timm.ToNumpy,), lambda transform, image: ())
register_lowering("RandomErasing", (timm_erasing.RandomErasing,), _erasing)
