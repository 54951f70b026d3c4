"""Where the pixels of an output come from: one plan, one resolution to boxes, one meaning of
padding and filters.

Every renderer (`fastload.render.host`, `fastload.render.device`, the native core, DALI) is given
the same `Geometry` and the same `Resampling`.
"""

from __future__ import annotations

from fastload.geometry.plan import (
    Fill,
    Geometry,
    GeometryPlan,
    Interpolation,
    Padding,
    PaddingMode,
    Resampling,
    View,
)

__all__ = [
    "Fill",
    "Geometry",
    "GeometryPlan",
    "Interpolation",
    "Padding",
    "PaddingMode",
    "Resampling",
    "View",
]
