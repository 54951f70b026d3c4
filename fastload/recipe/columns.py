"""Operations on what goes with the images, and not on their pixels: boxes that are clipped or
dropped."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.geometry.points import PointMap
from fastload.recipe import transforms as own
from fastload.recipe.operation import (
    ImageState,
    NotLowerableError,
    Operation,
    register,
    register_lowering,
)

_SOME = sys.float_info.min
"""The least side and area that are any: a box without an area is never kept."""

PASCAL_VOC = "pascal_voc"
"""What albumentations calls boxes of left, top, right, bottom in pixels."""


class ColumnOperation(Operation):
    """Changes columns that go with the images and leaves all pixels alone. Define `move`."""

    format: str = PASCAL_VOC
    """Of the boxes that the user's transform was written for."""
    moves_pixels = False
    only_columns = True
    light = True

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        return images


@register
@dataclass(frozen=True)
class SanitizeBoundingBoxes(ColumnOperation):
    """Drops the objects whose box is too small, or not in the image, as it is at this place in the
    transform: their boxes, labels and all other columns of objects.

    Boxes hold numbers of float64 here, so that one on the threshold to 1e-4 pixels may get another
    verdict than by torchvision.
    """

    transforms = (v2.SanitizeBoundingBoxes,)
    drops_boxes = True

    min_size: float = 1.0
    """Shortest side that is kept [pixels]."""
    min_area: float = 1.0
    """Smallest area that is kept [square pixels]."""

    def __post_init__(self) -> None:
        if not (self.min_size >= 1 and self.min_area >= 1):
            raise ConfigurationError(
                f"{self.describe()}: min_size and min_area must be 1 or more, as in torchvision."
            )

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> SanitizeBoundingBoxes:
        if transform.labels_getter != "default":
            raise NotLowerableError(
                f"labels_getter={transform.labels_getter!r} may choose any columns; leave it out: "
                "whatever belongs to an object is dropped together with its box"
            )
        return cls(float(transform.min_size), float(transform.min_area))

    def move(self, points: PointMap, draws: Draws, stream: int) -> PointMap:
        return points.dropping(self.min_size, self.min_area)


@register
@dataclass(frozen=True)
class DropObjects(ColumnOperation):
    """SanitizeBoundingBoxes, and also by how much of a box is still in the picture."""

    transforms = (own.DropObjects,)
    drops_boxes = True

    min_size: float = 1.0
    min_area: float = 1.0
    min_visibility: float = 0.0
    max_ratio: float = field(default=math.inf, repr=False)
    visibility_from_here: bool = field(default=False, repr=False)

    def move(self, points: PointMap, draws: Draws, stream: int) -> PointMap:
        size, area = max(self.min_size, _SOME), max(self.min_area, _SOME)
        return points.dropping(
            size,
            area,
            self.min_visibility,
            max_ratio=self.max_ratio,
            visibility_from_here=self.visibility_from_here,
        )


@register
@dataclass(frozen=True)
class PasteIn(ColumnOperation):
    """See `fastload.recipe.transforms.PasteIn`; `loader.objects` refuses what it is not for."""

    transforms = (own.PasteIn,)

    p: float = 0.15

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> PasteIn | None:
        return cls(transform.p) if transform.p else None

    def move(self, points: PointMap, draws: Draws, stream: int) -> PointMap:
        return points


@register
@dataclass(frozen=True)
class ClampBoundingBoxes(ColumnOperation):
    """Clips boxes to the image, as it is at this place in the transform."""

    transforms = (v2.ClampBoundingBoxes,)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> ClampBoundingBoxes | None:
        if getattr(transform, "clamping_mode", "auto") is None:
            return None  # it clips nothing
        return cls()

    def move(self, points: PointMap, draws: Draws, stream: int) -> PointMap:
        return points.clamped()


def _convert_format(transform: Any, image: ImageState) -> tuple[Operation, ...]:
    """As torchvision's references for detection have it, before they sanitize boxes."""
    given = getattr(transform.format, "name", transform.format)
    if given != tv_tensors.BoundingBoxFormat.XYXY.name:
        raise NotLowerableError(
            f"boxes stay left, top, right, bottom (XYXY) here, and it asks for {given}; leave it "
            "out, and convert the boxes of the batch"
        )
    return ()


register_lowering("no operation", (v2.ConvertBoundingBoxFormat,), _convert_format)
