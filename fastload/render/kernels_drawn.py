"""A kernel for GPUs in Triton that draws: of arrays that lie on the device, only the order of the
samples travels. See `fastload.render.drawn` and `fastload.render.kernels`.
"""

# The arguments of a kernel have no types that Python knows.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from fastload.render.kernels import CONSTANT, fold, to_bfloat16

DOWN, ACROSS, CROP = (tl.constexpr(n) for n in range(3))
"""Steps: mirror upside-down, mirror left-right, cut out."""
HEAD = tl.constexpr(3)
"""Numbers in front of an order: the key's low and high words, the epoch."""
_OF_53_BITS = tl.constexpr(2.0**-53)
_LOW = tl.constexpr(0xFFFFFFFF)
_M0, _M1 = tl.constexpr(0xD2511F53), tl.constexpr(0xCD9E8D57)
_W0, _W1 = tl.constexpr(0x9E3779B9), tl.constexpr(0xBB67AE85)


@triton.jit
def _philox(c0, c1, c2, c3, k0, k1):
    """As `fastload.draws.philox4x32`; all words are uint64."""
    for _ in tl.static_range(10):
        p0 = c0 * _M0
        p1 = c2 * _M1
        c0 = (p1 >> 32) ^ c1 ^ k0
        c1 = p1 & _LOW
        c2 = (p0 >> 32) ^ c3 ^ k1
        c3 = p0 & _LOW
        k0 = (k0 + _W0) & _LOW
        k1 = (k1 + _W1) & _LOW
    return c0, c1, c2, c3


@triton.jit
def _bits(high, low):
    """53 bits: a uniform number times 2^53, as `fastload.draws.Draws.uniform` has it."""
    return (((high >> 5) << 26) | (low >> 6)).to(tl.int64)


@triton.jit
def _pick(bits, COUNT: tl.constexpr):
    """As `fastload.geometry.boxes.pick`: floor(uniform * count), the product rounded to float64."""
    return (bits.to(tl.float64) * _OF_53_BITS * COUNT).to(tl.int32)


@triton.jit(do_not_specialize=["rows", "first"])
def drawn(
    pixels,
    order,
    rows,
    first,
    steps,
    fill,
    scale,
    offset,
    out,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    STEPS: tl.constexpr,
    ABOVE: tl.constexpr,
    LEFT: tl.constexpr,
    COUNT_DOWN: tl.constexpr,
    COUNT_ACROSS: tl.constexpr,
    PADS: tl.constexpr,
    MODE: tl.constexpr,
    CONVERTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of the values of one sample.

    Args:
        pixels: (N, HEIGHT, WIDTH, CHANNELS) uint8.
        order: (HEAD + samples,) int64: the key's words, the epoch, the indices of an epoch.
        rows: (samples,) int64: which row of `pixels` each sample of the order is.
        first: place of the batch in the order.
        steps: (STEPS, 3) int64: which step, stream of its draws, and of a mirroring the number that
            the 53 bits are below.
        fill: (CHANNELS,) float32, whole numbers.
        scale, offset: (CHANNELS,) float32, if CONVERTS.
        out: (B, OUT_HEIGHT, OUT_WIDTH, CHANNELS): uint8, or floating point if CONVERTS.
    """
    blocks: tl.constexpr = (OUT_HEIGHT * OUT_WIDTH * CHANNELS + BLOCK - 1) // BLOCK
    sample = tl.program_id(0) // blocks
    place = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    valid = place < OUT_HEIGHT * OUT_WIDTH * CHANNELS
    at = sample.to(tl.int64) + first
    index = tl.load(order + HEAD + at)
    start = tl.load(rows + at) * (HEIGHT * WIDTH * CHANNELS)
    low, high = index.to(tl.uint64) & _LOW, index.to(tl.uint64) >> 32
    k0, k1 = tl.load(order).to(tl.uint64), tl.load(order + 1).to(tl.uint64)
    epoch = tl.load(order + 2).to(tl.uint64)

    # In coordinates that no mirroring has touched, as `fastload.geometry.plan.Composition`.
    top, left = sample * 0, sample * 0
    mirrored_down, mirrored_across = sample < 0, sample < 0
    for n in tl.static_range(STEPS):
        step, stream = tl.load(steps + 3 * n), tl.load(steps + 3 * n + 1)
        w0, w1, w2, w3 = _philox(low, high, epoch, stream.to(tl.uint64) << 16, k0, k1)
        one, other = _bits(w0, w1), _bits(w2, w3)
        down, across = _pick(one, COUNT_DOWN), _pick(other, COUNT_ACROSS)
        # The window lies `down` rows from the end where the image is upside-down by then.
        down = tl.where(mirrored_down, HEIGHT + ABOVE - OUT_HEIGHT - down, down - ABOVE)
        across = tl.where(mirrored_across, WIDTH + LEFT - OUT_WIDTH - across, across - LEFT)
        top = tl.where(step == CROP, down, top)
        left = tl.where(step == CROP, across, left)
        below = one < tl.load(steps + 3 * n + 2)
        mirrored_down = mirrored_down ^ (below & (step == DOWN))
        mirrored_across = mirrored_across ^ (below & (step == ACROSS))

    channel, pixel = place % CHANNELS, place // CHANNELS
    y, x = pixel // OUT_WIDTH, pixel % OUT_WIDTH
    y = top + tl.where(mirrored_down, OUT_HEIGHT - 1 - y, y)
    x = left + tl.where(mirrored_across, OUT_WIDTH - 1 - x, x)
    from_y, from_x = y, x
    if PADS:
        from_y, from_x = fold(y, HEIGHT, MODE), fold(x, WIDTH, MODE)
    where = start + (from_y * WIDTH + from_x) * CHANNELS + channel
    value = tl.load(pixels + where, mask=valid, other=0).to(tl.float32)
    if PADS:
        if MODE == CONSTANT:
            outside = (from_y != y) | (from_x != x)
            value = tl.where(outside, tl.load(fill + channel), value)
    if CONVERTS:
        value = tl.fma(value, tl.load(scale + channel), tl.load(offset + channel))
        if out.dtype.element_ty == tl.bfloat16:
            value = to_bfloat16(value)
    to = sample.to(tl.int64) * (OUT_HEIGHT * OUT_WIDTH * CHANNELS) + place
    tl.store(out + to, value.to(out.dtype.element_ty), mask=valid)
