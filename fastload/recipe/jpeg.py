"""Compression as a JPEG of random quality."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torchvision.transforms import v2

from fastload.draws import Draws, Int64Array
from fastload.recipe.attributes import check
from fastload.recipe.colour import require_grey_or_rgb, shape_of
from fastload.recipe.operation import ImageState, PixelOperation, register
from fastload.render.jpeg import recompressed
from fastload.render.steps import JpegSteps, Steps


@register
@dataclass(frozen=True)
class JPEG(PixelOperation):
    """Compressed (colour at half the resolution) and decompressed, with libjpeg-turbo's pixels, as
    by torchvision's transform, on the CPU; images on a GPU go there and back."""

    transforms = (v2.JPEG,)
    has_steps = True
    of_bytes = True

    quality: tuple[int, int]
    """From 1 to 100; uniform, both ends included."""
    blue_first: bool = field(default=False, repr=False)
    """Whether the first of three channels is taken for blue, as OpenCV does."""

    def __post_init__(self) -> None:
        low, high = self.quality
        check(self, "quality", 1 <= low <= high <= 100, "(low, high) with 1 <= low <= high <= 100")

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> JPEG:
        return cls((int(transform.quality[0]), int(transform.quality[1])))

    def qualities(self, draws: Draws, stream: int) -> Int64Array:
        """(B,)."""
        low, high = self.quality
        uniform = draws.uniform(stream, 1)[:, 0]
        qualities: Int64Array = low + (uniform * (high - low + 1)).astype(np.int64)
        return qualities

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        return [JpegSteps(self.qualities(draws, stream).astype(np.int32), self.blue_first)]

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        (steps,) = self.colour_steps(draws, stream, shape_of(images))
        assert isinstance(steps, JpegSteps)
        return recompressed(images, steps)
