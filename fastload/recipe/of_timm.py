"""timm's own transforms: loaded when one of them is met, see `operation.lowering_of`."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from timm.data import auto_augment as timm_augment
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
from fastload.recipe.pillow_augment import (
    NAMES,
    Augmentation,
    Filters,
    PillowAugMix,
    PillowAutoAugment,
    PillowRandAugment,
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
    low, high = transform.log_aspect_ratio
    value: Any = "random" if transform.per_pixel else "colour" if transform.rand_color else (0.0,)
    scale = (float(transform.min_area), float(transform.max_area))
    counts = (int(transform.min_count), int(transform.max_count))
    ratio = (math.exp(low), math.exp(high))
    return (RandomErasing(float(transform.probability), scale, ratio, value, counts),)


def _augmentation(op: Any) -> Augmentation:
    """What an AugmentOp may do. Raises NotLowerableError: it is not one that fastload knows, or
    not of the strengths that it knows."""
    name, hparams = op.name, op.hparams
    known = type(op) is timm_augment.AugmentOp and name in NAMES
    if not known or op.aug_fn is not timm_augment.NAME_TO_OP[name]:
        raise NotLowerableError(f"{name} is not an operation of timm's that fastload has")
    # As the AugmentOp itself has it.
    most = float(op.magnitude_max or timm_augment._LEVEL_DENOM)
    if name in ("TranslateX", "TranslateY"):
        reach = float(hparams["translate_const"])
    else:
        reach = float(hparams.get("translate_pct", 0.45))
    numbers = (float(op.prob), float(op.magnitude), float(op.magnitude_std), most)
    augmentation = Augmentation(name, *numbers, reach if name.startswith("Translate") else 0.0)
    _check_strengths(op, augmentation)
    return augmentation


def _check_strengths(op: Any, ours: Augmentation) -> None:
    """That timm's function gives what ours does, up to the sign, which is drawn."""
    if op.level_fn is None:
        return
    state = random.getstate()
    try:
        for magnitude in np.linspace(0.0, ours.most, 9).tolist():
            (given,) = op.level_fn(magnitude, op.hparams)
            level = np.full(2, magnitude)
            if not np.isclose(ours.amounts(level, np.array([1.0, -1.0])), given).any():
                raise NotLowerableError(
                    f"{ours.name} of this timm has {given} at the magnitude {magnitude:g}, which "
                    "is not what fastload follows"
                )
    finally:
        random.setstate(state)


def _augmentations(ops: Sequence[Any], image: ImageState) -> tuple[Augmentation, ...]:
    if image.tensor:
        raise NotLowerableError("it takes PIL images")
    return tuple(map(_augmentation, ops))


def _settings(ops: Sequence[Any], image: ImageState) -> tuple[Filters, Fill]:
    """Of what moves pixels: how, and what is around an image."""
    settings = {
        (_names(op.kwargs["resample"], image), read_floats(op.kwargs["fillcolor"])) for op in ops
    }
    if len(settings) != 1:
        raise NotLowerableError("its operations differ in their filters or their fill")
    filters, fill = settings.pop()
    if filters not in (("bilinear",), ("bicubic",), ("bilinear", "bicubic")):
        raise NotLowerableError(f"images are moved with the filters {', '.join(filters)}")
    return filters, fill


def _names(resample: Any, image: ImageState) -> Filters:
    each = resample if isinstance(resample, tuple | list) else (resample,)
    return tuple(read_interpolation(one, image) for one in each)


def _rand_augment(transform: Any, image: ImageState) -> tuple[Operation, ...]:
    weights = transform.choice_weights
    return (
        PillowRandAugment(
            _augmentations(transform.ops, image),
            int(transform.num_layers),
            None if weights is None else read_floats(weights),
            *_settings(transform.ops, image),
        ),
    )


def _auto_augment(transform: Any, image: ImageState) -> tuple[Operation, ...]:
    policies = tuple(_augmentations(policy, image) for policy in transform.policy)
    ops = [op for policy in transform.policy for op in policy]
    return (PillowAutoAugment(policies, *_settings(ops, image)),)


def _augmix(transform: Any, image: ImageState) -> tuple[Operation, ...]:
    if transform.blended:
        raise NotLowerableError(
            "of AugMix fastload has the form that is not blended chain by chain"
        )
    ops = _augmentations(transform.ops, image)
    numbers = (float(transform.alpha), int(transform.width), int(transform.depth))
    return (PillowAugMix(ops, *numbers, *_settings(transform.ops, image)),)


register_lowering(
    "a random resized crop", (timm.RandomResizedCropAndInterpolation,), _random_resized_crop
)
register_lowering("ToDtype", (timm.MaybeToTensor, timm.ToTensor), _to_tensor)
register_lowering("no operation", (timm.MaybePILToTensor,), _to_tensor)
register_lowering("no operation", (timm.ToNumpy,), lambda transform, image: ())
register_lowering("PillowRandAugment", (timm_augment.RandAugment,), _rand_augment)
register_lowering("PillowAutoAugment", (timm_augment.AutoAugment,), _auto_augment)
register_lowering("PillowAugMix", (timm_augment.AugMixAugment,), _augmix)
register_lowering("RandomErasing", (timm_erasing.RandomErasing,), _erasing)
