"""One decoded image after the other into its row of the batch: the reference that other renderers
are checked against.

The steps are those of `fastload.geometry.Geometry`; the arithmetic is torchvision's for uint8
tensors (maximum difference 1). Called from several threads at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fastload import native
from fastload.arguments import checks_names
from fastload.decode import DecodeSettings, get_decoder
from fastload.decode.header import REMEDY_UNREADABLE, ImageHeader, check_start, read_header
from fastload.decode.image import LARGE, Scratch, check_header, decode_image
from fastload.decode.libraries import core_pool
from fastload.draws import BoolArray, Float64Array, Int64Array
from fastload.errors import ConfigurationError, DecodeError
from fastload.files import read_regular, size_of
from fastload.geometry import Geometry, Resampling, View
from fastload.geometry.cuts import cut_inverse, is_warped, only_cuts, shows_all
from fastload.geometry.grid import fold, nearest
from fastload.geometry.plan import Later, LaterResampling
from fastload.render.warp import warp_into
from fastload.sources.columns import PixelFormat

Pixels = npt.NDArray[np.uint8]
Integers = Sequence[int] | npt.NDArray[np.int32]
Booleans = Sequence[bool] | npt.NDArray[np.bool_]

_BILINEAR = Resampling()
_NEVER = (False, False)


@dataclass(frozen=True)
class EncodedRow:
    """One compressed sample and its place in the batch."""

    row: int
    """Row of the geometry and of the output."""
    data: bytes
    header: ImageHeader
    name: str
    """What to call it in messages."""
    stored: PixelFormat | None = None
    """What its pixels are, where they are kept as they are."""


class EncodedRenderer(Protocol):
    """Decodes and renders. Picklable; called from several threads at once."""

    def render(self, rows: Sequence[EncodedRow], views: Sequence[View]) -> dict[int, DecodeError]:
        """Write row `sample.row` of each view, all of one kind, for each sample, whose header has
        been accepted. Returns the samples that are damaged, by row; what the views hold there is
        undefined."""
        ...


class _ThreadBuffers(threading.local):
    def __init__(self) -> None:
        self.decoded = Scratch()
        self.packed = Scratch()


_local = _ThreadBuffers()


@dataclass(frozen=True)
class PythonRenderer:
    """One sample after the other, with a decoder of `fastload.decode`. A backend with a renderer of
    its own (DALI) leaves to it what it cannot decode."""

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
                    as_stored=views[0].resampling.as_stored,
                    header=sample.header,
                    scratch=_local.decoded,
                    stored=sample.stored,
                )
            except DecodeError as error:
                damaged[sample.row] = error
            else:
                for view in views:
                    render_row(pixels, sample.row, view)
        return damaged


@checks_names()
def decode_jpeg(
    data: bytes | str | os.PathLike[str],
    box: tuple[int, int, int, int] | None = None,
    size: tuple[int, int] | None = None,
) -> Pixels:
    """Decode one image, outside of any loader, with the checks and the pixels of the loader.

    With a box and the native core, only that part is decoded, and damage to the rest goes
    unnoticed. May be called from several threads at once, and after a fork.

    Args:
        data: the bytes of a JPEG (or of anything else that the loader reads), or its path.
        box: top, left, height, width of the part to keep, in pixels; None for all.
        size: height, width to resample the part to, bilinear and antialiased; None for its own.

    Returns:
        (H, W, 3) uint8 RGB.

    Raises:
        DecodeError: the file cannot be read or is no good image.
        ConfigurationError: the box does not lie in the image, or the size is not positive.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        encoded, name = bytes(data), "decode_jpeg"
    else:
        name = os.fspath(data)
        try:
            if (length := size_of(name)) > LARGE:
                check_start(read_regular(data, most=256 << 10), length, name)
            encoded = read_regular(data)
        except OSError as error:
            raise DecodeError(
                f"{name}: cannot be read: {error.strerror or error}. {REMEDY_UNREADABLE}"
            ) from error
    header = read_header(encoded, name)
    check_header(header, name, DecodeSettings())
    top, left, height, width = (0, 0, header.height, header.width) if box is None else box
    if not (0 <= top < top + height <= header.height and 0 <= left < left + width <= header.width):
        raise ConfigurationError(
            f"box={box} (top, left, height, width) does not lie in the image of {header.height} x "
            f"{header.width} pixels (height x width); keep it inside."
        )
    out_height, out_width = (height, width) if size is None else size
    if out_height < 1 or out_width < 1:
        raise ConfigurationError(f"size={size} (height, width) must be at least 1 each.")
    core = core_pool() if native.available() else None
    if core is not None and box is None and size is None:
        whole: Pixels = np.empty((height, width, 3), dtype=np.uint8)
        if not core.decode_whole(encoded, whole):
            return whole
        core = None
    placed = Geometry(
        box=np.array([[top, left, height, width]], dtype=np.int32),
        size=np.array([[out_height, out_width]], dtype=np.int32),
        window=np.array([[0, 0, out_height, out_width]], dtype=np.int32),
        flip=np.zeros((1, 2), dtype=np.bool_),
    )
    batch = np.empty((1, out_height, out_width, 3), dtype=np.uint8)
    # What the core refuses gets its verdict from the decoders, in the words of the loader.
    if core is None or core.decode_batch([encoded], geometry=placed, out=batch, here=True).wait():
        pixels = decode_image(
            encoded, name=name, decoder=get_decoder(), settings=DecodeSettings(), header=header
        )
        render_row(pixels, 0, View(placed, _BILINEAR, batch))
    out: Pixels = batch[0]
    return out


def render_row(pixels: Pixels, row: int, view: View) -> None:
    """All of a geometry for one row of a view: `render_into`, and what comes later."""
    geometry, resampling = view.geometry, view.resampling
    if geometry.colour is not None and resampling.coloured:
        pixels = geometry.colour.apply(pixels, row)
    while geometry.later is not None:
        later, then = geometry.later, resampling.later
        assert then is not None, "both are of one plan"
        pixels = _between(pixels, row, geometry, resampling)
        if is_warped(geometry, row):
            assert later.inverse is not None
            # Positions differ in the last bit then, which is nothing between two pixels; the
            # nearest one would not always be that which masks of objects have (native/masks.cpp).
            if then.warp.interpolation == "bilinear" and only_cuts(later.geometry, row):
                _warp_cut(pixels, row, later, then, view.out[row])
                return
            assert pixels.dtype == np.uint8, "the loader refuses others"
            warped = np.empty((*later.size[row], pixels.shape[2]), dtype=np.uint8)
            warp_into(pixels, later.inverse[row], then.warp, warped)
            pixels = warped
        geometry, resampling = later.geometry, then.resampling
    _render_row(pixels, row, geometry, resampling, view.out[row])


def looked_at(geometry: Geometry) -> Int64Array:
    """The parts of B images that `render_row` reads: (B, 4) top, left, bottom, right [pixels].
    Pixels outside have no influence."""
    box = geometry.box.astype(np.int64)
    start, extent = box[:, :2], box[:, 2:]
    whole = np.concatenate([start, start + extent], axis=1)
    if geometry.later is None:
        return whole
    later = geometry.later
    part, known = looked_at(later.geometry), shows_all(geometry)
    if later.inverse is not None:
        part, bounded = _taken_from(later.inverse, part)
        known = known & bounded
    low = np.minimum(np.maximum(part[:, :2], 0), extent)
    high = np.minimum(np.maximum(part[:, 2:], low), extent)
    return np.where(known[:, None], np.concatenate([start + low, start + high], axis=1), whole)


def _taken_from(inverse: Float64Array, parts: Int64Array) -> tuple[Int64Array, BoolArray]:
    """Where the pixels of (B, 4) parts of a warp's outputs come from, with a pixel more on each
    side than "bilinear" takes; and (B,) whether that has bounds. A part is convex, and so is what a
    projective map makes of it where no w is 0: its corners are the bounds."""
    top, left, bottom, right = parts.T.astype(np.float64)
    x = np.stack([left + 0.5, left + 0.5, right - 0.5, right - 0.5])
    y = np.stack([top + 0.5, bottom - 0.5, top + 0.5, bottom - 0.5])
    a, b, c = inverse.transpose(2, 1, 0)[:, :, None]  # (3, 1, B): for u, v and w
    with np.errstate(all="ignore"):
        u, v, w = a * x + b * y + c
        places = np.stack([v / w, u / w])  # (2, 4, B)
        # What is no number has no bounds, either.
        bounded = ((w > 0) & (np.abs(places) < 2**30).all(axis=0)).all(axis=0)
    places = np.where(bounded, places, 0.0)
    low, high = np.floor(places.min(axis=1) - 1.5), np.ceil(places.max(axis=1) + 1.5)
    return np.concatenate([low, high]).T.astype(np.int64), bounded


def _warp_cut(
    pixels: Pixels, row: int, later: Later, sampling: LaterResampling, out: Pixels
) -> None:
    """A warp, and a geometry after it that only cuts: no more is made than what is shown."""
    geometry = later.geometry
    height, width = (int(n) for n in geometry.size[row])
    direct = out.flags.c_contiguous and not geometry.flip[row].any()
    warped = out if direct else np.empty((height, width, pixels.shape[2]), dtype=np.uint8)
    warp_into(pixels, cut_inverse(later, row), sampling.warp, warped)
    if not direct:
        render_into(
            warped,
            box=(0, 0, height, width),
            size=(height, width),
            flip=tuple(geometry.flip[row].tolist()),
            resampling=sampling.resampling,
            out=out,
        )


def _between(pixels: Pixels, row: int, geometry: Geometry, resampling: Resampling) -> Pixels:
    """One row of a geometry that more comes after, in memory of its own, or the image itself."""
    height, width = (int(n) for n in geometry.window[row, 2:])
    whole = (0, 0, *pixels.shape[:2])
    same = tuple(geometry.box[row]) == whole == tuple(geometry.window[row])
    if same and tuple(geometry.size[row]) == whole[2:] and not geometry.flip[row].any():
        return pixels
    out = np.empty((height, width, pixels.shape[2]), dtype=pixels.dtype)
    _render_row(pixels, row, geometry, resampling, out)
    return out


def _render_row(
    pixels: Pixels, row: int, geometry: Geometry, resampling: Resampling, out: Pixels
) -> None:
    if (
        geometry.bicubic is not None
        and geometry.bicubic[row]
        and resampling.interpolation == "bilinear"
    ):
        resampling = replace(resampling, interpolation="bicubic")
    render_into(
        pixels,
        box=geometry.box[row],
        size=geometry.size[row],
        window=geometry.window[row],
        flip=geometry.flip[row],
        flipped_first=_NEVER if geometry.flipped_first is None else geometry.flipped_first[row],
        resampling=resampling,
        out=out,
    )


def render_into(
    pixels: Pixels,
    *,
    box: Integers,
    size: Integers,
    out: Pixels,
    window: Integers = (0, 0),
    flip: Booleans = _NEVER,
    flipped_first: Booleans = _NEVER,
    resampling: Resampling = _BILINEAR,
) -> None:
    """Write one (H, W, C) image of uint8, uint16 or float32 into its place, (h, w, C) `out`. The
    rest are tuples, or rows of a `Geometry`; of the window, h x w pixels, only top and left
    count."""
    top, left, height, width = (int(n) for n in box)
    source = pixels[top : top + height, left : left + width]
    grid, start = (int(size[0]), int(size[1])), (int(window[0]), int(window[1]))
    mirrored, upside_down = bool(flip[0]), bool(flip[1])
    if grid != (height, width) and resampling.interpolation not in ("nearest", "nearest-exact"):
        whole = (
            (*start, *out.shape[:2]) == (0, 0, *grid)
            and not (mirrored or upside_down)
            and out.flags.c_contiguous
        )
        resized = out if whole else np.empty((*grid, pixels.shape[2]), dtype=pixels.dtype)
        _resize(source, resampling, resized)
        if whole:
            return
        source = resized
    end = start[0] + out.shape[0], start[1] + out.shape[1]
    if min(start) >= 0 and end[0] <= grid[0] and end[1] <= grid[1] and source.shape[:2] == grid:
        _copy(source[start[0] : end[0], start[1] : end[1]], out, (upside_down, mirrored))
        return
    if resampling.padding_mode == "constant" and source.shape[:2] == grid:
        _copy_and_fill(source, start, out, (upside_down, mirrored), resampling.fill)
        return
    rows, columns = (
        _shown(
            (start[axis], end[axis]),
            source.shape[axis],
            grid[axis],
            resampling,
            bool(flipped_first[1 - axis]),
        )
        for axis in (0, 1)
    )
    rows, columns = rows[::-1] if upside_down else rows, columns[::-1] if mirrored else columns
    np.copyto(out, source[np.maximum(rows, 0)[:, None], np.maximum(columns, 0)])
    outside = (rows < 0)[:, None] | (columns < 0)
    if outside.any():
        out[outside] = np.asarray(resampling.fill).astype(out.dtype)


def places_shown(geometry: Geometry, row: int, resampling: Resampling) -> tuple[Any, Any]:
    """The rows and columns of an image that a geometry with nothing later shows of it by the
    nearest pixel, -1 for the fill; as they are before they are mirrored."""
    assert geometry.later is None
    (top, left, *extent), grid = geometry.box[row].tolist(), geometry.size[row].tolist()
    *start, height, width = geometry.window[row].tolist()
    first = _NEVER if geometry.flipped_first is None else geometry.flipped_first[row]
    rows, columns = (
        _shown((at, at + shown), extent[axis], grid[axis], resampling, bool(first[1 - axis]))
        for axis, (at, shown) in enumerate(zip(start, (height, width), strict=True))
    )
    return np.where(rows < 0, -1, rows + top), np.where(columns < 0, -1, columns + left)


def _copy(part: Pixels, out: Pixels, flips: tuple[bool, bool]) -> None:
    """Pixels as they are, or upside down, mirrored."""
    upside_down, mirrored = flips
    if upside_down:
        out = out[::-1]
    if not mirrored:
        np.copyto(out, part)
        return
    # torch has a loop for such pixels, which takes a quarter of the time; it warns of read-only
    # memory.
    if part.dtype == np.uint8 and part.flags.c_contiguous and part.flags.writeable:
        np.copyto(out, torch.from_numpy(part).flip(1).numpy())
        return
    # numpy copies long rows of one channel faster than pixels of three.
    for channel in range(out.shape[2]):
        np.copyto(out[..., channel], part[:, ::-1, channel])


def _copy_and_fill(
    source: Pixels, start: tuple[int, int], out: Pixels, flips: tuple[bool, bool], fill: Any
) -> None:
    """A window into an image, which begins at row and column `start` and reaches out of it, then
    flipped upside down, mirrored. No pixel beside the image is computed: they are as they were
    filled."""
    # In `out` the image has rows and columns [low, high); none where they do not meet.
    places, shown = [], []
    for axis in (0, 1):
        low = min(max(-start[axis], 0), out.shape[axis])
        high = max(min(source.shape[axis] - start[axis], out.shape[axis]), low)
        shown.append(slice(low + start[axis], high + start[axis]))
        length = out.shape[axis]
        places.append((length - high, length - low) if flips[axis] else (low, high))
    (top, bottom), (left, right) = places
    value = np.asarray(fill).astype(out.dtype)
    out[:top], out[bottom:], out[top:bottom, :left], out[top:bottom, right:] = (value,) * 4
    if top < bottom and left < right:
        _copy(source[shown[0], shown[1]], out[top:bottom, left:right], flips)


def _shown(
    part: tuple[int, int], length: int, limit: int, resampling: Resampling, mirrored: bool
) -> Int64Array:
    """Which of `length` rows each position in a part (start, end) of a grid of `limit` rows shows,
    -1 for the fill. `mirrored`: as of `nearest`."""
    positions = np.arange(*part, dtype=np.int64)
    inside = rows = fold(positions, np.array(limit), resampling.padding_mode)
    if length != limit:
        exact = resampling.interpolation == "nearest-exact"
        rows = nearest(inside, np.array(length), np.array(limit), exact=exact, mirrored=mirrored)
    return (
        np.where(positions == inside, rows, -1) if resampling.padding_mode == "constant" else rows
    )


def _resize(source: Pixels, resampling: Resampling, out: Pixels) -> None:
    """Resample all of (H, W, C) `source`, a view with any strides, to the size of C-contiguous
    `out`."""
    if source.dtype != np.uint8:
        _resize_in_float(source, resampling, out)
        return
    # A strided tensor would be copied by torch with its thread pool, so copy it here.
    packed = _local.packed.take(source.shape)
    np.copyto(packed, source)
    operator = _operator(resampling)
    operator.out(_planes(packed), out.shape[:2], False, None, None, out=_planes(out))


def _resize_in_float(
    source: npt.NDArray[Any], resampling: Resampling, out: npt.NDArray[Any]
) -> None:
    """As torchvision resizes uint16 and float32 tensors: in float32, which holds 16 bits exactly,
    and rounded. Bicubic values beyond the ends of uint16 become the ends; torchvision lets them
    wrap around."""
    wide = np.ascontiguousarray(source, dtype=np.float32)
    resized = _operator(resampling)(_planes(wide), out.shape[:2], False, None, None)
    if out.dtype == np.uint16:
        resized = resized.round_().clamp_(0, 65535)
    np.copyto(out, resized[0].permute(1, 2, 0).numpy(), casting="unsafe")


def _operator(resampling: Resampling) -> Any:
    """The operator that torch.nn.functional.interpolate calls; it has an `out` argument."""
    if resampling.interpolation == "lanczos":
        return torch.ops.aten._upsample_lanczos2d_aa
    if resampling.interpolation == "bilinear":
        operators = torch.ops.aten._upsample_bilinear2d_aa, torch.ops.aten.upsample_bilinear2d
    else:
        operators = torch.ops.aten._upsample_bicubic2d_aa, torch.ops.aten.upsample_bicubic2d
    return operators[0 if resampling.antialias else 1]


def _planes(array: npt.NDArray[Any]) -> torch.Tensor:
    """(1, C, H, W) in channels_last memory: the batch axis first, so that torch sees the layout for
    what it is."""
    return torch.from_numpy(array)[None].permute(0, 3, 1, 2)
