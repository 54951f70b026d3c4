"""Columns that say how the image of a sample was placed: no data set has them, the geometry of the
batch makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fastload.errors import ConfigurationError
from fastload.geometry.points import PointMap
from fastload.sources.base import Source
from fastload.sources.columns import ValueArray
from fastload.sources.kinds import AnyArray, Kind, register_kind


class OriginalSize(Kind):
    """(B, 2) int64: height and width of the source image [pixels], upright where images are turned
    by their EXIF tag."""

    name = "original_size"
    moves = True
    made = True

    def transform(self, rows: AnyArray, points: PointMap) -> AnyArray:
        return points.source_sizes


class CropCorner(Kind):
    """(B, 2) int64: top and left of what is shown of the image after it was resized, and mirrored
    [pixels]; negative where padding is shown before it."""

    name = "crop_corner"
    moves = True
    made = True

    def transform(self, rows: AnyArray, points: PointMap) -> AnyArray:
        return points.corners


class PaddingMask(Kind):
    """(B, H, W) bool: True where a pixel shows padding, and no part of the image."""

    name = "padding_mask"
    moves = True
    made = True

    def transform(self, rows: AnyArray, points: PointMap) -> AnyArray:
        height, width = points.sizes.max(axis=0, initial=1).tolist()
        padding = np.ones((len(points), height, width), dtype=np.bool_)
        for row, (top, left, bottom, right) in enumerate(points.pictures.tolist()):
            padding[row, top:bottom, left:right] = False
        return padding


register_kind(OriginalSize())
register_kind(CropCorner())
register_kind(PaddingMask())


def with_placements(
    source: Source, columns: Sequence[tuple[str, str]], asks: str, warps: str
) -> Source:
    """The source, with columns of these names and kinds as its last.

    Args:
        asks: the operation that adds them, for messages.
        warps: the operation that moves pixels so that no rectangle of the image is shown; empty:
            there is none.

    Raises:
        ConfigurationError: it has a column of such a name, or no images that fastload reads; or
            there is such an operation.
    """
    transform = f"transform: {asks} says how images are placed, and"
    if not source.images or source.objects:
        raise ConfigurationError(
            f"{transform} {source.name} has none that fastload reads (columns: "
            f"{', '.join(source.columns)}). Give a folder, arrays, or a data set of images."
        )
    if warps:
        raise ConfigurationError(
            f"{transform} {warps} shows no rectangle of them; leave one of the two out."
        )
    taken = [name for name, _ in columns if name in source.columns]
    if taken:
        raise ConfigurationError(
            f"{transform} {source.name} has a column {taken[0]!r} already. Give {asks} "
            "another name for it, or leave that column out."
        )
    nothing = np.broadcast_to(np.zeros((1, 0), dtype=np.int64), (len(source), 0))
    added = {name: ValueArray(nothing, role=kind) for name, kind in columns}
    return replace(source, columns={**source.columns, **added})
