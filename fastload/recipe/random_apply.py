"""RandomApply: operations that a sample goes through all, or none; OneOf: one of several;
RandomOrder: all, in an order of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from itertools import count
from typing import Any

import numpy as np
import torch
import torchvision.transforms as v1
from torchvision.transforms import v2

from fastload.draws import BoolArray, Draws, Int64Array
from fastload.errors import ConfigurationError
from fastload.geometry.points import PointMap
from fastload.recipe.attributes import check_settings
from fastload.recipe.colour import require_grey_or_rgb, shape_of
from fastload.recipe.lower import lower_all
from fastload.recipe.operation import (
    ImageState,
    NotLowerableError,
    Operation,
    PixelOperation,
    Size,
    register_lowering,
)
from fastload.render import fused
from fastload.render.steps import Steps
from fastload.render.transfer import replaced, taken

Operations = tuple[Operation, ...]


class _SomeSamples(PixelOperation):
    """Each sample goes through all operations of one group, or of none. They draw from streams of
    their own, see `Draws.within`. Define `groups`."""

    @property
    def groups(self) -> list[tuple[Operations, float, float]]:
        """The operations of each, and for which random numbers of a sample: from a first one on,
        below a second one. They keep the size, the number of channels and the dtype of images."""
        raise NotImplementedError

    @property
    def inner(self) -> Operations:
        return tuple(op for ops, *_ in self.groups for op in ops)

    @property
    def moves_pixels(self) -> bool:  # type: ignore[override]
        return any(op.moves_pixels for op in self.inner)

    @property
    def pointwise(self) -> bool:  # type: ignore[override]
        return all(op.pointwise for op in self.inner)

    @property
    def has_steps(self) -> bool:  # type: ignore[override]
        return all(op.has_steps for op in self.inner)

    @property
    def of_any_channels(self) -> bool:  # type: ignore[override]
        return all(op.of_any_channels for op in self.inner)

    @property
    def of_any_size(self) -> bool:  # type: ignore[override]
        return all(op.of_any_size for op in self.inner)

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        # What becomes of a sample does not depend on the others, so those that are left out may be
        # drawn for as well.
        inner, numbers = draws.within(stream), count()
        return [
            steps.only(goes)
            for ops, goes in self._drawn(draws, stream)
            for op in ops
            for steps in op.colour_steps(inner, next(numbers), shape)
        ]

    def size_after(self, size: Size | None) -> Size | None:
        return reduce(lambda known, op: op.size_after(known), self.inner, size)

    @property
    def loses_points(self) -> str:
        return next((op.loses_points for op in self.inner if op.loses_points), "")

    def move(self, points: PointMap, draws: Draws, stream: int) -> PointMap:
        numbers = count()
        for ops, rows in self._chosen(draws, stream):
            inner, moved = draws.take(rows).within(stream), points.take(rows)
            for op in ops:
                moved = op.move(moved, inner, next(numbers))
            points = points.only(rows, moved)
        return points

    def _drawn(self, draws: Draws, stream: int) -> list[tuple[Operations, BoolArray]]:
        """The operations of each group, and (B,) whether a sample goes through it."""
        drawn = draws.uniform(stream, 1)[:, 0]
        return [(ops, (low <= drawn) & (drawn < high)) for ops, low, high in self.groups]

    def _chosen(self, draws: Draws, stream: int) -> list[tuple[Operations, Int64Array]]:
        """The operations of each group, and the samples of a batch that go through it."""
        return [(ops, np.flatnonzero(goes)) for ops, goes in self._drawn(draws, stream)]

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        if self.has_steps and images.dtype == torch.uint8 and fused.active(images):
            for op in self.inner:
                if not op.of_any_channels:
                    require_grey_or_rgb(op, images)
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        return self._some(images, draws, stream, "apply")

    def apply_to_masks(self, masks: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        if all(type(op).apply_to_masks is Operation.apply_to_masks for op in self.inner):
            return masks  # they stay as they are
        return self._some(masks, draws, stream, "apply_to_masks")

    def _some(self, pixels: torch.Tensor, draws: Draws, stream: int, how: str) -> torch.Tensor:
        numbers = count()
        for ops, rows in self._chosen(draws, stream):
            streams = [next(numbers) for _ in ops]
            if not len(rows):
                continue
            inner = draws.take(rows).within(stream)
            some = taken(pixels, rows)
            for number, op in zip(streams, ops, strict=True):
                changed: torch.Tensor = getattr(op, how)(some, inner, number)
                if changed.shape != some.shape:
                    raise ConfigurationError(
                        f"{op.describe()} inside {type(self).__name__} makes images of shape "
                        f"{tuple(changed.shape[1:])} of some that are {tuple(some.shape[1:])}, so "
                        "that a batch would hold both; keep the shape "
                        "(Grayscale(num_output_channels=3)), or apply it to every image."
                    )
                some = changed
            pixels = replaced(pixels, rows, some)
        return pixels


@dataclass(frozen=True)
class RandomApply(_SomeSamples):
    """Each sample goes through all of the operations, or through none."""

    ops: Operations
    p: float = 0.5

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def groups(self) -> list[tuple[Operations, float, float]]:
        return [(self.ops, 0.0, self.p)]

    def rows(self, draws: Draws, stream: int) -> Int64Array:
        """Which samples of a batch."""
        ((_, rows),) = self._chosen(draws, stream)
        return rows

    def describe(self) -> str:
        return f"RandomApply([{', '.join(op.describe() for op in self.ops)}], p={self.p})"

    @property
    def identity(self) -> str:
        return f"RandomApply({', '.join(op.identity for op in self.ops)}; {self.p!r})"


@dataclass(frozen=True)
class OneOf(_SomeSamples):
    """Each sample goes through one of several groups of operations, or through none."""

    choices: tuple[Operations, ...]
    probabilities: tuple[float, ...]
    """Of each; their sum is 1 at most."""

    @property
    def groups(self) -> list[tuple[Operations, float, float]]:
        ends = np.cumsum([0.0, *self.probabilities]).tolist()
        return list(zip(self.choices, ends, ends[1:], strict=False))

    def describe(self) -> str:
        named = (" and ".join(op.describe() for op in ops) or "nothing" for ops in self.choices)
        return f"OneOf([{', '.join(named)}], probabilities={self.probabilities})"

    @property
    def identity(self) -> str:
        named = ("; ".join(op.identity for op in ops) for ops in self.choices)
        return f"OneOf({', '.join(f'({name})' for name in named)}; {self.probabilities!r})"


@dataclass(frozen=True)
class RandomOrder(_SomeSamples):
    """Each sample goes through all parts, in an order of its own."""

    parts: tuple[Operations, ...]

    @property
    def groups(self) -> list[tuple[Operations, float, float]]:
        return [(ops, 0.0, 1.0) for ops in self.parts]

    def orders(self, draws: Draws, stream: int) -> Int64Array:
        """(B, parts): which part comes first, second, ...; all orders are equally likely."""
        return np.argsort(draws.uniform(stream, len(self.parts)), axis=1, kind="stable")

    def _drawn(self, draws: Draws, stream: int) -> list[tuple[Operations, BoolArray]]:
        return [
            (ops, part == number)
            for part in self.orders(draws, stream).T
            for number, ops in enumerate(self.parts)
        ]

    def describe(self) -> str:
        named = (" and ".join(op.describe() for op in ops) for ops in self.parts)
        return f"RandomOrder([{', '.join(named)}])"

    @property
    def identity(self) -> str:
        named = ("; ".join(op.identity for op in ops) for ops in self.parts)
        return f"RandomOrder({', '.join(f'({name})' for name in named)})"


def _inside(transforms: list[Any], image: ImageState) -> tuple[Operation, ...]:
    """The operations of transforms that not all samples go through."""
    inside = replace(image)
    ops = tuple(op for origin in lower_all(v1.Compose(transforms), inside) for op in origin.ops)
    for op in ops:
        if op.is_opaque:
            raise NotLowerableError(f"inside it: {op.reason_not_placed(None)}")
        if op.only_columns:
            raise NotLowerableError(f"inside it {op.describe()}, which is for every sample")
        if not op.fits_batches(None):
            raise NotLowerableError(
                f"inside it {op.describe()} moves pixels; draw it for every image"
            )
    if (image.dtype, image.tensor) != (inside.dtype, inside.tensor) or inside.forked:
        raise NotLowerableError("what is inside it changes the kind or the number of images")
    return ops


def _random_apply(transform: Any, image: ImageState) -> tuple[Operation, ...]:
    p = float(transform.p)
    inside = lower_all(v1.Compose(list(transform.transforms)), replace(image))
    alone = [op for origin in inside for op in origin.ops]
    applied = alone[0].applied(p) if len(alone) == 1 else None
    if applied is not None:
        return (applied,)
    ops = _inside(list(transform.transforms), image)
    return (RandomApply(ops, p),) if ops else ()


def _random_choice(transform: Any, image: ImageState) -> tuple[Operation, ...]:
    choices = tuple(_inside([choice], image) for choice in transform.transforms)
    weights = [1.0] * len(choices) if transform.p is None else list(map(float, transform.p))
    if len(weights) != len(choices):
        raise NotLowerableError(f"{len(weights)} probabilities for {len(choices)} transforms")
    if not (min(weights) >= 0 and 0 < sum(weights) < np.inf):
        raise NotLowerableError(f"probabilities {weights}: none may be negative, nor all 0")
    probabilities = tuple(weight / sum(weights) for weight in weights)
    return (OneOf(choices, probabilities),) if any(choices) else ()


def _random_order(transform: Any, image: ImageState) -> tuple[Operation, ...]:
    parts = tuple(_inside([part], image) for part in transform.transforms)
    return (RandomOrder(tuple(part for part in parts if part)),) if any(parts) else ()


register_lowering("RandomApply", (v1.RandomApply, v2.RandomApply), _random_apply)
register_lowering("OneOf", (v1.RandomChoice, v2.RandomChoice), _random_choice)
register_lowering("RandomOrder", (v1.RandomOrder, v2.RandomOrder), _random_order)
