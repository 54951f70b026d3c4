"""What samples of several images are made of, for `NativePool.join`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fastload.geometry import Geometry, Resampling
from fastload.geometry.plan import WarpSampling
from fastload.native.extension import load

if TYPE_CHECKING:
    import fastload.native._core as _core


@dataclass(frozen=True)
class CompositeCanvases:
    """Where T members lie on the canvases of P pictures, and the warp of these."""

    size: tuple[int, int]
    """Height, width of all."""
    corners: npt.NDArray[np.int32]
    """(T, 2): top, left on its canvas of what is shown of a member; -1: nothing of it is seen."""
    seen: npt.NDArray[np.int32]
    """(P, 4): top, left, height, width of the canvas, beside which the warp reads nothing."""
    inverse: npt.NDArray[np.float64]
    """(P, 3, 3): of a `Warp`, and of a cut after it."""
    flips: npt.NDArray[np.bool_]
    """(P, 2): mirror left-right, upside-down, after that."""
    warp: WarpSampling
    """Bilinear."""
    second: tuple[tuple[int, int], WarpSampling] | None = None
    """Size and warp of the canvases of the second of each two pictures; None: as of the first."""


@dataclass(frozen=True)
class Composites:
    """B samples. A sample is one picture, the blend of two, or one with a part of another; a
    picture is an image, or members on a canvas, which is then warped. P pictures, those of a sample
    one after the other; T members, those of a picture one after the other."""

    parts: Geometry
    """Of T members: what of each is shown; on canvases all of it inside of the image."""
    offsets: npt.NDArray[np.int64]
    """(P + 1,): the members of each picture. A second picture may have none, and is none then."""
    canvases: CompositeCanvases | None
    """None: a picture is one image."""
    sampling: Resampling
    """Of members, and with its fill what is between them."""
    weights: npt.NDArray[np.float32] | None = None
    """(B, 2): of the two pictures of a sample that are blended."""
    rectangles: npt.NDArray[np.int32] | None = None
    """(B, 4): top, left, height, width of what the second picture of a sample covers."""
    masks: npt.NDArray[np.bool_] | None = None
    """(B, height, width): what the second picture covers. One of the three, or none."""


def core_canvases(canvases: CompositeCanvases, parts: Geometry) -> _core.Canvases:
    """Canvases as the extension takes them. `parts`: what is shown of each of the T members."""
    extension = load()

    def layer(size: tuple[int, int], warp: WarpSampling) -> _core.CanvasLayer:
        fill = np.broadcast_to(np.asarray(warp.fill, dtype=np.float64), 3).tolist()
        made: _core.CanvasLayer = extension.CanvasLayer(size, warp.fades, warp.mixes, tuple(fill))
        return made

    first = canvases.size, canvases.warp
    for_core: _core.Canvases = extension.Canvases(
        layer(*first),
        layer(*(canvases.second or first)),
        np.ascontiguousarray(parts.window, dtype=np.int32),
        np.ascontiguousarray(canvases.corners, dtype=np.int32),
        np.ascontiguousarray(canvases.seen, dtype=np.int32),
        np.ascontiguousarray(canvases.inverse, dtype=np.float64),
        np.ascontiguousarray(canvases.flips, dtype=np.bool_),
    )
    return for_core
