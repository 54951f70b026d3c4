"""Crops, padding and mirroring of whole batches of equal-sized images, without a loop over the samples.

Nothing is resampled here: every output pixel is a source pixel or padding. Two ways, chosen by the batch:

- windows: a strided view that holds every possible crop of every image, in which one fancy index picks the crops of
  a batch. numpy then copies whole rows. Padding, where there is any, is laid around copies of the images first.
- index maps: which row and column of its image each output pixel shows, and one fancy index over pixels. Some four
  times slower for photographs of CIFAR's size; needed where padding surrounds a part of an image.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from fastload.geometry import Fill, Geometry, PaddingMode
from fastload.render.grid import grid_rows

__all__ = ["axis_maps", "gather_batch", "needs_resampling"]

Pixels = npt.NDArray[np.uint8]
Int64Array = npt.NDArray[np.int64]

_STAGED_BYTES = 2 << 20
"""Padded copies made at a time: they stay in the second-level cache."""


def needs_resampling(geometry: Geometry) -> bool:
    """Whether any box is resampled to another size."""
    return bool((geometry.size != geometry.box[:, 2:]).any())


def gather_batch(
    images: Pixels, rows: Int64Array, geometry: Geometry, *, padding_mode: PaddingMode, fill: Fill, out: Pixels
) -> None:
    """Write a batch of crops.

    Args:
        images: (N, H, W, C) uint8, C-contiguous; may be a memory map.
        rows: (B,) int64: which image each row of the batch shows.
        geometry: of the B rows; no row may be resampled, all windows are of the size of `out`.
        padding_mode: how the part of a window outside its box is made.
        fill: one value, or one a channel, of "constant" padding.
        out: (B, h, w, C) uint8, C-contiguous.
    """
    assert images.flags.c_contiguous
    assert out.flags.c_contiguous
    if not len(rows):
        return
    top, left = (geometry.box[:, axis].astype(np.int64) + geometry.window[:, axis] for axis in (0, 1))
    if not _pads_only_images(images.shape[1:3], geometry):
        _gather_pixels(images, rows, geometry, padding_mode, fill, out)
        return
    before, after = zip(
        *(
            (max(0, -int(start.min())), max(0, int(start.max()) + length - limit))
            for start, length, limit in zip((top, left), out.shape[1:3], images.shape[1:3], strict=True)
        ),
        strict=True,
    )
    if not any(before + after):
        _pick_windows(images, rows, top, left, geometry.flip, out)
        return
    height, width = (limit + b + a for limit, b, a in zip(images.shape[1:3], before, after, strict=True))
    step = max(1, _STAGED_BYTES // (height * width * images.shape[3]))
    padded = np.empty((min(step, len(rows)), height, width, images.shape[3]), dtype=np.uint8)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        count = len(rows[part])
        _pad(images, rows[part], before, padding_mode, fill, padded[:count])
        _pick_windows(
            padded, np.arange(count), top[part] + before[0], left[part] + before[1], geometry.flip[part], out[part]
        )


def axis_maps(
    geometry: Geometry, axis: int, length: int, padding_mode: PaddingMode, grid: npt.NDArray[np.int32] | None = None
) -> Int64Array:
    """(B, length) int64: position in its grid of each output row (`axis` 0) or column (1); -1 for constant padding.

    Mirroring is included. `grid`, (B, 2) int32, replaces the geometry's own size.
    """
    limit = (geometry.size if grid is None else grid)[:, axis, None].astype(np.int64)
    offsets = np.arange(length, dtype=np.int64)
    mirrored = geometry.flip[:, 1 - axis, None]
    positions = geometry.window[:, axis, None] + np.where(mirrored, offsets[::-1], offsets)
    if padding_mode == "constant":
        return np.where((positions >= 0) & (positions < limit), positions, -1)
    if padding_mode == "edge":
        return np.clip(positions, 0, limit - 1)
    # As in `grid_rows`: a triangle wave that repeats the edge ("symmetric") or does not ("reflect").
    if padding_mode == "symmetric":
        positions = positions % (2 * limit)
        mirror = 2 * limit - 1 - positions
    else:
        positions = positions % np.maximum(2 * (limit - 1), 1)
        mirror = np.where(limit > 1, 2 * (limit - 1) - positions, 0)
    result: Int64Array = np.minimum(positions, mirror)
    return result


def _pads_only_images(size: tuple[int, ...], geometry: Geometry) -> bool:
    """Whether windows leave their boxes only where the image ends, so that boxes need not be looked at."""
    start, length, inside = geometry.box[:, :2], geometry.box[:, 2:], geometry.window[:, :2]
    end = inside + geometry.window[:, 2:]
    elsewhere = ((inside < 0) & (start > 0)) | ((end > length) & (start + length < np.array(size)))
    return not bool(elsewhere.any())


def _pick_windows(
    images: Pixels, rows: Int64Array, top: Int64Array, left: Int64Array, flip: npt.NDArray[np.bool_], out: Pixels
) -> None:
    """out[i] = images[rows[i], top[i]:, left[i]:], cut to size and mirrored."""
    _, height, width, channels = out.shape
    strides = images.strides
    positions = (images.shape[0], images.shape[1] - height + 1, images.shape[2] - width + 1)
    # Every window is there, as a view: [image, top, left, row, bytes of a row].
    windows = as_strided(
        images, (*positions, height, width * channels), (*strides[:2], channels, strides[1], 1), writeable=False
    )
    # The same in whole pixels, to be mirrored.
    pixel = np.dtype(f"V{channels}")
    pixel_windows = as_strided(
        images[:1, :1, :1].view(pixel),
        (*positions, height, width),
        (*strides[:2], channels, strides[1], channels),
        writeable=False,
    )
    out_rows = out.reshape(len(out), height, width * channels)
    out_pixels = out.view(pixel)[..., 0]
    for sideways, upside_down, chosen in _groups(flip):
        index = (rows[chosen], top[chosen], left[chosen])
        vertical = slice(None, None, -1) if upside_down else slice(None)
        if sideways:
            out_pixels[chosen] = pixel_windows[..., vertical, ::-1][index]
        else:
            out_rows[chosen] = windows[..., vertical, :][index]


def _groups(flip: npt.NDArray[np.bool_]) -> Iterator[tuple[bool, bool, Int64Array]]:
    """(mirrored left-right, upside-down, rows of the batch), for each of the four kinds that occur."""
    kinds = flip[:, 0] + 2 * flip[:, 1]
    for kind in range(4):
        chosen = np.flatnonzero(kinds == kind)
        if len(chosen):
            yield bool(kind & 1), bool(kind & 2), chosen


def _pad(
    images: Pixels, rows: Int64Array, before: tuple[int, ...], mode: PaddingMode, fill: Fill, padded: Pixels
) -> None:
    """padded[i] = images[rows[i]] with `before` rows and columns of padding, the rest of the padding after it."""
    (_, height, width, _), (top, left) = images.shape, before
    inside = padded[:, top : top + height, left : left + width]
    np.copyto(inside, images[rows])
    if mode == "constant":
        value = np.asarray(fill).astype(np.uint8)
        padded[:, :top] = padded[:, top + height :] = value
        padded[:, top : top + height, :left] = padded[:, top : top + height, left + width :] = value
        return
    from_rows = top + grid_rows(-top, padded.shape[1], height, mode)
    from_columns = left + grid_rows(-left, padded.shape[2], width, mode)
    for column in (*range(left), *range(left + width, padded.shape[2])):
        padded[:, top : top + height, column] = padded[:, top : top + height, from_columns[column]]
    for row in (*range(top), *range(top + height, padded.shape[1])):
        padded[:, row] = padded[:, from_rows[row]]


def _gather_pixels(
    images: Pixels, rows: Int64Array, geometry: Geometry, mode: PaddingMode, fill: Fill, out: Pixels
) -> None:
    """The way of index maps."""
    ys, xs = (axis_maps(geometry, axis, out.shape[1 + axis], mode) for axis in (0, 1))
    outside = (ys < 0)[:, :, None] | (xs < 0)[:, None, :]
    tops, lefts = geometry.box[:, :1, None], geometry.box[:, 1:2, None]
    np.copyto(
        out,
        images[rows[:, None, None], tops + np.maximum(ys, 0)[:, :, None], lefts + np.maximum(xs, 0)[:, None, :]],
    )
    if outside.any():
        out[outside] = np.asarray(fill).astype(np.uint8)
