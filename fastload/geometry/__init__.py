"""Where the pixels of an output come from: one plan, one resolution to boxes, one meaning of padding and filters.

Every renderer (`fastload.render.host`, `fastload.render.device`, the native core, DALI) is given the same `Geometry`
and the same `Resampling`.
"""

from __future__ import annotations

from fastload.geometry.plan import Geometry, GeometryPlan, View
from fastload.geometry.resampling import Fill, Interpolation, Padding, PaddingMode, Resampling, Role

__all__ = ["Fill", "Geometry", "GeometryPlan", "Interpolation", "Padding", "PaddingMode", "Resampling", "Role", "View"]
