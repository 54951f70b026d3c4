"""How pixels are made once it is known where they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from fastload.geometry.plan import GeometryPlan

Interpolation = Literal["nearest", "nearest-exact", "bilinear", "bicubic"]
PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]
Fill = tuple[float, ...]
"""One value for every channel, or one a channel, on the scale of the pixels that an operation meets, as torchvision
has it: 0..255 before a scaling ToDtype, 0..1 after it. (A `GeometryPlan` always speaks of 0..255.)"""
Role = Literal["image", "mask", "value", "object"]
"""Of a column. `image`: geometry and colour apply. `mask`: the same geometry, nearest, never colour. Others: left
alone."""


class Padding(NamedTuple):
    """What lies around an image."""

    mode: PaddingMode = "constant"
    fill: Fill = (0.0,)
    """Of "constant" padding of images."""
    mask_fill: Fill = (0.0,)


@dataclass(frozen=True)
class Resampling:
    """How the pixels of one column are made; the same for every sample."""

    interpolation: Interpolation = "bilinear"
    antialias: bool = True
    """Widen the filter of "bilinear" and "bicubic" when shrinking."""
    padding_mode: PaddingMode = "constant"
    """How the part of a window outside its grid is made."""
    fill: Fill = (0.0,)
    """One value, or one a channel, of "constant" padding."""
    role: Literal["image", "mask"] = "image"
    """What the column holds: masks are decoded to one channel."""

    @classmethod
    def of(cls, plan: GeometryPlan, role: Literal["image", "mask"] = "image") -> Resampling:
        """What a plan means for images, or for the masks that belong to them: nearest, with a fill of their own."""
        if role == "mask":
            return cls("nearest", False, plan.padding_mode, plan.mask_fill, role)
        return cls(plan.interpolation, plan.antialias, plan.padding_mode, plan.fill, role)
