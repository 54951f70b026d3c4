"""A crop that keeps the boxes of all objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fastload.draws import Draws, Float64Array, Int64Array
from fastload.geometry import Interpolation, Resampling
from fastload.geometry.plan import Composition, MaskInterpolation
from fastload.geometry.points import PointMap
from fastload.recipe import transforms as own
from fastload.recipe.attributes import (
    check_settings,
    read_antialias,
    read_interpolation,
    read_mask_interpolation,
    read_pair,
)
from fastload.recipe.operation import GeometryOperation, ImageState, Size, register

_SMALLEST = 1e-6
"""Shortest side of the box around all boxes, in parts of the image, for it to be kept."""


@register
@dataclass(frozen=True, kw_only=True)
class BBoxSafeRandomCrop(GeometryOperation):
    """Albumentations' BBoxSafeRandomCrop, and with a `size` RandomSizedBBoxSafeCrop. At least one
    pixel is left of an image, where albumentations raises."""

    transforms = (own.RandomSizedBBoxSafeCrop,)
    needs_objects = True
    fits_every_image = True
    uniforms = 5

    size: Size | None = None
    """What the crop is resized to; None: it is not."""
    erosion_rate: float = 0.0
    """Part of the width and height around all boxes that may be cut off, a half on either side; of
    an image without objects the part that is."""
    p: float = 1.0
    interpolation: Interpolation = "bilinear"
    antialias: bool = True
    mask_interpolation: MaskInterpolation = field(default="nearest", repr=False)

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> BBoxSafeRandomCrop:
        return cls(
            size=read_pair(transform.size),
            erosion_rate=transform.erosion_rate,
            interpolation=read_interpolation(transform.interpolation, image),
            antialias=read_antialias(transform.antialias, image),
            mask_interpolation=read_mask_interpolation(transform.interpolation),
        )

    @property
    def out_size(self) -> Size | None:
        return self.size

    @property
    def draws_size(self) -> bool:  # type: ignore[override]
        return self.size is None

    @property
    def cuts(self) -> bool:  # type: ignore[override]
        return self.size is None

    @property
    def resampling(self) -> Resampling | None:
        if self.size is None:
            return None
        return Resampling(self.interpolation, self.antialias, of_masks=self.mask_interpolation)

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        # No boxes are known where only the size of the output is asked for.
        if composition.given is not None:
            composition.crop(composition.given[:, :2], composition.given[:, 2:])
        if self.size is not None:
            composition.resize(np.array([self.size], dtype=np.int64))

    def move(self, points: PointMap, draws: Draws, stream: int) -> PointMap:
        objects, sizes = points.present, points.sizes
        uniforms = draws.uniform(stream, self.uniforms)
        ends = self._kept_ends(objects.boxes, objects.rows, sizes)
        crops = np.where(
            (ends != 0).any(axis=(1, 2), keepdims=True)[:, 0],
            self._around(ends, sizes, uniforms[:, 1:]),
            self._anywhere(sizes, uniforms[:, 1:]),
        )
        whole = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
        crops = np.where(uniforms[:, :1] < self.p, crops, whole)
        nowhere = np.zeros(len(sizes), dtype=np.bool_)  # boxes whose centre is outside stay
        return super().move(points.within(crops, nowhere, stream), draws, stream)

    def _kept_ends(self, boxes: Float64Array, rows: Int64Array, sizes: Int64Array) -> Float64Array:
        """(B, 2, 2): x, y of the upper left and lower right corner of what is to be kept, in parts
        of the image; zeros where there is nothing to keep."""
        ends = np.zeros((len(sizes), 2, 2))
        if self.erosion_rate == 1:
            return ends
        for row in np.unique(rows).tolist():
            of_image = boxes[rows == row].reshape(-1, 2, 2)
            low, high = of_image[:, 0].min(axis=0), of_image[:, 1].max(axis=0)
            if len(of_image) > 1:
                cut = (high - low) * (self.erosion_rate * 0.5)
                low, high = low + cut, high - cut
            corners = np.clip(np.stack([low, high]) / sizes[row, ::-1], 0.0, 1.0)
            if len(of_image) == 1 or (corners[1] - corners[0] >= _SMALLEST).all():
                ends[row] = corners
        return ends

    def _around(self, ends: Float64Array, sizes: Int64Array, uniforms: Float64Array) -> Int64Array:
        """(B, 4) top, left, height, width of crops that hold what is to be kept. Of (B, 4) random
        numbers the first two are for left and top, the others for right and bottom."""
        extent = sizes[:, ::-1]
        start = (ends[:, 0] * uniforms[:, :2] * extent).astype(np.int64)
        last = ends[:, 1] + (1.0 - ends[:, 1]) * uniforms[:, 2:]
        stop = (last * extent).astype(np.int64)
        stop = np.maximum(stop, start + 1)
        return np.concatenate([start[:, ::-1], (stop - start)[:, ::-1]], axis=1)

    def _anywhere(self, sizes: Int64Array, uniforms: Float64Array) -> Int64Array:
        """Of images without objects: a height is drawn, the aspect ratio is kept."""
        tall = sizes[:, 0]
        least = (tall * (1.0 - self.erosion_rate)).astype(np.int64)
        height = least + np.floor(uniforms[:, 0] * (tall - least + 1)).astype(np.int64)
        height = np.maximum(height, 1)
        width = np.maximum((height * sizes[:, 1] / tall).astype(np.int64), 1)
        extent = np.minimum(np.stack([height, width], axis=1), sizes)
        start = np.floor((sizes - extent + 1) * uniforms[:, 1:3]).astype(np.int64)
        return np.concatenate([start, extent], axis=1)
