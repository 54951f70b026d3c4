"""Boxes that are put around what is left of masks, as detectron2 does where it cuts images."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
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

    Beside a transform that turns or shears images it takes polygons alone, without `masks=True`.
    Those that a batch then has are cut off where the picture was cut before that was done.
    """

    works_on = "works on the boxes and masks of a loader's source"

    def __init__(
        self,
        min_size: float = 1e-5,
        *,
        min_visibility: float = 0.0,
        max_ratio: float = math.inf,
        keep_empty: bool = False,
    ) -> None:
        """
        Args:
            min_size: objects whose box has a side of no more than this are dropped [pixels].
            min_visibility: and those of whose box less than this part is left, the part of the area
                that the new box has of what the source's box would be if nothing had been cut off,
                or after a `DropObjects(visibility_from_here=True)` if nothing had since.
            max_ratio: and those whose box is more than so many times as long as it is wide, or the
                reverse.
            keep_empty: drop none; where nothing is left of an object, its box is all 0.

        Raises:
            ConfigurationError: `min_size` is no number of 0 or more, `min_visibility` none from 0
                to 1, `max_ratio` none of 1 or more, `keep_empty` neither True nor False, or it is
                True and objects are to be dropped.
        """
        for name, value, least, most in (
            ("min_size", min_size, 0, math.nextafter(math.inf, 0)),
            ("min_visibility", min_visibility, 0, 1),
            ("max_ratio", max_ratio, 1, math.inf),
        ):
            if not (isinstance(value, int | float) and least <= value <= most):
                bounds = f"{least} or more" if most > 1 else f"from {least} to {most}"
                raise ConfigurationError(f"BoxesOfMasks({name}={value!r}) must be {bounds}.")
        self.min_size, self.keep_empty = float(min_size), flag("keep_empty", keep_empty)
        self.min_visibility, self.max_ratio = float(min_visibility), float(max_ratio)
        if self.keep_empty and (self.min_visibility > 0 or self.max_ratio < math.inf):
            raise ConfigurationError(
                "BoxesOfMasks(keep_empty=True) drops nothing: leave it out, or min_visibility and "
                "max_ratio."
            )

    def __repr__(self) -> str:
        given = [
            *([f"min_visibility={self.min_visibility}"] if self.min_visibility else []),
            *([f"max_ratio={self.max_ratio}"] if self.max_ratio < math.inf else []),
            *(["keep_empty=True"] if self.keep_empty else []),
        ]
        return f"{type(self).__name__}({', '.join([str(self.min_size), *given])})"


@register
@dataclass(frozen=True)
class PutAroundMasks(ColumnOperation):
    """See `BoxesOfMasks`."""

    transforms = (BoxesOfMasks,)
    drops_boxes = True

    min_size: float = 1e-5
    keep_empty: bool = False
    min_visibility: float = field(default=0.0, repr=False)
    max_ratio: float = field(default=math.inf, repr=False)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> PutAroundMasks:
        return cls(
            transform.min_size, transform.keep_empty, transform.min_visibility, transform.max_ratio
        )

    @property
    def around_masks(self) -> tuple[float, float, float] | None:  # type: ignore[override]
        least = -1.0 if self.keep_empty else self.min_size
        return least, self.min_visibility, self.max_ratio
