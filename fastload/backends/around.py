"""Boxes of objects that are put around what is left of their shapes: of polygons, before masks are
drawn of them, if any are; of run lengths after that."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.backends.masks import box_of
from fastload.draws import BoolArray, Float64Array, Int64Array
from fastload.geometry.clipped import boxes_of_polygons
from fastload.geometry.points import PointMap
from fastload.sources.masks import LEAST_CORNERS
from fastload.sources.ragged import Ragged


@dataclass(frozen=True)
class Around:
    """What `fastload.recipe.boxes_of_masks` asks for. Picklable; any thread may call it."""

    min_size: float
    """Objects are dropped whose box has a side of no more than this [pixels]; below 0: none."""
    min_visibility: float = 0.0
    """And those of whose box less than this part is left."""
    max_ratio: float = np.inf
    """And those whose box is more than so many times as long as it is wide, or the reverse."""

    def shapes(self, shapes: Ragged, points: PointMap) -> tuple[Float64Array, BoolArray]:
        """(T, 4) boxes of objects by shapes that masks are drawn from, and (T,) which of them have
        run lengths, whose box is not known yet. `shapes`: of each image its objects, of each object
        its numbers; `points`: of the images."""
        places, lengths, objects, runs = _polygons_in(shapes.values)
        numbers = shapes.values.values
        corners = [numbers[at : at + 2 * n] for at, n in zip(places, lengths, strict=True)]
        each = np.concatenate(corners).reshape(-1, 2) if corners else np.zeros((0, 2))
        images = shapes.rows_of_values
        rows = np.repeat(images[objects], lengths)
        moved = points.take(rows).points(each, clip=False)
        return _around(moved, lengths, objects, images, points.seen), runs

    def outlines(
        self, polygons: Ragged, boxes: npt.NDArray[Any], points: PointMap
    ) -> npt.NDArray[Any]:
        """(T, 4) boxes of objects by their polygons, moved, and as `boxes` has them where there is
        none. `polygons`: of each image its objects, of each its polygons, of these the corners."""
        of_objects = polygons.values
        outlines: Ragged = of_objects.values
        corners = outlines.values.astype(np.float64)
        owners, images = of_objects.rows_of_values, polygons.rows_of_values
        found = _around(corners, outlines.lengths, owners, images, points.seen)
        return np.where((of_objects.lengths > 0)[:, None], found, boxes)

    def cut(
        self, polygons: Ragged, boxes: npt.NDArray[Any], points: PointMap
    ) -> tuple[npt.NDArray[Any], Ragged]:
        """What `outlines` gives, where there are projective steps; and the polygons, moved and cut
        off (`PointMap.outlines`). `polygons`: of the source images."""
        of_objects = polygons.values
        outlines: Ragged = of_objects.values
        owners, images = of_objects.rows_of_values, polygons.rows_of_values
        corners, offsets, low, high = points.outlines(
            outlines.values.astype(np.float64), outlines.offsets, images[owners]
        )
        some = np.diff(offsets) > 0
        starts = np.append(offsets[:-1][some], offsets[-1])
        boxes_of_each = boxes_of_polygons(corners, starts, low[some], high[some])
        found = _joined(boxes_of_each, owners[some], len(boxes))
        moved = Ragged(corners.astype(np.result_type(outlines.values, np.float32)), offsets)
        made = Ragged(Ragged(moved, of_objects.offsets), polygons.offsets)
        return np.where((of_objects.lengths > 0)[:, None], found, boxes), made

    def of_masks(
        self, boxes: npt.NDArray[Any], masks: npt.NDArray[np.uint8], runs: BoolArray
    ) -> npt.NDArray[Any]:
        """The boxes, and of objects with run lengths those around their drawn masks."""
        boxes = boxes.copy()
        for number in np.flatnonzero(runs).tolist():
            mask = masks[number]
            boxes[number] = box_of(mask) if mask.any() else 0
        return boxes

    def kept(self, boxes: npt.NDArray[Any], whole: npt.NDArray[Any] | None = None) -> BoolArray:
        """(T,): which objects are not dropped. `whole`: the boxes if nothing were cut off, of
        which a part has to be left."""
        sides = boxes[:, 2:] - boxes[:, :2]
        kept = (sides > self.min_size).all(axis=1)
        if self.max_ratio < np.inf:
            kept &= sides.max(axis=1) <= self.max_ratio * sides.min(axis=1)
        if whole is not None:
            areas = (whole[:, 2:] - whole[:, :2]).prod(axis=1)
            kept &= sides.prod(axis=1) >= self.min_visibility * areas
        return np.asarray(kept)


def _around(
    corners: Float64Array,
    lengths: Int64Array,
    objects: Int64Array,
    images: Int64Array,
    seen: tuple[Float64Array, Float64Array],
) -> Float64Array:
    """(T, 4) boxes around what is shown of objects, 0 where nothing is.

    Args:
        corners: (N, 2) of all polygons, one after the other, as they are in the outputs.
        lengths: of each polygon, how many.
        objects: of each polygon, whose it is.
        images: (T,) of each object, in which image it is.
        seen: (B, 2) upper left and (B, 2) lower right of what is shown of the images.
    """
    some = lengths > 0
    lengths, objects = lengths[some], objects[some]
    ends = [end[images[objects]] for end in seen]
    found = boxes_of_polygons(corners, np.append(0, np.cumsum(lengths)), *ends)
    return _joined(found, objects, len(images))


def _joined(found: Float64Array, objects: Int64Array, count: int) -> Float64Array:
    """(T, 4) boxes around those of the (P,) polygons of each of so many objects; 0 where there is
    none."""
    boxes = np.tile([np.inf, np.inf, -np.inf, -np.inf], (count, 1))
    np.minimum.at(boxes[:, :2], objects, found[:, :2])
    np.maximum.at(boxes[:, 2:], objects, found[:, 2:])
    return np.where(np.isfinite(boxes).all(axis=1, keepdims=True), boxes, 0.0)


def _polygons_in(objects: Ragged) -> tuple[Int64Array, Int64Array, Int64Array, BoolArray]:
    """Of all polygons the place of their first number, how many corners they have, and the object
    that each is of; and (T,) which objects have anything else. What makes no sense is anything
    else: the core says so when it draws it."""
    numbers, bounds = objects.values, objects.offsets.tolist()
    places, lengths, owners = [], [], []
    others = np.zeros(len(objects), dtype=np.bool_)
    for number, (at, end) in enumerate(pairwise(bounds)):
        while at < end:
            count = float(numbers[at])
            if not (LEAST_CORNERS <= count <= (end - at - 1) // 2 and count == int(count)):
                others[number] = True
                break
            places.append(at + 1)
            lengths.append(int(count))
            owners.append(number)
            at += 1 + 2 * int(count)
    first, counts, of = (np.array(one, dtype=np.int64) for one in (places, lengths, owners))
    return first, counts, of, others
