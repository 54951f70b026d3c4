"""nnU-Net's training augmentation of its 2D configuration.

Follows `get_training_transforms`, `configure_rotation_dummyDA_mirroring_and_inital_patch_size` and
`nnUNetDataLoader` of github.com/MIC-DKFZ/nnUNet (Apache 2.0), nnunetv2 2.8.1 at 0e49508, with
batchgeneratorsv2 0.3.5 (Apache 2.0) at 3cb4f07.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from torchvision.transforms import v2

from fastload.arguments import require
from fastload.errors import ConfigurationError
from fastload.pipelines.normalised import are_numbers, checked_pair, checked_probability
from fastload.recipe.crop_with_foreground import CropWithForeground
from fastload.recipe.intensities import ChangedIntensities
from fastload.recipe.turned_and_scaled import TurnedAndScaled

NORMALIZATIONS = {"rgb_to_0_1": (v2.Normalize((0.0,), (255.0,)),), "nonorm": ()}
"""By name, what is done to pixels as floats."""
_P_ROTATION, _P_SCALING, _SCALING = 0.2, 0.2, (0.7, 1.4)
_LEAST_SCALE = 0.85
"""By which the crop before the rotation is larger."""
_OBLONG = 1.5
"""Of patches that are longer than so many times their width, turned a little."""

Batch = dict[str, Any]
Scales = Sequence[float | Sequence[float]]


def nnunet_2d(
    patch_size: Sequence[int] = (512, 512),
    *,
    rotation_for_DA: tuple[float, float] | None = None,  # noqa: N803 -- as there
    mirror_axes: Sequence[int] = (0, 1),
    oversample_foreground_percent: float = 0.33,
    normalization: str = "rgb_to_0_1",
) -> v2.Compose:
    """A transform of images and masks of classes into float32 (C, height, width) and masks of the
    same size, for training. Give `nnunet_2d_batches()` as the `batch_transform`.

    A larger patch is cut out, about a pixel of a class or anywhere, with zeros outside of the
    image; its middle is turned and scaled, each with probability 0.2; noise is added, it is
    blurred, made brighter, of more contrast, of less resolution, and its gamma is changed, each in
    some samples; and it is mirrored.

    Args:
        patch_size: height and width [pixels], at least 4 each.
        rotation_for_DA: the least and the largest angle [radians]; None: half a turn either way, or
            15 degrees where one side is more than 1.5 times the other.
        mirror_axes: 0: upside down, 1: left and right, each in half of the samples.
        oversample_foreground_percent: the share, 0 to 1, of patches about a pixel of a class that
            is not 0.
        normalization: "rgb_to_0_1", values divided by 255; "nonorm", values as they are.

    Raises:
        ConfigurationError: an argument is none of these. "zscore" is none: it needs the mean and
            the deviation of whole images.
    """
    patch = checked_pair("patch_size", patch_size, "(height, width)")
    require("patch_size", min(patch) >= 4, "at least 4 pixels each way", patch_size)
    rotation = rotation_for_DA
    if rotation is None:
        most = math.radians(15 if max(patch) / min(patch) > _OBLONG else 180)
        rotation = -most, most
    good = are_numbers(rotation, 2) and rotation[0] <= rotation[1]
    require("rotation_for_DA", good, "(low, high) in radians, low <= high", rotation)
    axes = isinstance(mirror_axes, Sequence) and all(axis in (0, 1) for axis in mirror_axes)
    require("mirror_axes", axes, "of 0 and 1, such as (0, 1), (1,) or ()", mirror_axes)
    checked_probability("oversample_foreground_percent", oversample_foreground_percent)
    if normalization == "zscore":
        raise ConfigurationError(
            "normalization='zscore' needs the mean and the deviation of whole images, of which a "
            "patch is read here; give 'rgb_to_0_1', or write normalised images (TIFF of 32 bits, "
            "which open_source(..., mode='unchanged') keeps) and give 'nonorm'."
        )
    known = ", ".join(map(repr, NORMALIZATIONS))
    require("normalization", normalization in NORMALIZATIONS, f"one of {known}", normalization)
    flips = (v2.RandomVerticalFlip(), v2.RandomHorizontalFlip())
    return v2.Compose(
        [
            CropWithForeground(
                initial_patch_size(patch, rotation), shown=patch, p=oversample_foreground_percent
            ),
            v2.ToImage(),
            v2.ToDtype(torch.float32),
            *NORMALIZATIONS[normalization],
            TurnedAndScaled(
                patch,
                p_rotation=_P_ROTATION,
                rotation=rotation,
                p_scaling=_P_SCALING,
                scaling=_SCALING,
            ),
            ChangedIntensities(),
            *(flip for axis, flip in enumerate(flips) if axis in mirror_axes),
        ]
    )


def initial_patch_size(patch: tuple[int, int], rotation: tuple[float, float]) -> tuple[int, int]:
    """Height and width of what is cut out [pixels]: what the patch has when it is turned by the
    largest angle, up to a quarter, and is scaled by 0.85."""
    angle = min(math.pi / 2, max(map(abs, rotation)))
    height, width = patch
    cosine, sine = math.cos(angle), math.sin(angle)
    turned = abs(height * cosine + width * sine), abs(width * cosine - height * sine)
    return (
        int(max(height, turned[0]) / _LEAST_SCALE),
        int(max(width, turned[1]) / _LEAST_SCALE),
    )


def nnunet_2d_batches(
    *, deep_supervision_scales: Scales | None = None
) -> Callable[[torch.Tensor, torch.Tensor], Batch]:
    """The `batch_transform`: a dict of `data`, the images, float32 (B, C, height, width), and
    `target`, the masks, int16 (B, 1, height, width), or a list of these, one a scale.

    Args:
        deep_supervision_scales: factors of the sides of the masks, above 0 and at most 1, one for
            both or (down, across); the nearest pixels are taken. None: the masks alone.

    Raises:
        ConfigurationError: a scale is none of these, or there is none; and of batches that are not
            images and masks.
    """
    if deep_supervision_scales is None:
        return _Batches(None)
    given: Any = deep_supervision_scales
    pairs = [
        tuple(one) if isinstance(one, Sequence) else (one, one)
        for one in (given if isinstance(given, Sequence) else ())
    ]
    good = len(pairs) > 0 and all(are_numbers(p, 2) and 0 < min(p) <= max(p) <= 1 for p in pairs)
    words = "factors above 0, at most 1, such as [1, 0.5, (0.25, 0.25)]"
    require("deep_supervision_scales", good, words, given)
    return _Batches([(float(pair[0]), float(pair[1])) for pair in pairs])


class _Batches:
    """A class, so that it can be pickled."""

    def __init__(self, scales: list[tuple[float, float]] | None) -> None:
        self.scales = scales

    def __call__(self, *parts: Any) -> Batch:
        sizes = {getattr(part, "shape", (0,))[-2:] for part in parts}
        if len(parts) != 2 or len(sizes) != 1 or (0,) in sizes:
            raise ConfigurationError(
                "batch_transform: nnunet_2d_batches is for batches of images and masks, and got "
                f"{len(parts)} parts ({', '.join(type(part).__name__ for part in parts)}). Give a "
                "source of images with one mask of classes each."
            )
        images, masks = parts
        target = masks.reshape(len(masks), 1, *masks.shape[-2:]).to(torch.int16)
        if self.scales is None:
            return {"data": images, "target": target}
        return {"data": images, "target": [_smaller(target, scale) for scale in self.scales]}


def _smaller(target: torch.Tensor, scale: tuple[float, float]) -> torch.Tensor:
    if min(scale) == 1:
        return target
    size = [round(side * part) for side, part in zip(target.shape[2:], scale, strict=True)]
    return functional.interpolate(target.float(), size, mode="nearest-exact").to(torch.int16)
