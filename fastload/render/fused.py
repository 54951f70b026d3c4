"""One kernel in place of many, on a CUDA device; torch's operations everywhere else. The kernels
are written twice: in CUDA C, which NVRTC compiles on any machine, and in Triton, which needs a
compiler and Python's headers there. `way` tells who does the work, and `why_not` why not. The bits
are the same each way: tests/test_render_fused.py runs the kernels on the CPU, those in CUDA C by
the native core, those in Triton by its interpreter (TRITON_INTERPRET=1), against the operations
that they take the place of.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastload import native
from fastload.geometry import Geometry, Resampling
from fastload.render.steps import (
    BlurSteps,
    ClaheSteps,
    ColourSteps,
    Filtering,
    FilterSteps,
    JpegSteps,
    MedianSteps,
    MixtureSteps,
    NoiseSteps,
    Steps,
)
from fastload.render.transfer import constants, on_device

SWITCH = "FASTLOAD_FUSED"
"""Environment variable: 0 turns the kernels off; "nvrtc" or "triton" has those alone, and 1 those
that come first; on a CPU too, which is for tests: there the native core runs the former, Triton's
interpreter (TRITON_INTERPRET=1) the latter."""
PADDING = {"constant": 0, "edge": 1, "reflect": 2, "symmetric": 3}
"""As in the kernels."""
WAYS = {"nvrtc": "in CUDA C, compiled by NVRTC", "triton": "Triton's"}
"""Whose kernels, in the order in which they are tried, in words."""


def way(device: torch.device) -> str:
    """Which of WAYS does the work on a device; empty where torch's operations do. All that launches
    a kernel asks here, or `active`, first."""
    return _choice(device)[0]


def why_not(device: torch.device) -> str:
    """Why work on a device is not done by the kernels, for a person; empty where it is."""
    found, why = _choice(device)
    return "" if found else why


def _choice(device: torch.device) -> tuple[str, str]:
    """The way, and why it is not the first of them, or none."""
    switch = os.environ.get(SWITCH, "")
    asked = (switch,) if switch in WAYS else tuple(WAYS)
    if device.type == "cuda":
        if switch == "0":
            return "", f"{SWITCH}=0"
        from fastload.render.trial import choice

        return choice(device, asked)
    if device.type == "cpu" and switch in (*WAYS, "1"):
        there = {"nvrtc": native.available(), "triton": find_spec("triton") is not None}
        found = next((name for name in asked if there[name]), "")
        return found, "" if found else f"neither the native core nor Triton is here ({SWITCH})"
    return "", "kernels are for CUDA devices"


def active(tensor: torch.Tensor) -> bool:
    """Whether work on this tensor is done by the kernels."""
    return bool(way(tensor.device))


def explained(device: torch.device) -> str:
    """Who does the work on a device, for a person."""
    found, why = _choice(device)
    if not found:
        return f"none, torch's operations do their work: {why}"
    return WAYS[found] + (f". {why}" if why else "")


def kernels(device: torch.device) -> Any:
    """The module that launches the kernels on a device, where there are any: of `by_nvrtc` and
    `by_triton`, which have the same functions."""
    return import_module(f"fastload.render.by_{way(device)}")


def render(
    pixels: torch.Tensor,
    start: npt.NDArray[np.int64],
    image_width: npt.NDArray[np.int64],
    geometry: Geometry,
    resampling: Resampling,
    out_size: tuple[int, int],
) -> torch.Tensor:
    """As `render_on_device`, for uint8 pixels and one filter."""
    (height, width), channels, device = out_size, pixels.shape[1], pixels.device
    out = torch.empty((len(geometry), height, width, channels), dtype=torch.uint8, device=device)
    if not out.numel():
        return out
    how, cubic, a = _how(geometry, resampling)
    taps = taps_of(geometry, how, cubic)
    table = on_device(_table_of(geometry, start, image_width, taps), device)
    filtering = Filtering(how, cubic, a, bool(geometry.pads), PADDING[resampling.padding_mode])
    weighed, most, sides = None, int(taps.max()), height + width
    if how == ANTIALIASED:
        firsts = torch.empty((len(geometry), sides), dtype=torch.int32, device=device)
        weights = firsts.new_empty((len(geometry), most, sides), dtype=torch.float32)
        weighed = firsts, weights
    fill = np.broadcast_to(np.trunc(np.array(resampling.fill, dtype=np.float32)), channels)
    filled = constants(fill, device)
    kernels(device).render(pixels, table, weighed, filled, out, most, filtering)
    return out


def normalise(
    images: torch.Tensor,
    scale: npt.NDArray[np.float32],
    offset: npt.NDArray[np.float32],
    dtype: torch.dtype,
    *,
    weight: float | None = None,
    box: tuple[int, int, int, int] | None = None,
) -> torch.Tensor:
    """(B, C, H, W) uint8 images times (C,) `scale` plus (C,) `offset`, rounded once to float32 and
    then to `dtype`; in the memory format of the images.

    With a `weight`, each is blended with the one before it in the batch, in float32: that much of
    itself. With a `box` (left, top, right, bottom) as well, that box is of the other in place of
    it.
    """
    images = _with_rows_together(images)
    out = torch.empty_like(images, dtype=dtype)
    if out.numel():
        device = images.device
        numbers = constants(scale, device), constants(offset, device)
        kernels(device).normalise(images, *numbers, out, weight, box)
    return out


def recolour(images: torch.Tensor, steps: ColourSteps) -> torch.Tensor:
    """(B, C, H, W) uint8 images, C = 1 or 3, after their steps; in the memory format of the
    images, or planar. With steps of K times B samples, the first K are those of the first image,
    and the result is (K * B, C, H, W)."""
    if images.shape[1] not in (1, 3):  # steps of single values, see `of_any_channels`
        values = images.reshape(len(images), 1, -1, images.shape[3])
        return recolour(values, steps).view(-1, *images.shape[1:])
    images = _with_rows_together(images)
    kinds, numbers = steps.in_front()
    batch = len(kinds)
    memory_format = torch.contiguous_format if images.is_contiguous() else torch.channels_last
    out = torch.empty(
        (batch, *images.shape[1:]),
        dtype=torch.uint8,
        device=images.device,
        memory_format=memory_format,
    )
    if not out.numel():
        return out
    fill = np.broadcast_to(np.array(steps.fill or 0.0, dtype=np.float32), out.shape[1])
    filled = constants(fill, out.device)
    kernels(out.device).recolour(images, steps, kinds, numbers, filled, out)
    return out


def run(images: torch.Tensor, steps: Sequence[Steps]) -> torch.Tensor:
    """(B, C, H, W) uint8 images after all of these, one after the other. There is no kernel for
    noise, filters and medians, which torch makes, and for JPEGs and CLAHE, which the host makes."""
    for part in steps:
        if isinstance(part, BlurSteps):
            images = blur(images, part)
        elif isinstance(part, MixtureSteps):
            images = mixture(images, part)
        elif isinstance(part, NoiseSteps):
            from fastload.render.noise import add_noise

            images = add_noise(images, part)
        elif isinstance(part, FilterSteps):
            from fastload.render.neighbours import convolved

            images = convolved(images, part)
        elif isinstance(part, MedianSteps):
            from fastload.render.neighbours import medians

            images = medians(images, part)
        elif isinstance(part, ClaheSteps):
            from fastload.render.clahe import equalized

            images = equalized(images, part)
        elif isinstance(part, JpegSteps):
            from fastload.render.jpeg import recompressed

            images = recompressed(images, part)
        else:
            images = recolour(images, part)
    return images


def mixture(images: torch.Tensor, steps: MixtureSteps) -> torch.Tensor:
    """(B, C, H, W) uint8 images, each mixed with what its chains of steps make of it."""
    images = _with_rows_together(images)
    parts, out = recolour(images, steps.chains), torch.empty_like(images)
    if out.numel():
        weights = on_device(steps.weights, images.device)
        kernels(images.device).add_weighted(images, parts, weights, out)
    return out


def blur(images: torch.Tensor, steps: BlurSteps) -> torch.Tensor:
    """(B, C, H, W) uint8 images, smoothed. Planar."""
    if steps.rows is not None:
        rows = np.flatnonzero(steps.rows)
        if not len(rows):
            return images
        chosen = on_device(rows, images.device)
        some = BlurSteps(steps.down[:, rows], steps.across[:, rows])
        return images.index_copy(0, chosen, blur(images.index_select(0, chosen), some))
    down, across = steps.down, steps.across
    images = images.contiguous()
    middle, out = torch.empty_like(images, dtype=torch.float32), torch.empty_like(images)
    if out.numel():
        device, shape = images.device, tuple(images.shape)
        blur_along = kernels(device).blur
        blur_along(images, on_device(down, device), middle, shape, down=True)
        blur_along(middle, on_device(across, device), out, shape, down=False)
    return out


def _with_rows_together(images: torch.Tensor) -> torch.Tensor:
    """In one of the two memory formats, so that a kernel can number the pixels."""
    # Not is_contiguous(), to which the stride along a side of one pixel does not matter.
    for memory_format in (torch.contiguous_format, torch.channels_last):
        like = torch.empty(images.shape, device="meta", memory_format=memory_format)
        if images.stride() == like.stride():
            return images
    return images.clone(memory_format=torch.contiguous_format)


def _table_of(
    geometry: Geometry,
    start: npt.NDArray[np.int64],
    width: npt.NDArray[np.int64],
    taps: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """(B, 14) int64: what the kernel must know of each sample."""
    parts = [
        geometry.box,
        geometry.size,
        geometry.window[:, :2],
        geometry.flip,
        start[:, None],
        width[:, None],
        taps,
    ]
    return np.concatenate(parts, axis=1, dtype=np.int64)


GATHER, NEAREST, NEAREST_EXACT, ANTIALIASED, INTERPOLATED = range(5)
"""As in the kernels."""


def _how(geometry: Geometry, resampling: Resampling) -> tuple[int, bool, float]:
    """How pixels are found: the way, whether the filter is cubic, its parameter."""
    interpolation = resampling.interpolation
    if not geometry.resamples:
        return GATHER, False, 0.0
    if interpolation in ("nearest", "nearest-exact"):
        return NEAREST if interpolation == "nearest" else NEAREST_EXACT, False, 0.0
    cubic = interpolation == "bicubic"
    return (ANTIALIASED, cubic, -0.5) if resampling.antialias else (INTERPOLATED, cubic, -0.75)


def taps_of(geometry: Geometry, how: int, cubic: bool) -> npt.NDArray[np.int64]:
    """(B, 2) int64: at least as many input positions down and across as an output position of a
    sample is made of."""
    taps = np.ones((len(geometry), 2), dtype=np.int64)
    if how == INTERPOLATED:
        taps[:] = 4 if cubic else 2
    elif how == ANTIALIASED:
        # From floor(c - reach + 0.5) to floor(c + reach + 0.5): ceil(2 * reach) at most, and one
        # more where the latter is rounded up to a whole number. The former, where it is not below a
        # whole number, is not rounded to below. In float32, as the kernel.
        scale = geometry.box[:, 2:].astype(np.float32) / geometry.size.astype(np.float32)
        reach = np.maximum(scale, np.float32(1.0)) * (2 if cubic else 1)
        taps[:] = np.ceil(2 * reach) + 1
    return taps
