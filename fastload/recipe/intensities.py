"""Changes of the values of floating-point images of any number of channels, each of some samples:
noise, blur, brightness, contrast, a lower resolution and gamma, as nnU-Net trains with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastload.draws import Draws, Float64Array
from fastload.errors import ConfigurationError
from fastload.recipe.operation import ImageState, PixelOperation, register
from fastload.recipe.transforms import ForLoaders
from fastload.render.floats import NUMBERS, TAPS, FloatSteps, bell_curves, change_planes

NOISE, BLUR, BRIGHTNESS, CONTRAST, LOW_RESOLUTION, INVERTED_GAMMA, GAMMA = range(7)
"""In the order in which they are done, which is that of `fastload.render.floats.KINDS`; also the
streams of their numbers."""
PROBABILITIES = (0.1, 0.2, 0.15, 0.15, 0.25, 0.1, 0.3)
"""Of each."""
MOST_NOISE, SIGMAS, FACTORS, SCALES, GAMMAS = 0.1, (0.5, 1.0), (0.75, 1.25), (0.5, 1.0), (0.7, 1.5)
P_CHANNEL = 0.5
"""Of each channel to be blurred, or to get a lower resolution."""


class ChangedIntensities(ForLoaders):
    """Noise, blur, brightness, contrast, a lower resolution, gamma of the negative and gamma:
    the transforms of batchgeneratorsv2 with the numbers of nnU-Net's trainer.

    For floating-point images of a loader; called by itself it raises.
    """

    works_on = "works on batches of a loader"


@register
@dataclass(frozen=True)
class ChangeIntensities(PixelOperation):
    """See `ChangedIntensities`."""

    transforms = (ChangedIntensities,)
    has_float_steps = True

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> ChangeIntensities:
        return cls()

    def check_dtype(self, dtype: torch.dtype) -> None:
        if not dtype.is_floating_point:
            raise ConfigurationError(
                f"{self.describe()} needs floating-point images, got {dtype}; put it after the "
                "ToDtype that converts them."
            )

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        self.check_dtype(images.dtype)
        _, channels, height, width = images.shape
        steps = self.float_steps(draws, stream, (channels, height, width))
        made = images.clone(memory_format=torch.contiguous_format)
        change_planes(made, steps)
        return made

    def float_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> FloatSteps:
        channels, *size = shape
        if min(size) <= TAPS // 2:
            raise ConfigurationError(
                f"{self.describe()} blurs with {TAPS} pixels, mirrored at the edges; images need "
                f"at least {TAPS // 2 + 1} each way, got {tuple(size)}."
            )
        own, count, kinds = draws.within(stream), len(draws), len(PROBABILITIES)
        applies = np.zeros((count, kinds, channels), dtype=np.bool_)
        numbers = np.zeros((count, kinds, channels, NUMBERS), dtype=np.float32)
        for kind, p in enumerate(PROBABILITIES):
            every = own.uniform(kind, 1 + 4 * channels)
            drawn = every[:, 1:].reshape(count, channels, 4)
            applies[:, kind] = every[:, :1] < p
            if kind in (BLUR, LOW_RESOLUTION):
                applies[:, kind] &= drawn[..., 0] < P_CHANNEL
            found = numbers[:, kind]
            if kind == NOISE:  # of one deviation for all channels
                found[..., 0] = MOST_NOISE * drawn[:, :1, 0]
            elif kind == BLUR:
                sigmas = SIGMAS[0] + drawn[..., 1:3] * (SIGMAS[1] - SIGMAS[0])
                found[:] = bell_curves(sigmas).reshape(found.shape)
            elif kind == LOW_RESOLUTION:
                scales = SCALES[0] + drawn[..., 1:2] * (SCALES[1] - SCALES[0])
                found[..., :2] = np.rint(np.array(size) * scales.astype(np.float32).astype(float))
            else:
                gammas = kind in (GAMMA, INVERTED_GAMMA)
                found[..., 0] = factors(GAMMAS if gammas else FACTORS, drawn)
        keys = np.zeros((count, kinds), dtype=np.uint64)
        keys[:, NOISE] = own.integers(kinds)
        return FloatSteps(np.arange(kinds, dtype=np.int32), applies, numbers, keys)


def factors(bounds: tuple[float, float], drawn: Float64Array) -> Float64Array:
    """(N, C) from (N, C, 4) uniform numbers: below 1 as often as above."""
    low = bounds[0] + drawn[..., 1] * (1 - bounds[0])
    high = 1 + drawn[..., 1] * (bounds[1] - 1)
    return np.where(drawn[..., 0] < 0.5, low, high)
