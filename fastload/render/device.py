"""Whole batches of crops, resizes, padding and mirroring by tensor operations, on the device that
holds the pixels.

There is no loop over samples: some twenty kernels for a batch, whatever its size. The host resolves
the geometry and sends it in one small copy. Resampling is two batched matrix products with the
weights of every sample, in float32. It agrees with torchvision to 2 of 255, mean 0.2 at most.

Matrix products add in another order for every shape and on every device. So that a sample's pixels
do not depend on the batch it is in, or on the number of ranks, all products are of integers
(weights of so many bits, pixels rounded between the axes as torchvision does), and all sums are
exact in float32, in whatever order.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torchvision.transforms.v2 import InterpolationMode, functional

from fastload.draws import BoolArray, Int64Array
from fastload.geometry import Fill, Geometry, Resampling
from fastload.geometry.grid import filter_weights, fold, nearest
from fastload.render import fused
from fastload.render.transfer import on_device

_WORKING_BYTES = 512 << 20
"""Intermediate memory of resampling that a part of a batch may take."""


def column(values: torch.Tensor) -> torch.Tensor:
    """(B,) parameters as (B, 1, 1, 1), to broadcast over (B, C, H, W)."""
    return values.view(-1, 1, 1, 1)


def choose_rows(rows: BoolArray, chosen: torch.Tensor, otherwise: torch.Tensor) -> torch.Tensor:
    """Row i of `chosen` where rows[i], of `otherwise` elsewhere: two (B, C, H, W) tensors of one
    dtype. `chosen` may have one channel for the several of `otherwise`."""
    if otherwise.dtype != torch.uint8:
        return torch.where(column(on_device(rows, otherwise.device)), chosen, otherwise)
    # a ^ ((a ^ b) & mask) is vectorised on a CPU, where torch.where takes ten times as long.
    mask = column(on_device(rows.astype(np.uint8) * 255, otherwise.device))
    return (otherwise ^ chosen).bitwise_and_(mask).bitwise_xor_(otherwise)


class _Rows(NamedTuple):
    """n rows of a geometry on the device, transposed: (4, n), (2, n) or (n,) int64 each."""

    box: torch.Tensor
    size: torch.Tensor
    window: torch.Tensor
    flip: torch.Tensor
    flipped_first: torch.Tensor
    start: torch.Tensor
    """First pixel of the image."""
    width: torch.Tensor
    """Of the image."""
    number: torch.Tensor
    """Row of the batch."""

    @classmethod
    def send(
        cls,
        geometry: Geometry,
        start: Int64Array,
        width: Int64Array,
        order: Int64Array,
        to: torch.device,
    ) -> _Rows:
        """The rows `order` of a geometry, in one copy."""
        first = geometry.flipped_first
        parts = [
            geometry.box.T,
            geometry.size.T,
            geometry.window.T,
            geometry.flip.T,
            (np.zeros_like(geometry.flip) if first is None else first).T,
            start[None],
            width[None],
        ]
        table = on_device(
            np.concatenate([*parts, np.arange(len(order))[None]], dtype=np.int64)[:, order], to
        )
        return cls(
            *(table[:4], table[4:6], table[6:10], table[10:12], table[12:14]),
            *(table[14], table[15], table[16]),
        )

    def part(self, rows: slice) -> _Rows:
        return _Rows(*(values[..., rows] for values in self))


def render_on_device(
    pixels: torch.Tensor,
    *,
    start: Int64Array,
    width: Int64Array,
    geometry: Geometry,
    resampling: Resampling,
    out_size: tuple[int, int],
) -> torch.Tensor:
    """Render a batch. Images may differ in size: they lie one after the other.

    Args:
        pixels: (P, C) uint8: all pixels of all images, on any device. Of any dtype where nothing is
            filtered.
        start: (B,): first pixel of each sample's image.
        width: (B,): of each sample's image.
        out_size: height, width of all windows.

    Returns:
        (B, h, w, C) on the device of `pixels`, of their dtype.
    """
    if geometry.bicubic is not None and resampling.interpolation == "bilinear":
        return _by_filter(
            geometry,
            resampling,
            lambda rows, part, filtering: render_on_device(
                pixels,
                start=start[rows],
                width=width[rows],
                geometry=part,
                resampling=filtering,
                out_size=out_size,
            ),
        )
    # The fused kernel counts the nearest pixel from one end alone.
    from_both_ends = geometry.flipped_first is not None and resampling.interpolation in (
        "nearest",
        "nearest-exact",
    )
    has_kernel = not from_both_ends and resampling.interpolation != "lanczos"
    if pixels.dtype == torch.uint8 and fused.active(pixels) and has_kernel:
        return fused.render(pixels, start, width, geometry, resampling, out_size)
    filters = geometry.resamples and resampling.weighs
    # Boxes of like sizes together: each part works on boxes as large as its largest.
    area = geometry.box[:, 2].astype(np.int64) * geometry.box[:, 3]
    order = np.argsort(area, kind="stable")[::-1] if filters else np.arange(len(geometry))
    rows = _Rows.send(geometry, start, width, order, pixels.device)
    shown = [_positions(rows, axis, out_size[axis]) for axis in (0, 1)]
    if geometry.pads:
        folded = [
            fold(shown[axis], rows.size[axis, :, None], resampling.padding_mode) for axis in (0, 1)
        ]
    else:
        folded = shown
    if filters:
        out = _resample(pixels, rows, folded, geometry.box[order], resampling, out_size)
    else:
        out = _gather(pixels, rows, folded, resampling if geometry.resamples else None)
    if geometry.pads and resampling.padding_mode == "constant":
        down, across = (
            positions != inside for positions, inside in zip(shown, folded, strict=True)
        )
        outside = down[:, :, None] | across[:, None, :]
        if filters:
            outside = torch.empty_like(outside).index_copy_(0, rows.number, outside)
        _fill(out, outside, resampling.fill)
    return out


def render_batch(pixels: torch.Tensor, geometry: Geometry, resampling: Resampling) -> torch.Tensor:
    """(B, C, h, w) from images of one size that are a batch (B, C, H, W) already, of any dtype and
    memory format, on the device that holds them. All grids are of one size, and all windows; `fill`
    is on the scale of the pixels."""
    if not len(pixels):
        return pixels
    if geometry.bicubic is not None and resampling.interpolation == "bilinear":
        return _by_filter(
            geometry,
            resampling,
            lambda rows, part, filtering: render_batch(
                pixels.index_select(0, on_device(rows, pixels.device)), part, filtering
            ),
        )
    filters = geometry.resamples and resampling.weighs
    if filters and (pixels.device.type == "cpu" or pixels.dtype != torch.uint8):
        pixels = _resized_boxes(pixels, geometry, resampling)
        whole = np.concatenate([np.zeros_like(geometry.size), geometry.size], axis=1)
        geometry = Geometry(whole, geometry.size, geometry.window, geometry.flip)
    batch, channels, height, width = pixels.shape
    if (geometry.window == (0, 0, height, width)).all() and (geometry.box == geometry.window).all():
        for axis, rows in enumerate(geometry.flip.T):
            if rows.all():
                pixels = pixels.flip(-1 - axis)
            elif rows.any():
                pixels = choose_rows(rows, pixels.flip(-1 - axis), pixels)
        return pixels
    rendered = render_on_device(
        pixels.permute(0, 2, 3, 1).reshape(-1, channels),
        start=np.arange(batch) * (height * width),
        width=np.full(batch, width),
        geometry=geometry,
        resampling=resampling,
        out_size=(int(geometry.window[0, 2]), int(geometry.window[0, 3])),
    )
    return rendered.permute(0, 3, 1, 2)


def _by_filter(
    geometry: Geometry,
    resampling: Resampling,
    render: Callable[[Int64Array, Geometry, Resampling], torch.Tensor],
) -> torch.Tensor:
    """Rows of different filters, rendered filter by filter and put back in their order."""
    assert geometry.bicubic is not None
    order, parts = [], []
    for filtering in (resampling, replace(resampling, interpolation="bicubic")):
        rows = np.flatnonzero(geometry.bicubic == (filtering.interpolation == "bicubic"))
        if len(rows):
            order.append(rows)
            some = Geometry(
                geometry.box[rows], geometry.size[rows], geometry.window[rows], geometry.flip[rows]
            )
            parts.append(render(rows, some, filtering))
    joined = torch.cat(parts)
    return joined[on_device(np.argsort(np.concatenate(order)), joined.device)]


def _positions(rows: _Rows, axis: int, length: int) -> torch.Tensor:
    """(n, length): position in the grid of each output row (axis 0) or column (1)."""
    offsets = torch.arange(length, device=rows.flip.device)
    mirrored = rows.flip[1 - axis, :, None]
    return rows.window[axis, :, None] + offsets + mirrored * (length - 1 - 2 * offsets)


def _gather(
    pixels: torch.Tensor, rows: _Rows, positions: list[torch.Tensor], resampling: Resampling | None
) -> torch.Tensor:
    """(n, h, w, C): one pixel of the image for each position in the grid, the nearest where that is
    resampled."""
    ys, xs = positions
    if resampling is not None:
        exact = resampling.interpolation == "nearest-exact"
        ys, xs = (
            nearest(
                where,
                rows.box[2 + axis, :, None],
                rows.size[axis, :, None],
                exact=exact,
                mirrored=rows.flipped_first[1 - axis, :, None],
            )
            for axis, where in enumerate(positions)
        )
    first = rows.start + rows.box[0] * rows.width + rows.box[1]
    lines = first[:, None] + ys * rows.width[:, None]
    index = lines[:, :, None] + xs[:, None, :]
    return pixels.index_select(0, index.view(-1)).view(*index.shape, pixels.shape[1])


def _fill(out: torch.Tensor, outside: torch.Tensor, fill: Fill) -> None:
    """Write a value, or one a channel, to the (B, h, w) pixels of (B, h, w, C) `out`; cut to whole
    numbers."""
    for channel, value in enumerate(fill):
        pixels = out if len(fill) == 1 else out[..., channel : channel + 1]
        pixels.masked_fill_(outside[..., None], value if out.is_floating_point() else int(value))


def _resized_boxes(
    pixels: torch.Tensor, geometry: Geometry, resampling: Resampling
) -> torch.Tensor:
    """(B, C, height, width) of the one size of the grids. Torch's kernels take one box at a time,
    and are faster on a CPU than anything that batches; on floating-point numbers only they do not
    depend on the batch."""
    parts = [pixels]
    if (geometry.box != (0, 0, *pixels.shape[2:])).any():
        parts = [
            pixels[row : row + 1, :, top : top + height, left : left + width]
            for row, (top, left, height, width) in enumerate(geometry.box.tolist())
        ]
    size, mode = geometry.size[0].tolist(), InterpolationMode(resampling.interpolation)
    if mode is InterpolationMode.LANCZOS:
        lanczos = torch.ops.aten._upsample_lanczos2d_aa
        return torch.cat([lanczos(p, size, False, None, None) for p in parts])
    resized = [
        functional.resize(p, size, interpolation=mode, antialias=resampling.antialias)
        for p in parts
    ]
    return resized[0] if len(resized) == 1 else torch.cat(resized)


def _resample(
    pixels: torch.Tensor,
    rows: _Rows,
    positions: list[torch.Tensor],
    boxes: npt.NDArray[np.int32],
    resampling: Resampling,
    out_size: tuple[int, int],
) -> torch.Tensor:
    """out[number] = rows of weights @ (box of the image @ columns of weights), for a part of the
    batch at a time."""
    (out_height, out_width), channels, device = out_size, pixels.shape[1], pixels.device
    out = torch.empty(
        (len(boxes), out_height, out_width, channels), dtype=torch.uint8, device=device
    )
    done = 0
    while done < len(boxes):
        height, width = (int(n) for n in boxes[done:, 2:].max(axis=0))
        # Index and pixels of the boxes, and the product along the columns before and after it is
        # transposed.
        each = height * width * (8 + 5 * channels) + 8 * out_width * height * channels
        part = slice(done, done + max(1, _WORKING_BYTES // each))
        done = part.stop
        some, count = rows.part(part), len(boxes[part])
        height, width = (int(n) for n in boxes[part, 2:].max(axis=0))
        lines, columns = (
            some.box[axis, :, None]
            + torch.minimum(torch.arange(length, device=device), some.box[2 + axis, :, None] - 1)
            for axis, length in enumerate((height, width))
        )
        first = some.start[:, None] + lines * some.width[:, None]
        index = first[:, :, None] + columns[:, None, :]
        source = pixels[index.view(-1)].view(count, height, width, channels)
        # Columns first, as torchvision.
        source = source.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format)
        down, across = (
            filter_weights(
                positions[axis][part],
                some.box[2 + axis],
                some.size[axis],
                (height, width)[axis],
                resampling,
            )
            for axis in (0, 1)
        )
        middle = _rounded(_product(across, source.view(count, width, height * channels)))
        middle = middle.view(count, out_width, height, channels).transpose(1, 2)
        result = _rounded(_product(down, middle.reshape(count, height, out_width * channels)))
        out[some.number] = result.to(torch.uint8).view(count, out_height, out_width, channels)
    return out


def _product(weights: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """Batched matrix product of float32 weights in multiples of 2^-15 and whole pixels, exact.

    A process may let matrix products round their operands to 11 bits (TF32), or to 8 (bfloat16).
    torch has several switches for that, and refuses to say what holds when they were set in two
    ways. So the weights always go in two parts of no more than 8 bits, as pixels have.
    """
    upper = weights.mul(2.0**7).round_().mul_(2.0**-7)
    with _without_autocast(pixels.device.type):
        return torch.bmm(upper, pixels).add_(torch.bmm(weights - upper, pixels))


def _without_autocast(device: str) -> AbstractContextManager[Any]:
    """In the trainer's thread batches may be made within its autocast, which would round products
    to half precision."""
    on = device != "meta" and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if on else nullcontext()


def _rounded(pixels: torch.Tensor) -> torch.Tensor:
    """To whole numbers from 0 to 255, in place."""
    return pixels.round_().clamp_(0, 255)
