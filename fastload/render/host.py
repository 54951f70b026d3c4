"""One decoded image after the other into its row of the batch: the reference that other renderers are held against.

The steps are those of `fastload.geometry.Geometry`; the arithmetic is torchvision's for uint8 tensors (maximum
difference 1). Called from several threads at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from fastload.decode.base import DecodeSettings, ImageHeader
from fastload.decode.image import Scratch, decode_image
from fastload.decode.registry import get_decoder
from fastload.errors import DecodeError
from fastload.geometry import Fill, Interpolation, PaddingMode, Resampling, View
from fastload.geometry.grid import fold, nearest

Pixels = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.int64]
Integers = Sequence[int] | npt.NDArray[np.int32]
Booleans = Sequence[bool] | npt.NDArray[np.bool_]


@dataclass(frozen=True)
class EncodedRow:
    """One compressed sample and its place in the batch."""

    row: int
    """Row of the geometry and of the output."""
    data: bytes
    header: ImageHeader
    name: str
    """What to call it in messages."""


class EncodedRenderer(Protocol):
    """Decodes and renders. Picklable; called from several threads at once."""

    def render(self, rows: Sequence[EncodedRow], views: Sequence[View]) -> dict[int, DecodeError]:
        """Write row `sample.row` of each view for each sample, as `render_row` does.

        Args:
            rows: samples whose header has been read and accepted.
            views: all of one role; their geometries were resolved against the sizes that `upright_size` gives.

        Returns:
            The samples that are damaged, by row; what the views hold there is undefined.
        """
        ...


class _Local(threading.local):
    def __init__(self) -> None:
        self.decoded = Scratch()
        self.packed = Scratch()


_local = _Local()


@dataclass(frozen=True)
class PythonRenderer:
    """One sample after the other, with a decoder of `fastload.decode`. A backend with a renderer of its own (DALI)
    leaves to it what it cannot decode."""

    decoder: str
    """Name of the decoder, or "auto"."""
    settings: DecodeSettings

    def render(self, rows: Sequence[EncodedRow], views: Sequence[View]) -> dict[int, DecodeError]:
        decoder = get_decoder(self.decoder)
        damaged: dict[int, DecodeError] = {}
        for sample in rows:
            try:
                pixels = decode_image(
                    sample.data,
                    name=sample.name,
                    decoder=decoder,
                    settings=self.settings,
                    role=views[0].resampling.role,
                    header=sample.header,
                    scratch=_local.decoded,
                )
            except DecodeError as error:
                damaged[sample.row] = error
            else:
                for view in views:
                    render_row(pixels, sample.row, view)
        return damaged


def render_row(pixels: Pixels, row: int, view: View) -> None:
    """`render_into` for one row of a view."""
    geometry, resampling = view.geometry, view.resampling
    if geometry.bicubic is not None and geometry.bicubic[row] and resampling.interpolation == "bilinear":
        resampling = replace(resampling, interpolation="bicubic")
    render_into(
        pixels,
        box=geometry.box[row],
        size=geometry.size[row],
        window=geometry.window[row],
        flip=geometry.flip[row],
        resampling=resampling,
        out=view.out[row],
    )


def render_into(
    pixels: Pixels,
    *,
    box: Integers,
    size: Integers,
    out: Pixels,
    window: Integers | None = None,
    flip: Booleans = (False, False),
    resampling: Resampling | None = None,
) -> None:
    """Write one image into its place.

    `box`, `size`, `window` and `flip` are tuples, or rows of a `Geometry`.

    Args:
        pixels: (H, W, C) uint8.
        box: top, left, height, width of the part to use, within the image. The resize filter sees nothing else.
        size: height, width that the box is resampled to; no resampling if it is the box's own.
        out: (window height, window width, C) uint8 to write to.
        window: top, left, height, width of the part of the resampled grid to write; what lies outside is padding.
            None: the whole grid.
        flip: mirror left-right, mirror upside-down, after everything else.
        resampling: how pixels are made; None: bilinear, antialiased.
    """
    resampling = resampling or Resampling()
    top, left, height, width = (int(n) for n in box)
    grid = int(size[0]), int(size[1])
    view = _Window(*((0, 0, *grid) if window is None else (int(n) for n in window)), *(bool(f) for f in flip))
    cropped = pixels[top : top + height, left : left + width]
    if grid == (height, width):
        _place(cropped, view, resampling, out)
    elif resampling.interpolation in ("nearest", "nearest-exact"):
        exact = resampling.interpolation == "nearest-exact"
        axes = view.axes(grid, resampling.padding_mode)
        ys, xs = (
            _nearest(shown, length, limit, exact)
            for shown, length, limit in zip(axes, (height, width), grid, strict=True)
        )
        _gather(cropped, ys, xs, resampling.fill, out)
    elif view == _Window(0, 0, *grid) and out.flags.c_contiguous:
        _resize(cropped, resampling.interpolation, resampling.antialias, out)
    else:
        resized = np.empty((*grid, pixels.shape[2]), dtype=np.uint8)
        _resize(cropped, resampling.interpolation, resampling.antialias, resized)
        _place(resized, view, resampling, out)


@dataclass(frozen=True)
class _Window:
    """What to write: a part of the resampled grid, and how it is mirrored."""

    top: int
    left: int
    height: int
    width: int
    mirrored: bool = False
    upside_down: bool = False

    def axes(self, grid: tuple[int, int], padding_mode: PaddingMode) -> tuple[Rows, Rows]:
        """(height,) and (width,): row and column of the grid that each output row and column shows, -1 for fill."""
        rows = _shown(self.top, self.height, grid[0], padding_mode)
        columns = _shown(self.left, self.width, grid[1], padding_mode)
        return rows[::-1] if self.upside_down else rows, columns[::-1] if self.mirrored else columns


def _shown(start: int, length: int, limit: int, padding_mode: PaddingMode) -> Rows:
    positions = np.arange(start, start + length, dtype=np.int64)
    folded = fold(positions, np.array(limit), padding_mode)
    return np.where(positions == folded, positions, -1) if padding_mode == "constant" else folded


def _nearest(shown: Rows, length: int, limit: int, exact: bool) -> Rows:
    """From positions in a grid of `limit` rows to rows of the source, keeping -1."""
    return np.where(shown < 0, -1, nearest(shown, np.array(length), np.array(limit), exact=exact))


def _place(grid: Pixels, view: _Window, resampling: Resampling, out: Pixels) -> None:
    """Cut the window out of the grid, pad, flip."""
    bottom, right = view.top + view.height, view.left + view.width
    if view.top < 0 or view.left < 0 or bottom > grid.shape[0] or right > grid.shape[1]:
        rows, columns = view.axes((grid.shape[0], grid.shape[1]), resampling.padding_mode)
        _gather(grid, rows, columns, resampling.fill, out)
        return
    part = grid[view.top : bottom, view.left : right]
    if view.upside_down:
        part = part[::-1]
    if not view.mirrored:
        np.copyto(out, part)
        return
    for channel in range(out.shape[2]):  # numpy copies long rows of one channel faster than pixels of three
        np.copyto(out[..., channel], part[:, ::-1, channel])


def _gather(source: Pixels, rows: Rows, columns: Rows, fill: Fill, out: Pixels) -> None:
    """out[i, j] = source[rows[i], columns[j]], or the fill where either is -1."""
    np.copyto(out, source[np.maximum(rows, 0)[:, None], np.maximum(columns, 0)])
    outside = (rows < 0)[:, None] | (columns < 0)
    if outside.any():
        out[outside] = np.asarray(fill).astype(np.uint8)


def _resize(source: Pixels, interpolation: Interpolation, antialias: bool, out: Pixels) -> None:
    """Resample all of (H, W, C) `source`, a view with any strides, to the size of C-contiguous `out`.

    By the fastest correct code that is installed. On x86 that is torch's uint8 kernel (AVX2), which works on one core,
    as wanted here. Where torch has no such kernel it would share each image between the threads of its own pool, which
    gets in the way of ours, so there Pillow does the common case, antialiased bilinear. The two agree to 1 of 255.
    """
    if antialias and interpolation == "bilinear" and not _torch_has_simd():
        _resize_with_pillow(source, out)
        return
    # A strided tensor would be copied by torch with its thread pool, so copy it here.
    packed = _local.packed.take(source.shape)
    np.copyto(packed, source)
    # The operators behind torch.nn.functional.interpolate, called as such for their `out` argument.
    if interpolation == "bilinear":
        operator = torch.ops.aten._upsample_bilinear2d_aa if antialias else torch.ops.aten.upsample_bilinear2d
    else:
        operator = torch.ops.aten._upsample_bicubic2d_aa if antialias else torch.ops.aten.upsample_bicubic2d
    operator.out(_planes(packed), out.shape[:2], False, None, None, out=_planes(out))


@cache
def _torch_has_simd() -> bool:
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def _planes(array: Pixels) -> torch.Tensor:
    """(1, C, H, W) in channels_last memory: the batch axis first, so that torch sees the layout for what it is."""
    return torch.from_numpy(array)[None].permute(0, 3, 1, 2)


def _resize_with_pillow(source: Pixels, out: Pixels) -> None:
    height, width, channels = out.shape
    planes = [(source, out)] if channels == 3 else [(source[..., c], out[..., c]) for c in range(channels)]
    for plane, target in planes:
        image = Image.fromarray(np.ascontiguousarray(plane)).resize((width, height), Image.Resampling.BILINEAR)
        np.copyto(target, np.asarray(image))
