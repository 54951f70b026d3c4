"""Kernels for GPUs in Triton: the arithmetic of `fastload.render.device` and
`fastload.recipe.colour`, in one launch.

Only imported where Triton is (see `fastload.render.fused`). Each gives the very bits of the
operations that it takes the place of: products and sums are rounded one by one, or together (`fma`)
where torch's kernels do that. So they are launched with `enable_fp_fusion=False`, and divide by
`div_rn`.

Triton compiles a kernel again for an integer that is 1 or a multiple of 16, and for an address that
is a multiple of 16 bytes, which takes seconds. What is another one in another batch is named in
`do_not_specialize`.
"""

# The arguments of a kernel have no types that Python knows.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

GATHER, NEAREST, NEAREST_EXACT, ANTIALIASED, INTERPOLATED = (tl.constexpr(n) for n in range(5))
"""How `render` finds a pixel."""
CONSTANT, EDGE, REFLECT, SYMMETRIC = (tl.constexpr(n) for n in range(4))
"""What lies outside of an image."""
# 1.5 * 2^23: adding it to a float32 of magnitude below 2^22 and taking it away rounds to whole
# numbers, halves to even ones, as torch.round.
_TO_WHOLE = tl.constexpr(12582912.0)


@triton.jit
def _round(x):
    return (x + _TO_WHOLE) - _TO_WHOLE


@triton.jit
def _in_bits(weight, scale: tl.constexpr):
    """To multiples of 1 / scale, a power of two."""
    return _round(weight * scale) * (1.0 / scale)


@triton.jit
def fold(position, limit, MODE: tl.constexpr):
    """As `fastload.geometry.grid.fold`."""
    if MODE == CONSTANT or MODE == EDGE:
        folded = tl.minimum(tl.maximum(position, 0), limit - 1)
    else:
        turn = 2 * limit - (1 if MODE == SYMMETRIC else 2)
        if MODE == SYMMETRIC:
            period = turn + 1
        else:
            period = tl.maximum(turn, 1)
        rest = position % period
        rest = tl.where(rest < 0, rest + period, rest)  # C's remainder has the sign of the position
        distance = 2 * rest - turn
        folded = (turn - tl.where(distance < 0, -distance, distance)) >> 1
    return folded


@triton.jit
def _filter(x, CUBIC: tl.constexpr, A: tl.constexpr):
    """As `fastload.geometry.grid._filter`."""
    x = tl.where(x < 0, -x, x)
    if CUBIC:
        near = ((A + 2) * x - (A + 3)) * x * x + 1.0
        far = (((x - 5.0) * x + 8.0) * x - 4.0) * A
        value = tl.where(x < 1.0, near, tl.where(x < 2.0, far, 0.0))
    else:
        value = tl.maximum(1.0 - x, 0.0)
    return value


@triton.jit
def _first_and_end(position, length, size, CUBIC: tl.constexpr):
    """Of an antialiased filter: the first input position, the one after the last, the centre, and
    the widening."""
    scale = tl.math.div_rn(length.to(tl.float32), size.to(tl.float32))
    centre = (position.to(tl.float32) + 0.5) * scale
    widened = tl.maximum(scale, 1.0)
    reach = widened * (2.0 if CUBIC else 1.0)
    low = tl.maximum((centre - reach + 0.5).to(tl.int32), 0)
    high = tl.minimum((centre + reach + 0.5).to(tl.int32), length)
    return low, high, centre, widened


@triton.jit
def _raw_weight(tap, low, high, centre, widened, CUBIC: tl.constexpr, A: tl.constexpr):
    """Before the weights of an output position are normalised; 0 outside of its taps."""
    distance = tl.math.div_rn(tap.to(tl.float32) + 0.5 - centre, widened)
    inside = (tap >= low) & (tap < high)
    return tl.where(inside, _in_bits(_filter(distance, CUBIC, A), 16384.0), 0.0)


@triton.jit
def _below(position, length, size, CUBIC: tl.constexpr):
    """Of a filter that is not widened: where it lies in the input, and the input position below."""
    scale = tl.math.div_rn(length.to(tl.float32), size.to(tl.float32))
    where = (position.to(tl.float32) + 0.5) * scale - 0.5
    if not CUBIC:
        where = tl.maximum(where, 0.0)
    return where, tl.floor(where)


@triton.jit
def _whole_pixel(x):
    """To whole numbers from 0 to 255."""
    return tl.minimum(tl.maximum(_round(x), 0.0), 255.0)


@triton.jit
def render(
    pixels,
    table,
    fill,
    out,
    height,
    width,
    CHANNELS: tl.constexpr,
    LANES: tl.constexpr,
    HOW: tl.constexpr,
    CUBIC: tl.constexpr,
    A: tl.constexpr,
    PADS: tl.constexpr,
    MODE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of output pixels of one sample.

    Args:
        pixels: all pixels of all images, uint8, (P, CHANNELS).
        table: (rows, 14) int64: box (top, left, height, width), size, start of the window, flips
            (across, down), first pixel of the image, its width, and at least as many input
            positions as any output position is made of (down, across).
        fill: (CHANNELS,) float32, whole numbers.
        out: (rows, height, width, CHANNELS) uint8.
    """
    row = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = place < height * width
    place = tl.minimum(place, height * width - 1)  # past the end there may be no taps to divide by
    y, x = place // width, place % width
    entry = table + row * 14
    top, left = tl.load(entry).to(tl.int32), tl.load(entry + 1).to(tl.int32)
    box_height, box_width = tl.load(entry + 2).to(tl.int32), tl.load(entry + 3).to(tl.int32)
    size_down, size_across = tl.load(entry + 4).to(tl.int32), tl.load(entry + 5).to(tl.int32)
    window_top, window_left = tl.load(entry + 6).to(tl.int32), tl.load(entry + 7).to(tl.int32)
    flip_across, flip_down = tl.load(entry + 8).to(tl.int32), tl.load(entry + 9).to(tl.int32)
    start, image_width = tl.load(entry + 10), tl.load(entry + 11)
    taps_down, taps_across = tl.load(entry + 12).to(tl.int32), tl.load(entry + 13).to(tl.int32)

    shown_y = window_top + y + flip_down * (height - 1 - 2 * y)
    shown_x = window_left + x + flip_across * (width - 1 - 2 * x)
    grid_y, grid_x = shown_y, shown_x
    outside = shown_y < shown_y
    if PADS:
        grid_y, grid_x = fold(shown_y, size_down, MODE), fold(shown_x, size_across, MODE)
        if MODE == CONSTANT:
            outside = (grid_y != shown_y) | (grid_x != shown_x)
    first = start + top * image_width + left

    if HOW == ANTIALIASED:
        low_y, high_y, centre_y, widened_y = _first_and_end(grid_y, box_height, size_down, CUBIC)
        low_x, high_x, centre_x, widened_x = _first_and_end(grid_x, box_width, size_across, CUBIC)
        sum_y = tl.zeros([BLOCK], tl.float32)
        sum_x = tl.zeros([BLOCK], tl.float32)
        for tap in range(taps_down):
            sum_y += _raw_weight(low_y + tap, low_y, high_y, centre_y, widened_y, CUBIC, A)
        for tap in range(taps_across):
            sum_x += _raw_weight(low_x + tap, low_x, high_x, centre_x, widened_x, CUBIC, A)
    if HOW == INTERPOLATED:
        where_y, below_y = _below(grid_y, box_height, size_down, CUBIC)
        where_x, below_x = _below(grid_x, box_width, size_across, CUBIC)

    channel = tl.arange(0, LANES)[None, :]  # a power of two
    wanted = valid[:, None] & (channel < CHANNELS)
    if HOW == ANTIALIASED:
        total = tl.zeros([BLOCK, LANES], tl.float32)
        for down in range(taps_down):
            line = low_y + down
            weight_y = _raw_weight(line, low_y, high_y, centre_y, widened_y, CUBIC, A)
            weight_y = _in_bits(tl.math.div_rn(weight_y, sum_y), 32768.0)
            line = tl.minimum(line, box_height - 1)
            middle = tl.zeros([BLOCK, LANES], tl.float32)
            for across in range(taps_across):
                column = low_x + across
                weight_x = _raw_weight(column, low_x, high_x, centre_x, widened_x, CUBIC, A)
                weight_x = _in_bits(tl.math.div_rn(weight_x, sum_x), 32768.0)
                column = tl.minimum(column, box_width - 1)
                index = (first + line * image_width + column)[:, None] * CHANNELS + channel
                pixel = tl.load(pixels + index, mask=wanted, other=0)
                middle += weight_x[:, None] * pixel.to(tl.float32)
            total += weight_y[:, None] * _whole_pixel(middle)
        value = _whole_pixel(total)
    elif HOW == INTERPOLATED:
        total = tl.zeros([BLOCK, LANES], tl.float32)
        for down in range(taps_down):
            offset_y = down + 1 - taps_down // 2
            line = tl.minimum(tl.maximum(below_y.to(tl.int32) + offset_y, 0), box_height - 1)
            weight_y = _in_bits(_filter(below_y + offset_y - where_y, CUBIC, A), 32768.0)
            middle = tl.zeros([BLOCK, LANES], tl.float32)
            for across in range(taps_across):
                offset_x = across + 1 - taps_across // 2
                column = tl.minimum(tl.maximum(below_x.to(tl.int32) + offset_x, 0), box_width - 1)
                weight_x = _in_bits(_filter(below_x + offset_x - where_x, CUBIC, A), 32768.0)
                index = (first + line * image_width + column)[:, None] * CHANNELS + channel
                pixel = tl.load(pixels + index, mask=wanted, other=0)
                middle += weight_x[:, None] * pixel.to(tl.float32)
            total += weight_y[:, None] * _whole_pixel(middle)
        value = _whole_pixel(total)
    else:
        line, column = grid_y, grid_x
        if HOW != GATHER:
            shift = 0.5 if HOW == NEAREST_EXACT else 0.0
            scale_y = tl.math.div_rn(box_height.to(tl.float32), size_down.to(tl.float32))
            scale_x = tl.math.div_rn(box_width.to(tl.float32), size_across.to(tl.float32))
            line = tl.minimum(
                ((grid_y.to(tl.float32) + shift) * scale_y).to(tl.int32), box_height - 1
            )
            column = tl.minimum(
                ((grid_x.to(tl.float32) + shift) * scale_x).to(tl.int32), box_width - 1
            )
        index = (first + line * image_width + column)[:, None] * CHANNELS + channel
        value = tl.load(pixels + index, mask=wanted, other=0).to(tl.float32)
    if PADS:
        if MODE == CONSTANT:
            value = tl.where(
                outside[:, None], tl.load(fill + channel, mask=channel < CHANNELS, other=0.0), value
            )
    to = (row.to(tl.int64) * height * width + place)[:, None] * CHANNELS + channel
    tl.store(out + to, value.to(tl.uint8), mask=wanted)


@triton.jit
def to_bfloat16(value):
    """To the nearest number that bfloat16 has, halves to even; as float32, for the conversion of an
    interpreter cuts off."""
    bits = value.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    return bits.to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["total", "mixed", "rows"])
def normalise(
    images,
    scale,
    offset,
    out,
    total,
    channels,
    plane,
    mixed,
    rows,
    width,
    stride_row,
    stride_channel,
    stride_pixel,
    to_row,
    to_channel,
    to_pixel,
    BLENDS: tl.constexpr,
    CUTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """pixel * scale + offset, rounded once, in the dtype of `out`; a block of the values of a batch
    (B, C, H * W) uint8, numbered channel by channel within a pixel.

    Args:
        mixed: (6,) int32: the bits of the weights of an image and of the one before it, if BLENDS;
            left, top, right and bottom of what is taken from the latter, if CUTS.
        rows: B.
        width: W.
    """
    number = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    valid = number < total
    channel, rest = number % channels, number // channels
    pixel, row = rest % plane, rest // plane
    where = row * stride_row + channel * stride_channel + pixel * stride_pixel
    value = tl.load(images + where, mask=valid, other=0).to(tl.float32)
    factor, added = tl.load(scale + channel), tl.load(offset + channel)
    value = tl.fma(value, factor, added)
    if BLENDS or CUTS:
        before = where + (tl.where(row == 0, rows, row) - 1 - row) * stride_row
        other = tl.load(images + before, mask=valid, other=0).to(tl.float32)
        other = tl.fma(other, factor, added)
        if BLENDS:
            weight = tl.load(mixed).to(tl.float32, bitcast=True)
            of_other = tl.load(mixed + 1).to(tl.float32, bitcast=True)
            value = other * of_other + value * weight
        else:
            x, y = pixel % width, pixel // width
            within = (x >= tl.load(mixed + 2)) & (x < tl.load(mixed + 4))
            within = within & (y >= tl.load(mixed + 3)) & (y < tl.load(mixed + 5))
            value = tl.where(within, other, value)
    if out.dtype.element_ty == tl.bfloat16:
        value = to_bfloat16(value)
    to = row * to_row + channel * to_channel + pixel * to_pixel
    tl.store(out + to, value.to(out.dtype.element_ty), mask=valid)
