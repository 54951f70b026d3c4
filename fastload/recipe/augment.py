"""RandAugment and TrivialAugmentWide on a batch: samples are grouped by the operation drawn for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torchvision.transforms.v2 import functional

from fastload.draws import Draws
from fastload.recipe import kernels
from fastload.recipe.affine import affine, rotation, shear_x, shear_y, translation
from fastload.recipe.jitter import require_grey_or_rgb
from fastload.recipe.ops import RandAugment, TrivialAugmentWide
from fastload.recipe.rows import map_groups

__all__ = ["AUGMENTATIONS", "AugmentStep", "apply_augment", "augment_steps"]

Float64Array = npt.NDArray[np.float64]

AUGMENTATIONS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
)
"""The operations that both transforms draw from, in torchvision's order."""

_SIGNED = np.array([1 <= k <= 9 for k in range(len(AUGMENTATIONS))])
_LAST_GEOMETRIC = AUGMENTATIONS.index("Rotate")
_AFFINE = 1  # what the five geometric kinds become: they share one call


@dataclass(frozen=True)
class AugmentStep:
    """One operation for each of B samples."""

    kinds: npt.NDArray[np.int64]
    """(B,): positions in AUGMENTATIONS."""
    bins: npt.NDArray[np.int64]
    """(B,): which of the magnitudes that the transform lists."""
    magnitudes: Float64Array
    """(B,): with their sign, as torchvision hands them to the operation; 0 for operations that have none."""


def augment_steps(
    op: RandAugment | TrivialAugmentWide, draws: Draws, stream: int, *, height: int, width: int
) -> list[AugmentStep]:
    """What happens to each sample, in order: `num_ops` steps for RandAugment, one for TrivialAugmentWide.

    Args:
        op: the transform.
        draws: random numbers of the B samples.
        stream: of the transform.
        height: of the images, in pixels; RandAugment's translations depend on it.
        width: of the images, in pixels.
    """
    table = _magnitude_table(op, height, width)
    count = op.num_ops if isinstance(op, RandAugment) else 1
    steps = []
    # Three numbers a step: the operation, the sign, the bin.
    for u in draws.uniform(stream, 3 * count).reshape(len(draws), count, 3).transpose(1, 2, 0) if count else ():
        kinds = np.floor(u[0] * len(AUGMENTATIONS)).astype(np.int64)
        drawn = np.floor(u[2] * op.num_magnitude_bins).astype(np.int64)
        chosen = np.full_like(drawn, op.magnitude) if isinstance(op, RandAugment) else drawn
        magnitudes = table[kinds, chosen]
        steps.append(AugmentStep(kinds, chosen, np.where(_SIGNED[kinds] & (u[1] < 0.5), -magnitudes, magnitudes)))
    return steps


def apply_augment(
    op: RandAugment | TrivialAugmentWide, pixels: torch.Tensor, draws: Draws, stream: int, *, mask: bool
) -> torch.Tensor:
    """(B, C, H, W) images with C = 1 or 3, or (B, 1, H, W) masks.

    Masks follow the geometric operations (nearest, 0 outside) and no other; torchvision refuses samples that have one.
    """
    if not mask:
        require_grey_or_rgb(op, pixels)
    height, width = pixels.shape[-2:]
    interpolation, fill = ("nearest", None) if mask else (op.interpolation, op.fill)

    def kernel(kind: int, rows: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
        if kind == _AFFINE:
            return affine(rows, parameters[:, :6].view(-1, 2, 3), interpolation, fill)
        return _recolour(AUGMENTATIONS[kind], rows, parameters[:, 6])

    for step in augment_steps(op, draws, stream, height=height, width=width):
        geometric = (step.kinds > 0) & (step.kinds <= _LAST_GEOMETRIC)
        colour = -1 if mask else np.where(step.kinds == 0, -1, step.kinds)
        kinds = np.where(geometric, _AFFINE, colour).astype(np.int64)
        pixels = map_groups(pixels, kinds, _parameters(step, height, width), kernel)
    return pixels


def _magnitude_table(op: RandAugment | TrivialAugmentWide, height: int, width: int) -> Float64Array:
    """(operations, bins) float64: the magnitudes that torchvision lists, float32 as there."""
    bins = op.num_magnitude_bins
    if isinstance(op, RandAugment):
        shear, across, down = 0.3, 150.0 / 331.0 * width, 150.0 / 331.0 * height
        degrees, strength, lost_bits = 30.0, 0.9, 4
    else:
        shear, across, down = 0.99, 32.0, 32.0
        degrees, strength, lost_bits = 135.0, 0.99, 6
    none = torch.zeros(bins)
    rows = [none, *(torch.linspace(0.0, end, bins) for end in (shear, shear, across, down, degrees))]
    rows += [torch.linspace(0.0, strength, bins)] * 4
    rows += [(8 - torch.arange(bins) / ((bins - 1) / lost_bits)).round(), torch.linspace(1.0, 0.0, bins), none, none]
    result: Float64Array = torch.stack(rows).numpy().astype(np.float64)
    return result


def _parameters(step: AugmentStep, height: int, width: int) -> Float64Array:
    """(B, 7): the matrix of a geometric operation, then the factor, bits or threshold of another."""
    magnitudes = step.magnitudes
    zero = np.zeros_like(magnitudes)
    pixels = np.trunc(magnitudes)
    matrices = np.zeros((len(magnitudes), 2, 3))
    for name, of_all in (
        ("ShearX", shear_x(magnitudes, height)),
        ("ShearY", shear_y(magnitudes, width)),
        ("TranslateX", translation(pixels, zero)),
        ("TranslateY", translation(zero, pixels)),
        ("Rotate", rotation(magnitudes)),
    ):
        chosen = step.kinds == AUGMENTATIONS.index(name)
        matrices[chosen] = of_all[chosen]
    blended = np.isin(step.kinds, [AUGMENTATIONS.index(n) for n in ("Brightness", "Color", "Contrast", "Sharpness")])
    factor = np.where(blended, 1.0 + magnitudes, magnitudes)
    return np.concatenate([matrices.reshape(-1, 6), factor[:, None]], axis=1)


def _recolour(name: str, images: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    if name == "Brightness":
        return kernels.adjust_brightness(images, parameter)
    if name == "Color":
        return kernels.adjust_saturation(images, parameter)
    if name == "Contrast":
        return kernels.adjust_contrast(images, parameter)
    if name == "Sharpness":
        return kernels.adjust_sharpness(images, parameter)
    if name == "Posterize":
        return kernels.posterize(images, parameter)
    if name == "Solarize":
        return kernels.solarize(images, parameter)
    # These two have no parameter, and torchvision's take a batch.
    result: torch.Tensor = functional.autocontrast(images) if name == "AutoContrast" else functional.equalize(images)
    return result
