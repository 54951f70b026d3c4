"""From uniform numbers and image sizes to boxes: the arithmetic that every backend must repeat bit
for bit.

It is float64 with nothing but IEEE operations (+, -, *, /, sqrt, rounding), in the order written;
the exponential is spelled out, because library versions of it differ in the last bit from one
machine to the next. An implementation in another language that is compiled without contraction into
fused multiply-adds gives the same boxes.
"""

from __future__ import annotations

import math

import numpy as np

from fastload.draws import Float64Array, Int64Array

_ATTEMPTS = 10
# Uniform numbers that one RandomResizedCrop takes: 10 for areas, 10 for ratios, then top and left.
RANDOM_RESIZED_CROP_UNIFORMS = 2 * _ATTEMPTS + 2

_LOG2_E = 1.4426950408889634
# ln 2 in two parts, the first with its low bits zero, so that k * _LN2_HIGH is exact (fdlibm,
# e_exp.c).
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10


def pick(uniform: Float64Array, count: Int64Array) -> Int64Array:
    """floor(uniform * count): one of 0 .. count - 1 each, for counts below 2**31."""
    result: Int64Array = np.floor(uniform * count).astype(np.int64)
    return result


def random_resized_crop_boxes(
    uniforms: Float64Array,
    sizes: Int64Array,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> Int64Array:
    """The boxes of torchvision's RandomResizedCrop: (B, 4) int64, top, left, height, width.

    Ten attempts: area uniform in `scale` of the image's, log(width / height) uniform in the logs of
    `ratio`, sides rounded half to even; the first one that fits is placed uniformly. If none fits,
    the largest central box whose ratio is in bounds. `uniforms`: (B, 22), ten areas, ten ratios,
    top, left; `sizes`: (B, 2) int64.
    """
    image_height, image_width = sizes[:, :1], sizes[:, 1:]
    low, high = scale
    log_low, log_high = math.log(ratio[0]), math.log(ratio[1])
    area = (image_height * image_width) * (low + uniforms[:, :_ATTEMPTS] * (high - low))
    ratios = _exp(log_low + uniforms[:, _ATTEMPTS : 2 * _ATTEMPTS] * (log_high - log_low))
    width, height = np.rint(np.sqrt(area * ratios)), np.rint(np.sqrt(area / ratios))
    fits = (width > 0) & (width <= image_width) & (height > 0) & (height <= image_height)

    rows, first = np.arange(len(sizes)), fits.argmax(axis=1)
    has_fit = fits[rows, first]
    fallback = _central_boxes(sizes, ratio)
    height = np.where(has_fit, height[rows, first].astype(np.int64), fallback[:, 2])
    width = np.where(has_fit, width[rows, first].astype(np.int64), fallback[:, 3])
    top = np.where(
        has_fit, pick(uniforms[:, 2 * _ATTEMPTS], sizes[:, 0] - height + 1), fallback[:, 0]
    )
    left = np.where(
        has_fit, pick(uniforms[:, 2 * _ATTEMPTS + 1], sizes[:, 1] - width + 1), fallback[:, 1]
    )
    return np.stack([top, left, height, width], axis=1)


def resized_sizes(
    sizes: Int64Array,
    *,
    size: tuple[int, int] | None = None,
    shorter: int | None = None,
    max_size: int | None = None,
) -> Int64Array:
    """(B, 2) int64: the sizes that torchvision's Resize gives images of these (B, 2) sizes; 0 where
    a side vanishes.

    Either `size` is exact, or `shorter` the length of the shorter side, which the longer follows,
    cut down, and `max_size` a bound on that; it is the length of the longer side if there is no
    `shorter`.
    """
    if size is not None:
        return np.broadcast_to(np.array(size, dtype=np.int64), sizes.shape)
    short, long = sizes.min(axis=1), sizes.max(axis=1)
    if shorter is None:
        assert max_size is not None, "checked by Resize"
        new_short = (max_size * short / long).astype(np.int64)
        new_long = np.full_like(long, max_size)
    else:
        new_short = np.full_like(short, shorter)
        new_long = (shorter * long / short).astype(np.int64)
        if max_size is not None:
            too_long = new_long > max_size
            new_short = np.where(
                too_long, (max_size * new_short / new_long).astype(np.int64), new_short
            )
            new_long = np.where(too_long, max_size, new_long)
    wide = sizes[:, 1] > sizes[:, 0]
    return np.stack(
        [np.where(wide, new_short, new_long), np.where(wide, new_long, new_short)], axis=1
    )


def shorter_sides(sizes: Int64Array, shorter: Int64Array, max_size: int | None) -> Int64Array:
    """(B, 2) int64: sizes that DETR gives images of these (B, 2) sizes, so that the shorter side
    has (B,) `shorter` pixels, and the longer follows, cut down.

    Where the longer one would exceed `max_size`, the shorter becomes `max_size` times short by
    long, rounded half to even; the longer one, which follows that, may then be `max_size` and a
    pixel more or less.
    """
    low, high = sizes.min(axis=1), sizes.max(axis=1)
    if max_size is not None:
        fitting = np.rint(max_size * low / high).astype(np.int64)
        shorter = np.where(high / low * shorter > max_size, fitting, shorter)
    longer = np.where(low == shorter, high, (shorter * high / low).astype(np.int64))
    tall = sizes[:, :1] > sizes[:, 1:]
    return np.where(tall, np.stack([longer, shorter], 1), np.stack([shorter, longer], 1))


def fitting_sizes(sizes: Int64Array, target: tuple[int, int], scale: Float64Array) -> Int64Array:
    """(B, 2) int64: sizes that detectron2's ResizeScale gives images of these (B, 2) sizes: as
    large as fits into `target` times (B,) `scale`, sides rounded half to even."""
    ratio = (np.array(target, dtype=np.float64) * scale[:, None] / sizes).min(axis=1)
    fitting: Int64Array = np.rint(sizes * ratio[:, None]).astype(np.int64)
    return fitting


def shortest_edges(sizes: Int64Array, shorter: Int64Array, max_size: int | None) -> Int64Array:
    """(B, 2) int64: sizes that detectron2's ResizeShortestEdge gives images of these (B, 2) sizes:
    the shorter side has (B,) `shorter` pixels, or less where the longer would exceed `max_size`;
    halves are rounded up."""
    scaled = sizes * (shorter / sizes.min(axis=1))[:, None]
    scaled[np.arange(len(sizes)), sizes.argmin(axis=1)] = shorter
    if max_size is not None:
        longest = scaled.max(axis=1, keepdims=True)
        scaled = np.where(longest > max_size, scaled * (max_size / longest), scaled)
    resized: Int64Array = np.floor(scaled + 0.5).astype(np.int64)
    return resized


def rescaled_sizes(sizes: Int64Array, scale: tuple[int, int], ratio: Float64Array) -> Int64Array:
    """(B, 2) int64: sizes that mmcv's RandomResize, which keeps aspect ratios, gives images of
    these (B, 2) sizes: as large as fits where the longer and the shorter side have at most the
    larger and the smaller of two numbers, times (B,) `ratio`, cut to whole pixels; halves are
    rounded up."""
    most = np.trunc(np.array([sorted(scale)], dtype=np.float64) * ratio[:, None])
    factor = (most / np.sort(sizes, axis=1)).min(axis=1, keepdims=True)
    resized: Int64Array = np.floor(sizes * factor + 0.5).astype(np.int64)
    return resized


def _central_boxes(sizes: Int64Array, ratio: tuple[float, float]) -> Int64Array:
    """(B, 4) int64: the largest central box with a ratio in bounds, as RandomResizedCrop falls back
    to."""
    image_height, image_width = sizes[:, 0], sizes[:, 1]
    image_ratio = image_width / image_height
    narrow, wide = image_ratio < ratio[0], image_ratio > ratio[1]
    # At least one pixel, where torchvision would round a strip one pixel wide to nothing and fail.
    height = np.where(
        narrow, np.maximum(np.rint(image_width / ratio[0]).astype(np.int64), 1), image_height
    )
    width = np.where(
        wide, np.maximum(np.rint(image_height * ratio[1]).astype(np.int64), 1), image_width
    )
    return np.stack(
        [(image_height - height) // 2, (image_width - width) // 2, height, width], axis=1
    )


def _exp(x: Float64Array) -> Float64Array:
    """e**x to within 2 units in the last place: x = k ln 2 + r; Taylor series of e**r by Horner's
    rule; times 2**k."""
    k = np.rint(x * _LOG2_E)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    series = np.ones_like(r)
    for n in range(14, 0, -1):
        series = 1.0 + r / n * series
    result: Float64Array = np.ldexp(series, k.astype(np.int32))
    return result
