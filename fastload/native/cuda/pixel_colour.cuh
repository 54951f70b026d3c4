// Steps of colour that make a pixel of that pixel; the same in Triton: `_recoloured` of
// fastload/render/kernels_colour.py. Values are whole numbers from 0 to 255, whatever the numbers
// of a step are.
#pragma once

#include "cuda/numbers.cuh"

namespace fastload::device {

// As fastload.render.steps.KINDS; below 0: the sample as it is.
enum Kind : int32_t {
    kBrightness,
    kContrast,
    kSaturation,
    kHue,
    kPosterize,
    kSolarize,
    kSharpness,
    kAutocontrast,
    kEqualize,
    kAffine,
    kGrey,
    kPermute,
    kChangeHsv,
    kGamma,
    kLinear,
    kSolarizeAdd,
    kMoveBilinear,
    kMoveBicubic,
    kMoveNearest,
    kCutOut,
};
constexpr int kStepNumbers = 6;

constexpr float kOf255 = 0.003921568859368563f;  // 1 / 255, by which torch multiplies

// 0.2989 R + 0.587 G + 0.114 B, cut to whole numbers.
FASTLOAD_DEVICE float grey_of(float red, float green, float blue) {
    const float value = times_plus(blue, 0.114f, times_plus(green, 0.587f, red * 0.2989f));
    return static_cast<float>(static_cast<int32_t>(value));
}

// As torch makes a byte of it, cut to 0..255 before.
FASTLOAD_DEVICE float cut(float value) {
    return static_cast<float>(static_cast<int32_t>(least(most(value, 0.0f), 255.0f)));
}

// factor * value + rest * other, as a byte.
FASTLOAD_DEVICE float blended(float value, float other, float factor, float rest) {
    return cut(times_plus(other, rest, value * factor));
}

// One channel of a turned hue; see fastload.recipe.colour.adjust_hue.
FASTLOAD_DEVICE float turned(float n, float hue, float largest, float chroma) {
    float k = hue + n;
    k = times_plus(floor_of(k / 6.0f), -6.0f, k);
    const float weight = least(most(least(k, 4.0f - k), 0.0f), 1.0f);
    return cut(times_plus(-weight, chroma, largest) * 255.999f);
}

FASTLOAD_DEVICE void turn_hue(float (&value)[3], float shift) {
    const float red = value[0] * kOf255, green = value[1] * kOf255, blue = value[2] * kOf255;
    const float largest = most(most(red, green), blue);
    const float chroma = largest - least(least(red, green), blue);
    const float divisor = most(chroma, 1e-12f);
    const float of_others =
        largest == green ? (blue - red) / divisor + 2.0f : (red - green) / divisor + 4.0f;
    const float hue = (largest == red ? (green - blue) / divisor : of_others) + shift;
    value[0] = turned(5.0f, hue, largest, chroma);
    value[1] = turned(3.0f, hue, largest, chroma);
    value[2] = turned(1.0f, hue, largest, chroma);
}

// 4096 * amount / number, rounded; 0 for 0.
FASTLOAD_DEVICE int32_t divided(int32_t amount, int32_t number) {
    return number > 0 ? (2 * 4096 * amount + number) / (2 * number) : 0;
}

// A whole number times a gain, 0 to 255, cut to a whole number.
FASTLOAD_DEVICE float scaled(int32_t number, float gain) {
    double product = static_cast<double>(number) * static_cast<double>(gain);
    product = product < 0.0 ? 0.0 : product > 65025.0 ? 65025.0 : product;
    return static_cast<float>(static_cast<int32_t>(product));
}

// One channel; see fastload.render.hsv.
FASTLOAD_DEVICE float of_hsv(float n, float hue, float value, float chroma) {
    float k = hue + n;
    k = k >= 6.0f ? k - 6.0f : k;
    return to_whole(value - chroma * least(most(least(k, 4.0f - k), 0.0f), 1.0f));
}

// `numbers`: the factors of hue, saturation and value, and what is added to them then.
FASTLOAD_DEVICE void change_hsv(float (&value)[3], const float* numbers) {
    const auto r = static_cast<int32_t>(value[0]), g = static_cast<int32_t>(value[1]),
               b = static_cast<int32_t>(value[2]);
    const int32_t largest = most(most(r, g), b);
    const int32_t difference = largest - least(least(r, g), b);
    const int32_t of_others = largest == g ? b - r + 2 * difference : r - g + 4 * difference;
    const int32_t sixths = largest == r ? g - b : of_others;
    int32_t angle = (sixths * divided(30, difference) + 2048) >> 12;
    if (angle < 0) angle += 180;
    const double turn = static_cast<double>(angle) * static_cast<double>(numbers[0]);
    const auto whole = static_cast<int32_t>(  // wraps, of numbers that no operation makes
        static_cast<uint32_t>(static_cast<int32_t>(turn)) +
        static_cast<uint32_t>(static_cast<int32_t>(numbers[3])) + 360u);
    const int32_t strength = (difference * divided(255, largest) + 2048) >> 12;
    const float hue = static_cast<float>(whole % 180) * static_cast<float>(1.0 / 30.0);
    const float gain = numbers[1];
    const float bright = cut(scaled(largest, numbers[2]) + numbers[5]);
    const float changed = cut(scaled(strength, gain < 0.0f ? -gain : gain) + numbers[4]);
    const float of_grey = gain < 0.0f ? changed : 0.0f;
    const float chroma =
        bright * ((strength > 0 ? changed : of_grey) * static_cast<float>(1.0 / 255.0));
    value[0] = of_hsv(5.0f, hue, bright, chroma);
    value[1] = of_hsv(3.0f, hue, bright, chroma);
    value[2] = of_hsv(1.0f, hue, bright, chroma);
}

// A byte raised to a power on the scale 0..1; see fastload.render.gamma.
FASTLOAD_DEVICE float raised(float value, float exponent) {
    const double part = static_cast<double>(value) * (1.0 / 255.0);
    double made = part;
    if (exponent != 1.0f)
        made = power_of(part < 1e-30 ? 1e-30 : part, static_cast<double>(exponent));
    if (part == 0.0) made = 0.0;  // exponents are above 0
    made *= 255.0;
    return static_cast<float>(static_cast<int32_t>(made < 255.0 ? made : 255.0));
}

// The channel that a number of a permutation means.
FASTLOAD_DEVICE float channel_of(float number, const float (&value)[3]) {
    return number == 0.0f ? value[0] : number == 1.0f ? value[1] : value[2];
}

// A rectangle of one value, the last of its columns and lines in it: `edges`, then the value.
FASTLOAD_DEVICE bool is_cut_out(int32_t place, int32_t width, const float* edges) {
    const auto y = static_cast<float>(place / width), x = static_cast<float>(place % width);
    return x >= edges[0] && x <= edges[2] && y >= edges[1] && y <= edges[3];
}

// `mean`: of the grey image, for contrast. `place`: of the pixel, in an image so wide. Of one
// channel, `value` has it three times.
template <int kChannels>
FASTLOAD_DEVICE void recolour_pixel(int32_t kind, float (&value)[3], float mean, int32_t place,
                                    int32_t width, const float* numbers) {
    const float factor = numbers[0], rest = numbers[1];
    switch (kind) {
        case kBrightness:
            for (float& x : value) x = cut(x * factor);
            break;
        case kContrast:
            for (float& x : value) x = blended(x, mean, factor, rest);
            break;
        case kSaturation:
            if (kChannels == 3) {
                const float grey = grey_of(value[0], value[1], value[2]);
                for (float& x : value) x = blended(x, grey, factor, rest);
            }
            break;
        case kHue:
            if (kChannels == 3) turn_hue(value, factor);
            break;
        case kPosterize:
            for (float& x : value)
                x = static_cast<float>(static_cast<int32_t>(x) & static_cast<int32_t>(factor));
            break;
        case kSolarize:
            for (float& x : value) x = x >= factor ? 255.0f - x : x;
            break;
        case kSolarizeAdd:
            for (float& x : value) x = x < 128.0f ? cut(x + factor) : x;
            break;
        case kGrey:
            if (kChannels == 3) {
                const float grey = grey_of(value[0], value[1], value[2]);
                for (float& x : value) x = grey;
            }
            break;
        case kPermute:
            if (kChannels == 3) {
                const float one = channel_of(factor, value), two = channel_of(rest, value);
                value[2] = channel_of(3.0f - factor - rest, value);
                value[0] = one;
                value[1] = two;
            }
            break;
        case kChangeHsv:
            if (kChannels == 3) {
                change_hsv(value, numbers);
            } else {
                for (float& x : value) x = cut(x + numbers[5]);
            }
            break;
        case kLinear:
            for (float& x : value) x = cut(x * factor + rest);
            break;
        case kGamma:
            for (int i = 0; i < kChannels; ++i) value[i] = raised(value[i], factor);
            break;
        case kCutOut:
            if (is_cut_out(place, width, numbers))
                for (float& x : value) x = cut(numbers[4]);
            break;
        default: break;
    }
}

}  // namespace fastload::device
