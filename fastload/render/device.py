"""Whole batches of crops, resizes, padding and mirroring by tensor operations, on the device that holds the pixels.

There is no loop over samples: some twenty kernels for a batch, whatever its size. Resampling is two batched matrix
products with the weights of every sample, in float32. It agrees with torchvision to 2 of 255, mean 0.2 at most.

Matrix products add in another order for every shape and on every device. So that a sample's pixels do not depend on the
batch it is in, or on the number of ranks, all products are of integers (weights of so many bits, pixels rounded between
the axes as torchvision does), and all sums are exact in float32, in whatever order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision.transforms.v2 import InterpolationMode, functional

from fastload.geometry import Fill, Geometry, Interpolation, PaddingMode, Resampling
from fastload.render.gather import axis_maps, needs_resampling

__all__ = ["choose_rows", "column", "on_device", "render_batch", "render_on_device"]

_WORKING_BYTES = 512 << 20
"""Intermediate memory of resampling that a part of a batch may take."""

_RAW_BITS, _WEIGHT_BITS = 14, 15
"""Of weights before and after they are normalised: sums of 255 times those stay below 2^24, where float32 is exact,
for images reduced up to 1,000 times and filters whose weights have magnitudes that add up to 2."""


def on_device(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """A host array as a tensor on `device`; on CUDA through pinned memory, without waiting for the copy."""
    host = torch.from_numpy(np.ascontiguousarray(values))
    # The caching host allocator keeps the pinned block until the copy is done.
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def column(values: torch.Tensor) -> torch.Tensor:
    """(B,) parameters as (B, 1, 1, 1), to broadcast over (B, C, H, W)."""
    return values.view(-1, 1, 1, 1)


def choose_rows(rows: npt.NDArray[np.bool_], chosen: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """Row i of `chosen` where rows[i], of `otherwise` elsewhere: two (B, C, H, W) tensors of one dtype.

    `chosen` may have one channel for the several of `otherwise`.
    """
    if otherwise.dtype != torch.uint8:
        return torch.where(column(on_device(rows, otherwise.device)), chosen, otherwise)
    # a ^ ((a ^ b) & mask) is vectorised on a CPU, where torch.where takes ten times as long.
    mask = column(on_device(rows.astype(np.uint8) * 255, otherwise.device))
    return (otherwise ^ chosen).bitwise_and_(mask).bitwise_xor_(otherwise)


def render_on_device(
    pixels: torch.Tensor,
    *,
    start: torch.Tensor,
    width: torch.Tensor,
    geometry: Geometry,
    interpolation: Interpolation,
    antialias: bool,
    padding_mode: PaddingMode,
    fill: Fill,
    out_size: tuple[int, int],
) -> torch.Tensor:
    """Render a batch. Images may differ in size: they lie one behind the other.

    Args:
        pixels: (P, C) uint8: all pixels of all images, on any device.
        start: (B,) int64 on the host: first pixel of each sample's image.
        width: (B,) int64 on the host: width of each sample's image.
        geometry: of the B samples; all windows are of size `out_size`.
        interpolation: of the resampling; "nearest" for masks.
        antialias: widen the filter of "bilinear" and "bicubic" when shrinking.
        padding_mode: how the part of a window outside its grid is made.
        fill: one value, or one a channel, of "constant" padding.
        out_size: height, width.

    Returns:
        (B, h, w, C) uint8 on the device of `pixels`.
    """
    out = torch.empty((len(geometry), *out_size, pixels.shape[1]), dtype=torch.uint8, device=pixels.device)
    if not len(geometry):
        return out
    maps = [axis_maps(geometry, axis, out_size[axis], padding_mode) for axis in (0, 1)]
    if interpolation in ("nearest", "nearest-exact") or not needs_resampling(geometry):
        sources = [_nearest(geometry, axis, maps[axis], exact=interpolation == "nearest-exact") for axis in (0, 1)]
        columns = on_device(sources[1], pixels.device)
        first = on_device(start.numpy()[:, None] + sources[0] * width.numpy()[:, None], pixels.device)
        torch.index_select(
            pixels, 0, (first[:, :, None] + columns[:, None, :]).reshape(-1), out=out.view(-1, out.shape[3])
        )
    else:
        _resample(pixels, start.numpy(), width.numpy(), geometry, maps, interpolation, antialias, out)
    if padding_mode == "constant" and any((m < 0).any() for m in maps):
        rows, columns = (on_device(m < 0, pixels.device) for m in maps)
        outside = (rows[:, :, None] | columns[:, None, :])[..., None]
        value = on_device(np.array(fill, dtype=np.uint8), pixels.device)
        out = torch.where(outside, value, out)
    return out


def render_batch(pixels: torch.Tensor, geometry: Geometry, resampling: Resampling) -> torch.Tensor:
    """Render images of one size that are a batch already, on the device that holds them.

    Args:
        pixels: (B, C, H, W) of any dtype and memory format; masks have one channel.
        geometry: of the B samples; all grids are of one size, and all windows.
        resampling: how pixels are made; `fill` is on the scale of the pixels.

    Returns:
        (B, C, h, w) of that dtype.
    """
    batch, channels, height, width = pixels.shape
    if not batch:
        return pixels
    if pixels.device.type != "cpu" and pixels.dtype == torch.uint8:
        rendered = render_on_device(
            pixels.permute(0, 2, 3, 1).reshape(-1, channels),
            start=torch.arange(batch) * (height * width),
            width=torch.full((batch,), width),
            geometry=geometry,
            interpolation=resampling.interpolation,
            antialias=resampling.antialias,
            padding_mode=resampling.padding_mode,
            fill=resampling.fill,
            out_size=(int(geometry.window[0, 2]), int(geometry.window[0, 3])),
        )
        return rendered.permute(0, 3, 1, 2)
    if needs_resampling(geometry) and resampling.interpolation in ("bilinear", "bicubic"):
        pixels = _resized_boxes(pixels, geometry, resampling)
        whole = np.concatenate([np.zeros_like(geometry.size), geometry.size], axis=1)
        geometry = Geometry(whole, geometry.size, geometry.window, geometry.flip)
    if (geometry.window == (0, 0, *pixels.shape[2:])).all() and (geometry.box == geometry.window).all():
        for axis, rows in enumerate(geometry.flip.T):
            if rows.all():
                pixels = pixels.flip(-1 - axis)
            elif rows.any():
                pixels = choose_rows(rows, pixels.flip(-1 - axis), pixels)
        return pixels
    maps = [axis_maps(geometry, axis, int(geometry.window[0, 2 + axis]), resampling.padding_mode) for axis in (0, 1)]
    exact = resampling.interpolation == "nearest-exact"
    result = _take(pixels, *(_nearest(geometry, axis, maps[axis], exact=exact) for axis in (0, 1)))
    outside = [m < 0 for m in maps]
    if not any(m.any() for m in outside):
        return result
    rows, columns = (on_device(m, pixels.device) for m in outside)
    value = on_device(np.array(resampling.fill, dtype=np.float32), pixels.device).to(pixels.dtype)
    return torch.where(rows[:, None, :, None] | columns[:, None, None, :], value.view(-1, 1, 1), result)


def _resized_boxes(pixels: torch.Tensor, geometry: Geometry, resampling: Resampling) -> torch.Tensor:
    """(B, C, height, width) of the one size of the grids. Torch's kernels take one box at a time, and are faster on a
    CPU than anything that batches."""
    size = [int(n) for n in geometry.size[0]]
    mode = InterpolationMode(resampling.interpolation)
    if (geometry.box == (0, 0, *pixels.shape[2:])).all():
        result: torch.Tensor = functional.resize(pixels, size, interpolation=mode, antialias=resampling.antialias)
        return result
    return torch.cat(
        [
            functional.resize(
                pixels[row : row + 1, :, top : top + height, left : left + width],
                size,
                interpolation=mode,
                antialias=resampling.antialias,
            )
            for row, (top, left, height, width) in enumerate(geometry.box.tolist())
        ]
    )


def _take(pixels: torch.Tensor, y: npt.NDArray[np.int64], x: npt.NDArray[np.int64]) -> torch.Tensor:
    """(B, C, h, w): rows y (B, h) and columns x (B, w) of each sample."""
    batch, channels, height, width = pixels.shape
    if (y == y[0]).all() and (x == x[0]).all():
        return pixels.index_select(2, on_device(y[0], pixels.device)).index_select(3, on_device(x[0], pixels.device))
    starts = np.arange(batch)[:, None] * height
    rows = on_device((starts + y) * width, pixels.device)
    flat = (rows[:, :, None] + on_device(x, pixels.device)[:, None, :]).view(-1)
    taken = pixels.permute(0, 2, 3, 1).reshape(-1, channels).index_select(0, flat)
    return taken.view(batch, y.shape[1], x.shape[1], channels).permute(0, 3, 1, 2)


def _nearest(geometry: Geometry, axis: int, grid: npt.NDArray[np.int64], *, exact: bool) -> npt.NDArray[np.int64]:
    """(B, length) int64: row or column of the image that each position of the grid shows; any for padding.

    In the single precision of torch.nn.functional.interpolate: floor(i * scale), or floor((i + 0.5) * scale) of
    "nearest-exact".
    """
    length, limit = geometry.box[:, 2 + axis, None], geometry.size[:, axis, None]
    scale = length.astype(np.float32) / limit.astype(np.float32)
    positions = grid.astype(np.float32) + np.float32(0.5 if exact else 0.0)
    chosen = np.where(length == limit, grid, np.floor(positions * scale).astype(np.int64))
    start = geometry.box[:, axis, None].astype(np.int64)
    result: npt.NDArray[np.int64] = start + np.clip(chosen, 0, length - 1)
    return result


def _resample(
    pixels: torch.Tensor,
    start: npt.NDArray[np.int64],
    width: npt.NDArray[np.int64],
    geometry: Geometry,
    maps: list[npt.NDArray[np.int64]],
    interpolation: Interpolation,
    antialias: bool,
    out: torch.Tensor,
) -> None:
    """out[i] = rows of weights @ (box of the image @ columns of weights), for a part of the batch at a time."""
    _, out_height, out_width, channels = out.shape
    device = pixels.device
    # Alike boxes together: a part works on boxes as large as its largest.
    order = np.argsort(geometry.box[:, 2].astype(np.int64) * geometry.box[:, 3], kind="stable")[::-1].copy()
    done = 0
    while done < len(order):
        height, box_width = (int(geometry.box[order[done:], 2 + axis].max()) for axis in (0, 1))
        # Index and pixels of the boxes, and the product along the columns before and after it is transposed.
        each = height * box_width * (8 + 5 * channels) + 8 * out_width * height * channels
        part = order[done : done + max(1, _WORKING_BYTES // each)]
        done += len(part)
        count = len(part)
        box, size = geometry.box[part], geometry.size[part]
        height, box_width = int(box[:, 2].max()), int(box[:, 3].max())

        rows = box[:, :1] + np.minimum(np.arange(height), box[:, 2:3] - 1)
        columns = box[:, 1:2] + np.minimum(np.arange(box_width), box[:, 3:] - 1)
        first = on_device(start[part][:, None] + rows * width[part][:, None], device)
        index = first[:, :, None] + on_device(columns.astype(np.int64), device)[:, None, :]
        boxes = pixels[index.reshape(-1)].view(count, height, box_width, channels)
        # Columns first, as torchvision.
        source = boxes.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        vertical, horizontal = (
            _weights(
                on_device(maps[axis][part], device),
                on_device(box[:, 2 + axis], device),
                on_device(size[:, axis], device),
                (height, box_width)[axis],
                interpolation,
                antialias,
            )
            for axis in (0, 1)
        )
        middle = _rounded(torch.bmm(horizontal, source.view(count, box_width, height * channels)))
        middle = middle.view(count, out_width, height, channels).transpose(1, 2)
        result = torch.bmm(vertical, middle.reshape(count, height, out_width * channels))
        out[on_device(part, device)] = _rounded(result).to(torch.uint8).view(count, out_height, out_width, channels)


def _rounded(pixels: torch.Tensor) -> torch.Tensor:
    """To whole numbers from 0 to 255, in place."""
    return pixels.round_().clamp_(0, 255)


def _in_bits(weights: torch.Tensor, bits: int) -> torch.Tensor:
    """To multiples of 2^-bits, in place."""
    return weights.mul_(2.0**bits).round_().mul_(2.0**-bits)


def _weights(
    positions: torch.Tensor,
    length: torch.Tensor,
    size: torch.Tensor,
    columns: int,
    interpolation: Interpolation,
    antialias: bool,
) -> torch.Tensor:
    """(B, n, columns) float32: how much of each input position every output position is made of.

    The formula of torch's `_upsample_*_aa` (aten/src/ATen/native/cpu/UpSampleKernel.cpp): the filter, widened by the
    scale when shrinking, around the centre of the output pixel, cut off at the edges of the input and normalised.
    Without antialiasing it is not widened, and edge pixels are repeated instead.

    Args:
        positions: (B, n) int64: position in the grid.
        length: (B,) int32: of the input.
        size: (B,) int32: of the grid.
        columns: at least the largest length; positions beyond a sample's own have no weight.
        interpolation: "bilinear" or "bicubic".
        antialias: see above.
    """
    evaluate, support, a = (_triangle, 1.0, -0.5) if interpolation == "bilinear" else (_cubic, 2.0, -0.5)
    if not antialias:
        a = -0.75
    scale = (length.to(torch.float32) / size.to(torch.float32))[:, None]
    widened = torch.clamp(scale, min=1.0) if antialias else torch.ones_like(scale)
    center = (positions.to(torch.float32) + 0.5) * scale
    taps = torch.arange(columns, device=positions.device)
    if not antialias:
        return _unwidened(center, length, taps, evaluate, int(support), a)
    distance = (taps.to(torch.float32) + 0.5 - center[..., None]) / widened[..., None]
    reach = support * widened
    low = torch.clamp((center - reach + 0.5).to(torch.int64), min=0)
    high = torch.minimum((center + reach + 0.5).to(torch.int64), length[:, None].to(torch.int64))
    inside = (taps >= low[..., None]) & (taps < high[..., None])
    weights = _in_bits(evaluate(distance, a).mul_(inside), _RAW_BITS)
    # Padding has no input at all.
    total = weights.sum(-1, keepdim=True)
    return _in_bits(weights.div_(torch.where(total == 0, 1.0, total)), _WEIGHT_BITS)


def _unwidened(
    center: torch.Tensor,
    length: torch.Tensor,
    taps: torch.Tensor,
    evaluate: Callable[[torch.Tensor, float], torch.Tensor],
    support: int,
    a: float,
) -> torch.Tensor:
    """Interpolation between the 2 or 4 nearest input positions, those outside the input taken from its edge."""
    position = center - 0.5
    if support == 1:
        position = torch.clamp(position, min=0.0)
    below = torch.floor(position)
    weights = torch.zeros((*center.shape, len(taps)), device=center.device)
    last = (length[:, None] - 1).to(torch.int64)
    for offset in range(1 - support, support + 1):
        tap = torch.minimum(torch.clamp(below.to(torch.int64) + offset, min=0), last)
        weight = _in_bits(evaluate(below + offset - position, a), _WEIGHT_BITS)
        weights.scatter_add_(2, tap[..., None], weight[..., None])
    return weights


def _triangle(x: torch.Tensor, _: float) -> torch.Tensor:
    return torch.clamp(1.0 - x.abs(), min=0.0)


def _cubic(x: torch.Tensor, a: float) -> torch.Tensor:
    """Keys' cubic convolution (1981): a = -0.5 with antialiasing, -0.75 without, as in torch."""
    x = x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
