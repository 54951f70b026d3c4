"""Boxes around objects in an image: a column that geometry moves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastload.errors import SourceError
from fastload.geometry.points import PointMap
from fastload.sources.kinds import AnyArray, Kind, first_bad_row, register_kind


class Boxes(Kind):
    """(..., 4) left, top, right, bottom in pixels of the source image, as torchvision's "XYXY".

    They go through crops, resizes, paddings and mirrorings as torchvision's kernels for
    `tv_tensors.BoundingBoxes` have it, and are clipped to what is shown of the image: a box outside
    of it has no area then. What is no floating point number is served as float32.
    """

    name = "boxes"
    keys = ("boxes",)
    moves = True
    of_instances = True
    rectangular = True
    drops_objects = True

    def check(self, rows: AnyArray, name: str) -> None:
        if rows.ndim < 2 or rows.shape[-1] != 4 or rows.dtype.kind not in "iuf":
            raise SourceError(
                f"{name}: boxes must be numbers (N, 4) or (N, K, 4), left, top, right, bottom in "
                f"pixels; got {rows.dtype} of shape {rows.shape}. Give the column another name if "
                "it holds something else."
            )
        bad = first_bad_row(~np.isfinite(rows)) if rows.dtype.kind == "f" else None
        if bad is None:
            bad = first_bad_row(rows[..., 2:] < rows[..., :2])
        if bad is not None:
            raise SourceError(
                f"{name}: row {bad} holds {rows[bad].tolist()}, and a box is left, top, right, "
                "bottom in pixels, with left <= right and top <= bottom; correct it (of left, top, "
                "width, height the sums are wanted), or leave the sample out."
            )

    def transform(self, rows: AnyArray, points: PointMap) -> AnyArray:
        return self.transform_and_kept(rows, points)[0]

    def transform_and_kept(
        self, rows: AnyArray, points: PointMap
    ) -> tuple[AnyArray, npt.NDArray[np.bool_]]:
        dtype = rows.dtype if rows.dtype.kind == "f" else np.dtype(np.float32)
        moved, kept = points.boxes_and_kept(rows.astype(np.float64))
        return moved.astype(dtype), kept


register_kind(Boxes())
