"""Random gains of hue, saturation and value, as YOLO is trained with: see
`fastload.render.hsv`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from fastload.draws import Draws
from fastload.recipe import transforms as own
from fastload.recipe.attributes import check
from fastload.recipe.colour import require_grey_or_rgb, shape_of
from fastload.recipe.operation import PixelOperation, register
from fastload.render import fused
from fastload.render.hsv import adjust_hsv, numbers_of, tables_of
from fastload.render.steps import KINDS, NUMBERS, ColourSteps, Steps


@register
@dataclass(frozen=True)
class HSV(PixelOperation):
    transforms = (own.HSV,)
    has_steps = True
    of_bytes = True
    of_any_size = True
    pointwise = True

    hue: float = 0.015
    saturation: float = 0.7
    value: float = 0.4
    """Each is multiplied by 1 plus up to so much, or less so much, 0 to 1."""
    turns: bool = field(default=False, repr=False)
    """Whether the hue is turned in place of that, by up to so much of a whole turn."""

    def __post_init__(self) -> None:
        for name in ("hue", "saturation", "value"):
            check(self, name, 0 <= getattr(self, name) <= 1, "from 0 to 1")

    def gains(
        self, draws: Draws, stream: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """(B, 3) gains and what is added, as `tables_of` takes them."""
        shares = np.array([self.hue, self.saturation, self.value])
        drawn = shares * (2.0 * draws.uniform(stream, 3) - 1.0)
        return numbers_of(drawn, self.turns)

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        if images.shape[1] == 1:
            return images
        if fused.active(images):
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        return adjust_hsv(images, tables_of(*self.gains(draws, stream)))

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        numbers = np.zeros((len(draws), 1, NUMBERS), dtype=np.float32)
        numbers[:, 0] = np.concatenate(self.gains(draws, stream), axis=1)
        return [ColourSteps(np.full((len(draws), 1), KINDS.index("hsv"), np.int32), numbers)]
