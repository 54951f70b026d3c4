"""A resolved geometry in the words of DALI's operators: what to decode, what to resize, where to cut and pad.

DALI resizes a region of interest with a filter that does look outside it. That serves here: only the pixels that the
window shows, and those within the filter's reach, are decoded and resized, and the result is that of resizing all and
cutting afterwards. Towards the edges of the box the region ends, so that the filter stays inside the box.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastload.errors import UnsupportedTransformError
from fastload.geometry import Geometry, GeometryPlan

__all__ = ["DaliFilter", "Regions", "filter_of", "regions_of"]

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True)
class DaliFilter:
    """A filter of `fn.resize`."""

    interp_type: str
    """Name in `nvidia.dali.types`."""
    antialias: bool
    reach: int
    """How far the filter looks [pixels of the coarser of the two grids]."""


def filter_of(plan: GeometryPlan) -> DaliFilter:
    """The filter that agrees with torchvision's for this plan.

    Raises:
        UnsupportedTransformError: DALI has none that does.
    """
    if not plan.resamples or plan.interpolation == "nearest-exact":
        return DaliFilter("INTERP_NN", False, 1)
    if plan.interpolation == "bilinear":
        return DaliFilter("INTERP_LINEAR", plan.antialias, 1)
    if plan.interpolation == "bicubic" and plan.antialias:
        return DaliFilter("INTERP_CUBIC", True, 2)
    # DALI's nearest is torchvision's nearest-exact; its cubic has a = -0.5, as torchvision's with antialias only.
    asked = plan.interpolation if plan.interpolation == "nearest" else f"{plan.interpolation} with antialias=False"
    raise UnsupportedTransformError(
        f"interpolation={asked}: DALI's resampling differs from torchvision's by more than the bound; use "
        "backend='torch', 'turbojpeg' or 'cache', or interpolation 'bilinear', 'bicubic' with antialias=True or "
        "'nearest-exact'."
    )


@dataclass(frozen=True)
class Regions:
    """The arguments of one batch's operators, one row a sample; pairs are (vertical, horizontal)."""

    start: Int32Array
    """(B, 2) int32: top, left of the part of the source image to decode."""
    shape: Int32Array
    """(B, 2) int32: its height, width."""
    roi_start: npt.NDArray[np.float32]
    """(B, 2) float32: where, within that part, the pixels to resample begin; behind `roi_end` to mirror the axis."""
    roi_end: npt.NDArray[np.float32]
    """(B, 2) float32: where they end."""
    size: npt.NDArray[np.float32]
    """(B, 2) whole float32: height, width that they are resampled to."""
    anchor: Int32Array
    """(B, 2) int32: top, left of the output in the resampled pixels; what reaches outside is padding."""
    extent: Int32Array
    """(B, 2) int32: height, width of the output."""


def regions_of(geometry: Geometry, rows: npt.NDArray[np.intp], plan: GeometryPlan) -> Regions:
    """Translate these rows of a geometry that was resolved from this plan."""
    box, window, grid = (array[rows].astype(np.int64) for array in (geometry.box, geometry.window, geometry.size))
    box_start, box_size = box[:, :2], box[:, 2:]
    begin, extent = window[:, :2], window[:, 2:]
    end = begin + extent

    low = np.clip(begin, 0, grid - 1)
    high = np.maximum(np.clip(end, 0, grid), low + 1)
    if plan.padding_mode in ("reflect", "symmetric"):
        # Padding then shows pixels that the window itself may not.
        inside = (begin >= 0) & (end <= grid)
        low, high = np.where(inside, low, 0), np.where(inside, high, grid)

    scale = box_size / grid
    reach = filter_of(plan).reach
    # Where nothing is resampled, the filter's outer taps have weight zero and need no pixels.
    margin = np.where(grid == box_size, 0, np.ceil(reach * np.maximum(scale, 1.0)) + 1)
    first = np.clip(np.floor(low * scale) - margin, 0, box_size - 1)
    last = np.clip(np.ceil(high * scale) + margin, first + 1, box_size)

    roi_start, roi_end = low * scale - first, high * scale - first
    size, anchor = high - low, begin - low
    mirror = geometry.flip[rows, ::-1]
    return Regions(
        start=(box_start + first).astype(np.int32),
        shape=(last - first).astype(np.int32),
        roi_start=np.where(mirror, roi_end, roi_start).astype(np.float32),
        roi_end=np.where(mirror, roi_start, roi_end).astype(np.float32),
        size=size.astype(np.float32),
        anchor=np.where(mirror, size - anchor - extent, anchor).astype(np.int32),
        extent=extent.astype(np.int32),
    )
