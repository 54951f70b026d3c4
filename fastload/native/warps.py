"""Warps between two geometries, as the native core takes them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fastload.geometry import Geometry
from fastload.geometry.cuts import cut_inverse, is_warped, only_cuts
from fastload.geometry.plan import WarpSampling
from fastload.native.extension import load

if TYPE_CHECKING:
    import fastload.native._core as _core


def core_warps(geometry: Geometry, sampling: WarpSampling) -> tuple[Geometry, _core.Warps]:
    """The geometry after the warp of `geometry.later`, and the warp: by the same matrices as
    `fastload.render.host.render_row`, so that the pixels are equal."""
    later = geometry.later
    assert later is not None
    assert later.inverse is not None
    last, inverse, sizes = later.geometry, later.inverse.copy(), later.size.copy()
    warped = is_warped(geometry)
    sizes[~warped] = -1
    if sampling.interpolation == "bilinear":
        cut = np.flatnonzero(warped & only_cuts(last))
        box, inverse[cut], sizes[cut] = last.box.copy(), cut_inverse(later, cut), last.size[cut]
        box[cut, :2] = 0
        last = replace(last, box=box)
    fill = np.broadcast_to(np.asarray(sampling.fill, np.float32), 3)
    made: _core.Warps = load().Warps(
        np.ascontiguousarray(inverse, dtype=np.float64),
        np.ascontiguousarray(sizes, dtype=np.int32),
        sampling.interpolation == "bilinear",
        sampling.fades,
        sampling.mixes,
        (float(fill[0]), float(fill[1]), float(fill[2])),
    )
    return last, made
