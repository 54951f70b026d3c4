"""Resizing, alone and of a random part: what makes new pixels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torchvision.transforms as v1
from torchvision.transforms import v2

from fastload.errors import ConfigurationError
from fastload.geometry import Interpolation, Resampling
from fastload.geometry.boxes import RANDOM_RESIZED_CROP_UNIFORMS, Composition, random_resized_crop_boxes, resized_sizes
from fastload.recipe.attributes import (
    check_bounds,
    check_interpolation,
    check_ratio,
    check_size,
    read_antialias,
    read_interpolation,
    read_pair,
)
from fastload.recipe.crops import CenterCrop
from fastload.recipe.operation import GeometryOperation, ImageState, Size, register

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]


@register
@dataclass(frozen=True)
class RandomResizedCrop(GeometryOperation):
    transforms: ClassVar[tuple[type, ...]] = (v1.RandomResizedCrop, v2.RandomResizedCrop)
    uniforms = RANDOM_RESIZED_CROP_UNIFORMS
    cuts = False
    fits_every_image = True

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Bounds of width / height (RandomErasing's ratio is height / width)."""
    interpolation: Interpolation = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        check_size(self)
        check_bounds(self, "scale")
        check_ratio(self)
        check_interpolation(self)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> RandomResizedCrop:
        return cls(
            read_pair(transform.size),
            (float(transform.scale[0]), float(transform.scale[1])),
            (float(transform.ratio[0]), float(transform.ratio[1])),
            read_interpolation(transform.interpolation, image),
            read_antialias(transform.antialias, image),
        )

    @property
    def out_size(self) -> Size:
        return self.size

    @property
    def resampling(self) -> Resampling:
        return Resampling(self.interpolation, self.antialias)

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        boxes = random_resized_crop_boxes(uniforms, composition.extent, scale=self.scale, ratio=self.ratio)
        composition.crop(boxes[:, :2], boxes[:, 2:])
        composition.resize(np.array([self.size], dtype=np.int64))

    def native(self, core: Any, uniforms: Float64Array, flips: npt.NDArray[np.bool_], then: tuple[Any, ...]) -> Any:
        return None if then else self.native_crops(core, uniforms, flips, None)

    def native_crops(
        self,
        core: Any,
        uniforms: Float64Array,
        flips: npt.NDArray[np.bool_],
        bicubic: npt.NDArray[np.bool_] | None,
    ) -> Any:
        """Boxes drawn by the native core; `bicubic`: as of a `Geometry`."""
        logs = (math.log(self.ratio[0]), math.log(self.ratio[1]))
        return core.drawn_crops(uniforms, flips, self.size, self.scale, self.ratio, logs, bicubic)


@register
@dataclass(frozen=True)
class Resize(GeometryOperation):
    transforms = (v1.Resize, v2.Resize)
    cuts = False

    size: Size | None = None
    """Exact (height, width), or None."""
    shorter: int | None = None
    """Length of the shorter side; the longer follows. Exactly one of `size` and `shorter`, or `max_size` alone."""
    max_size: int | None = None
    interpolation: Interpolation = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        check_interpolation(self)
        if self.size is not None:
            check_size(self)
            if self.shorter is not None or self.max_size is not None:
                raise ConfigurationError(f"{self} has an exact size; leave out shorter and max_size.")
        elif self.shorter is None and self.max_size is None:
            raise ConfigurationError("Resize needs a size (height, width), a shorter side, or a max_size.")
        for name, length in (("shorter", self.shorter), ("max_size", self.max_size)):
            if length is not None and length < 1:
                raise ConfigurationError(f"Resize({name}={length}) must be at least 1 pixel.")
        if self.shorter is not None and self.max_size is not None and self.max_size <= self.shorter:
            raise ConfigurationError(
                f"Resize(max_size={self.max_size}) must be greater than the shorter side, {self.shorter}."
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
        )

    @property
    def out_size(self) -> Size | None:
        return self.size

    @property
    def resampling(self) -> Resampling:
        return Resampling(self.interpolation, self.antialias)

    @property
    def fits_every_image(self) -> bool:  # type: ignore[override]
        return self.size is not None

    def sizes(self, sizes: Int64Array) -> Int64Array:
        """(B, 2) int64: what images of these (B, 2) sizes become; 0 where a side vanishes."""
        return resized_sizes(sizes, size=self.size, shorter=self.shorter, max_size=self.max_size)

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        composition.resize(self.sizes(composition.extent))

    def native(self, core: Any, uniforms: Float64Array, flips: npt.NDArray[np.bool_], then: tuple[Any, ...]) -> Any:
        match then:
            case ():
                crop = None
            case (CenterCrop(size=crop),):
                pass
            case _:
                return None
        return core.resized(flips, self.size, self.shorter or 0, self.max_size or 0, crop)
