"""ColorJitter, RandomGrayscale and Grayscale on a batch, each sample with its own draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.recipe import kernels
from fastload.recipe.ops import ColorJitter, Grayscale, RandomGrayscale
from fastload.recipe.rows import choose_rows, map_groups

__all__ = [
    "JitterParameters",
    "apply_color_jitter",
    "apply_grayscale",
    "apply_random_grayscale",
    "grayscale_rows",
    "jitter_parameters",
    "require_grey_or_rgb",
]

_PROPERTIES = ("brightness", "contrast", "saturation", "hue")
_ADJUST = (kernels.adjust_brightness, kernels.adjust_contrast, kernels.adjust_saturation, kernels.adjust_hue)


@dataclass(frozen=True)
class JitterParameters:
    """What ColorJitter does to each of B samples."""

    factors: npt.NDArray[np.float32]
    """(B, 4): brightness, contrast, saturation, hue; NaN for a property that is left alone."""
    order: npt.NDArray[np.int64]
    """(B, 4): a permutation of 0..3: which property is changed first, second, third, fourth."""


def jitter_parameters(op: ColorJitter, draws: Draws, stream: int) -> JitterParameters:
    """Factors uniform within their bounds, every order equally likely."""
    uniform = draws.uniform(stream, 8)
    factors = np.full((len(draws), 4), np.nan, dtype=np.float32)
    for k, name in enumerate(_PROPERTIES):
        bounds: tuple[float, float] | None = getattr(op, name)
        if bounds is not None:
            factors[:, k] = bounds[0] + (bounds[1] - bounds[0]) * uniform[:, k]
    return JitterParameters(factors, np.argsort(uniform[:, 4:], axis=1, kind="stable"))


def apply_color_jitter(op: ColorJitter, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
    """(B, C, H, W), C = 1 or 3: brightness, contrast, saturation and hue changed in an order drawn for each sample."""
    require_grey_or_rgb(op, images)
    parameters = jitter_parameters(op, draws, stream)
    active = [k for k, name in enumerate(_PROPERTIES) if getattr(op, name) is not None]
    order = parameters.order[np.isin(parameters.order, active)].reshape(len(draws), len(active))
    for kinds in order.T:
        factors = np.take_along_axis(parameters.factors, kinds[:, None], axis=1).astype(np.float64)
        images = map_groups(images, kinds, factors, lambda kind, rows, factor: _ADJUST[kind](rows, factor[:, 0]))
    return images


def grayscale_rows(op: RandomGrayscale, draws: Draws, stream: int) -> npt.NDArray[np.bool_]:
    """(B,) bool: which samples turn grey."""
    result: npt.NDArray[np.bool_] = draws.uniform(stream, 1)[:, 0] < op.p
    return result


def apply_random_grayscale(op: RandomGrayscale, images: torch.Tensor, draws: Draws, stream: int) -> torch.Tensor:
    """(B, C, H, W): grey, with the channels it had, where the draw says so."""
    require_grey_or_rgb(op, images)
    chosen = grayscale_rows(op, draws, stream)
    if images.shape[1] == 1 or not chosen.any():
        return images
    return choose_rows(chosen, kernels.grayscale(images), images)


def apply_grayscale(op: Grayscale, images: torch.Tensor) -> torch.Tensor:
    """(B, 1 or 3, H, W): grey."""
    require_grey_or_rgb(op, images)
    return kernels.grayscale(images).expand(-1, op.num_output_channels, -1, -1)


def require_grey_or_rgb(op: object, images: torch.Tensor) -> None:
    """Raises ConfigurationError unless the images are what colour operations take: 1 or 3 channels, uint8 or float."""
    if images.shape[1] not in (1, 3):
        raise ConfigurationError(
            f"{type(op).__name__} needs images of 1 or 3 channels, got {images.shape[1]}; "
            "remove it from the transform, or give grey or RGB images."
        )
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise ConfigurationError(
            f"{type(op).__name__} needs uint8 or floating-point images, got {images.dtype}; "
            "put it before the ToDtype that converts them."
        )
