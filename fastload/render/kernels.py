"""Kernels for GPUs in Triton: the arithmetic of `fastload.render.device` and
`fastload.recipe.colour`, in one launch.

Only imported where Triton is (see `fastload.render.fused`). Each gives the very bits of the
operations that it takes the place of: products and sums are rounded one by one, or together (`fma`)
where torch's kernels do that. So they are launched with `enable_fp_fusion=False`, and divide by
`div_rn`.

Triton compiles a kernel again for an integer that is 1 or a multiple of 16, and for an address that
is a multiple of 16 bytes, which takes seconds. Arguments that change from batch to batch are named
in `do_not_specialize`. An integer that is 1 is a constant then, without `.to`: those of which a
kernel makes floats are named there, too.
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
def trial(out):
    """Writes a number: what a GPU does that runs kernels at all. out: (1,) int32."""
    tl.store(out, 1)


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


@triton.jit(do_not_specialize=["most"])
def weigh(
    table,
    firsts,
    weights,
    height,
    width,
    most,
    CUBIC: tl.constexpr,
    A: tl.constexpr,
    PADS: tl.constexpr,
    MODE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """What `render` needs of an antialiased resize, once for each row and column of the output; a
    block of them, of one sample.

    Args:
        table: as of `render`.
        firsts: (rows, height + width) int32: the first input position of each row, then of each
            column.
        weights: (rows, most, height + width) float32: the weights from there on.
    """
    row = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sides = height + width
    valid = place < sides
    place = tl.minimum(place, sides - 1)  # past the end there may be no taps to divide by
    entry = table + row * 14
    across = place >= height
    position = tl.where(across, place - height, place)
    side = tl.where(across, width, height)
    length = tl.where(across, tl.load(entry + 3), tl.load(entry + 2)).to(tl.int32)
    size = tl.where(across, tl.load(entry + 5), tl.load(entry + 4)).to(tl.int32)
    begin = tl.where(across, tl.load(entry + 7), tl.load(entry + 6)).to(tl.int32)
    flip = tl.where(across, tl.load(entry + 8), tl.load(entry + 9)).to(tl.int32)
    taps = tl.maximum(tl.load(entry + 12), tl.load(entry + 13)).to(tl.int32)
    shown = begin + position + flip * (side - 1 - 2 * position)
    if PADS:
        shown = fold(shown, size, MODE)
    low, high, centre, widened = _first_and_end(shown, length, size, CUBIC)
    total = tl.zeros([BLOCK], tl.float32)
    for tap in range(taps):
        total += _raw_weight(low + tap, low, high, centre, widened, CUBIC, A)
    tl.store(firsts + row * sides + place, low, mask=valid)
    to = weights + row.to(tl.int64) * most * sides + place
    for tap in range(taps):
        weight = _raw_weight(low + tap, low, high, centre, widened, CUBIC, A)
        weight = _in_bits(tl.math.div_rn(weight, total), 32768.0)
        tl.store(to + tap * sides, weight, mask=valid)


@triton.jit
def _load_values(source, valid, TOGETHER: tl.constexpr):
    """The values of a pixel at `source`: three, or three times the same one."""
    first = tl.load(source, mask=valid, other=0).to(tl.float32)
    second, third = first, first
    if TOGETHER == 3:
        second = tl.load(source + 1, mask=valid, other=0).to(tl.float32)
        third = tl.load(source + 2, mask=valid, other=0).to(tl.float32)
    return first, second, third


@triton.jit(do_not_specialize=["most"])
def render(
    pixels,
    table,
    firsts,
    weights,
    fill,
    out,
    height,
    width,
    most,
    CHANNELS: tl.constexpr,
    TOGETHER: tl.constexpr,
    HOW: tl.constexpr,
    CUBIC: tl.constexpr,
    A: tl.constexpr,
    PADS: tl.constexpr,
    MODE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of the output pixels of one sample: TOGETHER of their values, 3 or 1, which share
    where they lie and their weights.

    Args:
        pixels: all pixels of all images, uint8, (P, CHANNELS).
        table: (rows, 14) int64: box (top, left, height, width), size, start of the window, flips
            (across, down), first pixel of the image, its width, and at least as many input
            positions as any output position is made of (down, across).
        firsts, weights, most: of `weigh`, if ANTIALIASED.
        fill: (CHANNELS,) float32, whole numbers.
        out: (rows, height, width, CHANNELS) uint8.
    """
    blocks = (height * width + BLOCK - 1) // BLOCK
    row = tl.program_id(0) // blocks
    place = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * TOGETHER
    valid = place < height * width
    place = tl.minimum(place, height * width - 1)
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
    source = pixels + (start + top * image_width + left) * CHANNELS + channel

    if HOW == ANTIALIASED:
        sides = height + width
        low_y = tl.load(firsts + row * sides + y)
        low_x = tl.load(firsts + row * sides + height + x)
        of_rows = weights + row.to(tl.int64) * most * sides + y
        of_columns = weights + row.to(tl.int64) * most * sides + height + x
        zero = tl.zeros([BLOCK], tl.float32)
        first, second, third = zero, zero, zero
        for down in range(taps_down):
            line = tl.minimum(low_y + down, box_height - 1)
            source_line = source + line * image_width * CHANNELS
            one, two, three = zero, zero, zero
            for across in range(taps_across):
                column = tl.minimum(low_x + across, box_width - 1)
                a, b, c = _load_values(source_line + column * CHANNELS, valid, TOGETHER)
                weight = tl.load(of_columns + across * sides)
                one, two, three = one + weight * a, two + weight * b, three + weight * c
            weight = tl.load(of_rows + down * sides)
            first += weight * _whole_pixel(one)
            second += weight * _whole_pixel(two)
            third += weight * _whole_pixel(three)
        first, second, third = _whole_pixel(first), _whole_pixel(second), _whole_pixel(third)
    elif HOW == INTERPOLATED:
        where_y, below_y = _below(grid_y, box_height, size_down, CUBIC)
        where_x, below_x = _below(grid_x, box_width, size_across, CUBIC)
        zero = tl.zeros([BLOCK], tl.float32)
        first, second, third = zero, zero, zero
        for down in range(taps_down):
            offset_y = down + 1 - taps_down // 2
            line = tl.minimum(tl.maximum(below_y.to(tl.int32) + offset_y, 0), box_height - 1)
            source_line = source + line * image_width * CHANNELS
            one, two, three = zero, zero, zero
            for across in range(taps_across):
                offset_x = across + 1 - taps_across // 2
                column = tl.minimum(tl.maximum(below_x.to(tl.int32) + offset_x, 0), box_width - 1)
                a, b, c = _load_values(source_line + column * CHANNELS, valid, TOGETHER)
                weight = _in_bits(_filter(below_x + offset_x - where_x, CUBIC, A), 32768.0)
                one, two, three = one + weight * a, two + weight * b, three + weight * c
            weight = _in_bits(_filter(below_y + offset_y - where_y, CUBIC, A), 32768.0)
            first += weight * _whole_pixel(one)
            second += weight * _whole_pixel(two)
            third += weight * _whole_pixel(three)
        first, second, third = _whole_pixel(first), _whole_pixel(second), _whole_pixel(third)
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
        source_line = source + line * image_width * CHANNELS
        first, second, third = _load_values(source_line + column * CHANNELS, valid, TOGETHER)
    if PADS:
        if MODE == CONSTANT:
            a, b, c = _load_values(fill + channel, True, TOGETHER)
            first = tl.where(outside, a, first)
            second = tl.where(outside, b, second)
            third = tl.where(outside, c, third)
    to = out + row.to(tl.int64) * height * width * CHANNELS + place * CHANNELS + channel
    tl.store(to, first.to(tl.uint8), mask=valid)
    if TOGETHER == 3:
        tl.store(to + 1, second.to(tl.uint8), mask=valid)
        tl.store(to + 2, third.to(tl.uint8), mask=valid)


@triton.jit
def to_bfloat16(value):
    """To the nearest number that bfloat16 has, halves to even; as float32, for the conversion of an
    interpreter cuts off."""
    bits = value.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
    return bits.to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["mixed", "rows"])
def normalise(
    images,
    scale,
    offset,
    out,
    values,
    plane,
    mixed,
    rows,
    width,
    CHANNELS: tl.constexpr,
    PLANAR: tl.constexpr,
    BLENDS: tl.constexpr,
    CUTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """pixel * scale + offset, rounded once, in the dtype of `out`; a block of the values of one
    image, in the order in which they lie in memory: that of both tensors.

    Args:
        images: uint8, (B, CHANNELS, H, W) if PLANAR, else (B, H, W, CHANNELS).
        values: CHANNELS * H * W.
        plane: H * W.
        mixed: (6,) int32: the bits of the weights of an image and of the one before it, if BLENDS;
            left, top, right and bottom of what is taken from the latter, if CUTS.
        rows: B.
        width: W.
    """
    blocks = (values + BLOCK - 1) // BLOCK
    row = tl.program_id(0) // blocks
    place = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    valid = place < values
    if PLANAR:
        channel, pixel = place // plane, place % plane
    else:
        channel, pixel = place % CHANNELS, place // CHANNELS
    begin = row.to(tl.int64) * values
    value = tl.load(images + begin + place, mask=valid, other=0).to(tl.float32)
    factor = tl.load(scale + channel, mask=valid, other=0.0)
    added = tl.load(offset + channel, mask=valid, other=0.0)
    value = tl.fma(value, factor, added)
    if BLENDS or CUTS:
        before = (tl.where(row == 0, rows, row) - 1).to(tl.int64) * values
        other = tl.load(images + before + place, mask=valid, other=0).to(tl.float32)
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
    tl.store(out + begin + place, value.to(out.dtype.element_ty), mask=valid)
