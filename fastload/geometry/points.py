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
_THRESHOLDS = 5
"""In the block of a sieve, in place of the shift of pixel centres."""
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
    centres [pixels]. For each place in the transform where small boxes are dropped another 6: the
    map up to there, and (smallest side, smallest area) [pixels, square pixels]."""

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
    def sieves(self) -> int:
        """How often boxes are dropped that are too small."""
        return int(self.table.shape[1]) // POINT_COLUMNS - 1

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
        return self._with([scale, shift, low, high, shown, centres])

    def clamped(self) -> PointMap:
        """This map, and after it boxes are clipped to the image as it is by now."""
        scale, shift, low, high, size, centres = self.table[:, :POINT_COLUMNS].swapaxes(0, 1)
        low, high = np.clip(low, 0, size), np.clip(high, 0, size)
        return self._with([scale, shift, low, high, size, centres])

    def sieved(self, min_size: float, min_area: float) -> PointMap:
        """This map, and after it boxes are dropped that are not in the image as it is by now, or
        have a side below `min_size` [pixels] or an area below `min_area` [square pixels]."""
        block = self.table[:, :POINT_COLUMNS].copy()
        block[:, _THRESHOLDS] = min_size, min_area
        return PointMap(np.concatenate([self.table, block], axis=1))

    def kept(self, boxes: Float64Array) -> npt.NDArray[np.bool_]:
        """(B,) bool: which of (B, 4) boxes of the source images no sieve drops.

        As torchvision's `sanitize_bounding_boxes` has it: sides and areas of exactly the threshold
        are enough.
        """
        kept = np.ones(len(boxes), dtype=np.bool_)
        for number in range(1, self.sieves + 1):
            block = self.table[:, number * POINT_COLUMNS :][:, :POINT_COLUMNS]
            placed = PointMap(block).boxes(boxes).reshape(-1, 2, 2)
            sides = placed[:, 1] - placed[:, 0]
            min_size, min_area = block[:, _THRESHOLDS, :1], block[:, _THRESHOLDS, 1]
            inside = (placed >= 0) & (placed <= block[:, _SIZE][:, None])
            kept &= inside.all(axis=(1, 2)) & (sides >= min_size).all(axis=1)
            kept &= sides.prod(axis=1) >= min_area
        return kept

    def _with(self, parts: list[Float64Array]) -> PointMap:
        """Another map, and the sieves so far."""
        block, sieves = np.stack(parts, axis=1), self.table[:, POINT_COLUMNS:]
        return PointMap(np.concatenate([block, sieves], axis=1) if sieves.shape[1] else block)

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
        ends = self.points(boxes.reshape(*boxes.shape[:-1], 2, 2))
        return np.concatenate([ends.min(axis=-2), ends.max(axis=-2)], axis=-1)
