"""Points in an image: a column that geometry moves."""

from __future__ import annotations

import numpy as np

from fastload.errors import SourceError
from fastload.geometry.points import PointMap
from fastload.sources.kinds import AnyArray, Kind, register_kind


class KeyPoints(Kind):
    """(..., 2) x, y, or (..., 3) x, y and a number that goes along (COCO's visibility), in pixels
    of the source image.

    They go through the geometry as torchvision's kernels for `tv_tensors.KeyPoints` have it: (0, 0)
    is the centre of the first pixel, and what leaves the picture keeps its place outside of it. NaN
    stays NaN. What is no floating point number is served as float32.
    """

    name = "keypoints"
    keys = ("keypoints",)
    moves = True
    of_instances = True

    def check(self, rows: AnyArray, name: str) -> None:
        if rows.ndim < 2 or rows.shape[-1] not in (2, 3) or rows.dtype.kind not in "iuf":
            raise SourceError(
                f"{name}: keypoints must be numbers (N, 2), (N, K, 2) or, with visibility, (N, "
                "K, 3): x and y in "
                f"pixels; got {rows.dtype} of shape {rows.shape}. Give the column another name "
                "if it holds something "
                "else."
            )

    def transform(self, rows: AnyArray, points: PointMap) -> AnyArray:
        result = rows.astype(rows.dtype if rows.dtype.kind == "f" else np.dtype(np.float32))
        result[..., :2] = points.points(rows[..., :2].astype(np.float64), clip=False, centres=True)
        return result


register_kind(KeyPoints())
