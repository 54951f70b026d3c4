"""The middle of batches of one size, turned and scaled about the centre for some samples: masks
take the class that has most of the interpolated pixel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from fastload.arguments import require
from fastload.draws import BoolArray, Draws, Float64Array
from fastload.errors import ConfigurationError
from fastload.recipe.attributes import check_settings
from fastload.recipe.operation import ImageState, Operation, Size, register
from fastload.recipe.transforms import ForLoaders, checked_pair
from fastload.render.transfer import on_device

Pair = tuple[float, float]
_PARTS = 1000.0
"""What a class that has all of a pixel counts, rounded to float16: of shares that are equal then
the lowest class wins."""


class TurnedAndScaled(ForLoaders):
    """The middle of an image, each sample turned with one probability and scaled with another:
    batchgeneratorsv2's SpatialTransform without elastic deformation, with bilinear pixels and zeros
    outside.

    For floating-point images of a loader; called by itself it raises.
    """

    works_on = "works on batches of a loader"

    def __init__(
        self,
        size: int | tuple[int, int],
        *,
        p_rotation: float,
        rotation: Pair,
        p_scaling: float,
        scaling: Pair,
    ) -> None:
        """
        Args:
            size: height and width of what is kept [pixels], or the side of a square.
            p_rotation: probability of a rotation.
            rotation: the least and the largest angle, clockwise [radians].
            p_scaling: probability of a scaling.
            scaling: the least and the largest factor of what is shown: above 1 things get smaller.

        Raises:
            ConfigurationError: a number is out of its range.
        """
        self.size = checked_pair(self, size)
        for name, p in (("p_rotation", p_rotation), ("p_scaling", p_scaling)):
            require(name, 0 <= p <= 1, "a probability from 0 to 1", p)
        ordered = all(map(math.isfinite, rotation)) and rotation[0] <= rotation[1]
        require("rotation", ordered, "(low, high) with low <= high", rotation)
        require("scaling", 0 < scaling[0] <= scaling[1], "(low, high) above 0, in order", scaling)
        self.p_rotation, self.rotation = float(p_rotation), (float(rotation[0]), float(rotation[1]))
        self.p_scaling, self.scaling = float(p_scaling), (float(scaling[0]), float(scaling[1]))


@register
@dataclass(frozen=True)
class TurnAndScale(Operation):
    """See `TurnedAndScaled`."""

    transforms = (TurnedAndScaled,)
    has_float_steps = True

    size: Size
    p_rotation: float
    rotation: Pair
    p_scaling: float
    scaling: Pair

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> TurnAndScale:
        settings = (transform.p_rotation, transform.rotation)
        return cls(transform.size, *settings, transform.p_scaling, transform.scaling)

    def size_after(self, size: Size | None) -> Size:
        if size is not None and (size[0] < self.size[0] or size[1] < self.size[1]):
            raise ConfigurationError(
                f"{self.describe()} keeps the middle of larger images, and these have "
                f"{size[0]}x{size[1]} pixels; crop or pad them to at least its size before it."
            )
        return self.size

    def fits_batches(self, size: Size | None) -> bool:
        return size is not None

    def check_dtype(self, dtype: torch.dtype) -> None:
        if not dtype.is_floating_point:
            raise ConfigurationError(
                f"{self.describe()} needs floating-point images, got {dtype}; put it after the "
                "ToDtype that converts them."
            )

    def matrices(self, draws: Draws, stream: int) -> tuple[Float64Array, BoolArray]:
        """(B, 2, 2): from a place about the centre, down and right, of what is made, to the place
        in the image; (B,): which samples are not left as they are."""
        drawn = draws.uniform(stream, 4)
        turned, scaled = drawn[:, 0] < self.p_rotation, drawn[:, 1] < self.p_scaling
        angle = np.where(turned, _between(self.rotation, drawn[:, 2]), 0.0)
        scale = np.where(scaled, _between(self.scaling, drawn[:, 3]), 1.0)
        cosine, sine = scale * np.cos(angle), scale * np.sin(angle)
        matrices = np.stack([cosine, -sine, sine, cosine], axis=1).reshape(-1, 2, 2)
        return matrices, turned | scaled

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        self.check_dtype(images.dtype)
        made, places = self._middle(images).clone(), self._places(images, draws, stream)
        if places is not None:
            rows, grid = places
            grid = grid.to(images.dtype)
            made[rows] = functional.grid_sample(images[rows], grid, align_corners=False)
        return made

    def apply_to_masks(self, masks: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        if masks.dtype == torch.uint16:  # for which torch has next to nothing
            return self.apply_to_masks(masks.int(), draws, stream).to(torch.uint16)
        made, places = self._middle(masks).clone(), self._places(masks, draws, stream)
        if places is not None:
            rows, grid = places
            made[rows] = _largest_classes(masks[rows], grid)
        return made

    def _middle(self, pixels: torch.Tensor) -> torch.Tensor:
        top, left = (
            side // 2 - kept // 2 for side, kept in zip(pixels.shape[2:], self.size, strict=True)
        )
        return pixels[:, :, top : top + self.size[0], left : left + self.size[1]]

    def _places(
        self, pixels: torch.Tensor, draws: Draws, stream: int
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The samples that are not left as they are, and where their pixels come from: a grid as of
        torch's grid_sample; None: there are none."""
        matrices, changed = self.matrices(draws, stream)
        rows = np.flatnonzero(changed)
        if not len(rows):
            return None
        # In halves of the sides, from the middle, as grid_sample has places: x, and then y.
        down, across = (
            torch.linspace((1 - side) / 2, (side - 1) / 2, side, device=pixels.device)
            for side in self.size
        )
        halves = np.array(pixels.shape[2:])[:, None] / 2
        parts = on_device((matrices[rows] / halves).astype(np.float32), pixels.device)
        grid = torch.stack(
            [
                parts[:, axis, 0, None, None] * down[:, None]
                + parts[:, axis, 1, None, None] * across
                for axis in (1, 0)
            ],
            dim=-1,
        )
        return on_device(rows, pixels.device), grid


def _largest_classes(masks: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    """Of (N, 1, H, W) masks at (N, h, w, 2) places the class with the largest share of the four
    pixels about each; 0 outside."""
    best: torch.Tensor | None = None
    made: torch.Tensor | None = None
    for kind in torch.bincount(masks.flatten()).nonzero():
        share = (masks == kind).float() * _PARTS
        share = functional.grid_sample(share, grid, align_corners=False).to(torch.float16)
        if best is None or made is None:
            best, made = share, kind.to(masks.dtype).expand(share.shape)
        else:
            made = torch.where(share > best, kind.to(masks.dtype), made)
            best = torch.maximum(best, share)
    assert made is not None, "a mask has pixels"
    y, x = (1 - 1 / side for side in masks.shape[2:])
    inside = (grid[..., 0].abs() <= x) & (grid[..., 1].abs() <= y)
    shown: torch.Tensor = made * inside[:, None]
    return shown


def _between(bounds: Pair, uniforms: Float64Array) -> Float64Array:
    return bounds[0] + uniforms * (bounds[1] - bounds[0])
