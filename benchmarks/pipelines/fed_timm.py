"""timm's augmentations with the random numbers that ours has drawn."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from timm.data import auto_augment as timm

from fastload.draws import Draws
from fastload.recipe.pillow_augment import PillowAugMix, PillowAutoAugment, PillowRandAugment, Place

Images = npt.NDArray[np.uint8]


def both(
    transform: Any, op: PillowRandAugment | PillowAutoAugment | PillowAugMix, images: Images
) -> tuple[Images, Images]:
    """(B, H, W, 3) images after timm's RandAugment, AutoAugment or AugMixAugment, and after ours,
    which was lowered from it."""
    draws, stream = Draws(3, 0, np.arange(len(images))), 2
    ours = op.apply(torch.from_numpy(images).permute(0, 3, 1, 2), draws, stream)
    return theirs(transform, op, images, draws, stream), ours.permute(0, 2, 3, 1).numpy()


def theirs(transform: Any, op: Any, images: Images, draws: Draws, stream: int) -> Images:
    mixes = isinstance(op, PillowAugMix)
    chains = op.chains(draws, stream) if mixes else [op.places(draws, stream)]
    weights = op.weights(draws, stream) if mixes else np.zeros((len(images), 2))
    of_policies = isinstance(op, PillowAutoAugment)
    every = [one for part in transform.policy for one in part] if of_policies else transform.ops
    made = []
    for row, image in enumerate(images):
        steps = [_steps(chain, every, row) for chain in chains]
        with fed(steps, 1.0 - weights[row, 0], weights[row, 1:]):
            made.append(np.asarray(transform(Image.fromarray(image))))
    return np.stack(made)


def fed(steps: list[list[Callable[[Any], Any]]], mixed: float, weights: Any) -> ExitStack:
    """Within it timm chooses these steps, a list at a time."""
    left = iter(steps)
    parts = weights / max(mixed, 1e-12)
    stack = ExitStack()
    for owner, name, options in (
        (np.random, "choice", {"side_effect": lambda *_, **__: next(left)}),
        (np.random, "randint", {"return_value": 1}),
        (np.random, "dirichlet", {"return_value": parts}),
        (np.random, "beta", {"return_value": mixed}),
        (timm.random, "choice", {"side_effect": lambda _: next(left)}),
    ):
        stack.enter_context(mock.patch.object(owner, name, **options))
    return stack


def _steps(places: list[Place], ops: Sequence[Any], row: int) -> list[Callable[[Any], Any]]:
    chosen = [(ops[of[row]], u[row]) for of, u in places if of[row] >= 0]
    return [_Step(op, u) for op, u in chosen]


class _Step:
    """An operation of timm's, called with a stand-in for Python's `random`."""

    def __init__(self, op: Any, numbers: Any) -> None:
        self._op, self._numbers, self._asks = op, numbers, op.prob < 1.0

    def __call__(self, image: Any) -> Any:
        with mock.patch.object(timm, "random", self):
            return self._op(image)

    def random(self) -> float:
        first, self._asks = self._asks, False
        return float(self._numbers[0 if first else 3])

    def gauss(self, mean: float, deviation: float) -> float:
        radius = math.sqrt(-2.0 * math.log1p(-self._numbers[1]))
        return mean + deviation * radius * math.cos(2.0 * math.pi * float(self._numbers[2]))

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * float(self._numbers[5 if low else 1])

    def choice(self, among: Sequence[Any]) -> Any:
        return among[int(self._numbers[4] * len(among))]


@functools.cache
def black_without_bits() -> None:
    """Make Pillow's posterize keep no bits where timm asks for that, as it did before Pillow 13,
    which raises ValueError, at a moment of its own in a training."""
    posterize = ImageOps.posterize
    ImageOps.posterize = lambda image, bits: (
        posterize(image, bits) if bits > 0 else image.point(lambda _: 0)
    )
