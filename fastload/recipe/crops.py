"""The operations that move pixels: crops, padding, flips and resizing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torchvision.transforms as v1
from torchvision.transforms import v2

from fastload.draws import BoolArray, Draws, Float64Array, Int64Array
from fastload.errors import ConfigurationError
from fastload.geometry import Fill, Interpolation, Padding, PaddingMode, Resampling
from fastload.geometry.boxes import (
    RANDOM_RESIZED_CROP_UNIFORMS,
    pick,
    random_resized_crop_boxes,
    resized_sizes,
)
from fastload.geometry.drawn import DrawnCrop, DrawnFlip
from fastload.geometry.plan import Composition, MaskInterpolation
from fastload.recipe.attributes import (
    check_settings,
    read_antialias,
    read_bounds,
    read_fills,
    read_interpolation,
    read_mask_interpolation,
    read_padding,
    read_pair,
)
from fastload.recipe.operation import (
    GeometryOperation,
    ImageState,
    NotLowerableError,
    Size,
    register,
)


@dataclass(frozen=True)
class _FixedSize(GeometryOperation):
    """What makes all images one size."""

    size: Size

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def out_size(self) -> Size:
        return self.size


@register
@dataclass(frozen=True)
class CenterCrop(_FixedSize):
    transforms: ClassVar[tuple[type, ...]] = (v1.CenterCrop, v2.CenterCrop)
    fits_every_image = True

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> CenterCrop:
        return cls(read_pair(transform.size))

    def padding_for(self, size: Size | None) -> Padding | None:
        return Padding() if _smaller(size, self.size) else None

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        """A smaller image is padded first, as in torchvision; an odd pixel is added after it.
        Offsets are rounded half to even."""
        target = np.array([self.size], dtype=np.int64)
        missing = np.maximum(target - composition.extent, 0)
        if missing.any():
            composition.pad(missing // 2, (missing + 1) // 2)
        start = np.rint((composition.extent - target) / 2.0).astype(np.int64)
        composition.crop(start, target)


@dataclass(frozen=True)
class PlacedCrop(_FixedSize):
    """At one place, which `start` gives; smaller images are refused."""

    def start(self, space: Int64Array) -> Int64Array:
        """Top, left where images are (B, 2) pixels larger."""
        raise NotImplementedError

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        target = np.array([self.size], dtype=np.int64)
        space = composition.extent - target
        start = self.start(space)
        composition.fail(
            ((start < 0) | (start > space)).any(axis=1),
            f"a crop of {self.size[0]}x{self.size[1]} pixels reaches out of the image of "
            "{height}x{width} pixels; resize or pad it first.",
        )
        composition.crop(np.maximum(start, 0), target)


@register
@dataclass(frozen=True)
class RandomCrop(_FixedSize):
    transforms = (v1.RandomCrop, v2.RandomCrop)
    uniforms = 2

    padding: tuple[int, int, int, int] | None = None
    """left, top, right, bottom (torchvision v2 stores left, right, top, bottom; lowering
    reorders)."""
    pad_if_needed: bool = False
    fill: Fill = (0.0,)
    mask_fill: Fill = (0.0,)
    padding_mode: PaddingMode = "constant"

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> RandomCrop:
        padding = transform.padding
        mode = transform.padding_mode
        if_needed = bool(transform.pad_if_needed)
        if type(transform) is v2.RandomCrop:
            if padding is not None:
                left, right, top, bottom = padding
                padding = [left, top, right, bottom]
        elif if_needed and padding and mode in ("reflect", "symmetric"):
            # v1 pads up to three times in a row; a reflection of a reflection is not one wide
            # reflection.
            raise NotLowerableError(
                f"v1 RandomCrop with both padding and pad_if_needed {mode}s several times"
            )
        padding = None if padding is None else read_padding(padding)
        return cls(
            read_pair(transform.size), padding, if_needed, *read_fills(transform, image), mode
        )

    def padding_for(self, size: Size | None) -> Padding | None:
        pads = any(self.padding or ()) or (self.pad_if_needed and _smaller(size, self.size))
        return Padding(self.padding_mode, self.fill, self.mask_fill) if pads else None

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        """Pad, pad again by all that is still missing on either side if `pad_if_needed`, then cut
        anywhere."""
        target = np.array([self.size], dtype=np.int64)
        before, after = _before_and_after(self.padding or (0, 0, 0, 0))
        if self.pad_if_needed:
            missing = np.maximum(target - (composition.extent + before + after), 0)
            before, after = before + missing, after + missing
        if before.any() or after.any():
            composition.pad(before, after)
        composition.fail(
            (composition.extent < target).any(axis=1),
            f"RandomCrop(size={self.size}) is larger than the image of {{height}}x{{width}} "
            f"pixels{' with its padding' if self.padding else ''}; resize the image first, or set "
            "pad_if_needed=True.",
        )
        padding = np.maximum(composition.extent - target, 0)
        composition.crop(pick(uniforms, padding + 1), target)

    def clipped_rows(self, sizes: Int64Array, draws: Draws, stream: int) -> BoolArray | None:
        """torchvision does nothing to images that have the size already."""
        if any(self.padding or ()):
            return None
        clipped: BoolArray = (sizes != self.size).any(axis=1)
        return clipped

    def drawn(self) -> DrawnCrop | None:
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        return None if self.pad_if_needed else DrawnCrop(self.size, (top, left), (bottom, right))

    def native(
        self, core: Any, uniforms: Float64Array, flips: BoolArray, then: tuple[Any, ...]
    ) -> Any:
        # The core reflects padding of any width; only `compose` knows which widths are errors.
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
        check_settings(self)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> Pad:
        return cls(
            read_padding(transform.padding), *read_fills(transform, image), transform.padding_mode
        )

    def padding_for(self, size: Size | None) -> Padding | None:
        return Padding(self.padding_mode, self.fill, self.mask_fill) if any(self.padding) else None

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        composition.pad(*_before_and_after(self.padding))


@dataclass(frozen=True)
class _RandomFlip(GeometryOperation):
    uniforms = 1
    mirrors = True
    cuts = False
    clips = "nothing"
    fits_every_image = True
    axis: ClassVar[int]
    """0: upside-down, 1: left-right."""

    p: float = 0.5

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def exchanges_sides(self) -> bool:
        return self.p > 0

    @property
    def always_exchanges_sides(self) -> bool:
        return self.p == 1

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        composition.flip(uniforms[:, 0] < self.p, self.axis)

    def drawn(self) -> DrawnFlip:
        return DrawnFlip(self.axis, self.p)


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


@register
@dataclass(frozen=True)
class RandomResizedCrop(_FixedSize):
    transforms: ClassVar[tuple[type, ...]] = (v1.RandomResizedCrop, v2.RandomResizedCrop)
    uniforms = RANDOM_RESIZED_CROP_UNIFORMS
    cuts = False
    fits_every_image = True

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Bounds of width / height (RandomErasing's ratio is height / width)."""
    interpolation: Interpolation = "bilinear"
    antialias: bool = True

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> RandomResizedCrop:
        return cls(
            read_pair(transform.size),
            read_bounds(transform.scale),
            read_bounds(transform.ratio),
            read_interpolation(transform.interpolation, image),
            read_antialias(transform.antialias, image),
        )

    @property
    def resampling(self) -> Resampling:
        return Resampling(self.interpolation, self.antialias)

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        boxes = random_resized_crop_boxes(
            uniforms, composition.extent, scale=self.scale, ratio=self.ratio
        )
        composition.crop(boxes[:, :2], boxes[:, 2:])
        composition.resize(np.array([self.size], dtype=np.int64))

    def native(
        self, core: Any, uniforms: Float64Array, flips: BoolArray, then: tuple[Any, ...]
    ) -> Any:
        return None if then else self.native_crops(core, uniforms, flips, None)

    def native_crops(
        self, core: Any, uniforms: Float64Array, flips: BoolArray, bicubic: BoolArray | None
    ) -> Any:
        """Boxes drawn by the native core; `bicubic`: as of a `Geometry`."""
        logs = (math.log(self.ratio[0]), math.log(self.ratio[1]))
        return core.drawn_crops(uniforms, flips, self.size, self.scale, self.ratio, logs, bicubic)


@register
@dataclass(frozen=True)
class Resize(GeometryOperation):
    transforms = (v1.Resize, v2.Resize)
    cuts = False
    clips = "nothing"

    size: Size | None = None
    """Exact (height, width), or None."""
    shorter: int | None = None
    """Length of the shorter side; the longer follows. Exactly one of `size` and `shorter`, or
    `max_size` alone."""
    max_size: int | None = None
    interpolation: Interpolation = "bilinear"
    antialias: bool = True
    mask_interpolation: MaskInterpolation = field(default="nearest", repr=False)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.size is None and self.shorter is None and self.max_size is None:
            raise ConfigurationError(
                "Resize needs a size (height, width), a shorter side, or a max_size."
            )
        if self.size is not None and (self.shorter is not None or self.max_size is not None):
            raise ConfigurationError(f"{self} has an exact size; leave out shorter and max_size.")
        if self.shorter is not None and self.max_size is not None and self.max_size <= self.shorter:
            raise ConfigurationError(
                f"Resize(max_size={self.max_size}) must be greater than the shorter side, "
                f"{self.shorter}."
            )

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> Resize:
        size = [transform.size] if isinstance(transform.size, int) else transform.size
        return cls(
            None if size is None or len(size) == 1 else read_pair(size),
            int(size[0]) if size is not None and len(size) == 1 else None,
            None if transform.max_size is None else int(transform.max_size),
            read_interpolation(transform.interpolation, image),
            read_antialias(transform.antialias, image),
            read_mask_interpolation(transform.interpolation),
        )

    @property
    def out_size(self) -> Size | None:
        return self.size

    @property
    def resampling(self) -> Resampling:
        return Resampling(self.interpolation, self.antialias, of_masks=self.mask_interpolation)

    @property
    def fits_every_image(self) -> bool:  # type: ignore[override]
        return self.size is not None

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        composition.resize(
            resized_sizes(
                composition.extent, size=self.size, shorter=self.shorter, max_size=self.max_size
            )
        )

    def native(
        self, core: Any, uniforms: Float64Array, flips: BoolArray, then: tuple[Any, ...]
    ) -> Any:
        match then:
            case ():
                crop = None
            case (CenterCrop(size=crop),):
                pass
            case _:
                return None
        return core.resized(flips, self.size, self.shorter or 0, self.max_size or 0, crop)


def _smaller(size: Size | None, wanted: Size) -> bool:
    """Whether images of this size, or some of any, have fewer rows or columns than wanted."""
    return size is None or size[0] < wanted[0] or size[1] < wanted[1]


def _before_and_after(padding: tuple[int, int, int, int]) -> tuple[Int64Array, Int64Array]:
    """(1, 2) rows and columns before, and after."""
    left, top, right, bottom = padding
    return np.array([[top, left]], dtype=np.int64), np.array([[bottom, right]], dtype=np.int64)
