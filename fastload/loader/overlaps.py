"""Maps of the objects in an image by number, as Ultralytics trains on segments: `overlap_mask=True`
and `mask_ratio=4` of its manual."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.backends.masks import MaskDrawer
from fastload.draws import Int64Array
from fastload.errors import SourceError
from fastload.geometry.points import PointMap
from fastload.sources.ragged import Ragged, offsets_of

RATIO = 4
"""Pixels of an image a pixel of a map, along each side."""
_REACH = 1.0
"""How far beyond a polygon a pixel of a map may lie that still shows it [pixels of the image]: a
pixel of the image belongs to a polygon that touches it, and one of the map, which lies between four
of the image, shows what at least two of them do. Of a side that lies along (cos a, sin a) this is
the larger of |cos a| and |sin a|: the polygon moved by this to the left, right, up and down."""
_SHIFTS = _REACH * np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
_FINER = 2
"""Pixels that are drawn for one of the map, along each side: corners of drawn polygons are rounded
to fifths of a pixel, which in pixels of the map would move sides by up to 0.4 of the image's."""
_MOST = 255
"""Objects of an image that uint8 has numbers for."""


def overlaps(
    polygons: Ragged, chosen: Int64Array, size: tuple[int, int]
) -> tuple[Int64Array, npt.NDArray[Any]]:
    """(N,) which of the objects come one after the other, image by image, the largest mask first;
    and (B, height / 4, width / 4) uint8, or int32 where an image has more than 255 objects, of each
    pixel the number of the object in that order, from 1 in each image, and 0 for none. Where
    objects overlap, the last one counts.

    Args:
        polygons: of each of B images its objects, of each its polygons, of these the corners
            [pixels]; numpy arrays.
        chosen: (N,) which objects of all images, ascending.
        size: (height, width) of the images, multiples of 4.

    Raises SourceError: a polygon cannot be drawn.
    """
    kept = np.zeros(len(polygons.values), dtype=np.bool_)
    kept[chosen] = True
    objects = polygons.only(kept)
    images = objects.rows_of_values
    small = size[0] // RATIO, size[1] // RATIO
    masks = drawn(objects, small)
    areas = masks.reshape(len(masks), -1).sum(axis=1, dtype=np.int64)
    order = np.lexsort((-areas, images))  # stable
    counts = objects.lengths
    most = int(counts.max(initial=0))
    out = np.zeros((len(objects), *small), np.uint8 if most <= _MOST else np.int32)
    numbers = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    for one, image, number in zip(order.tolist(), images.tolist(), numbers.tolist(), strict=True):
        np.maximum(out[image], masks[one] * out.dtype.type(number), out=out[image])
    return chosen[order], out


def drawn(objects: Ragged, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """(T, height, width) uint8 of a map of this size, 1 where an object is shown."""
    of_objects = objects.values
    polygons: Ragged = of_objects.values
    # Each polygon four times, as a shape has it: how many corners, then x and y of each.
    lengths = np.repeat(polygons.lengths, len(_SHIFTS))
    places = offsets_of(1 + 2 * lengths)
    numbers = np.empty(int(places[-1]))
    corners = np.ones(len(numbers), dtype=np.bool_)
    corners[places[:-1]] = False
    numbers[places[:-1]] = lengths
    owner = np.repeat(np.arange(len(lengths)), lengths)
    own = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    at = polygons.offsets[owner // len(_SHIFTS)] + own
    moved = polygons.values[at].astype(np.float64) + _SHIFTS[owner % len(_SHIFTS)]
    # The middle of pixel n of the map, 4 n + 2 in the image, is that of pixel 2 n + 1 here.
    numbers[corners] = (moved * (_FINER / RATIO) + 0.5).reshape(-1)
    shapes = Ragged(Ragged(numbers, places[len(_SHIFTS) * of_objects.offsets]), objects.offsets)
    sizes = np.tile(np.array(size, dtype=np.int64) * _FINER, (len(objects), 1))
    masks, undrawn = MaskDrawer().draw(shapes, PointMap.identity(sizes, traced=True))
    if undrawn:
        raise SourceError(
            f"polygons: masks of them cannot be drawn: {next(iter(undrawn.values()))}"
        )
    return np.ascontiguousarray(masks.values[:, 1::_FINER, 1::_FINER])
