"""The operations of a recipe, as data. Field names and meanings are torchvision's.

Sizes are (height, width) in pixels; boxes and paddings are in pixels; probabilities in [0, 1]. Values that torchvision
would refuse when it meets an image raise ConfigurationError here, at construction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from fastload.errors import ConfigurationError
from fastload.geometry import Fill, Interpolation, PaddingMode
from fastload.geometry.boxes import RANDOM_RESIZED_CROP_UNIFORMS, pick, random_resized_crop_boxes, resized_sizes
from fastload.geometry.composition import Composition

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]


class GeometryOperation:
    """Moves pixels. What composes into the geometry of a decoder; see `fastload.geometry.plan.GeometryStep`."""

    uniforms: ClassVar[int] = 0
    resamples: ClassVar[bool] = False
    mirrors: ClassVar[bool] = False

    @property
    def fits_every_image(self) -> bool:
        return False

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class RandomResizedCrop(GeometryOperation):
    uniforms = RANDOM_RESIZED_CROP_UNIFORMS
    resamples = True

    size: tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Bounds of width / height (RandomErasing's ratio is height / width)."""
    interpolation: Interpolation = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        _check_size(self, self.size)
        _check_bounds(self, "scale", self.scale, lowest=0.0)
        _check_ratio(self, self.ratio)
        _check_choice(self, "interpolation", self.interpolation, get_args(Interpolation))

    @property
    def fits_every_image(self) -> bool:
        return True

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        boxes = random_resized_crop_boxes(uniforms, composition.extent, scale=self.scale, ratio=self.ratio)
        composition.crop(boxes[:, :2], boxes[:, 2:])
        composition.resize(np.array([self.size], dtype=np.int64))


@dataclass(frozen=True)
class Resize(GeometryOperation):
    resamples = True

    size: tuple[int, int] | None = None
    """Exact (height, width), or None."""
    shorter: int | None = None
    """Length of the shorter side; the longer follows. Exactly one of `size` and `shorter`, or `max_size` alone."""
    max_size: int | None = None
    interpolation: Interpolation = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        _check_choice(self, "interpolation", self.interpolation, get_args(Interpolation))
        if self.size is not None:
            _check_size(self, self.size)
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

    @property
    def fits_every_image(self) -> bool:
        return self.size is not None

    def sizes(self, sizes: Int64Array) -> Int64Array:
        """(B, 2) int64: what images of these (B, 2) sizes become; 0 where a side vanishes."""
        return resized_sizes(sizes, size=self.size, shorter=self.shorter, max_size=self.max_size)

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        composition.resize(self.sizes(composition.extent))


@dataclass(frozen=True)
class CenterCrop(GeometryOperation):
    size: tuple[int, int]

    def __post_init__(self) -> None:
        _check_size(self, self.size)

    @property
    def fits_every_image(self) -> bool:
        return True

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        """Where the image is smaller, torchvision pads it first; the odd pixel goes after. Cuts round half to even."""
        target = np.array([self.size], dtype=np.int64)
        missing = np.maximum(target - composition.extent, 0)
        if missing.any():
            composition.pad(missing // 2, (missing + 1) // 2)
        start = np.rint((composition.extent - target) / 2.0).astype(np.int64)
        composition.crop(start, target)


@dataclass(frozen=True)
class RandomCrop(GeometryOperation):
    uniforms = 2

    size: tuple[int, int]
    padding: tuple[int, int, int, int] | None = None
    """left, top, right, bottom (torchvision v2 stores left, right, top, bottom; lowering reorders)."""
    pad_if_needed: bool = False
    fill: Fill = (0.0,)
    mask_fill: Fill = (0.0,)
    padding_mode: PaddingMode = "constant"

    def __post_init__(self) -> None:
        _check_size(self, self.size)
        if self.padding is not None:
            _check_padding(self, self.padding)
        _check_fill(self, "fill", self.fill)
        _check_fill(self, "mask_fill", self.mask_fill)
        _check_choice(self, "padding_mode", self.padding_mode, get_args(PaddingMode))

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        """Pad, pad again by all that is still missing on either side if `pad_if_needed`, then cut anywhere."""
        target = np.array([self.size], dtype=np.int64)
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        before, after = _row(top, left), _row(bottom, right)
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


@dataclass(frozen=True)
class Pad(GeometryOperation):
    padding: tuple[int, int, int, int]
    """left, top, right, bottom."""
    fill: Fill = (0.0,)
    mask_fill: Fill = (0.0,)
    padding_mode: PaddingMode = "constant"

    def __post_init__(self) -> None:
        _check_padding(self, self.padding)
        _check_fill(self, "fill", self.fill)
        _check_fill(self, "mask_fill", self.mask_fill)
        _check_choice(self, "padding_mode", self.padding_mode, get_args(PaddingMode))

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        left, top, right, bottom = self.padding
        composition.pad(_row(top, left), _row(bottom, right))


@dataclass(frozen=True)
class RandomHorizontalFlip(GeometryOperation):
    uniforms = 1
    mirrors = True

    p: float = 0.5

    def __post_init__(self) -> None:
        _check_probability(self, self.p)

    @property
    def fits_every_image(self) -> bool:
        return True

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        composition.flip(uniforms[:, 0] < self.p, axis=1)


@dataclass(frozen=True)
class RandomVerticalFlip(GeometryOperation):
    uniforms = 1
    mirrors = True

    p: float = 0.5

    def __post_init__(self) -> None:
        _check_probability(self, self.p)

    @property
    def fits_every_image(self) -> bool:
        return True

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        composition.flip(uniforms[:, 0] < self.p, axis=0)


@dataclass(frozen=True)
class ColorJitter:
    brightness: tuple[float, float] | None = None
    contrast: tuple[float, float] | None = None
    saturation: tuple[float, float] | None = None
    hue: tuple[float, float] | None = None
    """Bounds of each factor; None leaves the property alone. The four are applied in a random order per sample."""

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            if (bounds := getattr(self, name)) is not None:
                _check_bounds(self, name, bounds, lowest=0.0)
        if self.hue is not None:
            _check_bounds(self, "hue", self.hue, lowest=-0.5, highest=0.5)


@dataclass(frozen=True)
class RandomGrayscale:
    p: float = 0.1

    def __post_init__(self) -> None:
        _check_probability(self, self.p)


@dataclass(frozen=True)
class Grayscale:
    num_output_channels: int = 1

    def __post_init__(self) -> None:
        _check_choice(self, "num_output_channels", self.num_output_channels, (1, 3))


@dataclass(frozen=True)
class RandomErasing:
    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    """Bounds of height / width."""
    value: tuple[float, ...] | Literal["random"] = (0.0,)

    def __post_init__(self) -> None:
        _check_probability(self, self.p)
        _check_bounds(self, "scale", self.scale, lowest=0.0, highest=1.0)
        _check_ratio(self, self.ratio)
        if self.value != "random":
            _check_fill(self, "value", self.value)


@dataclass(frozen=True)
class RandAugment:
    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: Fill | None = None

    def __post_init__(self) -> None:
        if self.num_ops < 0 or not 0 <= self.magnitude < self.num_magnitude_bins:
            raise ConfigurationError(
                f"{self}: num_ops cannot be negative, and magnitude must be in 0 .. {self.num_magnitude_bins - 1}."
            )
        if self.num_magnitude_bins < 2:
            raise ConfigurationError(f"{self} needs at least 2 magnitude bins.")
        _check_choice(self, "interpolation", self.interpolation, get_args(Interpolation))
        if self.fill is not None:
            _check_fill(self, "fill", self.fill)


@dataclass(frozen=True)
class TrivialAugmentWide:
    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: Fill | None = None

    def __post_init__(self) -> None:
        if self.num_magnitude_bins < 2:
            raise ConfigurationError(f"{self} needs at least 2 magnitude bins.")
        _check_choice(self, "interpolation", self.interpolation, get_args(Interpolation))
        if self.fill is not None:
            _check_fill(self, "fill", self.fill)


@dataclass(frozen=True)
class ToDtype:
    dtype: torch.dtype = torch.float32
    scale: bool = True
    """Map the value range as well (uint8 0..255 to float 0..1)."""


@dataclass(frozen=True)
class Normalize:
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.mean or not self.std or 1 < len(self.mean) != len(self.std) > 1:
            raise ConfigurationError(f"{self} needs a mean and a std of equal length: one value, or one a channel.")
        if 0.0 in self.std:
            raise ConfigurationError(f"{self} would divide by zero: every std must be positive.")


@dataclass(frozen=True)
class Opaque:
    """A transform that could not be lowered; runs one sample at a time in the `torch` backend."""

    transform: Callable[[Any], Any]
    reason: str
    """Why it could not be lowered, for the error message and `explain()`."""


GeometryOp = RandomResizedCrop | Resize | CenterCrop | RandomCrop | Pad | RandomHorizontalFlip | RandomVerticalFlip
PixelOp = (
    ColorJitter | RandomGrayscale | Grayscale | RandomErasing | RandAugment | TrivialAugmentWide | ToDtype | Normalize
)
Op = GeometryOp | PixelOp | Opaque


def _row(vertical: int, horizontal: int) -> Int64Array:
    return np.array([[vertical, horizontal]], dtype=np.int64)


def _check_size(op: object, size: tuple[int, int]) -> None:
    if len(size) != 2 or min(size) < 1:
        raise ConfigurationError(f"{type(op).__name__}(size={size!r}) must be (height, width), both at least 1 pixel.")


def _check_padding(op: object, padding: tuple[int, int, int, int]) -> None:
    if len(padding) != 4 or min(padding) < 0:
        raise ConfigurationError(
            f"{type(op).__name__}(padding={padding!r}) must be (left, top, right, bottom), none of them negative."
        )


def _check_bounds(
    op: object, name: str, bounds: tuple[float, float], *, lowest: float, highest: float = math.inf
) -> None:
    if len(bounds) != 2 or not lowest <= bounds[0] <= bounds[1] <= highest:
        raise ConfigurationError(
            f"{type(op).__name__}({name}={bounds!r}) must be (low, high) with {lowest} <= low <= high <= {highest}."
        )


def _check_ratio(op: object, ratio: tuple[float, float]) -> None:
    if len(ratio) != 2 or not 0 < ratio[0] <= ratio[1] < math.inf:
        raise ConfigurationError(f"{type(op).__name__}(ratio={ratio!r}) must be (low, high) with 0 < low <= high.")


def _check_probability(op: object, p: float) -> None:
    if not 0 <= p <= 1:
        raise ConfigurationError(f"{type(op).__name__}(p={p!r}) must be a probability between 0 and 1.")


def _check_fill(op: object, name: str, fill: tuple[float, ...]) -> None:
    if not isinstance(fill, tuple) or not fill or not all(math.isfinite(value) for value in fill):
        raise ConfigurationError(
            f"{type(op).__name__}({name}={fill!r}) must be a tuple of finite numbers: one, or one a channel."
        )


def _check_choice(op: object, name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise ConfigurationError(
            f"{type(op).__name__}({name}={value!r}) must be one of {', '.join(map(repr, choices))}."
        )
