"""The geometry part of a recipe: where each output pixel comes from, before any pixel is read.

A plan is static. Resolving it against the draws and the image sizes of a batch gives one `Geometry`: plain integer
arrays that every backend understands.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Geometry:
    """Crop, resize, crop, flip: resolved for the B samples of a batch, one row a sample.

    The pixels of row i are: the source image cropped to `box[i]`, resampled to `size[i]` (no resampling where it
    equals the box's size; the filter never looks outside the box), cut to `window[i]` (which may reach outside: that
    is padding), then mirrored by `flip[i]`.
    """

    box: Int32Array
    """(B, 4) int32: top, left, height, width in pixels of the source image."""
    size: Int32Array
    """(B, 2) int32: height, width that the box is resampled to."""
    window: Int32Array
    """(B, 4) int32: top, left, height, width in the resampled grid; rows and columns outside it are padding."""
    flip: npt.NDArray[np.bool_]
    """(B, 2) bool: mirror left-right, mirror upside-down."""
    errors: dict[int, str] = field(default_factory=dict)
    """Rows that have no geometry (a crop larger than the image), and why. Their arrays hold a 1x1 dummy."""

    def __len__(self) -> int:
        return int(self.box.shape[0])
