"""Operations of colour that come before geometry, where images differ in size: done to each image
as a whole, where it is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from fastload import native
from fastload.draws import Draws
from fastload.recipe.operation import Operation
from fastload.render.host_colour import recoloured
from fastload.render.steps import ColourSteps


@dataclass(frozen=True)
class WholeImages:
    """Operations that are `of_any_size`, in order, with the streams of their draws: a
    `ColourPlan`."""

    steps: tuple[tuple[int, Operation], ...]

    def resolve(self, draws: Draws) -> DrawnColour:
        return DrawnColour(self.steps, draws)


@dataclass(frozen=True)
class DrawnColour:
    """An `ImageColour`."""

    steps: tuple[tuple[int, Operation], ...]
    draws: Draws

    @cached_property
    def table(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        steps = list[ColourSteps]()
        for stream, op in self.steps:
            for part in op.colour_steps(self.draws, stream, (3, 1, 1)):
                assert isinstance(part, ColourSteps), "as `of_any_size` says"
                steps.append(part)
        kinds = np.concatenate([part.kinds for part in steps], axis=1)
        return kinds, np.concatenate([part.numbers for part in steps], axis=1)

    def apply(self, pixels: npt.NDArray[np.uint8], row: int) -> npt.NDArray[np.uint8]:
        kinds, numbers = (part[row] for part in self.table)
        if (kinds < 0).all():
            return pixels
        if native.available():
            return recoloured(pixels, kinds, numbers)
        one = self.draws.take(np.array([row]))
        images = torch.from_numpy(np.array(pixels))[None].permute(0, 3, 1, 2)
        for stream, op in self.steps:
            images = op.apply(images, one, stream)
        coloured: npt.NDArray[np.uint8] = images[0].permute(1, 2, 0).numpy()
        return coloured
