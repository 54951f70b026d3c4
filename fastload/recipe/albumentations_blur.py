"""Blurs that albumentations has and torchvision has not, and its Sharpen. The numbers come in the
order in which albumentations 2.0.8 draws them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch

from fastload.draws import Draws, Float64Array, Int64Array
from fastload.errors import ConfigurationError
from fastload.geometry.boxes import pick
from fastload.recipe.colour import blurred, gaussian_weights, require_grey_or_rgb, shape_of
from fastload.recipe.operation import PixelOperation, Size
from fastload.recipe.warps import Pair, between
from fastload.render import fused
from fastload.render.neighbours import convolved, medians
from fastload.render.steps import BlurSteps, FilterSteps, MedianSteps, Steps

Float32Array = npt.NDArray[np.float32]


class _Blur(PixelOperation):
    """Define `uniforms`, `most` and `steps`."""

    has_steps = True
    of_bytes = True
    uniforms: ClassVar[int]

    @property
    def most(self) -> int:
        """The largest side of a kernel [pixels]; images are mirrored at their borders."""
        raise NotImplementedError

    def steps(self, uniforms: Float64Array) -> Steps:
        """Of (B, `uniforms`) random numbers."""
        raise NotImplementedError

    def size_after(self, size: Size | None) -> Size | None:
        if size is not None and min(size) <= self.most // 2:
            raise ConfigurationError(
                f"{self.describe()} does not fit images of {size[0]}x{size[1]} pixels: they are "
                f"mirrored at their borders for half of a kernel of up to {self.most} pixels, and "
                "must be larger; choose a smaller blur_limit, or blur before the images are so "
                "small."
            )
        return size

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        self.size_after(shape[1:])
        return [self.steps(draws.uniform(stream, self.uniforms))]

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        (steps,) = self.colour_steps(draws, stream, shape_of(images))
        if fused.active(images):
            return fused.run(images, [steps])
        if isinstance(steps, BlurSteps):
            return blurred(images, steps.down, steps.across)
        if isinstance(steps, MedianSteps):
            return medians(images, steps)
        assert isinstance(steps, FilterSteps)
        return convolved(images, steps)


@dataclass(frozen=True)
class BoxBlur(_Blur):
    """The mean of a square."""

    uniforms = 1

    sides: tuple[int, int]
    """Bounds of its side [pixels], which is odd; each equally likely."""

    @property
    def most(self) -> int:
        return self.sides[1]

    def steps(self, uniforms: Float64Array) -> Steps:
        sides = _odd(self.sides, uniforms[:, 0])
        places = np.abs(np.arange(self.most) - self.most // 2)[:, None]
        weights = np.where(places <= sides // 2, 1.0 / sides, 0.0).astype(np.float32)
        return BlurSteps(weights, weights)


@dataclass(frozen=True)
class SizedGaussianBlur(_Blur):
    """A Gaussian whose kernel has a side of its own."""

    uniforms = 2

    sides: tuple[int, int]
    """Bounds of the side [pixels]; an even one is made larger by 1, and 0 is 3.5 deviations to
    either side."""
    sigma: Pair
    """Bounds of the standard deviation [pixels], above 0."""

    @property
    def most(self) -> int:
        by_sigma = 0 if self.sides[0] else _side_of(np.array(self.sigma[1])).item()
        return int(max(by_sigma, self.sides[1] | 1))

    def steps(self, uniforms: Float64Array) -> Steps:
        sigmas = between(self.sigma, uniforms[:, 0])
        low, high = self.sides
        drawn = low + pick(uniforms[:, 1], np.full(len(uniforms), high - low + 1))
        sides = np.where(drawn == 0, _side_of(sigmas), drawn | 1)
        weights = gaussian_weights(sigmas, self.most, sides)
        return BlurSteps(weights, weights)


@dataclass(frozen=True)
class MedianBlur(_Blur):
    """The median of a square; the border is repeated."""

    uniforms = 1

    sides: tuple[int, int]
    """As of BoxBlur, MOST_MEDIAN at the most."""

    def size_after(self, size: Size | None) -> Size | None:
        return size

    def steps(self, uniforms: Float64Array) -> Steps:
        return MedianSteps(_odd(self.sides, uniforms[:, 0]).astype(np.int32))


@dataclass(frozen=True)
class MotionBlur(_Blur):
    """The mean along a line."""

    uniforms = 5

    sides: tuple[int, int]
    """Bounds of the side of the square that the line lies in, as of BoxBlur."""
    angle: Pair = (0.0, 360.0)
    """Bounds [degrees]."""
    direction: Pair = (-1.0, 1.0)
    """Bounds: -1 has the half of the line before the pixel alone, 1 the half after it."""
    shifted: bool = True
    """Whether the line is moved by up to a quarter of the side along each axis."""

    @property
    def most(self) -> int:
        return self.sides[1]

    def steps(self, uniforms: Float64Array) -> Steps:
        return FilterSteps(self.kernels(uniforms))

    def kernels(self, uniforms: Float64Array) -> Float32Array:
        """(B, most, most)."""
        sides = _odd(self.sides, uniforms[:, 0])
        angle = np.deg2rad(between(self.angle, uniforms[:, 1]))
        direction = between(self.direction, uniforms[:, 2])
        half = sides // 2
        # Each side of the pixel loses as much of the line as the other is preferred.
        first = -half * np.where(direction > 0, 1.0 - direction, 1.0)
        last = half * np.where(direction < 0, 1.0 + direction, 1.0)
        place = np.arange(self.most)
        along = first[:, None] + place * ((last - first) / (sides - 1))[:, None]
        along = np.where(place == sides[:, None] - 1, last[:, None], along)
        kernels = np.zeros((len(sides), self.most, self.most), dtype=np.float32)
        at = []
        for axis, part in enumerate((np.cos(angle), np.sin(angle))):
            position = half[:, None] + part[:, None] * along
            if self.shifted:
                shift = (2.0 * uniforms[:, 3 + axis] - 1.0) * half / 2
                position = position + shift[:, None]
            limited = np.clip(np.round(position), 0, sides[:, None] - 1).astype(np.int64)
            at.append(limited + ((self.most - sides) // 2)[:, None])
        rows, tap = np.nonzero(place < sides[:, None])
        across, down = at
        kernels[rows, down[rows, tap], across[rows, tap]] = 1.0
        normalised: Float32Array = kernels / kernels.sum(axis=(1, 2), keepdims=True)
        return normalised


@dataclass(frozen=True)
class Sharpen(_Blur):
    """Blends with what is left of an image when eight times its neighbours' mean is taken from
    eight times the pixel."""

    uniforms = 2

    alpha: Pair = (0.2, 0.5)
    """Bounds of the weight of that."""
    lightness: Pair = (0.5, 1.0)
    """Bounds of how many more times the pixel is added to it."""

    @property
    def most(self) -> int:
        return 3

    def steps(self, uniforms: Float64Array) -> Steps:
        alpha = between(self.alpha, uniforms[:, 0]).astype(np.float32)
        rest = (1.0 - between(self.alpha, uniforms[:, 0])).astype(np.float32)
        effect = (8.0 + between(self.lightness, uniforms[:, 1])).astype(np.float32)
        kernels = np.repeat(-alpha, 9).reshape(-1, 3, 3)
        kernels[:, 1, 1] = rest + alpha * effect
        return FilterSteps(kernels)


def odd_bounds(limits: tuple[int, int]) -> tuple[int, int]:
    """Albumentations' `blur_limit` as the smallest and the largest odd side, at least 3."""
    low, high = (max(3, int(limit) + (int(limit) % 2 == 0)) for limit in limits)
    return low, max(low, high)


def _odd(bounds: tuple[int, int], uniforms: Float64Array) -> Int64Array:
    """(B,): odd numbers, each equally likely."""
    low, high = bounds
    numbers: Int64Array = low + 2 * pick(uniforms, np.full(len(uniforms), (high - low) // 2 + 1))
    return numbers


def _side_of(sigmas: Float64Array) -> Int64Array:
    """Of the kernel that a Gaussian needs."""
    sides: Int64Array = (sigmas * 3.5).astype(np.int64) * 2 + 1
    return sides
