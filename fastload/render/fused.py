"""One kernel in place of many, where there is a CUDA device and Triton; torch's operations
everywhere else. `active` tells which, and `why_not` why. The bits are the same both ways:
tests/test_render_fused.py runs the kernels on the CPU, in Triton's interpreter
(TRITON_INTERPRET=1), against the operations that they take the place of.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastload.geometry import Geometry, Resampling
from fastload.render.steps import (
    BlurSteps,
    ClaheSteps,
    ColourSteps,
    FilterSteps,
    JpegSteps,
    MedianSteps,
    MixtureSteps,
    NoiseSteps,
    Steps,
)
from fastload.render.transfer import constants, on_device

_BLOCK = 256
"""Pixels of a program that blurs; rows and columns of one that weighs."""
_RENDER_BLOCK = 256
"""Output pixels of a program."""
_NORMALISE_BLOCK = 1024
"""Values of a program."""
_COLOUR_BLOCK = 1024
"""Pixels that a program works on at a time."""
SWITCH = "FASTLOAD_FUSED"
"""Environment variable: 0 turns the kernels off; 1 turns them on for the CPU too, where they need
Triton's interpreter (TRITON_INTERPRET=1), which is slow and for tests."""
PADDING = {"constant": 0, "edge": 1, "reflect": 2, "symmetric": 3}


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def why_not(device: torch.device) -> str:
    """Why work on a device is not done by the kernels, for a person; empty where it is. All that
    launches one asks here, or `active`, first."""
    switch = os.environ.get(SWITCH, "")
    if device.type == "cuda":
        if switch == "0":
            return f"{SWITCH}=0"
        from fastload.render.trial import failure

        return failure(device, lambda out: launch(kernels().trial, (1,), out))
    if device.type == "cpu" and switch == "1":
        return "" if _has_triton() else "Triton is not installed"
    return "kernels are for CUDA devices"


def active(tensor: torch.Tensor) -> bool:
    """Whether work on this tensor is done by the kernels."""
    return not why_not(tensor.device)


def explained(device: torch.device) -> str:
    """Who does the work on a device, for a person."""
    why = why_not(device)
    return f"none, torch's operations do their work: {why}" if why else "Triton's"


def kernels() -> Any:
    """The module that needs Triton."""
    return import_module("fastload.render.kernels")


def colour_kernels() -> Any:
    """The other module that needs Triton."""
    return import_module("fastload.render.kernels_colour")


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Queue a kernel on the current stream of the GPU of its first argument. Sums of products are
    rounded as they are written.

    The blocks of all rows lie along the first axis of a grid: along the others a GPU has 65,535
    programs at most, and an image of 17 megapixels has more blocks.
    """
    device = arguments[0].device
    # Triton takes the current GPU, which in the trainer's thread may be another one.
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel[grid](*arguments, enable_fp_fusion=False, **constants)


def render(
    pixels: torch.Tensor,
    start: npt.NDArray[np.int64],
    image_width: npt.NDArray[np.int64],
    geometry: Geometry,
    resampling: Resampling,
    out_size: tuple[int, int],
) -> torch.Tensor:
    """As `render_on_device`, for uint8 pixels and one filter."""
    found, (height, width), channels = kernels(), out_size, pixels.shape[1]
    out = torch.empty(
        (len(geometry), height, width, channels), dtype=torch.uint8, device=pixels.device
    )
    if not out.numel():
        return out
    how, cubic, a = _how(geometry, resampling)
    taps = taps_of(geometry, how, cubic)
    table = on_device(_table_of(geometry, start, image_width, taps), pixels.device)
    padding: dict[str, Any] = {
        "PADS": bool(geometry.pads),
        "MODE": PADDING[resampling.padding_mode],
    }
    firsts = weights = out  # of no use
    most, sides = int(taps.max()), height + width
    if how == _ANTIALIASED:
        firsts = torch.empty((len(geometry), sides), dtype=torch.int32, device=pixels.device)
        weights = firsts.new_empty((len(geometry), most, sides), dtype=torch.float32)
        launch(
            found.weigh,
            (len(geometry), -(-sides // _BLOCK)),
            *(table, firsts, weights, height, width, most),
            CUBIC=cubic,
            A=a,
            **padding,
            BLOCK=_BLOCK,
        )
    fill = np.broadcast_to(np.trunc(np.array(resampling.fill, dtype=np.float32)), channels)
    together = 3 if channels == 3 else 1
    launch(
        found.render,
        (len(geometry) * -(-height * width // _RENDER_BLOCK), channels // together),
        *(pixels, table, firsts, weights, _constants(fill, pixels.device), out),
        *(height, width, most),
        CHANNELS=channels,
        TOGETHER=together,
        HOW=how,
        CUBIC=cubic,
        A=a,
        **padding,
        BLOCK=_RENDER_BLOCK,
    )
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
    _, channels, height, width = out.shape
    if out.numel():
        device, values = images.device, channels * height * width
        mixed: torch.Tensor | None = None
        if weight is not None:
            weights = np.array([weight, 1.0 - weight], dtype=np.float32).view(np.int32)
            sent = np.concatenate([weights, np.array(box or (0, 0, 0, 0), dtype=np.int32)])
            mixed = on_device(sent, device)
        launch(
            kernels().normalise,
            (len(images) * -(-values // _NORMALISE_BLOCK),),
            *(images, _constants(scale, device), _constants(offset, device), out),
            *(values, height * width, mixed if mixed is not None else out, len(images), width),
            CHANNELS=channels,
            PLANAR=images.is_contiguous(),
            BLENDS=weight is not None and box is None,
            CUTS=weight is not None and box is not None,
            BLOCK=_NORMALISE_BLOCK,
        )
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
    (_, channels, height, width), device = out.shape, out.device
    counts = np.maximum((kinds >= 0).sum(axis=1), 1).astype(np.int32)
    fill = np.broadcast_to(np.array(steps.fill or 0.0, dtype=np.float32), channels)
    scratch = torch.empty_like(out) if counts.max() > 1 else out
    tables = torch.empty(batch, 256, dtype=torch.uint8, device=device)
    # One small copy for all of the numbers.
    sent = on_device(
        np.concatenate([counts, kinds.ravel(), numbers.view(np.int32).ravel()]), device
    )
    first, second = batch, batch + kinds.size
    launch(
        colour_kernels().recolour,
        (batch,),
        *(images, sent[first:second], sent[second:].view(torch.float32), sent[:first]),
        kinds.shape[1],
        *(_constants(fill, device), out, scratch, tables, batch // len(images), height, width),
        *(images.stride(0), images.stride(1), images.stride(3)),
        CHANNELS=channels,
        BILINEAR=steps.bilinear,
        FILLS=steps.fill is not None,
        BLOCK=_COLOUR_BLOCK,
    )
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
        launch(
            colour_kernels().add_weighted,
            (len(images) * -(-out[0].numel() // _COLOUR_BLOCK),),
            *(images, parts, on_device(steps.weights, images.device), out, out[0].numel()),
            PARTS=steps.weights.shape[1] - 1,
            BLOCK=_COLOUR_BLOCK,
        )
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
    batch, channels, height, width = images.shape
    middle, out = torch.empty_like(images, dtype=torch.float32), torch.empty_like(images)
    if not images.numel():
        return out
    grid, plane = (batch * channels * -(-height * width // _BLOCK),), height * width
    for source, weights, target, axis in (
        (images, down, middle, (height, width, plane, 1, width)),
        (middle, across, out, (width, 1, plane, width, height)),
    ):
        launch(
            colour_kernels().blur,
            grid,
            *(source, on_device(weights, images.device), target, batch, channels, *axis),
            TAPS=len(weights),
            WHOLE=target is out,
            BLOCK=_BLOCK,
        )
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


_GATHER, _NEAREST, _NEAREST_EXACT, _ANTIALIASED, _INTERPOLATED = range(5)
"""As in the kernel."""


def _how(geometry: Geometry, resampling: Resampling) -> tuple[int, bool, float]:
    """How pixels are found: the way, whether the filter is cubic, its parameter."""
    interpolation = resampling.interpolation
    if not geometry.resamples:
        return _GATHER, False, 0.0
    if interpolation in ("nearest", "nearest-exact"):
        return _NEAREST if interpolation == "nearest" else _NEAREST_EXACT, False, 0.0
    cubic = interpolation == "bicubic"
    return (_ANTIALIASED, cubic, -0.5) if resampling.antialias else (_INTERPOLATED, cubic, -0.75)


def taps_of(geometry: Geometry, how: int, cubic: bool) -> npt.NDArray[np.int64]:
    """(B, 2) int64: at least as many input positions down and across as an output position of a
    sample is made of."""
    taps = np.ones((len(geometry), 2), dtype=np.int64)
    if how == _INTERPOLATED:
        taps[:] = 4 if cubic else 2
    elif how == _ANTIALIASED:
        # From floor(c - reach + 0.5) to floor(c + reach + 0.5): ceil(2 * reach) at most, and one
        # more where the latter is rounded up to a whole number. The former, where it is not below a
        # whole number, is not rounded to below. In float32, as the kernel.
        scale = geometry.box[:, 2:].astype(np.float32) / geometry.size.astype(np.float32)
        reach = np.maximum(scale, np.float32(1.0)) * (2 if cubic else 1)
        taps[:] = np.ceil(2 * reach) + 1
    return taps


def _constants(values: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    return constants(values, device)
