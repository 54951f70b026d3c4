"""FiveCrop and TenCrop: an image as views of its corners and its middle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torchvision.transforms import v2

from fastload.draws import Float64Array
from fastload.geometry.plan import Composition
from fastload.recipe.attributes import check_settings, read_pair
from fastload.recipe.crops import CenterCrop, RandomHorizontalFlip, RandomVerticalFlip
from fastload.recipe.operation import (
    GeometryOperation,
    ImageState,
    Operation,
    Size,
    register_lowering,
)
from fastload.recipe.views import Branches


@dataclass(frozen=True)
class CornerCrop(GeometryOperation):
    """A part of a size in a corner."""

    size: Size
    bottom: bool = False
    right: bool = False

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def out_size(self) -> Size:
        return self.size

    def compose(self, composition: Composition, uniforms: Float64Array) -> None:
        target = np.array([self.size], dtype=np.int64)
        space = composition.extent - target
        composition.fail(
            (space < 0).any(axis=1),
            f"crops of {self.size[0]}x{self.size[1]} pixels are larger than the image of "
            "{height}x{width} pixels; resize it first.",
        )
        composition.crop(np.maximum(space, 0) * np.array([self.bottom, self.right]), target)


def _crops(transform: Any, image: ImageState) -> tuple[Operation, ...]:
    size = read_pair(transform.size)
    corners = ((False, False), (False, True), (True, False), (True, True))
    five: list[Operation] = [*(CornerCrop(size, *corner) for corner in corners), CenterCrop(size)]
    branches: list[tuple[Operation, ...]] = [(crop,) for crop in five]
    if type(transform) is v2.TenCrop:
        kind = RandomVerticalFlip if transform.vertical_flip else RandomHorizontalFlip
        branches += [(kind(1.0), crop) for crop in five]
    image.forked = image.cropped = True
    return (Branches(tuple(branches)),)


register_lowering("views", (v2.FiveCrop, v2.TenCrop), _crops)
