"""FiveCrop and TenCrop: an image as views of its corners and its middle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torchvision.transforms import v2

from fastload.draws import Int64Array
from fastload.recipe.attributes import read_pair
from fastload.recipe.crops import (
    CenterCrop,
    PlacedCrop,
    RandomHorizontalFlip,
    RandomVerticalFlip,
)
from fastload.recipe.operation import ImageState, Operation, register_lowering
from fastload.recipe.views import Branches


@dataclass(frozen=True)
class CornerCrop(PlacedCrop):
    """A part of a size in a corner."""

    bottom: bool = False
    right: bool = False

    def start(self, space: Int64Array) -> Int64Array:
        return np.where([self.bottom, self.right], space, 0)


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
