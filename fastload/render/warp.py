"""One image under a projective map: rotations, shears, perspective.

The native core has the same arithmetic (fastload/native/warp.cpp), and is used where it is built.
The formula of "bilinear" is that of torch's `grid_sample` with padding "zeros", and of what
torchvision or OpenCV make of it with a fill; or that of Pillow's `Image.transform` (see
`WarpSampling`). Coordinates are float64, where torchvision has float32: pixels agree with it to 1
of 255 but where a position is within its rounding of the border between two pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from fastload import native
from fastload.draws import Float64Array
from fastload.geometry.plan import Warp, WarpSampling
from fastload.render.transfer import constants, on_device

Pixels = npt.NDArray[np.uint8]

_ROWS = 64
"""Of the output, worked on at a time."""


def warp_into(
    pixels: Pixels,
    inverse: Float64Array,
    sampling: WarpSampling,
    out: Pixels,
) -> None:
    """Write (H, W, C) `pixels` to (h, w, C) `out`, both of 1 to 4 channels; `inverse`: (3, 3), as
    of a `Warp`."""
    bilinear = sampling.interpolation == "bilinear"
    fill = np.broadcast_to(np.asarray(sampling.fill, np.float32), out.shape[2:]).copy()
    if native.available() and out.flags.c_contiguous:
        native.load().warp(
            np.ascontiguousarray(pixels),
            out,
            np.ascontiguousarray(inverse, dtype=np.float64),
            bilinear,
            sampling.fades,
            sampling.mixes,
            fill,
        )
        return
    for first in range(0, len(out), _ROWS):
        part = out[first : first + _ROWS]
        u, v = _positions(inverse, first, part.shape[:2])
        part[...] = _sampled(pixels, u, v, sampling, fill)


def _positions(
    inverse: Float64Array, first: int, size: tuple[int, ...]
) -> tuple[Float64Array, Float64Array]:
    """Where the centres of (h, w) output pixels lie, from row `first` on: x and y."""
    m = inverse.reshape(9)
    down = np.arange(first, first + size[0])[:, None] + 0.5
    across = np.arange(size[1]) + 0.5
    u, v = m[0] * across + (m[1] * down + m[2]), m[3] * across + (m[4] * down + m[5])
    if (m[6], m[7], m[8]) != (0.0, 0.0, 1.0):
        w = m[6] * across + (m[7] * down + m[8])
        with np.errstate(divide="ignore", invalid="ignore"):  # the horizon: outside
            u, v = u / w, v / w
    return u, v


def _sampled(
    pixels: Pixels,
    u: Float64Array,
    v: Float64Array,
    sampling: WarpSampling,
    fill: npt.NDArray[np.float32],
) -> Pixels:
    """(h, w, C) uint8: the image at these places."""
    height, width = pixels.shape[:2]
    bilinear, fades = sampling.interpolation == "bilinear", sampling.fades
    low = -0.5 if bilinear and fades else 0.0
    good = (u >= low) & (v >= low) & (u < width - low) & (v < height - low)
    u, v = np.where(good, u, 0.5), np.where(good, v, 0.5)
    if not bilinear:
        chosen = pixels[v.astype(np.int64), u.astype(np.int64)]
        return np.where(good[..., None], chosen, fill.astype(np.uint8))
    left, top = np.floor(u - 0.5), np.floor(v - 0.5)
    fx, fy = ((u - 0.5) - left).astype(np.float32), ((v - 0.5) - top).astype(np.float32)
    one = np.float32(1)
    weights = [(one - fx) * (one - fy), fx * (one - fy), (one - fx) * fy, fx * fy]
    x, y = left.astype(np.int64), top.astype(np.int64)
    total, mask = np.zeros((*u.shape, pixels.shape[2]), np.float32), np.zeros(u.shape, np.float32)
    whole = np.ones(u.shape, np.bool_)
    for number, weight in enumerate(weights):
        row, column = y + (number >> 1), x + (number & 1)
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        used = np.where(inside, weight, np.float32(0)) if fades else weight
        near = pixels[row.clip(0, height - 1), column.clip(0, width - 1)]
        total = total + used[..., None] * near.astype(np.float32)
        mask, whole = mask + used, whole & inside
    if fades:
        mask = np.where(whole, one, mask)[..., None]
        faded = (total - fill) * mask + fill
        if sampling.mixes:
            faded = np.where(whole[..., None], faded, total + (one - mask) * fill)
        total = np.rint(faded)
    sampled = total.clip(0, 255).astype(np.uint8)
    return np.where(good[..., None], sampled, fill.astype(np.uint8))


def warp_batch(
    pixels: torch.Tensor, warp: Warp, sampling: WarpSampling, out: torch.Tensor | None = None
) -> torch.Tensor:
    """(B, C, h, w): a batch of images of one size, of any dtype, on its device; all outputs are of
    one size. Sums of floating-point numbers are in float32. By the native core where it can, as
    `remap_batch`.

    `out`: memory other than that of `pixels`, in which the core may make them; else they are in new
    memory."""
    if not len(pixels):
        return pixels
    size = [int(n) for n in warp.size[0]]
    if _core_takes(pixels):
        return _by_core(pixels, size, sampling, "warp", zip(warp.inverse), out)
    inverse = on_device(warp.inverse.reshape(-1, 9), pixels.device)
    m = [inverse[:, number].view(-1, 1, 1) for number in range(9)]
    down, across = (
        torch.arange(length, device=pixels.device, dtype=torch.float64) + 0.5 for length in size
    )
    down = down[:, None]
    w = m[6] * across + (m[7] * down + m[8])
    u = (m[0] * across + (m[1] * down + m[2])) / w
    v = (m[3] * across + (m[4] * down + m[5])) / w
    return sample_batch(pixels, u, v, sampling)


def remap_batch(
    pixels: torch.Tensor, u: torch.Tensor, v: torch.Tensor, sampling: WarpSampling
) -> torch.Tensor:
    """`sample_batch`, by the native core where it can: bytes in host memory."""
    if not _core_takes(pixels):
        return sample_batch(pixels, u, v, sampling)
    places = zip(u.numpy(), v.numpy(), strict=True)
    return _by_core(pixels, u.shape[1:], sampling, "remap", places)


def _core_takes(pixels: torch.Tensor) -> bool:
    here = pixels.device.type == "cpu" and pixels.dtype == torch.uint8 and pixels.shape[1] <= 4
    return here and pixels.numel() > 0 and native.available()


def _by_core(
    pixels: torch.Tensor,
    size: Sequence[int],
    sampling: WarpSampling,
    function: Literal["warp", "remap"],
    places: Iterable[tuple[Float64Array, ...]],
    memory: torch.Tensor | None = None,
) -> torch.Tensor:
    """(B, C, *size): as `sample_batch`, in this thread. `places`: for each image what the core's
    function takes. `memory`: as `out` of `warp_batch`."""
    channels, bilinear = pixels.shape[1], sampling.interpolation == "bilinear"
    fill = np.broadcast_to(np.asarray(sampling.fill, np.float32), channels)
    rounds = sampling.fades and not bilinear
    fill = np.clip(np.rint(fill) if rounds else fill, 0, 255).astype(np.float32)
    packed = np.ascontiguousarray(pixels.permute(0, 2, 3, 1).numpy())
    shape = (len(packed), *size, channels)
    out = None if memory is None else memory.permute(0, 2, 3, 1).numpy()
    fits = out is not None and out.shape == shape and out.flags.c_contiguous
    if out is None or not fits or out.dtype != np.uint8:
        out = np.empty(shape, np.uint8)
    moved = getattr(native.load(), function)
    for image, made, given in zip(packed, out, places, strict=True):
        where = map(np.ascontiguousarray, given)
        moved(image, made, *where, bilinear, sampling.fades, sampling.mixes, fill)
    return torch.from_numpy(out).permute(0, 3, 1, 2)


def sample_batch(
    pixels: torch.Tensor, u: torch.Tensor, v: torch.Tensor, sampling: WarpSampling
) -> torch.Tensor:
    """(B, C, h, w): a batch of images at (B, h, w) float64 places x and y, on the same device; as
    `warp_batch`."""
    (count, channels, height, width), size = pixels.shape, u.shape[1:]
    bilinear = sampling.interpolation == "bilinear"
    low = -0.5 if bilinear and sampling.fades else 0.0
    good = (u >= low) & (v >= low) & (u < width - low) & (v < height - low)
    fill = constants(np.array(sampling.fill, dtype=np.float32), pixels.device).view(1, -1, 1, 1)
    if not bilinear:
        places = torch.where(good, v.floor() * width + u.floor(), 0.0).long().view(count, 1, -1)
        flat = pixels.reshape(count, channels, -1)
        sampled = flat.gather(2, places.expand(-1, channels, -1)).view(count, channels, *size)
        if sampling.fades and not pixels.is_floating_point():
            fill = fill.round()
        return torch.where(good[:, None], sampled, fill.to(pixels.dtype))
    grid = torch.stack([u * (2 / width) - 1, v * (2 / height) - 1], dim=-1)
    grid = torch.where(good[..., None], grid, 2.0).to(torch.float32)
    values = pixels.to(torch.float32)
    if sampling.fades:
        ones = values.new_ones((count, 1, height, width))
        values = torch.cat([values, ones], dim=1)
    outside: Literal["zeros", "border"] = "zeros" if sampling.fades else "border"
    sampled = functional.grid_sample(values, grid, padding_mode=outside, align_corners=False)
    if sampling.fades:
        sampled, mask = sampled[:, :channels], sampled[:, channels:]
        sampled = (
            sampled + (1.0 - mask) * fill if sampling.mixes else (sampled - fill) * mask + fill
        )
    sampled = torch.where(good[:, None], sampled, fill)
    if pixels.is_floating_point():
        return sampled.to(pixels.dtype)
    sampled, limits = (
        sampled.round() if sampling.fades else sampled.floor(),
        torch.iinfo(pixels.dtype),
    )
    if limits.bits > 16:  # float32 has no largest number of 32 bits
        sampled = sampled.to(torch.float64)
    return sampled.clamp(limits.min, limits.max).to(pixels.dtype)
