"""The distortions of colour that SSD is trained with, and permutations of channels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision.transforms import v2

from fastload.draws import Draws, Float64Array, Int64Array
from fastload.recipe import transforms as own
from fastload.recipe.attributes import check_settings, read_bounds
from fastload.recipe.colour import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    map_groups,
    require_grey_or_rgb,
    shape_of,
)
from fastload.recipe.operation import ImageState, NotLowerableError, PixelOperation, register
from fastload.render import fused
from fastload.render.steps import KINDS, NUMBERS, ColourSteps, Steps
from fastload.render.transfer import on_device

_ORDERS = np.array(list(permutations(range(3))), dtype=np.int64)
"""(6, 3): of channels."""


def permuted(images: torch.Tensor, orders: Int64Array) -> torch.Tensor:
    """(B, 3, H, W) images with their channels in (B, 3) orders; grey ones as they are."""
    if images.shape[1] == 1 or (orders == np.arange(3)).all():
        return images
    places = on_device(orders, images.device)[:, :, None, None].expand(images.shape)
    return images.gather(1, places)


def _orders(uniforms: Float64Array) -> Int64Array:
    """(B, 3) of (B,) random numbers: all orders equally likely."""
    orders: Int64Array = _ORDERS[(uniforms * len(_ORDERS)).astype(np.int64)]
    return orders


@register
@dataclass(frozen=True)
class RandomChannelPermutation(PixelOperation):
    transforms = (v2.RandomChannelPermutation,)
    has_steps = True
    of_any_size = True
    pointwise = True

    def orders(self, draws: Draws, stream: int) -> Int64Array:
        """(B, 3): which channel of an image each of the result is."""
        return _orders(draws.uniform(stream, 1)[:, 0])

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        if images.dtype == torch.uint8 and fused.active(images):
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        return permuted(images, self.orders(draws, stream))

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        numbers = np.zeros((len(draws), 1, NUMBERS), dtype=np.float32)
        numbers[:, 0, :2] = self.orders(draws, stream)[:, :2]
        return [ColourSteps(np.full((len(draws), 1), KINDS.index("permute"), np.int32), numbers)]


@register
@dataclass(frozen=True)
class BGR(PixelOperation):
    transforms = (own.BGR,)
    has_steps = True
    of_any_size = True
    pointwise = True

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> BGR:
        if not image.tensor:
            raise NotLowerableError("a PIL image has no such mode; put it after ToImage")
        return cls()

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        if images.dtype == torch.uint8 and fused.active(images):
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        return images.flip(1)

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        numbers = np.zeros((len(draws), 1, NUMBERS), dtype=np.float32)
        numbers[:, 0, :2] = 2, 1
        return [ColourSteps(np.full((len(draws), 1), KINDS.index("permute"), np.int32), numbers)]


_STEPS = ("brightness", "contrast", "saturation", "hue", "contrast")
"""In the order in which they are done: contrast comes before or after."""


@register
@dataclass(frozen=True)
class RandomPhotometricDistort(PixelOperation):
    """Brightness, contrast, saturation, hue, each at random; contrast comes second or last; then,
    at random, the channels in any order."""

    transforms = (v2.RandomPhotometricDistort,)
    has_steps = True
    of_any_size = True

    brightness: tuple[float, float] = (0.875, 1.125)
    contrast: tuple[float, float] = (0.5, 1.5)
    saturation: tuple[float, float] = (0.5, 1.5)
    hue: tuple[float, float] = (-0.05, 0.05)
    """Bounds of each factor, which is uniform within them."""
    p: float = 0.5
    """Of each of the five."""

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> RandomPhotometricDistort:
        names = ("brightness", "contrast", "saturation", "hue")
        settings = {name: read_bounds(getattr(transform, name)) for name in names}
        return cls(p=float(transform.p), **settings)

    def parameters(self, draws: Draws, stream: int) -> tuple[npt.NDArray[np.float32], Int64Array]:
        """(B, 5) factors of brightness, contrast, saturation, hue and contrast again, in this
        order, NaN for what is left alone; and (B, 3) which channel each is in the end."""
        uniform = draws.uniform(stream, 11)
        factors = np.full((len(draws), len(_STEPS)), np.nan, dtype=np.float32)
        for k, name in enumerate(_STEPS[:4]):
            low, high = getattr(self, name)
            drawn = low + (high - low) * uniform[:, 4 + k]
            factors[:, k] = np.where(uniform[:, k] < self.p, drawn, np.nan)
        last = uniform[:, 8] >= 0.5
        factors[last, 4], factors[last, 1] = factors[last, 1], np.nan
        orders = _orders(uniform[:, 10])
        orders[uniform[:, 9] >= self.p] = np.arange(3)
        return factors, orders

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        if images.dtype == torch.uint8 and fused.active(images):
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        factors, orders = self.parameters(draws, stream)
        adjust = {
            "brightness": adjust_brightness,
            "contrast": adjust_contrast,
            "saturation": adjust_saturation,
            "hue": adjust_hue,
        }
        for k, name in enumerate(_STEPS):
            kernel, given = adjust[name], factors[:, k : k + 1]
            images = map_groups(
                images,
                np.where(np.isnan(given[:, 0]), -1, 0),
                given.astype(np.float64),
                lambda _, rows, factor, kernel=kernel: kernel(rows, factor[:, 0]),  # type: ignore[misc]
            )
        return permuted(images, orders)

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        factors, orders = self.parameters(draws, stream)
        given = factors.astype(np.float64)
        count = len(_STEPS)
        kinds = np.empty((len(draws), count + 1), dtype=np.int32)
        numbers = np.zeros((len(draws), count + 1, NUMBERS), dtype=np.float32)
        for k, name in enumerate(_STEPS):
            kinds[:, k] = np.where(np.isnan(given[:, k]), -1, KINDS.index(name))
            numbers[:, k, 0] = np.nan_to_num(given[:, k]) * (6.0 if name == "hue" else 1.0)
            numbers[:, k, 1] = 1.0 - np.nan_to_num(given[:, k])
        moved = (orders != np.arange(3)).any(axis=1)
        kinds[:, count] = np.where(moved, KINDS.index("permute"), -1)
        numbers[:, count, :2] = orders[:, :2]
        return [ColourSteps(kinds, numbers)]
