"""Polygons of which a rectangle shows a part: boxes around that part, and polygons cut off."""

from __future__ import annotations

import numpy as np

from fastload.draws import BoolArray, Float64Array, Int64Array

_INWARDS = 1e-7
"""How far inwards of a rectangle its corners are looked for in polygons [pixels]: of those that lie
on a side, or on a corner of a polygon, it decides whether the part in the rectangle reaches there.
"""


def boxes_of_polygons(
    corners: Float64Array, offsets: Int64Array, low: Float64Array, high: Float64Array
) -> Float64Array:
    """(P, 4) left, top, right, bottom around the part of each polygon that lies in a rectangle;
    (inf, inf, -inf, -inf) where no part does.

    Where a rectangle cuts a polygon, the part is bounded by sides of the polygon, or what is left
    of them in the rectangle (Liang and Barsky, 1984), and by corners of the rectangle that lie in
    the polygon (by the parity of the sides that a ray crosses). A side along an edge of the
    rectangle counts where the polygon lies inwards of it.

    Args:
        corners: (N, 2) x and y of all polygons, one after the other.
        offsets: (P + 1,) at which corner those of each polygon begin; each has one or more.
        low, high: (P, 2) upper left and lower right of the rectangles; may be infinite.
    """
    if len(offsets) < 2:
        return np.zeros((0, 4))
    least, most = (of.reduceat(corners, offsets[:-1]) for of in (np.minimum, np.maximum))
    whole: BoolArray = np.logical_and.reduce((least >= low) & (most <= high), axis=1)
    beside: BoolArray = np.logical_or.reduce((least >= high) | (most <= low), axis=1)
    nowhere = np.array([np.inf, np.inf, -np.inf, -np.inf])
    boxes = np.where(beside[:, None], nowhere, np.concatenate([least, most], axis=1))
    cut = ~(whole | beside)
    if cut.any():
        lengths = np.diff(offsets)
        chosen = corners[np.repeat(cut, lengths)]
        starts = np.concatenate([[0], np.cumsum(lengths[cut])])
        boxes[cut] = _cut(chosen, starts, low[cut], high[cut])
    return boxes


def cut_off(
    corners: Float64Array, offsets: Int64Array, low: Float64Array, high: Float64Array
) -> tuple[Float64Array, Int64Array]:
    """The corners and offsets of polygons of which nothing is outside of a rectangle: a corner is
    added where a side crosses the line through a side of the rectangle, then all that is outside is
    moved to the nearest point of it. It covers the part in the rectangle; along the edges of that
    it may go farther, without an area.

    Args:
        corners, offsets, low, high: as of `boxes_of_polygons`; polygons may have no corners.
    """
    some = np.diff(offsets) > 0
    polygon = np.repeat(np.arange(len(some)), np.diff(offsets))
    near, far = low[polygon], high[polygon]
    outside: BoolArray = np.logical_or.reduce((corners < near) | (corners > far), axis=1)
    if not outside.any():
        return corners, offsets
    following = np.arange(1, len(corners) + 1)
    following[offsets[1:][some] - 1] = offsets[:-1][some]
    step = corners[following] - corners
    # A side between two corners in the rectangle does not leave it.
    crossing = outside | outside[following]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        begin, own = corners[crossing], step[crossing]
        ends = [(end[crossing] - begin) / own for end in (near, far)]
        at = np.concatenate(ends, axis=1)  # (sides, 4)
        at = np.where((at > 0) & (at < 1), at, np.inf)
    at.sort(axis=1)
    added = np.isfinite(at)
    counts = np.ones(len(corners), dtype=np.int64)
    counts[crossing] += added.sum(axis=1)
    places = np.cumsum(counts) - counts
    made = np.empty((int(counts.sum()), 2))
    made[places] = corners
    sides, number = np.nonzero(added)
    where = places[crossing][sides] + 1 + number
    made[where] = begin[sides] + at[added][:, None] * own[sides]
    of_each = np.repeat(polygon, counts)
    lengths = np.bincount(of_each, minlength=len(some))
    return np.clip(made, low[of_each], high[of_each]), np.append(0, np.cumsum(lengths))


def _cut(
    corners: Float64Array, offsets: Int64Array, low: Float64Array, high: Float64Array
) -> Float64Array:
    first = offsets[:-1]
    polygon = np.repeat(np.arange(len(first)), np.diff(offsets))
    following = np.arange(1, len(corners) + 1)
    following[offsets[1:] - 1] = first
    begin, step = corners, corners[following] - corners
    near, far = low[polygon], high[polygon]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ends = np.stack([(near - begin) / step, (far - begin) / step])
        enters, leaves = ends.min(axis=0), ends.max(axis=0)
        still, within = step == 0, (near <= begin) & (begin <= far)
        enters = np.where(still, np.where(within, -np.inf, np.inf), enters)
        leaves = np.where(still, np.inf, leaves)
        enter = np.maximum(enters.max(axis=1), 0.0)[:, None]
        leave = np.minimum(leaves.min(axis=1), 1.0)[:, None]
        area = np.add.reduceat(begin[:, 0] * step[:, 1] - begin[:, 1] * step[:, 0], first)
        # To the left of a side, x to the right and y upwards, where the area is positive.
        inwards = np.stack([-step[:, 1], step[:, 0]], axis=1) * np.sign(area)[polygon][:, None]
        outside = still & (((begin == near) & (inwards <= 0)) | ((begin == far) & (inwards >= 0)))
        seen = (enter < leave) & ~outside.any(axis=1, keepdims=True)
        parts = [np.clip(begin + at * step, near, far) for at in (enter, leave)]
    least = np.where(seen, np.minimum(*parts), np.inf)
    most = np.where(seen, np.maximum(*parts), -np.inf)
    boxes = np.concatenate(
        [np.minimum.reduceat(least, first), np.maximum.reduceat(most, first)], axis=1
    )
    return _with_corners(boxes, begin, step, polygon, first, np.stack([low, high], axis=1))


def _with_corners(
    boxes: Float64Array,
    begin: Float64Array,
    step: Float64Array,
    polygon: Int64Array,
    first: Int64Array,
    rectangles: Float64Array,
) -> Float64Array:
    """The boxes, and in them the corners of the (P, 2, 2) rectangles that lie in the polygons."""
    chosen = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    corners = rectangles[:, chosen, [0, 1]]  # (P, 4, 2)
    tested = corners + _INWARDS * (1 - 2 * chosen)
    to_x, to_y = np.moveaxis(tested[polygon] - begin[:, None], 2, 0)
    across, down = step[:, :1], step[:, 1:]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        crossed = ((to_y > 0) != (to_y > down)) & (to_x < to_y / down * across)
    inside = np.add.reduceat(crossed, first, dtype=np.int64) % 2 == 1
    if inside.any():
        near, far = (np.where(inside[..., None], corners, end) for end in (np.inf, -np.inf))
        boxes[:, :2] = np.minimum(boxes[:, :2], near.min(axis=1))
        boxes[:, 2:] = np.maximum(boxes[:, 2:], far.max(axis=1))
    return boxes
