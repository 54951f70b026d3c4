"""AugMix on a batch: each sample mixed with several chains of augmentations of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torchvision.transforms as v1
from torchvision.transforms import v2

from fastload.draws import Draws, Float64Array
from fastload.geometry import Fill, Interpolation
from fastload.recipe.attributes import check, check_settings
from fastload.recipe.augment import (
    AUGMENTATIONS,
    AugmentStep,
    bits_kept,
    evenly,
    numbers_of,
    read_settings,
    run_steps,
    signed,
)
from fastload.recipe.colour import require_grey_or_rgb, shape_of
from fastload.recipe.operation import ImageState, PixelOperation, register
from fastload.render import fused
from fastload.render.device import column
from fastload.render.steps import ColourSteps, MixtureSteps, Steps
from fastload.render.transfer import on_device

_BINS = 10
"""Magnitudes of each operation; `severity` says how many of them are drawn from."""
_LONGEST = 3
"""Steps of a chain whose depth is drawn: 1, 2 or 3, equally likely."""
_ATTEMPTS = 8
"""At a gamma variate. One in 20 fails at most, so all of them fail less than once in 10^10."""
_PARTIAL = (
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
)
_COLOURS = ("Brightness", "Color", "Contrast", "Sharpness")


@register
@dataclass(frozen=True)
class AugMix(PixelOperation):
    """Hendrycks et al., 2020, "AugMix: A simple data processing method to improve robustness and
    uncertainty"."""

    transforms = (v1.AugMix, v2.AugMix)
    moves_pixels = True
    has_steps = True
    loses_masks = "it adds up an image and sheared, shifted and turned copies of it"

    severity: int = 3
    mixture_width: int = 3
    """Chains."""
    chain_depth: int = -1
    """Steps of each chain; below 1: drawn."""
    alpha: float = 1.0
    """Of the Dirichlet distributions of the weights."""
    all_ops: bool = True
    """Whether brightness, colour, contrast and sharpness are among the operations."""
    interpolation: Interpolation = "bilinear"
    fill: Fill | None = None

    def __post_init__(self) -> None:
        check(self, "severity", 1 <= self.severity <= _BINS, f"between 1 and {_BINS}")
        check(self, "mixture_width", self.mixture_width >= 1, "at least 1")
        check(self, "alpha", 0 < self.alpha < float("inf"), "above 0")
        check_settings(self)

    @classmethod
    def from_transform(cls, transform: Any, image: ImageState) -> AugMix:
        numbers = (
            int(transform.severity),
            int(transform.mixture_width),
            int(transform.chain_depth),
            float(transform.alpha),
            bool(transform.all_ops),
        )
        return cls(*numbers, *read_settings(transform, image))

    @property
    def longest(self) -> int:
        """Steps of a chain at most."""
        return self.chain_depth if self.chain_depth > 0 else _LONGEST

    def chains(
        self, draws: Draws, stream: int, *, height: int, width: int
    ) -> list[list[AugmentStep]]:
        """The steps of each chain, for images of this size [pixels]; the identity beyond a
        sample's depth."""
        names = _PARTIAL + (_COLOURS if self.all_ops else ())
        positions = np.array([AUGMENTATIONS.index(name) for name in names])
        table = _magnitudes(height, width)
        each = 1 + 3 * self.longest  # the depth; the operation, the bin and the sign of each step
        uniform = draws.uniform(stream, self.mixture_width * each + self._gamma_uniforms)
        result = []
        for chain in range(self.mixture_width):
            u = uniform[:, chain * each : (chain + 1) * each].T
            depth = np.full(len(draws), self.longest)
            if self.chain_depth < 1:
                depth = 1 + np.floor(u[0] * _LONGEST).astype(np.int64)
            steps = []
            for number in range(self.longest):
                kind, bin_, sign = u[1 + 3 * number : 4 + 3 * number]
                kinds = positions[np.floor(kind * len(names)).astype(np.int64)]
                kinds = np.where(number < depth, kinds, 0)
                bins = np.floor(bin_ * self.severity).astype(np.int64)
                steps.append(signed(kinds, bins, table, sign))
            result.append(steps)
        return result

    def weights(self, draws: Draws, stream: int) -> npt.NDArray[np.float32]:
        """See `mixture_weights`."""
        before = self.mixture_width * (1 + 3 * self.longest)
        uniform = draws.uniform(stream, before + self._gamma_uniforms)[:, before:]
        return mixture_weights(uniform, self.mixture_width, self.alpha)

    @property
    def _gamma_uniforms(self) -> int:
        return weight_uniforms(self.mixture_width, self.alpha)

    def apply(self, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
        require_grey_or_rgb(self, images)
        if images.dtype == torch.uint8 and fused.active(images):
            return fused.run(images, self.colour_steps(draws, stream, shape_of(images)))
        weights = on_device(self.weights(draws, stream), images.device)
        total = images.to(torch.float32).mul(column(weights[:, 0]))
        chains = self.chains(draws, stream, height=images.shape[2], width=images.shape[3])
        for number, steps in enumerate(chains, 1):
            part = run_steps(images, steps, self.interpolation, self.fill)
            total.add_(part.to(torch.float32).mul_(column(weights[:, number])))
        return total.to(images.dtype)

    def colour_steps(self, draws: Draws, stream: int, shape: tuple[int, int, int]) -> list[Steps]:
        _, height, width = shape
        of_chains = [
            numbers_of(steps, len(draws), shape, self.interpolation, self.fill)
            for steps in self.chains(draws, stream, height=height, width=width)
        ]
        return [MixtureSteps(side_by_side(of_chains), self.weights(draws, stream))]


def side_by_side(chains: list[ColourSteps]) -> ColourSteps:
    """The chains of a mixture: those of a sample together."""
    kinds = np.stack([chain.kinds for chain in chains], axis=1)
    numbers = np.stack([chain.numbers for chain in chains], axis=1)
    return replace(
        chains[0],
        kinds=kinds.reshape(-1, kinds.shape[2]),
        numbers=numbers.reshape(-1, *numbers.shape[2:]),
    )


def mixture_weights(uniform: Float64Array, width: int, alpha: float) -> npt.NDArray[np.float32]:
    """(B, 1 + width) float32 of sum 1: of a sample itself, and of its chains, from (B,
    weight_uniforms) numbers.

    Two from a Dirichlet distribution for the sample and for all chains, and the latter divided
    among these by another one.
    """
    gammas = _gammas(uniform.reshape(len(uniform), 2 + width, -1), alpha)
    pair, parts = gammas[:, :2], gammas[:, 2:]
    pair = (pair / pair.sum(axis=1, keepdims=True)).astype(np.float32)
    parts = (parts / parts.sum(axis=1, keepdims=True)).astype(np.float32)
    return np.concatenate([pair[:, :1], parts * pair[:, 1:]], axis=1)


def weight_uniforms(width: int, alpha: float) -> int:
    """How many numbers `mixture_weights` takes."""
    return (2 + width) * (1 if alpha == 1.0 else 1 + 3 * _ATTEMPTS)


def _magnitudes(height: int, width: int) -> Float64Array:
    """(operations, bins) float64: the magnitudes that torchvision lists, float32 as there; rows as
    AUGMENTATIONS."""
    spread = {"ShearX": 0.3, "ShearY": 0.3, "TranslateX": width / 3.0}
    spread |= {"TranslateY": height / 3.0, "Rotate": 30.0} | dict.fromkeys(_COLOURS, 0.9)
    rows = {name: evenly(0.0, end, _BINS) for name, end in spread.items()}
    rows["Posterize"] = bits_kept(4, _BINS, 4)
    rows["Solarize"] = evenly(1.0, 0.0, _BINS)
    table = torch.stack([rows.get(name, evenly(0.0, 0.0, _BINS)) for name in AUGMENTATIONS])
    result: Float64Array = table.numpy().astype(np.float64)
    return result


def _gammas(uniform: Float64Array, shape: float) -> Float64Array:
    """(...,) gamma variates of (..., 1) or (..., 1 + 3 * attempts) uniforms.

    Of shape 1: an exponential variate. Else by Marsaglia and Tsang ("A simple method for generating
    gamma variables", ACM TOMS 2000), normal variates by Box and Muller; shapes below 1 by that of
    one more and a power of a uniform.
    """
    first: Float64Array = 1.0 - uniform[..., 0]  # in (0, 1]
    if shape == 1.0:
        exponential: Float64Array = -np.log(first)
        return np.maximum(exponential, np.finfo(np.float64).tiny)
    radius, angle, accept = (uniform[..., 1 + n :: 3] for n in range(3))
    normal = np.sqrt(-2.0 * np.log(1.0 - radius)) * np.cos(2.0 * np.pi * angle)
    d = (shape if shape >= 1.0 else shape + 1.0) - 1.0 / 3.0
    v = (1.0 + normal / np.sqrt(9.0 * d)) ** 3
    with np.errstate(invalid="ignore", divide="ignore"):
        good = (v > 0) & (np.log(1.0 - accept) < 0.5 * normal**2 + d - d * v + d * np.log(v))
    chosen = np.take_along_axis(v, good.argmax(axis=-1)[..., None], axis=-1)[..., 0]
    result: Float64Array = d * np.maximum(chosen, np.finfo(np.float64).tiny)
    return (
        result
        if shape >= 1.0
        else np.maximum(result * first ** (1.0 / shape), np.finfo(np.float64).tiny)
    )
