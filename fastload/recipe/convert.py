"""ToDtype and Normalize on a batch, and the two in one pass."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torchvision.transforms.v2 import functional

from fastload.errors import ConfigurationError
from fastload.recipe.ops import Normalize, Op, ToDtype
from fastload.recipe.rows import on_device

__all__ = ["apply_normalize", "apply_to_dtype", "apply_to_dtype_and_normalize", "fuses"]

Float64Array = npt.NDArray[np.float64]


def apply_to_dtype(op: ToDtype, images: torch.Tensor) -> torch.Tensor:
    """(B, C, H, W) in `op.dtype`; with `op.scale`, the value range goes along (0..255 to 0..1).

    Raises:
        ConfigurationError: a scaled conversion that torchvision refuses as unsafe (float32 to int32 or int64).
    """
    try:
        result: torch.Tensor = functional.to_dtype(images, op.dtype, scale=op.scale)
    except RuntimeError as error:
        if "cannot be performed safely" not in str(error):
            raise
        raise ConfigurationError(
            f"ToDtype({op.dtype}, scale=True) cannot convert {images.dtype} images without loss; "
            "use torch.uint8 or torch.int16, or scale=False."
        ) from error
    return result


def apply_normalize(op: Normalize, images: torch.Tensor) -> torch.Tensor:
    """(B, C, H, W), floating point: (x - mean) / std for each channel; half precision is computed in float32.

    Raises:
        ConfigurationError: integer images, or a number of means or deviations that does not fit.
    """
    if not images.is_floating_point():
        raise ConfigurationError(
            f"Normalize needs floating-point images, got {images.dtype}; "
            "put ToDtype(torch.float32, scale=True) before it."
        )
    wide = torch.promote_types(images.dtype, torch.float32)
    mean, std = _per_channel(op, images.shape[1])
    pixels = images.to(wide)
    return pixels.sub(_spread(mean, pixels)).div_(_spread(std, pixels)).to(images.dtype)


def fuses(op: Op, following: Op | None, dtype: torch.dtype) -> bool:
    """Whether `apply_to_dtype_and_normalize` may replace two operations on images of `dtype`: uint8 to float32 or less,
    then normalised."""
    return (
        isinstance(op, ToDtype)
        and isinstance(following, Normalize)
        and dtype == torch.uint8
        and op.dtype in (torch.float32, torch.float16, torch.bfloat16)
    )


def apply_to_dtype_and_normalize(convert: ToDtype, normalize: Normalize, images: torch.Tensor) -> torch.Tensor:
    """(B, C, H, W) uint8 to normalised `convert.dtype`: one multiply-add in float32, rounded once.

    Within 1e-6 (relative to 1 or the value) of the two steps in float32; for half precision closer to them than half
    precision steps would be.
    """
    mean, std = _per_channel(normalize, images.shape[1])
    scale = 1.0 / (std * (255.0 if convert.scale else 1.0))
    result = torch.addcmul(_spread(-mean / std, images), images, _spread(scale, images))
    return result.to(convert.dtype)


def _per_channel(op: Normalize, channels: int) -> tuple[Float64Array, Float64Array]:
    """(C,) float64 each: means and deviations."""
    if len(op.mean) not in (1, channels) or len(op.std) not in (1, channels):
        raise ConfigurationError(
            f"Normalize has {len(op.mean)} means and {len(op.std)} deviations for images of {channels} channels; "
            f"give 1 or {channels} of each."
        )
    mean, std = (np.broadcast_to(np.array(values, dtype=np.float64), channels) for values in (op.mean, op.std))
    return mean, std


def _spread(values: Float64Array, images: torch.Tensor) -> torch.Tensor:
    """(C,) values as a float tensor that broadcasts over (B, C, H, W) images: (1, C, 1, 1), or (1, C, 1, W).

    In channels_last memory one value a channel would break every loop into pieces of C numbers; a whole row of them
    keeps it long enough to vectorise.
    """
    values = values.astype(np.float64 if images.dtype == torch.float64 else np.float32)
    if images.is_contiguous():
        return on_device(values, images.device).view(1, -1, 1, 1)
    width = images.shape[3]
    return on_device(np.tile(values, width), images.device).view(1, 1, width, -1).permute(0, 3, 1, 2)
