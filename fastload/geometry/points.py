"""Where the points of source images are in the outputs: what moves boxes and other places that go
with an image.

A batch has one `PointMap`, composed of all geometry of the recipe, wherever that runs: all draws
are a function of (seed, epoch, index, operation), so that the crops which the device will make are
known on the host, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.draws import Float64Array
from fastload.geometry.plan import Geometry

_SCALE, _SHIFT, _LOW, _HIGH, _SIZE, _CENTRES = range(6)
POINT_COLUMNS = 6


@dataclass(frozen=True)
class PointMap:
    """Of each of B samples: output = clip(scale * source + shift, low, high), for x and for y.

    Crops, resizes, paddings and mirrorings compose to one such map exactly, the clipping at each
    crop included: clipping commutes with a scale and a shift, and two clippings make one. Example:
    an image 100 wide, cropped to x from 20 to 60 and resized to 80 wide: scale 2, shift -40, low 0,
    high 80; x = 30 becomes 20, x = 10 becomes 0.
    """

    table: Float64Array
    """(B, 6, 2) float64, x and y: scale; shift, low, high, size of the output, shift of pixel
    centres [pixels]."""

    @classmethod
    def identity(cls, sizes: npt.NDArray[Any]) -> PointMap:
        """Of images of these (B, 2) sizes (height, width), before anything is done to them; nothing
        is clipped."""
        table = np.empty((len(sizes), 6, 2))
        table[:, _SCALE], table[:, _SHIFT], table[:, _CENTRES] = 1.0, 0.0, 0.0
        table[:, _LOW], table[:, _HIGH] = -np.inf, np.inf
        table[:, _SIZE] = sizes[:, ::-1]
        return cls(table)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """(B, 2) int64: height, width of the outputs."""
        return self.table[:, _SIZE, ::-1].astype(np.int64)

    def take(self, rows: npt.NDArray[np.int64]) -> PointMap:
        """The maps of these rows."""
        return PointMap(self.table[rows])

    def then(self, geometry: Geometry) -> PointMap:
        """This map, and after it a geometry of images of the size that this one makes."""
        box, grid, window = (
            part.astype(np.float64) for part in (geometry.box, geometry.size, geometry.window)
        )
        ratio = (grid / box[:, 2:])[:, ::-1]
        start, shown = window[:, 1::-1], window[:, :1:-1]
        shift, low, high, centres = (
            (self.table[:, part] - box[:, 1::-1]) * ratio - start
            for part in (_SHIFT, _LOW, _HIGH, _CENTRES)
        )
        scale = self.table[:, _SCALE] * ratio
        # First to the grid: what a crop before the padding has left out; then to the window.
        for least, most in ((-start, grid[:, ::-1] - start), (0.0, shown)):
            low, high = np.clip(low, least, most), np.clip(high, least, most)
        mirrored = geometry.flip
        low, high = np.where(mirrored, shown - high, low), np.where(mirrored, shown - low, high)
        scale, shift = np.where(mirrored, -scale, scale), np.where(mirrored, shown - shift, shift)
        centres = np.where(mirrored, shown - 1.0 - centres, centres)
        return PointMap(np.stack([scale, shift, low, high, shown, centres], axis=1))

    def points(
        self, points: Float64Array, *, clip: bool = True, centres: bool = False
    ) -> Float64Array:
        """(B, ..., 2) float64 points (x, y) of the source images, in the outputs.

        Args:
            clip: move those outside to the nearest point of what is shown.
            centres: whether (0, 0) is the centre of the first pixel, as torchvision has it for
                `tv_tensors.KeyPoints`: mirroring takes x to width - 1 - x (while a resize
                multiplies x, as there). Else it is the corner of the image, and mirroring takes x
                to width - x.
        """
        parts = (_SCALE, _CENTRES if centres else _SHIFT, _LOW, _HIGH)
        ones = [1] * (points.ndim - 2)
        scale, shift, low, high = (self.table[:, part].reshape(-1, *ones, 2) for part in parts)
        moved: Float64Array = points * scale + shift
        return np.clip(moved, low, high) if clip else moved

    def boxes(self, boxes: Float64Array) -> Float64Array:
        """(B, ..., 4) float64 boxes (left, top, right, bottom), likewise; clipped to what is shown
        of the image."""
        ends = self.points(boxes.reshape(*boxes.shape[:-1], 2, 2).reshape(len(boxes), -1, 2))
        ends = ends.reshape(*boxes.shape[:-1], 2, 2)
        return np.concatenate([ends.min(axis=-2), ends.max(axis=-2)], axis=-1)
