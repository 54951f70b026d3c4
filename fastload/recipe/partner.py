"""What the partner of a sample goes through before the two are blended, where that is not what the
sample itself does: an image on a canvas of its own, and a warp of that, as of a mosaic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastload.draws import Draws, Int64Array
from fastload.geometry import Geometry, GeometryPlan
from fastload.recipe.lower import lower_all
from fastload.recipe.operation import ImageState, NotLowerableError, Operation, Size
from fastload.recipe.scales import Letterbox
from fastload.recipe.warps import Warping

WARP_STREAM = 0
"""Of the warp's random numbers, among those that the partner has of its own."""


@dataclass(frozen=True, repr=False)
class Partner:
    letterbox: Letterbox
    """Puts the image on its canvas."""
    warp: Warping | None = None
    """Of the canvas."""

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> Partner:
        """Of a Letterbox, and of a warp after it, if any: `transforms.MixUp` has seen to that."""
        # Where it runs, images are never Pillow's.
        image = replace(image, tensor=True)
        ops = [op for origin in lower_all(transform, image) for op in origin.ops]
        letterbox, warp = ops[0], ops[1] if len(ops) > 1 else None
        if not isinstance(letterbox, Letterbox) or not isinstance(warp, Warping | None):
            raise NotLowerableError("its partner is not known")
        return cls(letterbox, warp)

    def __repr__(self) -> str:
        """With all of its settings: it is a part of an operation's identity."""
        ops = self.letterbox, *(op for _, op in self.steps)
        return f"Compose([{', '.join(op.identity for op in ops)}])"

    @property
    def canvas(self) -> Size:
        """Height, width."""
        return self.letterbox.size

    @property
    def plan(self) -> GeometryPlan:
        """How the pixels of its image are made, and what is around it."""
        return GeometryPlan(
            ((0, self.letterbox),),
            self.canvas,
            interpolation=self.letterbox.interpolation,
            antialias=self.letterbox.antialias,
            fill=self.letterbox.fill,
            mask_fill=self.letterbox.mask_fill,
            mask_interpolation=self.letterbox.mask_interpolation,
        )

    @property
    def steps(self) -> tuple[tuple[int, Operation], ...]:
        """(stream of its draws, operation) of what is done to the canvas."""
        return () if self.warp is None else ((WARP_STREAM, self.warp),)

    def place(self, sizes: Int64Array) -> Geometry:
        """Images of these (T, 2) sizes on their canvases. The window of each is its canvas."""
        return self.plan.resolve(Draws(0, 0, np.zeros(len(sizes), dtype=np.int64)), sizes)
