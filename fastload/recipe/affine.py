"""Shear, translation and rotation of a batch: one grid_sample with a matrix for each sample."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import grid_sample

from fastload.errors import ConfigurationError
from fastload.geometry import Fill
from fastload.recipe.rows import on_device

__all__ = ["affine", "rotation", "shear_x", "shear_y", "translation"]

Float64Array = npt.NDArray[np.float64]

# The matrices are (B, 2, 3) and take a position (x, y, 1) in the output to one in the input, in pixels from the centre
# of the image. They are the inverses of the transforms they are named for.


def shear_x(amount: Float64Array, height: int) -> Float64Array:
    """x + amount * y, about the top left corner. amount: (B,)."""
    zero, one = np.zeros_like(amount), np.ones_like(amount)
    return _matrices(one, amount, amount * height * 0.5, zero, one, zero)


def shear_y(amount: Float64Array, width: int) -> Float64Array:
    """y + amount * x, about the top left corner. amount: (B,)."""
    zero, one = np.zeros_like(amount), np.ones_like(amount)
    return _matrices(one, zero, zero, amount, one, amount * width * 0.5)


def translation(x: Float64Array, y: Float64Array) -> Float64Array:
    """To the right by x and down by y pixels. x, y: (B,)."""
    zero, one = np.zeros_like(x), np.ones_like(x)
    return _matrices(one, zero, -x, zero, one, -y)


def rotation(degrees: Float64Array) -> Float64Array:
    """Counter-clockwise about the centre. degrees: (B,)."""
    radians = np.radians(-(degrees % 360.0))
    cos, sin, zero = np.cos(radians), np.sin(radians), np.zeros_like(radians)
    return _matrices(cos, sin, zero, -sin, cos, zero)


def affine(pixels: torch.Tensor, matrices: torch.Tensor, interpolation: str, fill: Fill | None) -> torch.Tensor:
    """Resample each sample through its matrix, as torchvision's affine and rotate do for one.

    Args:
        pixels: (B, C, H, W), uint8 or floating point.
        matrices: (B, 2, 3) float64 on the same device, as the functions above make them.
        interpolation: "nearest" or "bilinear".
        fill: value outside the image, one or one a channel; None blends with 0 there, as torchvision does.

    Returns:
        (B, C, H, W) of the dtype of `pixels`, integers rounded.

    Raises:
        ConfigurationError: the interpolation is another one, or the fill has the wrong number of values.
    """
    batch, channels, height, width = pixels.shape
    if interpolation not in ("nearest", "bilinear"):
        raise ConfigurationError(
            f"interpolation={interpolation!r} cannot shear or rotate tensors; use 'nearest' or 'bilinear'."
        )
    if fill is not None and len(fill) not in (1, channels):
        raise ConfigurationError(
            f"fill={fill} has {len(fill)} values for images of {channels} channels; give 1 or {channels}."
        )
    grid = _grid(matrices.to(torch.float32), height, width)
    source = pixels.to(torch.float32)
    if fill is not None:
        # One more channel tells how much of each output pixel comes from inside the image.
        source = torch.cat((source, source.new_ones(batch, 1, height, width)), dim=1)
    result = grid_sample(source, grid, mode=interpolation, padding_mode="zeros", align_corners=False)
    if fill is not None:
        result, inside = result[:, :-1], result[:, -1:]
        colour = on_device(np.array(fill, dtype=np.float32), pixels.device).view(1, -1, 1, 1)
        if interpolation == "nearest":
            result = torch.where(inside < 0.5, colour, result)
        else:
            result = (result - colour).mul_(inside).add_(colour)
    return result.to(pixels.dtype) if pixels.is_floating_point() else result.round_().to(pixels.dtype)


def _grid(matrices: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """(B, H, W, 2) float32: where each output pixel lies in the input, -1..1 from edge to edge.

    Written out in separately rounded products and sums: a matrix product may add in another order for another batch
    size, and a position half way between two pixels would then turn to the other one.
    """
    device = matrices.device
    x = torch.linspace((1.0 - width) * 0.5, (width - 1.0) * 0.5, steps=width, device=device).view(1, 1, -1)
    y = torch.linspace((1.0 - height) * 0.5, (height - 1.0) * 0.5, steps=height, device=device).view(1, -1, 1)
    grid = torch.empty(len(matrices), height, width, 2, device=device)
    for axis, size in enumerate((width, height)):
        from_x, from_y, offset = (matrices[:, axis] / (0.5 * size)).view(-1, 3, 1, 1).unbind(1)
        torch.add((from_x * x).expand(-1, height, -1), from_y * y, out=grid[..., axis])
        grid[..., axis] += offset
    return grid


def _matrices(*rows: Float64Array) -> Float64Array:
    return np.stack(rows, axis=-1).reshape(-1, 2, 3)
