"""The operations of a recipe, as data. Field names and meanings are torchvision's.

Sizes are (height, width) in pixels; boxes and paddings are in pixels; probabilities in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

Interpolation = Literal["nearest", "nearest-exact", "bilinear", "bicubic"]
PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]
Fill = tuple[float, ...]
"""One value for every channel, or one a channel, on the 0..255 scale of uint8 pixels."""


@dataclass(frozen=True)
class RandomResizedCrop:
    size: tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Bounds of width / height (RandomErasing's ratio is height / width)."""
    interpolation: Interpolation = "bilinear"
    antialias: bool = True


@dataclass(frozen=True)
class Resize:
    size: tuple[int, int] | None = None
    """Exact (height, width), or None."""
    shorter: int | None = None
    """Length of the shorter side; the longer follows. Exactly one of `size` and `shorter`, or `max_size` alone."""
    max_size: int | None = None
    interpolation: Interpolation = "bilinear"
    antialias: bool = True


@dataclass(frozen=True)
class CenterCrop:
    size: tuple[int, int]


@dataclass(frozen=True)
class RandomCrop:
    size: tuple[int, int]
    padding: tuple[int, int, int, int] | None = None
    """left, top, right, bottom (torchvision v2 stores left, right, top, bottom; lowering reorders)."""
    pad_if_needed: bool = False
    fill: Fill = (0.0,)
    mask_fill: Fill = (0.0,)
    padding_mode: PaddingMode = "constant"


@dataclass(frozen=True)
class Pad:
    padding: tuple[int, int, int, int]
    """left, top, right, bottom."""
    fill: Fill = (0.0,)
    mask_fill: Fill = (0.0,)
    padding_mode: PaddingMode = "constant"


@dataclass(frozen=True)
class RandomHorizontalFlip:
    p: float = 0.5


@dataclass(frozen=True)
class RandomVerticalFlip:
    p: float = 0.5


@dataclass(frozen=True)
class ColorJitter:
    brightness: tuple[float, float] | None = None
    contrast: tuple[float, float] | None = None
    saturation: tuple[float, float] | None = None
    hue: tuple[float, float] | None = None
    """Bounds of each factor; None leaves the property alone. The four are applied in a random order per sample."""


@dataclass(frozen=True)
class RandomGrayscale:
    p: float = 0.1


@dataclass(frozen=True)
class Grayscale:
    num_output_channels: int = 1


@dataclass(frozen=True)
class RandomErasing:
    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    """Bounds of height / width."""
    value: tuple[float, ...] | Literal["random"] = (0.0,)


@dataclass(frozen=True)
class RandAugment:
    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: Fill | None = None


@dataclass(frozen=True)
class TrivialAugmentWide:
    num_magnitude_bins: int = 31
    interpolation: Interpolation = "nearest"
    fill: Fill | None = None


@dataclass(frozen=True)
class ToDtype:
    dtype: torch.dtype = torch.float32
    scale: bool = True
    """Map the value range as well (uint8 0..255 to float 0..1)."""


@dataclass(frozen=True)
class Normalize:
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Opaque:
    """A transform that could not be lowered; runs one sample at a time in the `torch` backend."""

    transform: Callable[[Any], Any]
    reason: str
    """Why it could not be lowered, for the error message and `explain()`."""


GeometryOp = RandomResizedCrop | Resize | CenterCrop | RandomCrop | Pad | RandomHorizontalFlip | RandomVerticalFlip
PixelOp = (
    ColorJitter
    | RandomGrayscale
    | Grayscale
    | RandomErasing
    | RandAugment
    | TrivialAugmentWide
    | ToDtype
    | Normalize
)
Op = GeometryOp | PixelOp | Opaque
