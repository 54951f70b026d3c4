"""The longest run of operations, from the first, that composes into one `Geometry` per sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeGuard

import numpy as np
import torch

from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.geometry import Fill, GeometryPlan, Interpolation, PaddingMode
from fastload.recipe.ops import (
    CenterCrop,
    GeometryOp,
    Grayscale,
    Normalize,
    Op,
    Opaque,
    Pad,
    RandomCrop,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToDtype,
)

__all__ = ["GeometryPrefix", "Size", "is_flip", "is_geometry", "size_after"]

Size = tuple[int, int]

_Padding = tuple[PaddingMode, Fill, Fill]
"""Mode, fill on the 0..255 scale, mask fill."""
_CENTER_CROP_PADDING: _Padding = ("constant", (0.0,), (0.0,))


def is_geometry(op: Op) -> TypeGuard[GeometryOp]:
    return isinstance(
        op,
        RandomResizedCrop | Resize | CenterCrop | RandomCrop | Pad | RandomHorizontalFlip | RandomVerticalFlip,
    )


def is_flip(op: Op) -> bool:
    return isinstance(op, RandomHorizontalFlip | RandomVerticalFlip)


def size_after(op: Op, size: Size | None) -> Size | None:
    """(height, width) of what the operation makes of images of this size; None where it differs or is not known.

    Raises:
        ConfigurationError: no image of this size can be cropped or padded so.
    """
    if isinstance(op, Opaque):
        return None
    if size is not None and isinstance(op, Pad | RandomCrop):
        _check_fits(op, size)
    if isinstance(op, RandomResizedCrop | CenterCrop | RandomCrop):
        return op.size
    if isinstance(op, Resize) and op.size is not None:
        return op.size
    if size is None:
        return None
    if isinstance(op, Resize):
        height, width = op.sizes(np.array([size], dtype=np.int64))[0].tolist()
        return height, width
    if isinstance(op, Pad):
        left, top, right, bottom = op.padding
        return size[0] + top + bottom, size[1] + left + right
    return size


def _check_fits(op: Pad | RandomCrop, size: Size) -> None:
    """By resolving it, so that known sizes and sizes met at run time get the same verdict."""
    plan = GeometryPlan(((0, op),), padding_mode=op.padding_mode)
    errors = plan.resolve(Draws(0, 0, np.zeros(1, dtype=np.int64)), np.array([size])).errors
    if errors:
        raise ConfigurationError(f"transform does not fit images of {size[0]}x{size[1]} pixels: {errors[0]}")


@dataclass
class GeometryPrefix:
    """Takes operations one by one, as long as they compose.

    Value conversions among them are passed on to the batch part, though geometry that comes later runs before them:

    - uint8 to float, scaled or not: pixels are resampled as uint8, which rounds by at most half of 1/255;
    - Normalize and conversions to grey: exact behind crops without padding and flips, so only these may follow.

    A flip before a resize is made after it. For masks, which are resampled by the nearest pixel, that may choose the
    neighbour where two are equally near.
    """

    size: Size | None
    """(height, width) of the images at this point, or None where they differ."""
    taken: list[tuple[int, GeometryOp]] = field(default_factory=list)
    _resize: RandomResizedCrop | Resize | None = None
    _padding: _Padding | None = None
    _cut_after_resize: bool = False
    _flipped: bool = False
    _scale: float = 1.0
    """From the scale of the pixels at this point to 0..255."""
    _floating: bool = False
    _only_exact: bool = False

    def take(self, stream: int, op: Op) -> Literal["geometry", "batch", "end"]:
        """Where the operation goes; "end" if the prefix ends before it."""
        if is_geometry(op):
            if not self._composes(op):
                return "end"
            self.taken.append((stream, op))
            self.size = size_after(op, self.size)
            return "geometry"
        if isinstance(op, ToDtype) and not self._only_exact and self._convert(op):
            return "batch"
        if isinstance(op, Normalize | Grayscale | RandomGrayscale):
            self._only_exact = True
            return "batch"
        return "end"

    def plan(self) -> GeometryPlan:
        interpolation: Interpolation = "bilinear" if self._resize is None else self._resize.interpolation
        antialias = True if self._resize is None else self._resize.antialias
        mode, fill, mask_fill = self._padding or ("constant", (0.0,), (0.0,))
        return GeometryPlan(tuple(self.taken), self.size, interpolation, antialias, mode, fill, mask_fill)

    def _convert(self, op: ToDtype) -> bool:
        """Whether it is uint8 to uint8, or to floating point from where it stays."""
        if op.dtype == torch.uint8 and not self._floating:
            return True
        if not op.dtype.is_floating_point:
            return False
        if op.scale and not self._floating:
            self._scale = 255.0
        self._floating = True
        return True

    def _composes(self, op: GeometryOp) -> bool:
        if isinstance(op, RandomHorizontalFlip | RandomVerticalFlip):
            self._flipped = True
            return True
        if isinstance(op, RandomResizedCrop | Resize):
            if self._only_exact or self._resize is not None or self._padding is not None:
                return False
            if op.interpolation in ("nearest", "nearest-exact") and self._flipped:
                return False  # of pixels equally near it takes one by its side: mirroring does not commute
            self._resize = op
            return True
        if not self._pads(op):
            self._cut_after_resize = self._resize is not None
            return True
        if self._only_exact or self._cut_after_resize or not self._joins(op):
            return False
        self._cut_after_resize = self._resize is not None and not isinstance(op, Pad)
        return True

    def _pads(self, op: CenterCrop | RandomCrop | Pad) -> bool:
        """Whether some image could need padding."""
        if isinstance(op, Pad):
            return any(op.padding)
        too_small = self.size is None or self.size[0] < op.size[0] or self.size[1] < op.size[1]
        if isinstance(op, CenterCrop):
            return too_small
        return any(op.padding or ()) or (op.pad_if_needed and too_small)

    def _joins(self, op: CenterCrop | RandomCrop | Pad) -> bool:
        """Whether its padding and the padding so far can be one."""
        padding = _CENTER_CROP_PADDING if isinstance(op, CenterCrop) else self._in_uint8(op)
        if padding is None:
            return False
        if self._padding is None:
            self._padding = padding
            return True
        # A reflection of a reflection is not one wide reflection.
        return padding == self._padding and padding[0] in ("constant", "edge")

    def _in_uint8(self, op: RandomCrop | Pad) -> _Padding | None:
        """Mode and fills on the 0..255 scale; None if uint8 cannot hold what is a valid float here."""
        if op.padding_mode != "constant":
            return op.padding_mode, (0.0,), (0.0,)
        if self._floating:
            fill = tuple(float(round(value * self._scale)) for value in op.fill)
            if not all(0 <= value <= 255 for value in fill):
                return None
        else:
            fill = _whole(op, "fill", op.fill)
        return "constant", _one_if_equal(fill), _one_if_equal(_whole(op, "mask_fill", op.mask_fill))


def _whole(op: RandomCrop | Pad, name: str, fill: Fill) -> Fill:
    """Cut to whole numbers, as torchvision fills uint8 pixels."""
    if not all(0 <= value < 256 for value in fill):
        raise ConfigurationError(
            f"{type(op).__name__}({name}={fill}) does not fit uint8 pixels; give values from 0 to 255, or pad after "
            "ToDtype(torch.float32, scale=True)."
        )
    return tuple(float(int(value)) for value in fill)


def _one_if_equal(fill: Fill) -> Fill:
    return fill[:1] if len(set(fill)) == 1 else fill
