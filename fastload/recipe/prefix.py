"""The longest run of operations, from the first, that composes into one `Geometry` per sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch

from fastload.errors import ConfigurationError
from fastload.geometry import Fill, GeometryPlan, Padding, Resampling
from fastload.recipe.operation import GeometryOperation, Operation, Size

__all__ = ["GeometryPrefix"]


@dataclass
class GeometryPrefix:
    """Takes operations one by one, as long as they compose.

    Value conversions among them are passed on to the batch part, though geometry that comes later runs before them:

    - uint8 to float, scaled or not: pixels are resampled as uint8, which rounds by at most half of 1/255;
    - what treats all pixels alike (Normalize, conversions to grey): exact behind crops without padding and flips, so
      only these may follow.

    A flip before a resize is made after it. For masks, which are resampled by the nearest pixel, that may choose the
    neighbour where two are equally near.
    """

    size: Size | None
    """(height, width) of the images at this point, or None where they differ."""
    taken: list[tuple[int, GeometryOperation]] = field(default_factory=list)
    _resampling: Resampling | None = None
    _padding: Padding | None = None
    """On the 0..255 scale."""
    _cut_after_resize: bool = False
    _flipped: bool = False
    _dtype: torch.dtype = torch.uint8
    _scale: float = 1.0
    """From the scale of the pixels at this point to 0..255."""
    _only_exact: bool = False

    def take(self, stream: int, op: Operation) -> Literal["geometry", "batch", "end"]:
        """Where the operation goes; "end" if the prefix ends before it."""
        if isinstance(op, GeometryOperation):
            if not self._composes(op):
                return "end"
            self.taken.append((stream, op))
            self.size = op.size_after(self.size)
            return "geometry"
        factor = op.rescaling(self._dtype)
        if factor is not None and not self._only_exact:
            self._scale *= factor
            self._dtype = op.output_dtype(self._dtype)
            return "batch"
        if op.pointwise:
            self._only_exact = True
            return "batch"
        return "end"

    def plan(self) -> GeometryPlan:
        resampling, padding = self._resampling or Resampling(), self._padding or Padding()
        return GeometryPlan(tuple(self.taken), self.size, resampling.interpolation, resampling.antialias, *padding)

    def _composes(self, op: GeometryOperation) -> bool:
        if op.mirrors:
            self._flipped = True
            return True
        resampling, padding = op.resampling, op.padding_for(self.size)
        if resampling is not None:
            if self._only_exact or self._resampling is not None or self._padding is not None:
                return False
            if resampling.interpolation in ("nearest", "nearest-exact") and self._flipped:
                return False  # of pixels equally near it takes one by its side: mirroring does not commute
            self._resampling = resampling
        if padding is not None and (self._only_exact or self._cut_after_resize or not self._joins(op, padding)):
            return False
        self._cut_after_resize |= self._resampling is not None and op.cuts
        return True

    def _joins(self, op: GeometryOperation, padding: Padding) -> bool:
        """Whether its padding and the padding so far can be one."""
        in_uint8 = self._in_uint8(op, padding)
        if in_uint8 is None:
            return False
        if self._padding is None:
            self._padding = in_uint8
            return True
        # A reflection of a reflection is not one wide reflection.
        return in_uint8 == self._padding and in_uint8.mode in ("constant", "edge")

    def _in_uint8(self, op: GeometryOperation, padding: Padding) -> Padding | None:
        """With fills on the 0..255 scale; None if uint8 cannot hold what is a valid float here."""
        if padding.mode != "constant":
            return Padding(padding.mode)
        if self._dtype.is_floating_point:
            fill = tuple(float(round(value * self._scale)) for value in padding.fill)
            if not all(0 <= value <= 255 for value in fill):
                return None
        else:
            fill = _whole(op, "fill", padding.fill)
        return Padding("constant", _one_if_equal(fill), _one_if_equal(_whole(op, "mask_fill", padding.mask_fill)))


def _whole(op: GeometryOperation, name: str, fill: Fill) -> Fill:
    """Cut to whole numbers, as torchvision fills uint8 pixels."""
    if not all(0 <= value < 256 for value in fill):
        raise ConfigurationError(
            f"{type(op).__name__}({name}={fill}) does not fit uint8 pixels; give values from 0 to 255, or pad after "
            "ToDtype(torch.float32, scale=True)."
        )
    return tuple(float(int(value)) for value in fill)


def _one_if_equal(fill: Fill) -> Fill:
    return fill[:1] if len(set(fill)) == 1 else fill
