"""Cuts, padding and flips: what moves pixels and makes none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torchvision.transforms as v1
from torchvision.transforms import v2

from fastload.geometry import Fill, Padding, PaddingMode
from fastload.geometry.boxes import Composition, pick
from fastload.recipe.attributes import (
    check_padding,
    check_probability,
    check_size,
    read_fill,
    read_mask_fill,
    read_padding,
    read_pair,
)
from fastload.recipe.operation import GeometryOperation, ImageState, NotLowerableError, Size, register

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]


@register
@dataclass(frozen=True)
class CenterCrop(GeometryOperation):
    transforms: ClassVar[tuple[type, ...]] = (v1.CenterCrop, v2.CenterCrop)
    fits_every_image = True

    size: Size

    def __post_init__(self) -> None:
        check_size(self)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> CenterCrop:
        return cls(read_pair(transform.size))

    @property
    def out_size(self) -> Size:
        return self.size

    def padding_for(self, size: Size | None) -> Padding | None:
        return Padding() if _smaller(size, self.size) else None

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        """Where the image is smaller, torchvision pads it first; the odd pixel goes after. Cuts round half to even."""
        target = np.array([self.size], dtype=np.int64)
        missing = np.maximum(target - composition.extent, 0)
        if missing.any():
            composition.pad(missing // 2, (missing + 1) // 2)
        start = np.rint((composition.extent - target) / 2.0).astype(np.int64)
        composition.crop(start, target)


@register
@dataclass(frozen=True)
class RandomCrop(GeometryOperation):
    transforms = (v1.RandomCrop, v2.RandomCrop)
    uniforms = 2

    size: Size
    padding: tuple[int, int, int, int] | None = None
    """left, top, right, bottom (torchvision v2 stores left, right, top, bottom; lowering reorders)."""
    pad_if_needed: bool = False
    fill: Fill = (0.0,)
    mask_fill: Fill = (0.0,)
    padding_mode: PaddingMode = "constant"

    def __post_init__(self) -> None:
        check_size(self)
        check_padding(self)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> RandomCrop:
        padding = transform.padding
        if type(transform) is v2.RandomCrop:
            if padding is not None:
                left, right, top, bottom = padding
                padding = [left, top, right, bottom]
        elif transform.pad_if_needed and padding and transform.padding_mode in ("reflect", "symmetric"):
            # v1 pads up to three times in a row; a reflection of a reflection is not one wide reflection.
            mode = transform.padding_mode
            raise NotLowerableError(f"v1 RandomCrop with both padding and pad_if_needed {mode}s several times")
        return cls(
            read_pair(transform.size),
            None if padding is None else read_padding(padding),
            bool(transform.pad_if_needed),
            *_read_fills(transform),
            transform.padding_mode,
        )

    @property
    def out_size(self) -> Size:
        return self.size

    def padding_for(self, size: Size | None) -> Padding | None:
        pads = any(self.padding or ()) or (self.pad_if_needed and _smaller(size, self.size))
        return Padding(self.padding_mode, self.fill, self.mask_fill) if pads else None

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        """Pad, pad again by all that is still missing on either side if `pad_if_needed`, then cut anywhere."""
        target = np.array([self.size], dtype=np.int64)
        before, after = _before_and_after(self.padding or (0, 0, 0, 0))
        if self.pad_if_needed:
            missing = np.maximum(target - (composition.extent + before + after), 0)
            before, after = before + missing, after + missing
        if before.any() or after.any():
            composition.pad(before, after)
        composition.fail(
            (composition.extent < target).any(axis=1),
            f"RandomCrop(size={self.size}) is larger than the image of {{height}}x{{width}} pixels"
            f"{' with its padding' if self.padding else ''}; resize the image first, or set pad_if_needed=True.",
        )
        room = np.maximum(composition.extent - target, 0)
        composition.crop(pick(uniforms, room + 1), target)

    def native(self, core: Any, uniforms: Float64Array, flips: npt.NDArray[np.bool_], then: tuple[Any, ...]) -> Any:
        # The core reflects however wide the padding is; which of that is an error, only `compose` knows.
        if then or self.pad_if_needed or self.padding_mode not in ("constant", "edge"):
            return None
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        return core.padded_crops(uniforms, flips, self.size, (top, left), (bottom, right))


@register
@dataclass(frozen=True)
class Pad(GeometryOperation):
    transforms = (v1.Pad, v2.Pad)
    cuts = False

    padding: tuple[int, int, int, int]
    """left, top, right, bottom."""
    fill: Fill = (0.0,)
    mask_fill: Fill = (0.0,)
    padding_mode: PaddingMode = "constant"

    def __post_init__(self) -> None:
        check_padding(self)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> Pad:
        return cls(read_padding(transform.padding), *_read_fills(transform), transform.padding_mode)

    def padding_for(self, size: Size | None) -> Padding | None:
        return Padding(self.padding_mode, self.fill, self.mask_fill) if any(self.padding) else None

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        composition.pad(*_before_and_after(self.padding))


@dataclass(frozen=True)
class _RandomFlip(GeometryOperation):
    uniforms = 1
    mirrors = True
    cuts = False
    fits_every_image = True
    axis: ClassVar[int]
    """0: upside-down, 1: left-right."""

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability(self)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> _RandomFlip:
        return cls(float(transform.p))

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        composition.flip(uniforms[:, 0] < self.p, self.axis)


@register
@dataclass(frozen=True)
class RandomHorizontalFlip(_RandomFlip):
    transforms = (v1.RandomHorizontalFlip, v2.RandomHorizontalFlip)
    axis = 1


@register
@dataclass(frozen=True)
class RandomVerticalFlip(_RandomFlip):
    transforms = (v1.RandomVerticalFlip, v2.RandomVerticalFlip)
    axis = 0


def _smaller(size: Size | None, wanted: Size) -> bool:
    """Whether images of this size, or some of any, have fewer rows or columns than wanted."""
    return size is None or size[0] < wanted[0] or size[1] < wanted[1]


def _before_and_after(padding: tuple[int, int, int, int]) -> tuple[Int64Array, Int64Array]:
    """(1, 2) rows and columns before, and after."""
    left, top, right, bottom = padding
    return np.array([[top, left]], dtype=np.int64), np.array([[bottom, right]], dtype=np.int64)


def _read_fills(transform: Any) -> tuple[Fill, Fill]:
    """Of images and of masks."""
    if transform.padding_mode != "constant":
        return (0.0,), (0.0,)
    return read_fill(transform.fill), read_mask_fill(transform.fill)
