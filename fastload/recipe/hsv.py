"""Random gains of hue, saturation and value, as YOLO is trained with, and numbers that are added to
them, as YOLOX is: see `fastload.render.hsv`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from fastload.draws import BoolArray, Draws
from fastload.recipe import transforms as own
from fastload.recipe.attributes import check
from fastload.recipe.colour import require_grey_or_rgb, shape_of
from fastload.recipe.operation import PixelOperation, register
from fastload.render import fused
from fastload.render.hsv import adjust_hsv, numbers_of, shifts_of, tables_of
from fastload.render.steps import KINDS, NUMBERS, ColourSteps, Steps
from fastload.render.transfer import on_device


class _OfHSV(PixelOperation, ABC):
    """Define `gains`."""

    has_steps = True
    of_bytes = True
    of_any_size = True
    pointwise = True

    @abstractmethod
    def gains(
        self, draws: Draws, stream: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """(B, 3) gains and what is added, as `tables_of` takes them."""

    def chosen(self, draws: Draws, stream: int) -> BoolArray:
        """(B,): the samples that are changed."""
        return np.ones(len(draws), dtype=np.bool_)

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        if images.shape[1] == 1:
            return images
        if fused.active(images):
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        adjusted = adjust_hsv(images, tables_of(*self.gains(draws, stream)))
        chosen = on_device(self.chosen(draws, stream), images.device)
        return torch.where(chosen[:, None, None, None], adjusted, images)

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        gains, added = self.gains(draws, stream)
        numbers = np.zeros((len(draws), 1, NUMBERS), dtype=np.float32)
        numbers[:, 0, :3], numbers[:, 0, 3:] = gains, added if shape[0] == 3 else 0.0
        kinds = np.where(self.chosen(draws, stream), KINDS.index("hsv"), -1).astype(np.int32)
        return [ColourSteps(kinds[:, None], numbers)]


@register
@dataclass(frozen=True)
class HSV(_OfHSV):
    transforms = (own.HSV,)

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


@register
@dataclass(frozen=True)
class HSVShift(_OfHSV):
    transforms = (own.HSVShift,)

    hue: float = 5.0
    saturation: float = 30.0
    value: float = 30.0
    p: float = 1.0
    p_each: float = 0.5

    def __post_init__(self) -> None:
        most = {"hue": 180, "saturation": 255, "value": 255, "p": 1, "p_each": 1}
        for name, limit in most.items():
            check(self, name, 0 <= getattr(self, name) <= limit, f"from 0 to {limit}")

    def gains(
        self, draws: Draws, stream: int
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        uniforms = draws.uniform(stream, 7)
        most = np.array([self.hue, self.saturation, self.value])
        drawn = (2.0 * uniforms[:, 1:4] - 1.0) * most
        return shifts_of(drawn * (uniforms[:, 4:] < self.p_each))

    def chosen(self, draws: Draws, stream: int) -> BoolArray:
        return draws.uniform(stream, 7)[:, 0] < self.p
