"""Geometry on a batch of equal sizes: what a one-operation plan says, carried out on tensors on their device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torchvision.transforms.v2 import InterpolationMode, functional

from fastload.draws import Draws
from fastload.errors import ConfigurationError
from fastload.geometry import Geometry, GeometryPlan, PaddingMode
from fastload.recipe.ops import (
    CenterCrop,
    GeometryOp,
    Pad,
    RandomCrop,
    RandomResizedCrop,
    Resize,
)
from fastload.recipe.rows import choose_rows, on_device

__all__ = ["apply_geometry", "box_weights", "geometry_of"]

Int64Array = npt.NDArray[np.int64]


def geometry_of(op: GeometryOp, draws: Draws, stream: int, *, height: int, width: int) -> Geometry:
    """The same boxes, windows and flips that a backend would use for this operation.

    Raises:
        ConfigurationError: the operation cannot be applied to images of this size.
    """
    mode: PaddingMode = op.padding_mode if isinstance(op, Pad | RandomCrop) else "constant"
    plan = GeometryPlan(ops=((stream, op),), padding_mode=mode)
    geometry = plan.resolve(draws, np.broadcast_to(np.array([height, width]), (len(draws), 2)))
    if geometry.errors:
        raise ConfigurationError(next(iter(geometry.errors.values())))
    return geometry


def apply_geometry(op: GeometryOp, pixels: torch.Tensor, draws: Draws, stream: int, *, mask: bool) -> torch.Tensor:
    """(B, C, H, W) images or masks to (B, C, height, width); masks are resampled with "nearest".

    Raises:
        ConfigurationError: the operation cannot be applied to images of this size or number of channels.
    """
    height, width = pixels.shape[-2:]
    geometry = geometry_of(op, draws, stream, height=height, width=width)
    if isinstance(op, RandomResizedCrop | Resize):
        return _resample(op, pixels, geometry, mask=mask)
    if isinstance(op, CenterCrop | RandomCrop | Pad):
        return _cut(op, pixels, geometry, mask=mask)
    for axis, rows in enumerate(geometry.flip.T):
        if rows.all():
            pixels = pixels.flip(-1 - axis)
        elif rows.any():
            pixels = choose_rows(rows, pixels.flip(-1 - axis), pixels)
    return pixels


def box_weights(start: torch.Tensor, extent: torch.Tensor, length: int, size: int) -> torch.Tensor:
    """Antialiased bilinear resampling of a stretch of each row, as a matrix.

    The triangle filter of torch's `interpolate(mode="bilinear", antialias=True)`, widened by the scale when shrinking,
    cut at the ends of the stretch and normalised.

    Args:
        start: (B,) float32: first pixel of each stretch.
        extent: (B,) float32: pixels in it.
        length: pixels in the whole row.
        size: pixels to make of the stretch.

    Returns:
        (B, size, length) float32, each row with sum 1.
    """
    device = start.device
    scale = (extent / size).view(-1, 1, 1)
    centre = (torch.arange(size, device=device) + 0.5).view(1, -1, 1) * scale
    position = torch.arange(length, device=device).view(1, 1, -1) - start.view(-1, 1, 1)
    weights = 1.0 - (position + 0.5 - centre).div_(scale.clamp(min=1.0)).abs_()
    inside = (position >= 0) & (position < extent.view(-1, 1, 1))
    weights = weights.clamp_(min=0.0).mul_(inside)
    return weights.div_(weights.sum(-1, keepdim=True))


def _resample(op: RandomResizedCrop | Resize, pixels: torch.Tensor, geometry: Geometry, *, mask: bool) -> torch.Tensor:
    size = [int(n) for n in geometry.size[0]]
    if mask or op.interpolation in ("nearest", "nearest-exact"):
        shift = 0.5 if op.interpolation == "nearest-exact" and not mask else 0.0
        y, x = (_nearest(geometry.box[:, k], geometry.box[:, k + 2], size[k], shift) for k in (0, 1))
        return _take(pixels, y, x)
    if isinstance(op, Resize):
        result: torch.Tensor = functional.resize(
            pixels, size, interpolation=InterpolationMode(op.interpolation), antialias=op.antialias
        )
        return result
    if pixels.is_cuda and op.interpolation == "bilinear" and op.antialias:
        return _resample_dense(pixels, geometry, size)
    # The CPU's uint8 kernel takes one box at a time, and is faster than anything that batches.
    rows = []
    for row, (top, left, height, width) in enumerate(geometry.box.tolist()):
        part = pixels[row : row + 1, :, top : top + height, left : left + width]
        rows.append(
            functional.resize(part, size, interpolation=InterpolationMode(op.interpolation), antialias=op.antialias)
        )
    return torch.cat(rows)


def _resample_dense(pixels: torch.Tensor, geometry: Geometry, size: list[int]) -> torch.Tensor:
    """All boxes at once: two batched matrix products."""
    top, left, height, width = on_device(geometry.box.astype(np.float32), pixels.device).unbind(1)
    down = box_weights(top, height, pixels.shape[2], size[0])
    across = box_weights(left, width, pixels.shape[3], size[1])
    result = down[:, None] @ pixels.to(torch.float32).contiguous() @ across[:, None].transpose(-1, -2)
    return result.to(pixels.dtype) if pixels.is_floating_point() else result.round_().to(pixels.dtype)


def _nearest(start: npt.NDArray[np.int32], extent: npt.NDArray[np.int32], size: int, shift: float) -> Int64Array:
    """(B, size): source pixels of torch's "nearest" (shift 0) and "nearest-exact" (shift 0.5), float32 as there."""
    scale = (extent.astype(np.float32) / np.float32(size))[:, None]
    offset = ((np.arange(size, dtype=np.float32) + np.float32(shift)) * scale).astype(np.int64)
    return start[:, None].astype(np.int64) + np.minimum(offset, extent[:, None] - 1)


def _cut(op: CenterCrop | RandomCrop | Pad, pixels: torch.Tensor, geometry: Geometry, *, mask: bool) -> torch.Tensor:
    """The windows, and what padding they reach into."""
    mode: PaddingMode = "constant" if isinstance(op, CenterCrop) else op.padding_mode
    (y, above_or_below), (x, beside) = (_window(geometry, axis, mode) for axis in (0, 1))
    result = _take(pixels, y, x)
    if mode != "constant" or not (above_or_below.any() or beside.any()):
        return result
    fill = (0.0,) if isinstance(op, CenterCrop) else op.mask_fill if mask else op.fill
    if len(fill) not in (1, pixels.shape[1]):
        raise ConfigurationError(
            f"{type(op).__name__}(fill={fill}) has {len(fill)} values for images of {pixels.shape[1]} channels; "
            f"give 1 or {pixels.shape[1]}."
        )
    outside = (
        on_device(above_or_below, pixels.device)[:, None, :, None] | on_device(beside, pixels.device)[:, None, None, :]
    )
    colour = on_device(np.array(fill, dtype=np.float32), pixels.device).to(pixels.dtype)
    return torch.where(outside, colour.view(-1, 1, 1), result)


def _window(geometry: Geometry, axis: int, mode: PaddingMode) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """(B, n): source row (axis 0) or column of each row or column of the windows, and whether it is padding."""
    grid = geometry.size[:, axis, None].astype(np.int64)
    extent = int(geometry.window[0, axis + 2])
    position = geometry.window[:, axis, None] + np.arange(extent)
    outside = (position < 0) | (position >= grid)
    if mode == "symmetric":
        position = position % (2 * grid)
        position = np.minimum(position, 2 * grid - 1 - position)
    elif mode == "reflect":
        period = np.maximum(2 * (grid - 1), 1)
        position = position % period
        position = np.minimum(position, period - position)
    return geometry.box[:, axis, None] + np.clip(position, 0, grid - 1), outside


def _take(pixels: torch.Tensor, y: Int64Array, x: Int64Array) -> torch.Tensor:
    """(B, C, h, w): rows y (B, h) and columns x (B, w) of each sample."""
    batch, channels, height, width = pixels.shape
    if (y == y[0]).all() and (x == x[0]).all():
        return pixels.index_select(2, on_device(y[0], pixels.device)).index_select(3, on_device(x[0], pixels.device))
    starts = np.arange(batch)[:, None] * height
    rows = on_device((starts + y) * width, pixels.device)
    flat = (rows[:, :, None] + on_device(x, pixels.device)[:, None, :]).view(-1)
    taken = pixels.permute(0, 2, 3, 1).reshape(-1, channels).index_select(0, flat)
    return taken.view(batch, y.shape[1], x.shape[1], channels).permute(0, 3, 1, 2)
