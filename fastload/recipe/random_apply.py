"""RandomApply: operations that a sample goes through all, or none."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch

from fastload.draws import Draws, Int64Array
from fastload.errors import ConfigurationError
from fastload.geometry.points import PointMap
from fastload.recipe.attributes import check_settings
from fastload.recipe.colour import require_grey_or_rgb, shape_of
from fastload.recipe.operation import Operation, PixelOperation, Size
from fastload.render import fused
from fastload.render.steps import Steps
from fastload.render.transfer import on_device


@dataclass(frozen=True)
class RandomApply(PixelOperation):
    """Each sample goes through all of the operations, or through none. They draw from streams of
    their own, see `Draws.within`."""

    ops: tuple[Operation, ...]
    """Operations that keep the size, the number of channels and the dtype of images."""
    p: float = 0.5

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def moves_pixels(self) -> bool:  # type: ignore[override]
        return any(op.moves_pixels for op in self.ops)

    @property
    def pointwise(self) -> bool:  # type: ignore[override]
        return all(op.pointwise for op in self.ops)

    @property
    def has_steps(self) -> bool:  # type: ignore[override]
        return all(op.has_steps for op in self.ops)

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        # What becomes of a sample does not depend on the others, so those that are left out may be
        # drawn for as well.
        chosen = np.isin(np.arange(len(draws)), self.rows(draws, stream))
        inner = draws.within(stream)
        return [
            steps.only(chosen)
            for number, op in enumerate(self.ops)
            for steps in op.colour_steps(inner, number, shape)
        ]

    def size_after(self, size: Size | None) -> Size | None:
        return reduce(lambda known, op: op.size_after(known), self.ops, size)

    @property
    def loses_points(self) -> str:
        return next((op.loses_points for op in self.ops if op.loses_points), "")

    def move(self, points: PointMap, draws: Draws, stream: int) -> PointMap:
        rows = self.rows(draws, stream)
        inner, moved = draws.take(rows).within(stream), points.take(rows)
        for number, op in enumerate(self.ops):
            moved = op.move(moved, inner, number)
        return points.only(rows, moved)

    def rows(self, draws: Draws, stream: int) -> Int64Array:
        """Which samples of a batch."""
        return np.flatnonzero(draws.uniform(stream, 1)[:, 0] < self.p)

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        if self.has_steps and images.dtype == torch.uint8 and fused.active(images):
            for op in self.ops:
                require_grey_or_rgb(op, images)
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        return self._some(images, draws, stream, "apply")

    def apply_to_masks(self, masks: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        return self._some(masks, draws, stream, "apply_to_masks")

    def _some(self, pixels: torch.Tensor, draws: Draws, stream: int, how: str) -> torch.Tensor:
        rows = self.rows(draws, stream)
        if not len(rows):
            return pixels
        chosen, inner = on_device(rows, pixels.device), draws.take(rows).within(stream)
        some = pixels.index_select(0, chosen)
        for number, op in enumerate(self.ops):
            changed: torch.Tensor = getattr(op, how)(some, inner, number)
            if changed.shape != some.shape:
                raise ConfigurationError(
                    f"{op.describe()} inside RandomApply makes images of shape "
                    f"{tuple(changed.shape[1:])} of some that "
                    f"are {tuple(some.shape[1:])}, so that a batch would hold both; keep the shape "
                    "(Grayscale(num_output_channels=3)), or apply it to every image."
                )
            some = changed
        return pixels.index_copy(0, chosen, some)

    def describe(self) -> str:
        return f"RandomApply([{', '.join(op.describe() for op in self.ops)}], p={self.p})"

    @property
    def identity(self) -> str:
        return f"RandomApply({', '.join(op.identity for op in self.ops)}; {self.p!r})"
