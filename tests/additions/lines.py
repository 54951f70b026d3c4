"""Lines in an image: a column that geometry moves."""

from __future__ import annotations

import numpy as np

from fastload.geometry.points import PointMap
from fastload.sources.kinds import AnyArray, Kind, register_kind


class Lines(Kind):
    """(N, 4): x and y of both ends [pixels]."""

    name = "lines"
    keys = ("lines",)
    moves = True

    def transform(self, rows: AnyArray, points: PointMap) -> AnyArray:
        ends = rows.reshape(len(rows), 2, 2).astype(np.float64)
        return points.points(ends).reshape(len(rows), 4)


register_kind(Lines())
