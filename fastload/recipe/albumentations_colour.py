"""Colour that albumentations has and torchvision has not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastload.draws import Draws, Float64Array
from fastload.recipe.colour import require_grey_or_rgb, shape_of
from fastload.recipe.operation import PixelOperation
from fastload.recipe.warps import Pair, between
from fastload.render import fused
from fastload.render.clahe import equalized
from fastload.render.device import column
from fastload.render.gamma import adjust_gamma, gamma_tables
from fastload.render.hsv import adjust_hsv, tables_of
from fastload.render.noise import add_noise
from fastload.render.steps import KINDS, NUMBERS, ClaheSteps, ColourSteps, NoiseSteps, Steps
from fastload.render.transfer import constants, on_device


@dataclass(frozen=True)
class BrightnessContrast(PixelOperation):
    """Pixels times a number, plus a part of 255 or of their mean; cut to whole numbers."""

    of_any_channels = True
    of_bytes = True

    brightness: Pair
    """Bounds of what is added, in parts of 255, or of the mean."""
    contrast: Pair
    """Bounds of what 1 + this the pixels are multiplied by."""
    by_max: bool = True
    """Whether it is of 255."""

    @property
    def pointwise(self) -> bool:  # type: ignore[override]
        return self.by_max

    @property
    def has_steps(self) -> bool:  # type: ignore[override]
        return self.by_max  # the mean is that of all channels

    def numbers(self, draws: Draws, stream: int) -> tuple[Float64Array, Float64Array]:
        """(B,) each: what pixels are multiplied by, and the part of 255 or of their mean that is
        added."""
        uniforms = draws.uniform(stream, 2)
        return 1.0 + between(self.contrast, uniforms[:, 0]), between(
            self.brightness, uniforms[:, 1]
        )

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        factors, parts = self.numbers(draws, stream)
        return _one_step(len(draws), "linear", np.stack([factors, parts * 255.0], axis=1))

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        if self.by_max and fused.active(images):
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        factors, parts = self.numbers(draws, stream)
        pixels = images.to(torch.float32)
        if self.by_max:
            added = column(on_device((parts * 255.0).astype(np.float32), images.device))
        else:
            # Sums of bytes are whole numbers, which float64 holds.
            means = images.sum((1, 2, 3), dtype=torch.float64) / images[0].numel()
            added = column((means * on_device(parts, images.device)).to(torch.float32))
        scaled = pixels * column(on_device(factors.astype(np.float32), images.device)) + added
        return scaled.clamp_(0.0, 255.0).to(images.dtype)


@dataclass(frozen=True)
class Gamma(PixelOperation):
    """Pixels raised to a power on the scale 0..1, by a table."""

    has_steps = True
    of_bytes = True
    of_any_size = True
    pointwise = True

    exponent: Pair
    """Bounds, above 0."""

    def exponents(self, draws: Draws, stream: int) -> npt.NDArray[np.float32]:
        """(B,): uniform."""
        return between(self.exponent, draws.uniform(stream, 1)[:, 0]).astype(np.float32)

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        if fused.active(images):
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        return adjust_gamma(images, gamma_tables(self.exponents(draws, stream)))

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        return _one_step(len(draws), "gamma", self.exponents(draws, stream)[:, None])


def _one_step(count: int, kind: str, given: npt.NDArray[Any]) -> list[Steps]:
    """A step of each sample, with (B, N) numbers."""
    numbers = np.zeros((count, 1, NUMBERS), dtype=np.float32)
    numbers[:, 0, : given.shape[1]] = given
    return [ColourSteps(np.full((count, 1), KINDS.index(kind), np.int32), numbers)]


@dataclass(frozen=True)
class HueSaturationValue(PixelOperation):
    """Adds to hue (0 to 179), saturation and value (0 to 255) of HSV in bytes. Of grey images only
    the value is changed."""

    has_steps = True
    of_bytes = True
    of_any_size = True
    pointwise = True

    hue: Pair = (-20.0, 20.0)
    """Bounds, as the next. What is drawn is cut to a whole number: down for the hue, toward 0 for
    the others."""
    saturation: Pair = (-30.0, 30.0)
    value: Pair = (-20.0, 20.0)

    def shifts(self, draws: Draws, stream: int) -> npt.NDArray[np.float32]:
        """(B, 3): whole numbers, of which those of the hue are 0 to 179."""
        uniforms = draws.uniform(stream, 3)
        drawn = [
            between(bounds, uniforms[:, axis])
            for axis, bounds in enumerate((self.hue, self.saturation, self.value))
        ]
        whole = [np.floor(drawn[0]) % 180.0, *(np.trunc(np.clip(d, -255, 255)) for d in drawn[1:])]
        return np.stack(whole, axis=1).astype(np.float32)

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        if fused.active(images):
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        shifts = self.shifts(draws, stream)
        return adjust_hsv(images, tables_of(np.ones_like(shifts), shifts))

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        shifts = self.shifts(draws, stream)
        return _one_step(len(draws), "hsv", np.concatenate([np.ones_like(shifts), shifts], axis=1))


@dataclass(frozen=True)
class CLAHE(PixelOperation):
    """Contrast-limited adaptive histogram equalisation, of colour images of their lightness in
    L*a*b*; on the CPU: images on a GPU go there and back."""

    has_steps = True
    of_bytes = True

    limit: Pair = (1.0, 4.0)
    """Bounds of the largest count of a histogram, in parts of the mean."""
    tiles: tuple[int, int] = (8, 8)
    """Down, across."""

    def limits(self, draws: Draws, stream: int) -> Float64Array:
        """(B,)."""
        return between(self.limit, draws.uniform(stream, 1)[:, 0])

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        return equalized(images, ClaheSteps(self.limits(draws, stream), self.tiles))

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        return [ClaheSteps(self.limits(draws, stream), self.tiles)]


@dataclass(frozen=True)
class PixelNoise(PixelOperation):
    """Normal noise on every value, or on every pixel, cut to whole numbers."""

    has_steps = True
    of_bytes = True
    of_any_channels = True

    deviation: Pair
    """Bounds of the standard deviation of an image, on the scale 0..1."""
    mean: Pair
    """The same of what is added to all."""
    shared: bool = False
    """Whether the channels of a pixel have one number."""

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        (steps,) = self.colour_steps(draws, stream, shape_of(images))
        assert isinstance(steps, NoiseSteps)
        return add_noise(images, steps)

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        uniforms = draws.uniform(stream, 2)
        scales, shifts = (
            (255.0 * between(bounds, uniforms[:, place])).astype(np.float32)
            for place, bounds in enumerate((self.deviation, self.mean))
        )
        keys = draws.within(stream).integers(0)  # others than those of the uniform numbers
        return [NoiseSteps(keys, scales, shifts, shared=self.shared)]


@dataclass(frozen=True)
class CoarseDropout(PixelOperation):
    """Rectangles anywhere in an image are filled with a colour; they may overlap."""

    moves_pixels = False

    holes: tuple[int, int]
    """Bounds of how many, both included."""
    heights: Pair
    """Bounds of their height: in pixels, both included, where the second is 1 or more; else in
    parts of the image. As the next."""
    widths: Pair
    fill: tuple[float, ...] = (0.0,)
    mask_fill: tuple[float, ...] | None = None
    """Of masks; None: they stay as they are."""

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        return self._filled(images, draws, stream, self.fill)

    def apply_to_masks(self, masks: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        if self.mask_fill is None:
            return masks
        return self._filled(masks, draws, stream, self.mask_fill)

    def _filled(
        self, pixels: torch.Tensor, draws: Draws, stream: int, fill: tuple[float, ...]
    ) -> torch.Tensor:
        ends = on_device(self.ends(draws, stream, *pixels.shape[-2:]), pixels.device)
        down, across = (torch.arange(length, device=pixels.device) for length in pixels.shape[-2:])
        top, left, bottom, right = ends[..., None].unbind(2)
        rows, columns = (top <= down) & (down < bottom), (left <= across) & (across < right)
        holes = (rows[:, :, :, None] & columns[:, :, None, :]).any(dim=1)[:, None]
        colour = constants(np.array(fill, dtype=np.float32), pixels.device).to(pixels.dtype)
        return torch.where(holes, colour.view(1, -1, 1, 1), pixels)

    def ends(self, draws: Draws, stream: int, height: int, width: int) -> np.ndarray:
        """(B, most holes, 4) int64: top, left, bottom, right of each; empty ones where there are
        fewer."""
        least, most = self.holes
        uniforms = draws.uniform(stream, 1 + 4 * most)
        count = least + np.floor(uniforms[:, 0] * (most - least + 1)).astype(np.int64)
        drawn = uniforms[:, 1:].reshape(-1, most, 4)
        extents = []
        for axis, (bounds, side) in enumerate(((self.heights, height), (self.widths, width))):
            if self.heights[1] >= 1:
                low, high = int(bounds[0]), int(min(bounds[1], side))
                extents.append(low + np.floor(drawn[..., axis] * (high - low + 1)))
            else:
                extents.append(np.trunc(side * between(bounds, drawn[..., axis])))
        extent = np.stack(extents, axis=-1).astype(np.int64)
        space = np.array([height, width]) - extent
        start = np.floor(drawn[..., 2:] * (space + 1)).astype(np.int64)
        extent[np.arange(most) >= count[:, None]] = 0
        return np.concatenate([start, start + extent], axis=-1)
