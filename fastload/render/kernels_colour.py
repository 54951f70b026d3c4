"""Kernels for GPUs in Triton: colour, shears and turns of uint8 images, all steps of a sample in
one launch; and blur. See `fastload.render.kernels`.
"""

# The arguments of a kernel have no types that Python knows.
# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from fastload.render.steps import KINDS

(
    BRIGHTNESS,
    CONTRAST,
    SATURATION,
    HUE,
    POSTERIZE,
    SOLARIZE,
    SHARPNESS,
    AUTOCONTRAST,
    EQUALIZE,
    AFFINE,
    GREY,
    PERMUTE,
    CHANGE_HSV,
    GAMMA,
    LINEAR,
    SOLARIZE_ADD,
    MOVE_BILINEAR,
    MOVE_BICUBIC,
    MOVE_NEAREST,
    CUT_OUT,
) = (tl.constexpr(n) for n in range(len(KINDS)))
"""As `fastload.render.steps.KINDS`; below 0: the sample as it is."""
_TO_WHOLE = tl.constexpr(12582912.0)  # 1.5 * 2^23, see `fastload.render.kernels`
_OF_255 = tl.constexpr(0.003921568859368563)  # 1 / 255 in float32, by which torch multiplies


@triton.jit
def _round(x):
    return (x + _TO_WHOLE) - _TO_WHOLE


@triton.jit
def _grey(red, green, blue):
    """0.2989 R + 0.587 G + 0.114 B, cut to whole numbers."""
    value = tl.fma(blue, 0.114, tl.fma(green, 0.587, red * 0.2989))
    return value.to(tl.int32).to(tl.float32)


@triton.jit
def _cut(value):
    """A float32 as torch makes a byte of it, cut to 0..255 before; as float32 again."""
    return tl.minimum(tl.maximum(value, 0.0), 255.0).to(tl.int32).to(tl.float32)


@triton.jit
def _turned(n: tl.constexpr, hue, largest, chroma):
    """One channel of a turned hue; see `fastload.recipe.colour.adjust_hue`."""
    k = hue + n
    k = tl.fma(tl.floor(tl.math.div_rn(k, 6.0)), -6.0, k)
    weight = tl.minimum(tl.maximum(tl.minimum(k, 4.0 - k), 0.0), 1.0)
    return (tl.fma(-weight, chroma, largest) * 255.999).to(tl.int32).to(tl.float32)


@triton.jit
def _blended(value, other, factor, rest):
    """factor * value + rest * other, as a byte."""
    return _cut(tl.fma(other, rest, value * factor))


@triton.jit
def _load(place, valid):
    return tl.load(place, mask=valid, other=0).to(tl.float32)


@triton.jit
def _mean_grey(
    source, plane, stride_channel, stride_pixel, CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):
    """Of an image; summed exactly."""
    total = tl.zeros([BLOCK], tl.int64)
    for begin in range(0, plane, BLOCK):
        pixel = begin + tl.arange(0, BLOCK)
        valid = pixel < plane
        place = source + pixel * stride_pixel
        grey = _load(place, valid)
        if CHANNELS == 3:
            green = _load(place + stride_channel, valid)
            grey = _grey(grey, green, _load(place + 2 * stride_channel, valid))
        total += grey.to(tl.int64)
    return (tl.sum(total).to(tl.float64) / plane).to(tl.float32)


@triton.jit
def _channel(number, red, green, blue):
    return tl.where(number == 0, red, tl.where(number == 1, green, blue))


@triton.jit
def _divided(amount: tl.constexpr, number):
    """4096 * amount / number, rounded; 0 for 0."""
    least = tl.maximum(number, 1)
    return tl.where(number > 0, (2 * 4096 * amount + least) // (2 * least), 0)


@triton.jit
def _scaled(number, gain):
    """A whole number times a gain, 0 to 255, cut to a whole number."""
    scaled = number.to(tl.float64) * gain.to(tl.float64)
    return tl.minimum(tl.maximum(scaled, 0.0), 65025.0).to(tl.int32).to(tl.float32)


@triton.jit
def _of_hsv(n: tl.constexpr, hue, value, chroma):
    """One channel; see `fastload.render.hsv`."""
    k = hue + n
    k = tl.where(k >= 6.0, k - 6.0, k)
    weight = tl.minimum(tl.maximum(tl.minimum(k, 4.0 - k), 0.0), 1.0)
    return _round(value - chroma * weight)


@triton.jit
def _change_hsv(red, green, blue, of_hue, of_saturation, of_value, to_hue, to_saturation, to_value):
    r, g, b = red.to(tl.int32), green.to(tl.int32), blue.to(tl.int32)
    most = tl.maximum(tl.maximum(r, g), b)
    difference = most - tl.minimum(tl.minimum(r, g), b)
    of_others = tl.where(most == g, b - r + 2 * difference, r - g + 4 * difference)
    sixths = tl.where(most == r, g - b, of_others)
    angle = (sixths * _divided(30, difference) + 2048) >> 12
    angle = tl.where(angle < 0, angle + 180, angle)
    turned = angle.to(tl.float64) * of_hue.to(tl.float64)
    whole = turned.to(tl.int32) + to_hue.to(tl.int32) + 360
    strength = (difference * _divided(255, most) + 2048) >> 12
    hue = (whole % 180).to(tl.float32) * (1.0 / 30.0)
    value = _cut(_scaled(most, of_value) + to_value)
    changed = _cut(_scaled(strength, tl.abs(of_saturation)) + to_saturation)
    of_grey = tl.where(of_saturation < 0.0, changed, 0.0)
    chroma = value * (tl.where(strength > 0, changed, of_grey) * (1.0 / 255.0))
    return (
        _of_hsv(5.0, hue, value, chroma),
        _of_hsv(3.0, hue, value, chroma),
        _of_hsv(1.0, hue, value, chroma),
    )


@triton.jit
def _raised(value, exponent):
    """A byte raised to a power on the scale 0..1; see `fastload.render.gamma`."""
    part, exponent = value.to(tl.float64) * (1.0 / 255.0), exponent.to(tl.float64)
    raised = tl.exp2(exponent * tl.log2(tl.maximum(part, 1e-30)))
    raised = tl.where(exponent == 1.0, part, raised)
    raised = tl.where(part == 0.0, 0.0, raised)  # exponents are above 0
    return tl.minimum(raised * 255.0, 255.0).to(tl.int32).to(tl.float32)


@triton.jit
def _recoloured(
    kind, red, green, blue, mean, factor, rest, third, fourth, fifth, sixth, CHANNELS: tl.constexpr
):
    """Steps that make a pixel of that pixel."""
    if kind == BRIGHTNESS:
        red, green, blue = _cut(red * factor), _cut(green * factor), _cut(blue * factor)
    elif kind == CONTRAST:
        red = _blended(red, mean, factor, rest)
        green = _blended(green, mean, factor, rest)
        blue = _blended(blue, mean, factor, rest)
    elif kind == SATURATION:
        if CHANNELS == 3:
            grey = _grey(red, green, blue)
            red = _blended(red, grey, factor, rest)
            green = _blended(green, grey, factor, rest)
            blue = _blended(blue, grey, factor, rest)
    elif kind == HUE:
        if CHANNELS == 3:
            red, green, blue = red * _OF_255, green * _OF_255, blue * _OF_255
            largest = tl.maximum(tl.maximum(red, green), blue)
            chroma = largest - tl.minimum(tl.minimum(red, green), blue)
            divisor = tl.maximum(chroma, 1e-12)
            of_green = tl.math.div_rn(blue - red, divisor) + 2.0
            of_blue = tl.math.div_rn(red - green, divisor) + 4.0
            of_others = tl.where(largest == green, of_green, of_blue)
            of_red = tl.math.div_rn(green - blue, divisor)
            hue = tl.where(largest == red, of_red, of_others) + factor
            red = _turned(5.0, hue, largest, chroma)
            green = _turned(3.0, hue, largest, chroma)
            blue = _turned(1.0, hue, largest, chroma)
    elif kind == POSTERIZE:
        mask = factor.to(tl.int32)
        red = (red.to(tl.int32) & mask).to(tl.float32)
        green = (green.to(tl.int32) & mask).to(tl.float32)
        blue = (blue.to(tl.int32) & mask).to(tl.float32)
    elif kind == SOLARIZE:
        red = tl.where(red >= factor, 255.0 - red, red)
        green = tl.where(green >= factor, 255.0 - green, green)
        blue = tl.where(blue >= factor, 255.0 - blue, blue)
    elif kind == SOLARIZE_ADD:
        red = tl.where(red < 128.0, _cut(red + factor), red)
        green = tl.where(green < 128.0, _cut(green + factor), green)
        blue = tl.where(blue < 128.0, _cut(blue + factor), blue)
    elif kind == GREY:
        if CHANNELS == 3:
            red = _grey(red, green, blue)
            green, blue = red, red
    elif kind == PERMUTE:
        if CHANNELS == 3:
            one = _channel(factor, red, green, blue)
            two = _channel(rest, red, green, blue)
            blue = _channel(3.0 - factor - rest, red, green, blue)
            red, green = one, two
    elif kind == CHANGE_HSV:
        if CHANNELS == 3:
            red, green, blue = _change_hsv(
                red, green, blue, factor, rest, third, fourth, fifth, sixth
            )
        else:
            red = _cut(red + sixth)
    elif kind == LINEAR:
        red, green, blue = (
            _cut(red * factor + rest),
            _cut(green * factor + rest),
            _cut(blue * factor + rest),
        )
    elif kind == GAMMA:
        red, green, blue = _raised(red, factor), _raised(green, factor), _raised(blue, factor)
    return red, green, blue


@triton.jit
def _recolour_image(
    kind,
    source,
    target,
    numbers,
    plane,
    stride_channel,
    stride_pixel,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    mean, factor, rest, third = 0.0, tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    fourth, fifth, sixth = tl.load(numbers + 3), tl.load(numbers + 4), tl.load(numbers + 5)
    if kind == CONTRAST:
        mean = _mean_grey(source, plane, stride_channel, stride_pixel, CHANNELS, BLOCK)
    for begin in range(0, plane, BLOCK):
        pixel = begin + tl.arange(0, BLOCK)
        valid = pixel < plane
        place = source + pixel * stride_pixel
        red = _load(place, valid)
        green, blue = red, red
        if CHANNELS == 3:
            green = _load(place + stride_channel, valid)
            blue = _load(place + 2 * stride_channel, valid)
        red, green, blue = _recoloured(
            kind, red, green, blue, mean, factor, rest, third, fourth, fifth, sixth, CHANNELS
        )
        place = target + pixel * stride_pixel
        tl.store(place, red.to(tl.uint8), mask=valid)
        if CHANNELS == 3:
            tl.store(place + stride_channel, green.to(tl.uint8), mask=valid)
            tl.store(place + 2 * stride_channel, blue.to(tl.uint8), mask=valid)


@triton.jit
def _stretch_plane(source, target, plane, stride_pixel, BLOCK: tl.constexpr):
    """Autocontrast: the values of a channel to all of 0..255."""
    least = tl.full([BLOCK], 255.0, tl.float32)
    most = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, plane, BLOCK):
        pixel = begin + tl.arange(0, BLOCK)
        value = _load(source + pixel * stride_pixel, pixel < plane)
        least = tl.where(pixel < plane, tl.minimum(least, value), least)
        most = tl.maximum(most, value)
    low, high = tl.min(least), tl.max(most)
    scale = tl.where(high == low, 1.0, (high - low) * _OF_255)
    low = tl.where(high == low, 0.0, low)
    for begin in range(0, plane, BLOCK):
        pixel = begin + tl.arange(0, BLOCK)
        valid = pixel < plane
        value = tl.math.div_rn(_load(source + pixel * stride_pixel, valid) - low, scale)
        tl.store(target + pixel * stride_pixel, _cut(value).to(tl.uint8), mask=valid)


@triton.jit
def _equalize_plane(source, target, table, plane, stride_pixel, BLOCK: tl.constexpr):
    """As Pillow's ImageOps.equalize. `table`: 256 bytes of memory."""
    level = tl.arange(0, 256)
    counts = tl.zeros([256], tl.int32)
    for begin in range(0, plane, BLOCK):
        pixel = begin + tl.arange(0, BLOCK)
        valid = pixel < plane
        value = tl.load(source + pixel * stride_pixel, mask=valid, other=0).to(tl.int32)
        counts += tl.histogram(value, 256)  # which takes no mask in Triton before 3.4
    beyond = (plane + BLOCK - 1) // BLOCK * BLOCK - plane
    counts -= tl.where(level == 0, beyond, 0)
    last = tl.max(tl.where(counts > 0, level, 0))
    step = (plane - tl.sum(tl.where(level == last, counts, 0))) // 255
    below = tl.cumsum(counts) - counts
    equalized = tl.minimum((below + step // 2) // tl.maximum(step, 1), 255)
    tl.store(table + level, tl.where(step == 0, level, equalized).to(tl.uint8))
    tl.debug_barrier()
    for begin in range(0, plane, BLOCK):
        pixel = begin + tl.arange(0, BLOCK)
        valid = pixel < plane
        value = tl.load(source + pixel * stride_pixel, mask=valid, other=0).to(tl.int32)
        tl.store(target + pixel * stride_pixel, tl.load(table + value, mask=valid), mask=valid)
    tl.debug_barrier()  # before the table of the next channel is written


@triton.jit
def _sharpen_plane(source, target, rest, height, width, stride_pixel, BLOCK: tl.constexpr):
    """Blended with the mean of the neighbourhood, in which the pixel itself counts five times."""
    plane = height * width
    for begin in range(0, plane, BLOCK):
        pixel = begin + tl.arange(0, BLOCK)
        valid = pixel < plane
        y, x = pixel // width, pixel % width
        inner = valid & (y > 0) & (y < height - 1) & (x > 0) & (x < width - 1)
        value = _load(source + pixel * stride_pixel, valid)
        total = value * 4.0
        for down in tl.static_range(-1, 2):
            for across in tl.static_range(-1, 2):
                near = pixel + down * width + across
                total += _load(source + near * stride_pixel, inner)
        smooth = _round(tl.math.div_rn(total, 13.0))
        sharpened = tl.where(inner, _cut(tl.fma(smooth - value, rest, value)), value)
        tl.store(target + pixel * stride_pixel, sharpened.to(tl.uint8), mask=valid)


@triton.jit
def _sample(source, y, x, height, width, stride_pixel, valid):
    """Pixels at whole positions given in float32, and whether they are inside; 0 outside."""
    inside = valid & (x >= 0.0) & (x < width) & (y >= 0.0) & (y < height)
    place = y.to(tl.int32) * width + x.to(tl.int32)
    return _load(source + place * stride_pixel, inside), inside.to(tl.float32)


@triton.jit
def _affine_image(
    source,
    target,
    numbers,
    fill,
    height,
    width,
    stride_channel,
    stride_pixel,
    CHANNELS: tl.constexpr,
    BILINEAR: tl.constexpr,
    FILLS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """As torch's grid_sample with zeros outside, of the grid of `fastload.recipe.augment`."""
    x_of_x, x_of_y, x_of_1 = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    y_of_x, y_of_y, y_of_1 = tl.load(numbers + 3), tl.load(numbers + 4), tl.load(numbers + 5)
    half_height, half_width = height.to(tl.float32) * 0.5, width.to(tl.float32) * 0.5
    plane = height * width
    for begin in range(0, plane, BLOCK):
        pixel = begin + tl.arange(0, BLOCK)
        valid = pixel < plane
        y = (pixel // width).to(tl.float32) - (half_height - 0.5)
        x = (pixel % width).to(tl.float32) - (half_width - 0.5)
        at_x = tl.fma((x_of_x * x + x_of_y * y) + x_of_1 + 1.0, half_width, -0.5)
        at_y = tl.fma((y_of_x * x + y_of_y * y) + y_of_1 + 1.0, half_height, -0.5)
        if BILINEAR:
            left, top = tl.floor(at_x), tl.floor(at_y)
            of_right, of_bottom = at_x - left, at_y - top
            of_left, of_top = 1.0 - of_right, 1.0 - of_bottom
        else:
            left, top = _round(at_x), _round(at_y)
        for channel in tl.static_range(CHANNELS):
            plane_of = source + channel * stride_channel
            value, inside = _sample(plane_of, top, left, height, width, stride_pixel, valid)
            if BILINEAR:
                weight = of_top * of_left
                value, inside = value * weight, inside * weight
                near, there = _sample(plane_of, top, left + 1.0, height, width, stride_pixel, valid)
                weight = of_top * of_right
                value, inside = tl.fma(near, weight, value), tl.fma(there, weight, inside)
                near, there = _sample(plane_of, top + 1.0, left, height, width, stride_pixel, valid)
                weight = of_bottom * of_left
                value, inside = tl.fma(near, weight, value), tl.fma(there, weight, inside)
                near, there = _sample(
                    plane_of, top + 1.0, left + 1.0, height, width, stride_pixel, valid
                )
                weight = of_bottom * of_right
                value, inside = tl.fma(near, weight, value), tl.fma(there, weight, inside)
            if FILLS:
                colour = tl.load(fill + channel)
                if BILINEAR:
                    value = (value - colour) * inside + colour
                else:
                    value = tl.where(inside < 0.5, colour, value)
            value = _round(value).to(tl.int32)
            place = target + channel * stride_channel + pixel * stride_pixel
            tl.store(place, value.to(tl.uint8), mask=valid)


@triton.jit
def _near(source, y, x, height, width, stride_pixel, inside):
    """Pixels at whole positions given in float32, those of the border beyond it."""
    row = tl.minimum(tl.maximum(y.to(tl.int32), 0), height - 1)
    column = tl.minimum(tl.maximum(x.to(tl.int32), 0), width - 1)
    return _load(source + (row * width + column) * stride_pixel, inside)


@triton.jit
def _between_two(a, b, part):
    return a + (b - a) * part


@triton.jit
def _between_four(a, b, c, d, part):
    square, cube = (2.0 * (a - b) + c) - d, ((b - a) - c) + d
    return b + part * ((c - a) + part * (square + part * cube))


@triton.jit
def _line(source, y, left, part, height, width, stride_pixel, inside, CUBIC: tl.constexpr):
    one = _near(source, y, left, height, width, stride_pixel, inside)
    two = _near(source, y, left + 1.0, height, width, stride_pixel, inside)
    if CUBIC:
        before = _near(source, y, left - 1.0, height, width, stride_pixel, inside)
        after = _near(source, y, left + 2.0, height, width, stride_pixel, inside)
        value = _between_four(before, one, two, after, part)
    else:
        value = _between_two(one, two, part)
    return value


@triton.jit
def _move_image(
    source,
    target,
    numbers,
    fill,
    height,
    width,
    stride_channel,
    stride_pixel,
    CHANNELS: tl.constexpr,
    CUBIC: tl.constexpr,
    FILLS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """As `fastload.recipe.pillow_augment.moved`."""
    x_of_x, x_of_y, x_of_1 = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    y_of_x, y_of_y, y_of_1 = tl.load(numbers + 3), tl.load(numbers + 4), tl.load(numbers + 5)
    plane = height * width
    for begin in range(0, plane, BLOCK):
        pixel = begin + tl.arange(0, BLOCK)
        valid = pixel < plane
        y = (pixel // width).to(tl.float32) + 0.5
        x = (pixel % width).to(tl.float32) + 0.5
        at_x = (x_of_x * x + x_of_y * y) + x_of_1
        at_y = (y_of_x * x + y_of_y * y) + y_of_1
        inside = (at_x >= 0.0) & (at_x < width) & (at_y >= 0.0) & (at_y < height)
        shown = valid & inside
        at_x, at_y = tl.where(shown, at_x, 0.0) - 0.5, tl.where(shown, at_y, 0.0) - 0.5
        left, top = tl.floor(at_x), tl.floor(at_y)
        right, down = at_x - left, at_y - top
        for channel in tl.static_range(CHANNELS):
            plane_of = source + channel * stride_channel
            one = _line(plane_of, top, left, right, height, width, stride_pixel, shown, CUBIC)
            two = _line(plane_of, top + 1.0, left, right, height, width, stride_pixel, shown, CUBIC)
            if CUBIC:
                before = _line(
                    plane_of, top - 1.0, left, right, height, width, stride_pixel, shown, CUBIC
                )
                after = _line(
                    plane_of, top + 2.0, left, right, height, width, stride_pixel, shown, CUBIC
                )
                value = _between_four(before, one, two, after, down)
            else:
                value = _between_two(one, two, down)
            value = tl.where(shown, _cut(value), 0.0)
            if FILLS:
                value = tl.where(shown, value, _cut(tl.load(fill + channel)))
            place = target + channel * stride_channel + pixel * stride_pixel
            tl.store(place, value.to(tl.uint8), mask=valid)


@triton.jit
def _in_65536ths(number):
    return tl.floor(number * 65536.0).to(tl.int64)


@triton.jit
def _move_nearest(
    source,
    target,
    numbers,
    fill,
    height,
    width,
    stride_channel,
    stride_pixel,
    CHANNELS: tl.constexpr,
    FILLS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """As `fastload.recipe.pillow_augment.moved_nearest`."""
    x_of_x, x_of_y = _in_65536ths(tl.load(numbers)), _in_65536ths(tl.load(numbers + 1))
    y_of_x, y_of_y = _in_65536ths(tl.load(numbers + 3)), _in_65536ths(tl.load(numbers + 4))
    x_of_1, y_of_1 = _in_65536ths(tl.load(numbers + 2)), _in_65536ths(tl.load(numbers + 5))
    plane = height * width
    for begin in range(0, plane, BLOCK):
        pixel = begin + tl.arange(0, BLOCK)
        valid = pixel < plane
        y, x = pixel // width, pixel % width
        at_x = (x_of_x * x + x_of_y * y + x_of_1) >> 16
        at_y = (y_of_x * x + y_of_y * y + y_of_1) >> 16
        inside = (at_x >= 0) & (at_x < width) & (at_y >= 0) & (at_y < height)
        shown = valid & inside
        place = tl.where(shown, at_y * width + at_x, 0)
        for channel in tl.static_range(CHANNELS):
            skipped = channel * stride_channel
            value = tl.where(shown, _load(source + skipped + place * stride_pixel, shown), 0.0)
            if FILLS:
                value = tl.where(shown, value, _cut(tl.load(fill + channel)))
            tl.store(target + skipped + pixel * stride_pixel, value.to(tl.uint8), mask=valid)


@triton.jit
def _cut_out(
    source,
    target,
    numbers,
    height,
    width,
    stride_channel,
    stride_pixel,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """As `fastload.recipe.cut_out.with_rectangles`."""
    left, top = tl.load(numbers), tl.load(numbers + 1)
    right, bottom = tl.load(numbers + 2), tl.load(numbers + 3)
    colour = _cut(tl.load(numbers + 4))
    plane = height * width
    for begin in range(0, plane, BLOCK):
        pixel = begin + tl.arange(0, BLOCK)
        valid = pixel < plane
        y, x = (pixel // width).to(tl.float32), (pixel % width).to(tl.float32)
        inside = (x >= left) & (x <= right) & (y >= top) & (y <= bottom)
        for channel in tl.static_range(CHANNELS):
            place = channel * stride_channel + pixel * stride_pixel
            value = tl.where(inside, colour, _load(source + place, valid))
            tl.store(target + place, value.to(tl.uint8), mask=valid)


@triton.jit(do_not_specialize=["kinds", "numbers", "counts", "steps", "chains", "height", "width"])
def recolour(
    images,
    kinds,
    numbers,
    counts,
    steps,
    fill,
    out,
    scratch,
    tables,
    chains,
    height,
    width,
    stride_row,
    stride_channel,
    stride_pixel,
    CHANNELS: tl.constexpr,
    BILINEAR: tl.constexpr,
    FILLS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A sample: all of its steps, in order.

    Args:
        images, out, scratch: (B, CHANNELS, height * width) uint8, of the same strides; B / chains
            images. The steps write to `out` and `scratch` in turn, the last of them to `out`.
        kinds: (B, steps) int32, those of a sample first, then -1.
        numbers: (B, steps, 6) float32: see `fastload.render.steps`.
        counts: (B,) int32: steps of each sample, at least 1; of kind -1 is a copy.
        fill: (CHANNELS,) float32: what lies outside, if FILLS.
        tables: (B, 256) uint8, for the steps to write to.
        chains: rows of `out` that one image is for.
    """
    row = tl.program_id(0)
    base = row.to(tl.int64) * stride_row
    plane = height * width
    count = tl.load(counts + row)
    source = images + (row // chains).to(tl.int64) * stride_row
    last, other = out + base, scratch + base
    for step in range(count):
        # a step reads what the one before wrote, perhaps in another thread of the program
        tl.debug_barrier()
        target = tl.where((count - step) % 2 == 1, last, other)
        kind = tl.load(kinds + row * steps + step)
        given = numbers + (row * steps + step) * 6
        if kind == AFFINE:
            _affine_image(
                source,
                target,
                given,
                fill,
                height,
                width,
                stride_channel,
                stride_pixel,
                CHANNELS,
                BILINEAR,
                FILLS,
                BLOCK,
            )
        elif kind == MOVE_BILINEAR:
            _move_image(
                source,
                target,
                given,
                fill,
                height,
                width,
                stride_channel,
                stride_pixel,
                CHANNELS,
                False,
                FILLS,
                BLOCK,
            )
        elif kind == MOVE_BICUBIC:
            _move_image(
                source,
                target,
                given,
                fill,
                height,
                width,
                stride_channel,
                stride_pixel,
                CHANNELS,
                True,
                FILLS,
                BLOCK,
            )
        elif kind == MOVE_NEAREST:
            _move_nearest(
                source,
                target,
                given,
                fill,
                height,
                width,
                stride_channel,
                stride_pixel,
                CHANNELS,
                FILLS,
                BLOCK,
            )
        elif kind == CUT_OUT:
            _cut_out(
                source,
                target,
                given,
                height,
                width,
                stride_channel,
                stride_pixel,
                CHANNELS,
                BLOCK,
            )
        elif kind == SHARPNESS:
            for channel in range(CHANNELS):
                skipped = channel * stride_channel
                _sharpen_plane(
                    source + skipped,
                    target + skipped,
                    tl.load(given),
                    height,
                    width,
                    stride_pixel,
                    BLOCK,
                )
        elif kind == AUTOCONTRAST:
            for channel in range(CHANNELS):
                skipped = channel * stride_channel
                _stretch_plane(source + skipped, target + skipped, plane, stride_pixel, BLOCK)
        elif kind == EQUALIZE:
            for channel in range(CHANNELS):
                skipped = channel * stride_channel
                _equalize_plane(
                    source + skipped,
                    target + skipped,
                    tables + row * 256,
                    plane,
                    stride_pixel,
                    BLOCK,
                )
        else:
            _recolour_image(
                kind, source, target, given, plane, stride_channel, stride_pixel, CHANNELS, BLOCK
            )
        source = target


@triton.jit(do_not_specialize=["rows"])
def blur(
    images,
    weights,
    out,
    rows,
    planes,
    length,
    step,
    stride_plane,
    stride_line,
    line_length,
    TAPS: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Weighted sums along one axis of planar images, mirrored at the borders; a block of one plane.

    Args:
        images: (rows * planes, H, W), uint8 or float32.
        weights: (TAPS, rows) float32.
        length, step: pixels along the axis, and elements from one to the next.
        stride_line, line_length: the same along the other axis.
        WHOLE: round to bytes.
    """
    blocks = (length * line_length + BLOCK - 1) // BLOCK
    number = tl.program_id(0) // blocks
    row = number // planes
    place = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    valid = place < length * line_length
    along, line = place // line_length, place % line_length
    base = number.to(tl.int64) * stride_plane + line * stride_line
    total = tl.zeros([BLOCK], tl.float32)
    for tap in tl.static_range(TAPS):
        at = along + tap - TAPS // 2
        at = tl.where(at < 0, -at, at)
        at = tl.where(at >= length, 2 * (length - 1) - at, at)
        value = tl.load(images + base + at * step, mask=valid, other=0).to(tl.float32)
        weight = tl.load(weights + tap * rows + row)
        if tap == 0:
            total = value * weight
        else:
            total = tl.fma(value, weight, total)
    if WHOLE:
        total = _round(total)
    tl.store(out + base + along * step, total.to(out.dtype.element_ty), mask=valid)


@triton.jit
def add_weighted(images, parts, weights, out, size, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """(B, size) uint8 images times the first of (B, 1 + PARTS) weights, plus their (B * PARTS,
    size) parts times the others, each product and sum rounded; cut to bytes."""
    blocks = (size + BLOCK - 1) // BLOCK
    row = tl.program_id(0) // blocks
    place = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    valid = place < size
    start = row.to(tl.int64) * size
    weight = weights + row * (1 + PARTS)
    total = _load(images + start + place, valid) * tl.load(weight)
    for part in tl.static_range(PARTS):
        value = _load(parts + (start * PARTS + part * size) + place, valid)
        total = total + value * tl.load(weight + 1 + part)
    tl.store(out + start + place, total.to(tl.int32).to(tl.uint8), mask=valid)
