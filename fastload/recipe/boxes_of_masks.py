"""Boxes that are put around what is left of masks, as detectron2 does where it cuts images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fastload.arguments import flag
from fastload.errors import ConfigurationError
from fastload.recipe.columns import ColumnOperation
from fastload.recipe.operation import ImageState, register
from fastload.recipe.transforms import ForLoaders


class BoxesOfMasks(ForLoaders):
    """Puts the box of each object around what is shown of it by its mask or polygons, and drops
    objects of which nothing is: after a crop the box of an object, cut off, may be larger than what
    is left of it.

    Around polygons boxes are in fractions of pixels, around run lengths, which need
    `open_source(..., masks=True)`, in whole ones. Without that the boxes of crowds are cut off. It
    looks at what all transforms of its Compose have left, wherever it stands. Called by itself it
    raises.
    """

    works_on = "works on the boxes and masks of a loader's source"

    def __init__(self, min_size: float = 1e-5, *, keep_empty: bool = False) -> None:
        """
        Args:
            min_size: objects whose box has a side of no more than this are dropped [pixels].
            keep_empty: drop none; where nothing is left of an object, its box is all 0.

        Raises:
            ConfigurationError: `min_size` is no number of 0 or more, or `keep_empty` neither True
                nor False.
        """
        if not (isinstance(min_size, int | float) and 0 <= min_size < math.inf):
            raise ConfigurationError(f"BoxesOfMasks(min_size={min_size!r}) must be 0 or more.")
        self.min_size, self.keep_empty = float(min_size), flag("keep_empty", keep_empty)

    def __repr__(self) -> str:
        keeps = ", keep_empty=True" if self.keep_empty else ""
        return f"{type(self).__name__}({self.min_size}{keeps})"


@register
@dataclass(frozen=True)
class PutAroundMasks(ColumnOperation):
    """See `BoxesOfMasks`."""

    transforms = (BoxesOfMasks,)
    drops_boxes = True

    min_size: float = 1e-5
    keep_empty: bool = False

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> PutAroundMasks:
        return cls(transform.min_size, transform.keep_empty)

    @property
    def around_masks(self) -> float | None:  # type: ignore[override]
        return -1.0 if self.keep_empty else self.min_size
