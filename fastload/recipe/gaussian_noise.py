"""Normal noise on every value of an image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torchvision.transforms import v2

from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.recipe.attributes import check
from fastload.recipe.colour import shape_of
from fastload.recipe.operation import PixelOperation, register
from fastload.render.noise import add_noise, normals
from fastload.render.steps import NoiseSteps, Steps


@register
@dataclass(frozen=True)
class GaussianNoise(PixelOperation):
    transforms = (v2.GaussianNoise,)
    of_any_channels = True

    mean: float = 0.0
    sigma: float = 0.1
    """On the scale 0..1, of uint8 images too."""
    clip: bool = True
    """Whether values are cut to the range of the dtype; else uint8 wraps around."""

    def __post_init__(self) -> None:
        check(self, "sigma", self.sigma >= 0, "0 or more")

    def check_dtype(self, dtype: torch.dtype) -> None:
        if dtype != torch.uint8 and not dtype.is_floating_point:
            raise ConfigurationError(
                f"{self.describe()} needs uint8 or floating-point images, got {dtype}; put it "
                "before the ToDtype that converts them."
            )

    @property
    def has_steps(self) -> bool:  # type: ignore[override]
        """Where noise is within 16 bits, which no number of `normals` (below 7) then leaves."""
        return 255.0 * (abs(self.mean) + 7.0 * self.sigma) < 32767.0

    def noise(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        """(B, C, H, W) float32 standard normal numbers: functions of the sample, and of the place
        in the image."""
        batch, channels, height, width = images.shape
        count = channels * height * width
        numbers = normals(draws.integers(stream), count, images.device)
        return numbers.view(batch, height, width, channels).permute(0, 3, 1, 2)

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        scales = np.full(len(draws), self.sigma * 255, dtype=np.float32)
        shifts = np.full(len(draws), self.mean * 255, dtype=np.float32)
        return [NoiseSteps(draws.integers(stream), scales, shifts, clips=self.clip)]

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        """As torchvision's, which cuts the noise on uint8 images to whole numbers."""
        self.check_dtype(images.dtype)
        if images.dtype == torch.uint8 and self.has_steps:
            (steps,) = self.colour_steps(draws, stream, shape_of(images))
            assert isinstance(steps, NoiseSteps)
            return add_noise(images, steps)
        noise = self.noise(images, draws, stream)
        if images.is_floating_point():
            noisy = images + (self.mean + noise.to(images.dtype) * self.sigma)
            return noisy.clamp_(0.0, 1.0) if self.clip else noisy
        whole = images + (self.mean * 255 + noise * (self.sigma * 255)).to(torch.int16)
        return (whole.clamp_(0, 255) if self.clip else whole).to(torch.uint8)
