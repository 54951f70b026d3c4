"""GaussianBlur on a batch, each sample with a kernel of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torchvision.transforms as v1
from torch.nn.functional import pad
from torchvision.transforms import v2

from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.recipe.attributes import check, check_bounds, read_floats, read_pair
from fastload.recipe.operation import ImageState, PixelOperation, Size, register
from fastload.render.device import on_device


@register
@dataclass(frozen=True)
class GaussianBlur(PixelOperation):
    """Images are mirrored at their borders, and must be larger than half the kernel."""

    transforms = (v1.GaussianBlur, v2.GaussianBlur)

    kernel_size: tuple[int, int]
    """(width, height) [pixels], both odd."""
    sigma: tuple[float, float] = (0.1, 2.0)
    """Bounds of the standard deviation [pixels]."""

    def __post_init__(self) -> None:
        good = len(self.kernel_size) == 2 and all(side > 0 and side % 2 for side in self.kernel_size)
        check(self, "kernel_size", good, "(width, height), both odd and positive")
        check_bounds(self, "sigma")
        check(self, "sigma", self.sigma[0] > 0, "positive")

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> GaussianBlur:
        low, *_, high = read_floats(transform.sigma)
        return cls(read_pair(transform.kernel_size), (low, high))

    def size_after(self, size: Size | None) -> Size | None:
        width, height = self.kernel_size
        if size is not None and (size[0] <= height // 2 or size[1] <= width // 2):
            raise ConfigurationError(
                f"{self.describe()} does not fit images of {size[0]}x{size[1]} pixels: they are mirrored at their "
                "borders for half the kernel, and must be larger; choose a smaller kernel_size."
            )
        return size

    def sigmas(self, draws: Draws, stream: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """(B,) float64: uniform within the bounds."""
        low, high = self.sigma
        result: np.ndarray[Any, np.dtype[np.float64]] = low + (high - low) * draws.uniform(stream, 1)[:, 0]
        return result

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        self.size_after((images.shape[2], images.shape[3]))
        sigmas = self.sigmas(draws, stream)
        width, height = self.kernel_size
        # Planar, as the rows that are added up lie side by side then.
        pixels = images.contiguous().to(torch.float32)
        pixels = pad(pixels, (width // 2, width // 2, height // 2, height // 2), mode="reflect")
        pixels = _weighted_sum(pixels, 2, _weights(sigmas, height))
        pixels = _weighted_sum(pixels, 3, _weights(sigmas, width))
        return (pixels if images.is_floating_point() else pixels.round_()).to(images.dtype)


def _weights(sigmas: np.ndarray[Any, np.dtype[np.float64]], taps: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """(taps, B) float32, the sum over the taps 1."""
    places = np.arange(taps)[:, None] - taps // 2
    weights = np.exp(-0.5 * (places / sigmas) ** 2)
    result: np.ndarray[Any, np.dtype[np.float32]] = (weights / weights.sum(axis=0)).astype(np.float32)
    return result


def _weighted_sum(pixels: torch.Tensor, axis: int, weights: np.ndarray[Any, np.dtype[np.float32]]) -> torch.Tensor:
    """Of the pixels and those that follow along an axis, which gets shorter. Tap by tap, and not as a convolution,
    whose sums depend on how many samples there are; it is also several times as fast on a CPU."""
    length = pixels.shape[axis] - len(weights) + 1
    # A row of each weight: with two numbers a sample beside the pixels, the CPU's multiply-add is not vectorised.
    columns = pixels.shape[3] if axis == 2 else length
    rows = on_device(weights, pixels.device)[:, :, None, None, None].repeat(1, 1, 1, 1, columns)
    total = pixels.narrow(axis, 0, length) * rows[0]
    for place, row in enumerate(rows[1:], 1):
        total.addcmul_(pixels.narrow(axis, place, length), row)
    return total
