"""Crop, resize, window, flip: one decoded image into its row of the batch.

The steps are those of `geometry.Geometry`; the arithmetic is torchvision's for uint8 tensors (maximum
difference 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastload.geometry import Fill, Interpolation, PaddingMode
from fastload.render.grid import grid_rows, nearest_rows
from fastload.render.resize import resize_into

__all__ = ["render_into"]

Pixels = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.intp]
Integers = Sequence[int] | npt.NDArray[np.int32]
Booleans = Sequence[bool] | npt.NDArray[np.bool_]


def render_into(
    pixels: Pixels,
    *,
    box: Integers,
    size: Integers,
    window: Integers,
    flip: Booleans,
    interpolation: Interpolation,
    antialias: bool,
    padding_mode: PaddingMode,
    fill: Fill,
    out: Pixels,
) -> None:
    """Write one image into its place.

    `box`, `size`, `window` and `flip` are tuples, or rows of a `Geometry`.

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
    top, left, height, width = (int(n) for n in box)
    grid_height, grid_width = (int(n) for n in size)
    start_row, start_column, rows_shown, columns_shown = (int(n) for n in window)
    view = _Window(start_row, start_column, rows_shown, columns_shown, bool(flip[0]), bool(flip[1]))
    cropped = pixels[top : top + height, left : left + width]
    if (grid_height, grid_width) == (height, width):
        _place(cropped, view, padding_mode, fill, out)
    elif interpolation in ("nearest", "nearest-exact"):
        exact = interpolation == "nearest-exact"
        rows, columns = view.axes(grid_height, grid_width, padding_mode)
        rows = _through(rows, nearest_rows(grid_height, height, exact=exact))
        columns = _through(columns, nearest_rows(grid_width, width, exact=exact))
        _gather(cropped, rows, columns, fill, out)
    elif view == _Window(0, 0, grid_height, grid_width) and out.flags.c_contiguous:
        resize_into(cropped, interpolation=interpolation, antialias=antialias, out=out)
    else:
        resized = np.empty((grid_height, grid_width, pixels.shape[2]), dtype=np.uint8)
        resize_into(cropped, interpolation=interpolation, antialias=antialias, out=resized)
        _place(resized, view, padding_mode, fill, out)


@dataclass(frozen=True)
class _Window:
    """What to write: a part of the resampled grid, and how it is mirrored."""

    top: int
    left: int
    height: int
    width: int
    mirrored: bool = False
    upside_down: bool = False

    def axes(self, grid_height: int, grid_width: int, padding_mode: PaddingMode) -> tuple[Rows, Rows]:
        """(height,) and (width,): row and column of the grid that each output row and column shows, -1 for fill."""
        rows = grid_rows(self.top, self.height, grid_height, padding_mode)
        columns = grid_rows(self.left, self.width, grid_width, padding_mode)
        return rows[::-1] if self.upside_down else rows, columns[::-1] if self.mirrored else columns


def _place(grid: Pixels, view: _Window, padding_mode: PaddingMode, fill: Fill, out: Pixels) -> None:
    """Cut the window out of the grid, pad, flip."""
    bottom, right = view.top + view.height, view.left + view.width
    if view.top < 0 or view.left < 0 or bottom > grid.shape[0] or right > grid.shape[1]:
        _gather(grid, *view.axes(grid.shape[0], grid.shape[1], padding_mode), fill, out)
        return
    part = grid[view.top : bottom, view.left : right]
    if view.upside_down:
        part = part[::-1]
    if not view.mirrored:
        np.copyto(out, part)
        return
    for channel in range(out.shape[2]):  # numpy copies long rows of one channel faster than pixels of three
        np.copyto(out[..., channel], part[:, ::-1, channel])


def _through(rows: Rows, source: Rows) -> Rows:
    """Follow positions in the grid to positions in the source, keeping -1."""
    return np.where(rows < 0, -1, source[rows])


def _gather(source: Pixels, rows: Rows, columns: Rows, fill: Fill, out: Pixels) -> None:
    """out[i, j] = source[rows[i], columns[j]], or the fill where either is -1."""
    np.copyto(out, source[np.maximum(rows, 0)[:, None], np.maximum(columns, 0)])
    outside = (rows < 0)[:, None] | (columns < 0)
    if outside.any():
        out[outside] = np.asarray(fill).astype(np.uint8)
