// Colour operations that change single pixels, on blocks of RGB pixels as floats, and the
// arithmetic that all colour operations share. Included as colour.inl.hpp is, which says how it is
// compiled.
#pragma once

#include <algorithm>
#include <cmath>

#include "colour_loops.hpp"
#include "colour_tables.inl.hpp"

namespace fastload {
namespace {

// a * b + c, rounded as torch rounds it here.
inline float mul_add(float a, float b, float c) {
#if defined(FASTLOAD_COLOUR_FUSED)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// Rounded to a whole number, halves to even: adding 1.5 * 2^23 leaves no bits for a fraction.
constexpr float rounded(float x) { return (x + 12582912.0f) - 12582912.0f; }

// Limited to 0 to 255, and its fraction cut off. NaN becomes 0.
inline uint8_t to_byte(float x) {
    x = x > 0.0f ? x : 0.0f;
    x = x < 255.0f ? x : 255.0f;
    return static_cast<uint8_t>(static_cast<int32_t>(x));
}

inline float to_float(uint8_t value) { return static_cast<float>(value); }

// Grey by torchvision's weights, its fraction cut off.
inline float grey_of(float red, float green, float blue) {
    const float sum = mul_add(blue, 0.114f, mul_add(green, 0.587f, red * 0.2989f));
    return static_cast<float>(static_cast<int32_t>(sum));
}

// Pixels of three channels that are worked on at a time, as floats. The arrays are members of one
// struct: so compilers know that they do not overlap, and make vector instructions.
struct Block {
    static constexpr size_t kMost = 128;
    float red[kMost], green[kMost], blue[kMost];
};

void saturate(Block& block, size_t count, float factor, float rest) {
    for (size_t i = 0; i < count; ++i) {
        const float red = block.red[i], green = block.green[i], blue = block.blue[i];
        const float grey = grey_of(red, green, blue);
        block.red[i] = mul_add(grey, rest, red * factor);
        block.green[i] = mul_add(grey, rest, green * factor);
        block.blue[i] = mul_add(grey, rest, blue * factor);
    }
}

// floor(k / 6). kInRange: -6 <= k < 18, and k is no denormal number. Then comparisons suffice: k /
// 6 is never rounded up to a whole number.
template <bool kInRange>
inline float floor_sixths(float k) {
    if (!kInRange) return std::floor(k / 6.0f);
    return (k >= 6.0f ? 1.0f : 0.0f) + (k >= 12.0f ? 1.0f : 0.0f) - (k < 0.0f ? 1.0f : 0.0f);
}

// One channel of a pixel with the hue `hue` [sixths of a turn]: 5 for red, 3 for green, 1 for blue
// as `n`. See adjust_hue of fastload/recipe/colour.py.
template <bool kInRange>
inline float channel_of_hue(float n, float hue, float largest, float chroma) {
    float k = hue + n;
    k = mul_add(floor_sixths<kInRange>(k), -6.0f, k);
    float weight = k < 4.0f - k ? k : 4.0f - k;
    weight = weight > 0.0f ? weight : 0.0f;
    weight = weight < 1.0f ? weight : 1.0f;
    return mul_add(-weight, chroma, largest) * 255.999f;
}

template <bool kInRange>
void turn_hue(Block& block, size_t count, float shift) {
    constexpr float kOf255 = 0.003921568859368563f;  // 1 / 255, by which torch multiplies
    for (size_t i = 0; i < count; ++i) {
        const float x = block.red[i] * kOf255, y = block.green[i] * kOf255,
                    z = block.blue[i] * kOf255;
        const float most = x > y ? x : y, least = x < y ? x : y;
        const float largest = most > z ? most : z, chroma = largest - (least < z ? least : z);
        const float divisor = chroma > 1e-12f ? chroma : 1e-12f;
        // One division in place of three: by which of the channels is largest.
        const float difference = largest == x ? y - z : largest == y ? z - x : x - y;
        const float first = largest == x ? 0.0f : largest == y ? 2.0f : 4.0f;
        const float angle = (difference / divisor + first) + shift;
        block.red[i] = channel_of_hue<kInRange>(5.0f, angle, largest, chroma);
        block.green[i] = channel_of_hue<kInRange>(3.0f, angle, largest, chroma);
        block.blue[i] = channel_of_hue<kInRange>(1.0f, angle, largest, chroma);
    }
}

// OpenCV's factor in place of a division of bytes by `whole`: `scale` / `whole` with 12 fractional
// bits, rounded.
constexpr float divisor_of(float scale, float whole) {
    return rounded((scale * 4096.0f) / (whole > 1.0f ? whole : 1.0f));
}

// Whether `divisor_of` in single precision gives the integers that OpenCV has in its tables.
constexpr bool divides_exactly(int scale) {
    for (int x = 1; x < 256; ++x) {
        const int wanted = (2 * (scale << 12) + x) / (2 * x);
        const float found = divisor_of(static_cast<float>(scale), static_cast<float>(x));
        if (found != static_cast<float>(wanted)) return false;
    }
    return true;
}
static_assert(divides_exactly(30) && divides_exactly(255), "OpenCV's divisors");

// `part` * `scale` / `whole`, rounded. The product with the factor is below 2^24, so it is exact.
inline int32_t share_of(float part, float scale, float whole) {
    return static_cast<int32_t>(part * divisor_of(scale, whole) + 2048.0f) >> 12;
}

// How much of the chroma a channel of a pixel with the hue `h` [sixths of a turn] lacks: 5 for red,
// 3 for green, 1 for blue as `n`.
constexpr float weight_of_hue(float n, float h) {
    float k = h + n;
    k = k >= 6.0f ? k - 6.0f : k;
    float weight = k < 4.0f - k ? k : 4.0f - k;
    weight = weight > 0.0f ? weight : 0.0f;
    return weight < 1.0f ? weight : 1.0f;
}

// Multiplies hue, saturation and value and adds to them, with OpenCV's arithmetic for bytes; see
// fastload/render/hsv.py. Without lookup tables, for which vectors have no fast instruction.
void change_hsv(Block& block, size_t count, const HsvGains& gains) {
    const auto gained = [](int32_t x, WholeGain gain) {
        return static_cast<int32_t>((static_cast<uint32_t>(x) * gain.mantissa) >> gain.shift);
    };
    const auto channel = [](float n, float h, float s, float v) {
        return rounded(v - (v * s) * weight_of_hue(n, h));
    };
    const WholeGain of_hue = gains.hue, of_saturation = gains.saturation, of_value = gains.value;
    const int32_t to_hue = gains.hue_shift, to_saturation = gains.saturation_shift,
                  to_value = gains.value_shift;
    const int32_t least = gains.colours_grey ? -1 : 0;
    const auto limited = [](int32_t x) { return x < 0 ? 0 : x < 255 ? x : 255; };
    for (size_t i = 0; i < count; ++i) {
        const float r = block.red[i], g = block.green[i], b = block.blue[i];
        const float high = r > g ? r : g, low = r < g ? r : g;
        const float most = high > b ? high : b, chroma = most - (low < b ? low : b);
        const float of_others = most == g ? (b - r) + 2.0f * chroma : (r - g) + 4.0f * chroma;
        const float sixths = most == r ? g - b : of_others;
        int32_t angle = share_of(sixths, 30.0f, chroma);
        angle += angle < 0 ? 180 : 0;
        // `turned` is a whole number below 180 * 181. The half that is added keeps the product away
        // from whole numbers, so that its rounding cannot change the number of turns.
        const auto turned = static_cast<float>(gained(angle, of_hue) + to_hue);
        const auto turns =
            static_cast<float>(static_cast<int32_t>((turned + 0.5f) * (1.0f / 180.0f)));
        const int32_t part = share_of(chroma, 255.0f, most),
                      strength = part > least ? gained(part, of_saturation) + to_saturation : 0,
                      bright = gained(static_cast<int32_t>(most), of_value) + to_value;
        const float h = (turned - turns * 180.0f) * (1.0f / 30.0f),
                    s = static_cast<float>(limited(strength)) * (1.0f / 255.0f),
                    v = static_cast<float>(limited(bright));
        block.red[i] = channel(5.0f, h, s, v);
        block.green[i] = channel(3.0f, h, s, v);
        block.blue[i] = channel(1.0f, h, s, v);
    }
}

// Which channels become red, green and blue: the numbers of a `permute` step say the first two, and
// blue is the third one.
struct ChannelOrder {
    int of[3] = {0, 1, 2};

    ChannelOrder() = default;
    explicit ChannelOrder(const float* numbers) {
        of[0] = to_byte(numbers[0]) % 3;
        of[1] = to_byte(numbers[1]) % 3;
        of[2] = std::clamp(3 - of[0] - of[1], 0, 2);
    }
    // This one, then another.
    ChannelOrder then(const ChannelOrder& next) const {
        ChannelOrder both;
        for (int c = 0; c < 3; ++c) both.of[c] = of[next.of[c]];
        return both;
    }
};

void permute(Block& block, size_t count, const float* numbers) {
    const ChannelOrder order(numbers);
    const Block before = block;
    const float* const from[3] = {before.red, before.green, before.blue};
    std::copy_n(from[order.of[0]], count, block.red);
    std::copy_n(from[order.of[1]], count, block.green);
    std::copy_n(from[order.of[2]], count, block.blue);
}

// Whether `step_in_block` does this operation. (`recolour_in_blocks` adds contrast.)
bool fits_blocks(ColourKind kind) {
    return kind == ColourKind::brightness || kind == ColourKind::saturation ||
           kind == ColourKind::hue || kind == ColourKind::grey || kind == ColourKind::permute ||
           kind == ColourKind::hsv || kind == ColourKind::gamma || kind == ColourKind::linear;
}

// One step on a block of RGB pixels.
void step_in_block(Block& block, size_t count, ColourKind kind, const float* numbers,
                   StepTables& tables) {
    float* const channels[3] = {block.red, block.green, block.blue};
    if (kind == ColourKind::permute) return permute(block, count, numbers);
    if (kind == ColourKind::hsv) {
        tables.hsv.make(numbers);
        change_hsv(block, count, tables.hsv);
        return;
    }
    if (kind == ColourKind::gamma) {
        tables.gamma.make(numbers);
        for (float* channel : channels)
            for (size_t i = 0; i < count; ++i)
                channel[i] = to_float(tables.gamma.made[static_cast<uint8_t>(channel[i])]);
        return;
    }
    if (kind == ColourKind::grey) {
        for (size_t i = 0; i < count; ++i)
            block.red[i] = grey_of(block.red[i], block.green[i], block.blue[i]);
        std::copy_n(block.red, count, block.green);
        std::copy_n(block.red, count, block.blue);
    } else if (kind == ColourKind::saturation) {
        saturate(block, count, numbers[0], numbers[1]);
    } else if (kind == ColourKind::hue) {
        // The angle is -1 to 5 before the shift, and `n` adds 1 to 5: then -3 <= angle + n <= 13.
        const bool in_range = numbers[0] >= -3.0f && numbers[0] <= 3.0f;
        (in_range ? turn_hue<true> : turn_hue<false>)(block, count, numbers[0]);
    } else {
        const float factor = numbers[0], added = kind == ColourKind::linear ? numbers[1] : 0.0f;
        for (float* channel : channels)
            for (size_t i = 0; i < count; ++i) channel[i] = channel[i] * factor + added;
    }
    for (float* channel : channels)
        for (size_t i = 0; i < count; ++i) channel[i] = to_float(to_byte(channel[i]));
}

// Contrast: blends all channels with a grey.
void blend_with(Block& block, size_t count, float mean, const float* numbers) {
    for (float* channel : {block.red, block.green, block.blue})
        for (size_t i = 0; i < count; ++i)
            channel[i] = to_float(to_byte(mul_add(mean, numbers[1], channel[i] * numbers[0])));
}

int64_t sum_of_greys(const Block& block, size_t count) {
    int32_t sum = 0;
    for (size_t i = 0; i < count; ++i)
        sum += static_cast<int32_t>(grey_of(block.red[i], block.green[i], block.blue[i]));
    return sum;
}

// Applies the steps from table.kinds + first on to packed RGB pixels, in place, if `fits_blocks`
// for all of them or they are contrast; else returns false and changes nothing. Reads the image
// once, and once more for each step of contrast, which needs the mean of all pixels first.
bool recolour_in_blocks(const ColourTable& table, ptrdiff_t first, size_t plane, uint8_t* pixels) {
    const int32_t* kinds = table.kinds + first;
    const auto kind_of = [&](int step) { return static_cast<ColourKind>(kinds[step]); };
    if (!std::all_of(kinds, kinds + table.steps, [](int32_t kind) {
            return kind < 0 || fits_blocks(static_cast<ColourKind>(kind)) ||
                   static_cast<ColourKind>(kind) == ColourKind::contrast;
        }))
        return false;
    Block block;
    StepTables tables;
    float mean = 0.0f;
    bool contrasts = false;  // whether the step at `begin` is contrast
    for (int begin = 0, end = 0; begin < table.steps; begin = end, contrasts = true) {
        // Steps up to the next one of contrast, which needs the mean of their result.
        for (end = begin + contrasts; end < table.steps && kind_of(end) != ColourKind::contrast;)
            ++end;
        const bool changes = std::any_of(kinds + begin, kinds + end, [](int k) { return k >= 0; });
        int64_t total = 0;
        for (size_t done = 0; done < plane; done += Block::kMost) {
            const size_t count = std::min(Block::kMost, plane - done);
            uint8_t* const rgb = pixels + 3 * done;
            for (size_t i = 0; i < count; ++i) {
                block.red[i] = to_float(rgb[3 * i]);
                block.green[i] = to_float(rgb[3 * i + 1]);
                block.blue[i] = to_float(rgb[3 * i + 2]);
            }
            for (int step = begin; step < end; ++step) {
                const float* numbers = table.numbers + (first + step) * kColourNumbers;
                if (kinds[step] < 0) continue;
                if (kind_of(step) == ColourKind::contrast) {
                    blend_with(block, count, mean, numbers);
                } else {
                    step_in_block(block, count, kind_of(step), numbers, tables);
                }
            }
            if (end < table.steps) total += sum_of_greys(block, count);
            for (size_t i = 0; changes && i < count; ++i) {
                rgb[3 * i] = static_cast<uint8_t>(block.red[i]);
                rgb[3 * i + 1] = static_cast<uint8_t>(block.green[i]);
                rgb[3 * i + 2] = static_cast<uint8_t>(block.blue[i]);
            }
        }
        mean = static_cast<float>(static_cast<double>(total) / static_cast<double>(plane));
    }
    return true;
}

}  // namespace
}  // namespace fastload
