"""One change of colour for each sample, or none: solarize, posterize, invert, autocontrast,
equalize, sharpen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torchvision.transforms as v1
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from fastload.draws import BoolArray, Draws
from fastload.errors import ConfigurationError
from fastload.recipe.attributes import check, check_settings
from fastload.recipe.colour import (
    adjust_sharpness,
    map_groups,
    posterize,
    require_grey_or_rgb,
    shape_of,
    solarize,
)
from fastload.recipe.operation import PixelOperation, register
from fastload.render import fused
from fastload.render.steps import KINDS, NUMBERS, ColourSteps, Steps


class _Adjustment(PixelOperation):
    """Changes a sample with probability `p`. Define `kind`, `numbers` and `changed`."""

    has_steps = True
    of_any_size = True
    kind: ClassVar[str]
    """Its name among KINDS."""

    p: float

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The numbers of its step, see NUMBERS."""
        return ()

    def changed(self, images: torch.Tensor) -> torch.Tensor:
        """All of these (B, C, H, W) images, changed."""
        raise NotImplementedError

    def rows(self, draws: Draws, stream: int) -> BoolArray:
        """(B,): which samples are changed."""
        chosen: BoolArray = draws.uniform(stream, 1)[:, 0] < self.p
        return chosen

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        self.check_dtype(images.dtype)
        if images.dtype == torch.uint8 and fused.active(images):
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        kinds = np.where(self.rows(draws, stream), 0, -1)
        return map_groups(
            images, kinds, np.zeros((len(draws), 1)), lambda _, some, __: self.changed(some)
        )

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        chosen = self.rows(draws, stream)[:, None]
        kinds = np.where(chosen, KINDS.index(self.kind), -1).astype(np.int32)
        numbers = np.zeros((len(draws), 1, NUMBERS), dtype=np.float32)
        numbers[:, 0, : len(self.numbers)] = self.numbers
        return [ColourSteps(kinds, numbers)]


def _all(images: torch.Tensor, value: float) -> torch.Tensor:
    """(B,) float64 on the device of the images."""
    return torch.full((len(images),), value, dtype=torch.float64, device=images.device)


@register
@dataclass(frozen=True)
class RandomSolarize(_Adjustment):
    """Inverts the values at or above a threshold."""

    transforms = (v1.RandomSolarize, v2.RandomSolarize)
    pointwise = True
    kind = "solarize"

    threshold: float
    """On the scale of the images: 0..255 for uint8, 0..1 for floats."""
    p: float = 0.5

    def check_dtype(self, dtype: torch.dtype) -> None:
        largest = 1 if dtype.is_floating_point else torch.iinfo(dtype).max
        if not self.threshold <= largest:
            raise ConfigurationError(
                f"{self.describe()}: threshold is above {largest}, the largest value where they "
                f"are {dtype}; give it on the scale of the images."
            )

    @property
    def numbers(self) -> tuple[float, ...]:
        # x >= t is x >= ceil(t) for whole x.
        return (float(np.ceil(self.threshold)),)

    def changed(self, images: torch.Tensor) -> torch.Tensor:
        whole = not images.is_floating_point()
        share = max(self.threshold, 0.0) / 255.0 if whole else self.threshold
        return solarize(images, _all(images, share))


@register
@dataclass(frozen=True)
class RandomPosterize(_Adjustment):
    """Keeps the upper bits of each value."""

    transforms = (v1.RandomPosterize, v2.RandomPosterize)
    pointwise = True
    kind = "posterize"

    bits: int
    """0..8."""
    p: float = 0.5

    def __post_init__(self) -> None:
        check(self, "bits", 0 <= self.bits <= 8, "between 0 and 8")
        check_settings(self)

    @property
    def numbers(self) -> tuple[float, ...]:
        return (float(0xFF00 >> self.bits & 0xFF),)

    def changed(self, images: torch.Tensor) -> torch.Tensor:
        return posterize(images, _all(images, self.bits))


@register
@dataclass(frozen=True)
class RandomInvert(_Adjustment):
    """Subtracts each value from the largest."""

    transforms = (v1.RandomInvert, v2.RandomInvert)
    pointwise = True
    kind = "solarize"  # all values are at or above 0

    p: float = 0.5

    @property
    def numbers(self) -> tuple[float, ...]:
        return (0.0,)

    def changed(self, images: torch.Tensor) -> torch.Tensor:
        return 1.0 - images if images.is_floating_point() else images.bitwise_not()


@register
@dataclass(frozen=True)
class RandomAutocontrast(_Adjustment):
    """Stretches each channel to the whole range of values."""

    transforms = (v1.RandomAutocontrast, v2.RandomAutocontrast)
    kind = "autocontrast"

    p: float = 0.5

    def changed(self, images: torch.Tensor) -> torch.Tensor:
        contrasted: torch.Tensor = functional.autocontrast(images)
        return contrasted


@register
@dataclass(frozen=True)
class RandomEqualize(_Adjustment):
    """Flattens the histogram of each channel."""

    transforms = (v1.RandomEqualize, v2.RandomEqualize)
    kind = "equalize"

    p: float = 0.5

    def changed(self, images: torch.Tensor) -> torch.Tensor:
        contrasted: torch.Tensor = functional.equalize(images)
        return contrasted


@register
@dataclass(frozen=True)
class RandomAdjustSharpness(_Adjustment):
    """Blends with the smoothed image: 0 is that one, 1 the image, 2 twice as sharp."""

    transforms = (v1.RandomAdjustSharpness, v2.RandomAdjustSharpness)
    kind = "sharpness"

    sharpness_factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        check(self, "sharpness_factor", 0 <= self.sharpness_factor < np.inf, "0 or more")
        check_settings(self)

    @property
    def numbers(self) -> tuple[float, ...]:
        return (1.0 - self.sharpness_factor,)

    def changed(self, images: torch.Tensor) -> torch.Tensor:
        return adjust_sharpness(images, _all(images, self.sharpness_factor))
