"""Crop, resize, window, flip: one decoded image into its row of the batch.

The steps are those of `recipe.geometry.Geometry`; the arithmetic is torchvision's for uint8 tensors (maximum
difference 1).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastload.recipe.ops import Fill, Interpolation, PaddingMode
from fastload.render.grid import grid_rows, nearest_rows
from fastload.render.resize import resize_into

__all__ = ["render_into"]

Pixels = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.intp]


def render_into(
    pixels: Pixels,
    *,
    box: tuple[int, int, int, int],
    size: tuple[int, int],
    window: tuple[int, int, int, int],
    flip: tuple[bool, bool],
    interpolation: Interpolation,
    antialias: bool,
    padding_mode: PaddingMode,
    fill: Fill,
    out: Pixels,
) -> None:
    """Write one image into its place.

    Args:
        pixels: (H, W, C) uint8.
        box: top, left, height, width of the part to use, within the image. The resize filter sees nothing else.
        size: height, width that the box is resampled to; no resampling if it is the box's own.
        window: top, left, height, width of the part of the resampled grid to write; what lies outside is padding.
        flip: mirror left-right, mirror upside-down, after everything else.
        interpolation: "nearest" as torchvision has it for tensors, for masks.
        antialias: widen the filter of "bilinear" and "bicubic" when shrinking.
        padding_mode: how the window's outside is made.
        fill: one value, or one a channel, of "constant" padding.
        out: (window height, window width, C) uint8 to write to.
    """
    top, left, height, width = box
    cropped = pixels[top : top + height, left : left + width]
    if size == (height, width):
        _place(cropped, window, flip, padding_mode, fill, out)
    elif interpolation in ("nearest", "nearest-exact"):
        exact = interpolation == "nearest-exact"
        rows = _axis(window[0], window[2], size[0], padding_mode, flip[1])
        columns = _axis(window[1], window[3], size[1], padding_mode, flip[0])
        _gather(
            cropped,
            _through(rows, nearest_rows(size[0], height, exact=exact)),
            _through(columns, nearest_rows(size[1], width, exact=exact)),
            fill,
            out,
        )
    elif window == (0, 0, *size) and flip == (False, False) and out.flags.c_contiguous:
        resize_into(cropped, interpolation=interpolation, antialias=antialias, out=out)
    else:
        resized = np.empty((*size, pixels.shape[2]), dtype=np.uint8)
        resize_into(cropped, interpolation=interpolation, antialias=antialias, out=resized)
        _place(resized, window, flip, padding_mode, fill, out)


def _place(
    grid: Pixels,
    window: tuple[int, int, int, int],
    flip: tuple[bool, bool],
    padding_mode: PaddingMode,
    fill: Fill,
    out: Pixels,
) -> None:
    """Cut the window out of the grid, pad, flip."""
    top, left, height, width = window
    if top >= 0 and left >= 0 and top + height <= grid.shape[0] and left + width <= grid.shape[1]:
        part = grid[top : top + height, left : left + width]
        if flip[1]:
            part = part[::-1]
        if not flip[0]:
            np.copyto(out, part)
            return
        for channel in range(out.shape[2]):  # numpy copies long rows of one channel faster than pixels of three
            np.copyto(out[..., channel], part[:, ::-1, channel])
        return
    rows = _axis(top, height, grid.shape[0], padding_mode, flip[1])
    columns = _axis(left, width, grid.shape[1], padding_mode, flip[0])
    _gather(grid, rows, columns, fill, out)


def _axis(start: int, length: int, limit: int, padding_mode: PaddingMode, flipped: bool) -> Rows:
    """(length,) position in the grid of each output row or column, -1 for constant padding."""
    rows = grid_rows(start, length, limit, padding_mode)
    return rows[::-1] if flipped else rows


def _through(rows: Rows, source: Rows) -> Rows:
    """Follow positions in the grid to positions in the source, keeping -1."""
    return np.where(rows < 0, -1, source[rows])


def _gather(source: Pixels, rows: Rows, columns: Rows, fill: Fill, out: Pixels) -> None:
    """out[i, j] = source[rows[i], columns[j]], or the fill where either is -1."""
    np.copyto(out, source[np.maximum(rows, 0)[:, None], np.maximum(columns, 0)])
    outside = (rows < 0)[:, None] | (columns < 0)
    if outside.any():
        out[outside] = np.asarray(fill).astype(np.uint8)
