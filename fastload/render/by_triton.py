"""Launches of the kernels in Triton. `fastload.render.by_nvrtc` has the same functions."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from fastload.render.transfer import on_device

if TYPE_CHECKING:
    from fastload.render.steps import ColourSteps, Filtering

_BLOCK = 256
"""Pixels of a program that blurs or renders; rows and columns of one that weighs."""
_VALUES = 1024
"""Values of a program that converts; pixels that one that recolours works on at a time."""


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


def trial(out: torch.Tensor) -> None:
    """Launch the smallest kernel there is, which writes 1 to (1,) int32."""
    launch(_images().trial, (1,), out)


def render(
    pixels: torch.Tensor,
    table: torch.Tensor,
    weighed: tuple[torch.Tensor, torch.Tensor] | None,
    fill: torch.Tensor,
    out: torch.Tensor,
    most: int,
    filtering: Filtering,
) -> None:
    """As the kernel `render` of `fastload.render.kernels`, which says what is what; `weighed`:
    `firsts` and `weights`, which are made first, of an antialiased resize."""
    found, (rows, height, width, channels) = _images(), out.shape
    how: dict[str, Any] = dict(zip(("CUBIC", "A", "PADS", "MODE"), filtering[1:], strict=True))
    if weighed is not None:
        launch(
            found.weigh,
            (rows, -(-(height + width) // _BLOCK)),
            *(table, *weighed, height, width, most),
            **how,
            BLOCK=_BLOCK,
        )
    together = 3 if channels == 3 else 1
    launch(
        found.render,
        (rows * -(-height * width // _BLOCK), channels // together),
        *(pixels, table, *(weighed or (out, out)), fill, out, height, width, most),
        CHANNELS=channels,
        TOGETHER=together,
        HOW=filtering.how,
        **how,
        BLOCK=_BLOCK,
    )


def normalise(
    images: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor,
    out: torch.Tensor,
    weight: float | None,
    box: tuple[int, int, int, int] | None,
) -> None:
    """As `fastload.render.fused.normalise`."""
    (rows, channels, height, width), mixed = out.shape, out
    if weight is not None:
        weights = np.array([weight, 1.0 - weight], dtype=np.float32).view(np.int32)
        sent = np.concatenate([weights, np.array(box or (0, 0, 0, 0), dtype=np.int32)])
        mixed = on_device(sent, images.device)
    values = channels * height * width
    launch(
        _images().normalise,
        (rows * -(-values // _VALUES),),
        *(images, scale, offset, out, values, height * width, mixed, rows, width),
        CHANNELS=channels,
        PLANAR=images.is_contiguous(),
        BLENDS=weight is not None and box is None,
        CUTS=weight is not None and box is not None,
        BLOCK=_VALUES,
    )


def drawn(
    pixels: torch.Tensor,
    order: torch.Tensor,
    rows: torch.Tensor,
    steps: torch.Tensor,
    numbers: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    first: int,
    step_count: int,
    size: tuple[int, int],
    mode: int,
    constants: dict[str, int],
    *,
    converts: bool,
) -> None:
    """As the kernel of `fastload.render.kernels_drawn`; `numbers`: fill, scale, offset."""
    count, height, width, channels = out.shape
    launch(
        import_module("fastload.render.kernels_drawn").drawn,
        (count * -(-height * width * channels // _VALUES),),
        *(pixels, order, rows, first, steps, *numbers, out),
        HEIGHT=size[0],
        WIDTH=size[1],
        OUT_HEIGHT=height,
        OUT_WIDTH=width,
        CHANNELS=channels,
        STEPS=step_count,
        MODE=mode,
        CONVERTS=converts,
        BLOCK=_VALUES,
        **constants,
    )


def recolour(
    images: torch.Tensor,
    steps: ColourSteps,
    kinds: npt.NDArray[np.int32],
    numbers: npt.NDArray[np.float32],
    fill: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """As `fastload.render.fused.recolour`, of `steps.in_front()`."""
    (batch, channels, height, width), device = out.shape, out.device
    counts = np.maximum((kinds >= 0).sum(axis=1), 1).astype(np.int32)
    scratch = torch.empty_like(out) if counts.max() > 1 else out
    tables = torch.empty(batch, 256, dtype=torch.uint8, device=device)
    # One small copy for all of the numbers.
    sent = on_device(
        np.concatenate([counts, kinds.ravel(), numbers.view(np.int32).ravel()]), device
    )
    first, second = batch, batch + kinds.size
    launch(
        _colour().recolour,
        (batch,),
        *(images, sent[first:second], sent[second:].view(torch.float32), sent[:first]),
        kinds.shape[1],
        *(fill, out, scratch, tables, batch // len(images), height, width),
        *(images.stride(0), images.stride(1), images.stride(3)),
        CHANNELS=channels,
        BILINEAR=steps.bilinear,
        FILLS=steps.fill is not None,
        BLOCK=_VALUES,
    )


def add_weighted(
    images: torch.Tensor, parts: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
) -> None:
    """As the kernel of `fastload.render.kernels_colour`."""
    size = out[0].numel()
    launch(
        _colour().add_weighted,
        (len(images) * -(-size // _VALUES),),
        *(images, parts, weights, out, size),
        PARTS=weights.shape[1] - 1,
        BLOCK=_VALUES,
    )


def blur(
    images: torch.Tensor,
    weights: torch.Tensor,
    out: torch.Tensor,
    shape: tuple[int, int, int, int],
    *,
    down: bool,
) -> None:
    """As the kernel of `fastload.render.kernels_colour`, along one axis of planar images."""
    batch, channels, height, width = shape
    plane = height * width
    along = (height, width, plane, 1, width) if down else (width, 1, plane, width, height)
    launch(
        _colour().blur,
        (batch * channels * -(-plane // _BLOCK),),
        *(images, weights, out, batch, channels, *along),
        TAPS=len(weights),
        WHOLE=not down,
        BLOCK=_BLOCK,
    )


def _images() -> Any:
    """A module that needs Triton."""
    return import_module("fastload.render.kernels")


def _colour() -> Any:
    """Another one."""
    return import_module("fastload.render.kernels_colour")
