"""The crop of SSD, which depends on the boxes of the objects in an image."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torchvision.transforms import v2

from fastload.draws import Draws, Float64Array, Int64Array
from fastload.geometry.plan import Composition
from fastload.geometry.points import PointMap
from fastload.recipe.operation import GeometryOperation, ImageState, register

_ROUNDS = 60
"""Overlaps drawn for an image at most; of the seven of SSD one ends the search, so that of 10,000
images one takes more. Torchvision goes on, without end where no overlap of 1 or more is given."""


@register
@dataclass(frozen=True)
class RandomIoUCrop(GeometryOperation):
    """Boxes whose centre is not in the crop become (0, 0, 0, 0), as torchvision has it: put
    SanitizeBoundingBoxes after it."""

    transforms = (v2.RandomIoUCrop,)
    draws_size = True
    needs_objects = True
    fits_every_image = True

    min_scale: float = 0.3
    max_scale: float = 1.0
    min_aspect_ratio: float = 0.5
    max_aspect_ratio: float = 2.0
    options: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    """Overlaps that at least one box must have with the crop; 1 or more: no crop."""
    trials: int = 40
    """Crops that are tried for an overlap."""
    p: float = field(default=1.0, repr=False)
    """Probability: of a RandomApply around it."""

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> RandomIoUCrop:
        return cls(
            float(transform.min_scale),
            float(transform.max_scale),
            float(transform.min_aspect_ratio),
            float(transform.max_aspect_ratio),
            tuple(float(option) for option in transform.options),
            int(transform.trials),
        )

    def applied(self, p: float) -> RandomIoUCrop:
        return replace(self, p=self.p * p)

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        assert composition.given is not None, "drawn by `move`"
        composition.crop(composition.given[:, :2], composition.given[:, 2:])

    def move(self, points: PointMap, draws: Draws, stream: int) -> PointMap:
        objects, sizes = points.present, points.sizes
        crops = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
        applies = np.zeros(len(sizes), dtype=np.bool_)
        chosen = draws.within(stream).uniform(0, 1)[:, 0] < self.p
        for row in np.flatnonzero(chosen).tolist():
            size = sizes[row]
            boxes = objects.boxes[objects.rows == row]
            crop = self._drawn(size, boxes, draws.take(slice(row, row + 1)), stream)
            if crop is not None:
                crops[row], applies[row] = crop, True
        return self._moved(points.within(crops, applies, stream), draws, stream, applies)

    def _drawn(
        self, size: Int64Array, boxes: Float64Array, draws: Draws, stream: int
    ) -> Int64Array | None:
        """Top, left, height, width in an image of this size with these (n, 4) boxes."""
        each = 1 + 4 * self.trials
        uniforms = np.empty((1, 0))
        for number in range(_ROUNDS):
            if uniforms.shape[1] < (number + 1) * each:  # twice as many, the first of them the same
                uniforms = draws.uniform(stream, max(4, 2 * number) * each)
            own = uniforms[0, number * each : (number + 1) * each]
            overlap = self.options[int(own[0] * len(self.options))]
            if overlap >= 1.0:
                return None
            crop = self._tried(size, boxes, own[1:].reshape(-1, 4), overlap)
            if crop is not None:
                return crop
        return None

    def _tried(
        self, size: Int64Array, boxes: Float64Array, uniforms: Float64Array, overlap: float
    ) -> Int64Array | None:
        """The first good one of the crops of (n, 4) random numbers: width, height, left, top."""
        scales = self.min_scale + (self.max_scale - self.min_scale) * uniforms[:, :2]
        extent = (size[::-1] * scales).astype(np.int64)
        start = ((size[::-1] - extent) * uniforms[:, 2:]).astype(np.int64)
        end = start + extent
        good = (extent > 0).all(axis=1)
        ratio = extent[:, 0] / np.maximum(extent[:, 1], 1)
        good &= (self.min_aspect_ratio <= ratio) & (ratio <= self.max_aspect_ratio)
        if not good.any() or not len(boxes):
            return None
        centres = 0.5 * (boxes[:, :2] + boxes[:, 2:])
        inside = ((start[:, None] < centres) & (centres < end[:, None])).all(axis=2)
        low = np.maximum(start[:, None], boxes[:, :2])
        high = np.minimum(end[:, None], boxes[:, 2:])
        shared = np.maximum(high - low, 0).prod(axis=2)
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
        ious = shared / (areas + extent.prod(axis=1)[:, None] - shared)
        good &= (inside & (ious >= overlap)).any(axis=1)
        if not good.any():
            return None
        first = int(good.argmax())
        return np.concatenate([start[first, ::-1], extent[first, ::-1]])
