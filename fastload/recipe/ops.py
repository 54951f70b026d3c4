"""The operations of a recipe, as data. Field names and meanings are torchvision's.

Sizes are (height, width) in pixels; boxes and paddings are in pixels; probabilities in [0, 1]. Values that torchvision
would refuse when it meets an image raise ConfigurationError here, at construction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from fastload.errors import ConfigurationError

Interpolation = Literal["nearest", "nearest-exact", "bilinear", "bicubic"]
PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]
Fill = tuple[float, ...]
"""One value for every channel, or one a channel, on the scale of the pixels that the operation meets, as torchvision
has it: 0..255 before a scaling ToDtype, 0..1 after it. (A `GeometryPlan` always speaks of 0..255.)"""


@dataclass(frozen=True)
class RandomResizedCrop:
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


@dataclass(frozen=True)
class Resize:
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


@dataclass(frozen=True)
class CenterCrop:
    size: tuple[int, int]

    def __post_init__(self) -> None:
        _check_size(self, self.size)


@dataclass(frozen=True)
class RandomCrop:
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


@dataclass(frozen=True)
class Pad:
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


@dataclass(frozen=True)
class RandomHorizontalFlip:
    p: float = 0.5

    def __post_init__(self) -> None:
        _check_probability(self, self.p)


@dataclass(frozen=True)
class RandomVerticalFlip:
    p: float = 0.5

    def __post_init__(self) -> None:
        _check_probability(self, self.p)


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
