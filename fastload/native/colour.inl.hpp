// The loops of the steps of colour. Included once for each instruction set, with the name of the
// variable FASTLOAD_COLOUR, and compiled without contraction: products and sums are rounded one by
// one, or together by `mul_add` where torch's are on a processor that can.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "colour_loops.hpp"
#include "colour_tables.inl.hpp"

namespace fastload {
namespace {

inline float mul_add(float a, float b, float c) {
#if defined(FASTLOAD_COLOUR_FUSED)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// To a whole number, halves to even ones: adding 1.5 * 2^23 leaves no bits for a fraction.
constexpr float rounded(float x) { return (x + 12582912.0f) - 12582912.0f; }

// Cut to a byte. What is no number becomes 0.
inline uint8_t cut(float x) {
    x = x > 0.0f ? x : 0.0f;
    x = x < 255.0f ? x : 255.0f;
    return static_cast<uint8_t>(static_cast<int32_t>(x));
}

inline float number(uint8_t value) { return static_cast<float>(value); }

// Planar images of one or three channels.
struct Planes {
    const uint8_t* from;
    uint8_t* to;
    Size size;
    int channels;

    size_t plane() const {
        return static_cast<size_t>(size.height) * static_cast<size_t>(size.width);
    }
    size_t values() const { return plane() * static_cast<size_t>(channels); }
};

inline float grey_of(float red, float green, float blue) {
    const float sum = mul_add(blue, 0.114f, mul_add(green, 0.587f, red * 0.2989f));
    return static_cast<float>(static_cast<int32_t>(sum));
}

void brightness(const Planes& p, float factor) {
    const size_t values = p.values();
    for (size_t i = 0; i < values; ++i) p.to[i] = cut(number(p.from[i]) * factor);
}

void gamma(const Planes& p, const float* exponent) {
    GammaTable table;
    table.make(exponent);
    const size_t values = p.values();
    for (size_t i = 0; i < values; ++i) p.to[i] = table.made[p.from[i]];
}

void contrast(const Planes& p, float factor, float rest) {
    const size_t plane = p.plane(), values = p.values();
    int64_t total = 0;
    if (p.channels == 3) {
        for (size_t i = 0; i < plane; ++i) {
            total +=
                static_cast<int32_t>(grey_of(p.from[i], p.from[plane + i], p.from[2 * plane + i]));
        }
    } else {
        for (size_t i = 0; i < plane; ++i) total += p.from[i];
    }
    const auto mean = static_cast<float>(static_cast<double>(total) / static_cast<double>(plane));
    for (size_t i = 0; i < values; ++i)
        p.to[i] = cut(mul_add(mean, rest, number(p.from[i]) * factor));
}

// Pixels of three channels that are worked on at a time: as numbers in arrays of their own, which
// compilers see not to overlap, so that they make vectors of them.
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

// How many times six goes into k, downwards. kNear: k is from -6 to below 18, and no denormal
// number: then it is a matter of comparing, as k / 6 rounds to no whole number that k is below.
template <bool kNear>
inline float sixes(float k) {
    if (!kNear) return std::floor(k / 6.0f);
    return (k >= 6.0f ? 1.0f : 0.0f) + (k >= 12.0f ? 1.0f : 0.0f) - (k < 0.0f ? 1.0f : 0.0f);
}

// One channel of a turned hue; see adjust_hue of fastload/recipe/colour.py.
template <bool kNear>
inline float turned(float n, float hue, float largest, float chroma) {
    float k = hue + n;
    k = mul_add(sixes<kNear>(k), -6.0f, k);
    float weight = k < 4.0f - k ? k : 4.0f - k;
    weight = weight > 0.0f ? weight : 0.0f;
    weight = weight < 1.0f ? weight : 1.0f;
    return mul_add(-weight, chroma, largest) * 255.999f;
}

template <bool kNear>
void turn_hue(Block& block, size_t count, float shift) {
    constexpr float kOf255 = 0.003921568859368563f;  // 1 / 255, by which torch multiplies
    for (size_t i = 0; i < count; ++i) {
        const float x = block.red[i] * kOf255, y = block.green[i] * kOf255,
                    z = block.blue[i] * kOf255;
        const float most = x > y ? x : y, least = x < y ? x : y;
        const float largest = most > z ? most : z, chroma = largest - (least < z ? least : z);
        const float divisor = chroma > 1e-12f ? chroma : 1e-12f;
        // Of red, green or blue, whichever is largest: one division for three.
        const float difference = largest == x ? y - z : largest == y ? z - x : x - y;
        const float first = largest == x ? 0.0f : largest == y ? 2.0f : 4.0f;
        const float angle = (difference / divisor + first) + shift;
        block.red[i] = turned<kNear>(5.0f, angle, largest, chroma);
        block.green[i] = turned<kNear>(3.0f, angle, largest, chroma);
        block.blue[i] = turned<kNear>(1.0f, angle, largest, chroma);
    }
}

// OpenCV's divisor of bytes of fixed point: 4096 * `number` / `whole`, rounded.
constexpr float divisor_of(float number, float whole) {
    return rounded((number * 4096.0f) / (whole > 1.0f ? whole : 1.0f));
}

// Whether single precision gives OpenCV's whole numbers.
constexpr bool divides_exactly(int number) {
    for (int x = 1; x < 256; ++x) {
        const int wanted = (2 * (number << 12) + x) / (2 * x);
        const float found = divisor_of(static_cast<float>(number), static_cast<float>(x));
        if (found != static_cast<float>(wanted)) return false;
    }
    return true;
}
static_assert(divides_exactly(30) && divides_exactly(255), "OpenCV's divisors");

// `part` * `number` / `whole`, rounded; the product is below 2^24, and exact.
inline int32_t share_of(float part, float number, float whole) {
    return static_cast<int32_t>(part * divisor_of(number, whole) + 2048.0f) >> 12;
}

// All numbers are computed, none looked up: vectors have no fast way to do so. See
// fastload/render/hsv.py.
void change_hsv(Block& block, size_t count, const HsvGains& gains) {
    const auto gained = [](int32_t x, WholeGain gain) {
        return static_cast<int32_t>((static_cast<uint32_t>(x) * gain.mantissa) >> gain.shift);
    };
    const auto channel = [](float n, float h, float s, float v) {
        float k = h + n;
        k = k >= 6.0f ? k - 6.0f : k;
        float weight = k < 4.0f - k ? k : 4.0f - k;
        weight = weight > 0.0f ? weight : 0.0f;
        weight = weight < 1.0f ? weight : 1.0f;
        return rounded(v - (v * s) * weight);
    };
    const WholeGain of_hue = gains.hue, of_saturation = gains.saturation, of_value = gains.value;
    for (size_t i = 0; i < count; ++i) {
        const float r = block.red[i], g = block.green[i], b = block.blue[i];
        const float high = r > g ? r : g, low = r < g ? r : g;
        const float most = high > b ? high : b, chroma = most - (low < b ? low : b);
        const float of_others = most == g ? (b - r) + 2.0f * chroma : (r - g) + 4.0f * chroma;
        const float sixths = most == r ? g - b : of_others;
        int32_t angle = share_of(sixths, 30.0f, chroma);
        angle += angle < 0 ? 180 : 0;
        // Below 180 * 180; half of one more keeps the product away from whole turns.
        const auto turned = static_cast<float>(gained(angle, of_hue));
        const auto turns =
            static_cast<float>(static_cast<int32_t>((turned + 0.5f) * (1.0f / 180.0f)));
        const int32_t strength = gained(share_of(chroma, 255.0f, most), of_saturation),
                      bright = gained(static_cast<int32_t>(most), of_value);
        const float h = (turned - turns * 180.0f) * (1.0f / 30.0f),
                    s = static_cast<float>(strength < 255 ? strength : 255) * (1.0f / 255.0f),
                    v = static_cast<float>(bright < 255 ? bright : 255);
        block.red[i] = channel(5.0f, h, s, v);
        block.green[i] = channel(3.0f, h, s, v);
        block.blue[i] = channel(1.0f, h, s, v);
    }
}

// The channels that red and green are to be; blue is the third.
void permute(Block& block, size_t count, const float* numbers) {
    const int red = cut(numbers[0]) % 3, green = cut(numbers[1]) % 3;
    const Block before = block;
    const float* const from[3] = {before.red, before.green, before.blue};
    const int blue = std::clamp(3 - red - green, 0, 2);
    std::copy_n(from[red], count, block.red);
    std::copy_n(from[green], count, block.green);
    std::copy_n(from[blue], count, block.blue);
}

// Whether `step_in_block` knows it; contrast in a chain of them (`recolour_in_blocks`).
bool fits_blocks(ColourKind kind) {
    return kind == ColourKind::brightness || kind == ColourKind::saturation ||
           kind == ColourKind::hue || kind == ColourKind::grey || kind == ColourKind::permute ||
           kind == ColourKind::hsv || kind == ColourKind::gamma;
}

void step_in_block(Block& block, size_t count, ColourKind kind, const float* numbers,
                   Tables& tables) {
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
                channel[i] = number(tables.gamma.made[static_cast<uint8_t>(channel[i])]);
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
        // The angle is from -1 to 5 before it is turned, and 1 to 5 are added.
        const bool near = numbers[0] >= -3.0f && numbers[0] <= 3.0f;
        (near ? turn_hue<true> : turn_hue<false>)(block, count, numbers[0]);
    } else {
        for (float* channel : channels)
            for (size_t i = 0; i < count; ++i) channel[i] = channel[i] * numbers[0];
    }
    for (float* channel : channels)
        for (size_t i = 0; i < count; ++i) channel[i] = number(cut(channel[i]));
}

void step_in_blocks(const Planes& p, ColourKind kind, const float* numbers) {
    const size_t plane = p.plane();
    Block block;
    Tables tables;
    float* const channels[3] = {block.red, block.green, block.blue};
    for (size_t first = 0; first < plane; first += Block::kMost) {
        const size_t count = std::min(Block::kMost, plane - first);
        for (size_t c = 0; c < 3; ++c) {
            const uint8_t* from = p.from + c * plane + first;
            for (size_t i = 0; i < count; ++i) channels[c][i] = number(from[i]);
        }
        step_in_block(block, count, kind, numbers, tables);
        for (size_t c = 0; c < 3; ++c) {
            uint8_t* to = p.to + c * plane + first;
            for (size_t i = 0; i < count; ++i) to[i] = static_cast<uint8_t>(channels[c][i]);
        }
    }
}

void posterize(const Planes& p, float bits) {
    const uint8_t mask = cut(bits);
    const size_t values = p.values();
    for (size_t i = 0; i < values; ++i) p.to[i] = p.from[i] & mask;
}

void solarize(const Planes& p, float smallest) {
    const size_t values = p.values();
    for (size_t i = 0; i < values; ++i) {
        const auto inverted = static_cast<uint8_t>(255 - p.from[i]);
        p.to[i] = number(p.from[i]) >= smallest ? inverted : p.from[i];
    }
}

void grey(const Planes& p) {
    const size_t plane = p.plane();
    for (size_t i = 0; i < plane; ++i)
        p.to[i] = cut(grey_of(p.from[i], p.from[plane + i], p.from[2 * plane + i]));
    std::memcpy(p.to + plane, p.to, plane);
    std::memcpy(p.to + 2 * plane, p.to, plane);
}

// Blended with the mean of the neighbourhood, in which the pixel itself counts five times. The
// border stays as it is.
void sharpness(const Planes& p, float rest) {
    std::memcpy(p.to, p.from, p.values());
    const auto width = static_cast<ptrdiff_t>(p.size.width);
    for (int channel = 0; channel < p.channels; ++channel) {
        const size_t skipped = p.plane() * static_cast<size_t>(channel);
        for (int y = 1; y < p.size.height - 1; ++y) {
            const uint8_t* row = p.from + skipped + static_cast<size_t>(y * width);
            uint8_t* out = p.to + skipped + static_cast<size_t>(y * width);
            for (ptrdiff_t x = 1; x < width - 1; ++x) {
                const uint8_t *above = row + x - width, *here = row + x, *below = row + x + width;
                const int sum = above[-1] + above[0] + above[1] + here[-1] + 5 * here[0] + here[1] +
                                below[-1] + below[0] + below[1];
                const float value = number(*here);
                const float smooth = rounded(static_cast<float>(sum) / 13.0f);
                out[x] = cut(mul_add(smooth - value, rest, value));
            }
        }
    }
}

void autocontrast(const Planes& p) {
    const size_t plane = p.plane();
    for (int channel = 0; channel < p.channels; ++channel) {
        const uint8_t* from = p.from + plane * static_cast<size_t>(channel);
        uint8_t* to = p.to + plane * static_cast<size_t>(channel);
        uint8_t least = 255, most = 0;
        for (size_t i = 0; i < plane; ++i) {
            least = std::min(least, from[i]);
            most = std::max(most, from[i]);
        }
        if (least == most) {
            std::memcpy(to, from, plane);
            continue;
        }
        const float low = number(least), scale = (number(most) - low) * (1.0f / 255.0f);
        uint8_t table[256];
        for (int value = 0; value < 256; ++value)
            table[value] = cut((static_cast<float>(value) - low) / scale);
        for (size_t i = 0; i < plane; ++i) to[i] = table[from[i]];
    }
}

// As Pillow's ImageOps.equalize.
void equalize(const Planes& p) {
    const size_t plane = p.plane();
    for (int channel = 0; channel < p.channels; ++channel) {
        const uint8_t* from = p.from + plane * static_cast<size_t>(channel);
        uint8_t* to = p.to + plane * static_cast<size_t>(channel);
        int64_t counts[256] = {};
        for (size_t i = 0; i < plane; ++i) ++counts[from[i]];
        int last = 255;
        while (last > 0 && counts[last] == 0) --last;
        const int64_t step = (static_cast<int64_t>(plane) - counts[last]) / 255;
        if (step == 0) {
            std::memcpy(to, from, plane);
            continue;
        }
        uint8_t table[256];
        int64_t below = 0;
        for (int value = 0; value < 256; ++value) {
            table[value] = static_cast<uint8_t>(std::min<int64_t>((below + step / 2) / step, 255));
            below += counts[value];
        }
        for (size_t i = 0; i < plane; ++i) to[i] = table[from[i]];
    }
}

// Where pixels of the output lie in the input; see _affine of fastload/recipe/augment.py, and
// torch's grid_sample with zeros outside.
void affine(const Planes& p, const float* matrix, const ColourTable& table) {
    const int height = p.size.height, width = p.size.width;
    const float half_height = static_cast<float>(height) * 0.5f,
                half_width = static_cast<float>(width) * 0.5f;
    const size_t plane = p.plane();
    auto inside = [&](float y, float x) {  // false for what is no number
        return x >= 0.0f && x < static_cast<float>(width) && y >= 0.0f &&
               y < static_cast<float>(height);
    };
    auto offset = [&](float y, float x) {
        return static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x);
    };
    size_t at = 0;
    for (int row = 0; row < height; ++row) {
        const float y = static_cast<float>(row) - (half_height - 0.5f);
        for (int column = 0; column < width; ++column, ++at) {
            const float x = static_cast<float>(column) - (half_width - 0.5f);
            const float grid_x = (matrix[0] * x + matrix[1] * y) + matrix[2];
            const float grid_y = (matrix[3] * x + matrix[4] * y) + matrix[5];
            const float in_x = mul_add(grid_x + 1.0f, half_width, -0.5f);
            const float in_y = mul_add(grid_y + 1.0f, half_height, -0.5f);
            float weights[4] = {1.0f, 0.0f, 0.0f, 0.0f};
            size_t places[4] = {0, 0, 0, 0};
            bool shown[4] = {false, false, false, false};
            int count = 1;
            if (table.bilinear) {
                const float left = std::floor(in_x), top = std::floor(in_y);
                const float of_right = in_x - left, of_bottom = in_y - top;
                const float of_left = 1.0f - of_right, of_top = 1.0f - of_bottom;
                weights[0] = of_top * of_left;
                weights[1] = of_top * of_right;
                weights[2] = of_bottom * of_left;
                weights[3] = of_bottom * of_right;
                count = 4;
                for (int i = 0; i < 4; ++i) {
                    const float line = top + static_cast<float>(i >> 1),
                                place = left + static_cast<float>(i & 1);
                    shown[i] = inside(line, place);
                    if (shown[i]) places[i] = offset(line, place);
                }
            } else {
                const float line = std::nearbyint(in_y), place = std::nearbyint(in_x);
                shown[0] = inside(line, place);
                if (shown[0]) places[0] = offset(line, place);
            }
            for (int channel = 0; channel < p.channels; ++channel) {
                const uint8_t* from = p.from + plane * static_cast<size_t>(channel);
                float value = 0.0f, share = 0.0f;
                for (int i = 0; i < count; ++i) {
                    const float pixel = shown[i] ? number(from[places[i]]) : 0.0f,
                                one = shown[i] ? 1.0f : 0.0f;
                    value = i ? mul_add(pixel, weights[i], value) : pixel * weights[i];
                    share = i ? mul_add(one, weights[i], share) : one * weights[i];
                }
                if (table.fills) {
                    const float colour = table.fill[channel];
                    if (table.bilinear) {
                        value = (value - colour) * share + colour;
                    } else if (share < 0.5f) {
                        value = colour;
                    }
                }
                // As torch's conversion, of which a fill beyond bytes keeps the lowest bits.
                const float whole = std::nearbyint(value);
                const bool small = whole > -1e9f && whole < 1e9f;
                p.to[plane * static_cast<size_t>(channel) + at] =
                    static_cast<uint8_t>(small ? static_cast<int32_t>(whole) : 0);
            }
        }
    }
}

void colour_step(const Planes& p, ColourKind kind, const float* numbers, const ColourTable& table) {
    const bool coloured = p.channels == 3;
    switch (kind) {
        case ColourKind::brightness: return brightness(p, numbers[0]);
        case ColourKind::contrast: return contrast(p, numbers[0], numbers[1]);
        case ColourKind::posterize: return posterize(p, numbers[0]);
        case ColourKind::gamma: return gamma(p, numbers);
        case ColourKind::solarize: return solarize(p, numbers[0]);
        case ColourKind::sharpness: return sharpness(p, numbers[0]);
        case ColourKind::autocontrast: return autocontrast(p);
        case ColourKind::equalize: return equalize(p);
        case ColourKind::affine: return affine(p, numbers, table);
        case ColourKind::saturation:
        case ColourKind::hue:
        case ColourKind::permute:
        case ColourKind::hsv:
            if (coloured) return step_in_blocks(p, kind, numbers);
            break;
        case ColourKind::grey:
            if (coloured) return grey(p);
            break;
    }
    std::memcpy(p.to, p.from, p.values());
}

// Between pixels whose channels lie together and planes.
void to_planes(const uint8_t* pixels, size_t plane, int channels, uint8_t* out) {
    if (channels == 1) {
        std::memcpy(out, pixels, plane);
        return;
    }
    for (size_t i = 0; i < plane; ++i) {
        out[i] = pixels[3 * i];
        out[plane + i] = pixels[3 * i + 1];
        out[2 * plane + i] = pixels[3 * i + 2];
    }
}

void to_pixels(const uint8_t* planes, size_t plane, int channels, uint8_t* out) {
    if (channels == 1) {
        std::memcpy(out, planes, plane);
        return;
    }
    for (size_t i = 0; i < plane; ++i) {
        out[3 * i] = planes[i];
        out[3 * i + 1] = planes[plane + i];
        out[3 * i + 2] = planes[2 * plane + i];
    }
}

void blend_with(Block& block, size_t count, float mean, const float* numbers) {
    for (float* channel : {block.red, block.green, block.blue})
        for (size_t i = 0; i < count; ++i)
            channel[i] = number(cut(mul_add(mean, numbers[1], channel[i] * numbers[0])));
}

int64_t sum_of_greys(const Block& block, size_t count) {
    int32_t sum = 0;
    for (size_t i = 0; i < count; ++i)
        sum += static_cast<int32_t>(grey_of(block.red[i], block.green[i], block.blue[i]));
    return sum;
}

// Steps of which each works on single pixels, but for the mean that contrast takes, on RGB pixels
// where they lie; false: there are others among them. The image is gone over once, and once more
// for each step of contrast.
bool recolour_in_blocks(const ColourTable& table, ptrdiff_t first, size_t plane, uint8_t* pixels) {
    const int32_t* kinds = table.kinds + first;
    const auto kind_of = [&](int step) { return static_cast<ColourKind>(kinds[step]); };
    if (!std::all_of(kinds, kinds + table.steps, [](int32_t kind) {
            return kind < 0 || fits_blocks(static_cast<ColourKind>(kind)) ||
                   static_cast<ColourKind>(kind) == ColourKind::contrast;
        }))
        return false;
    Block block;
    Tables tables;
    float mean = 0.0f;
    bool contrasts = false;  // whether the first of these steps is one of contrast
    for (int begin = 0, end = 0; begin < table.steps; begin = end, contrasts = true) {
        // Up to the next step of contrast, which needs the mean of what these steps make.
        for (end = begin + contrasts; end < table.steps && kind_of(end) != ColourKind::contrast;)
            ++end;
        const bool changes = std::any_of(kinds + begin, kinds + end, [](int k) { return k >= 0; });
        int64_t total = 0;
        for (size_t done = 0; done < plane; done += Block::kMost) {
            const size_t count = std::min(Block::kMost, plane - done);
            uint8_t* const rgb = pixels + 3 * done;
            for (size_t i = 0; i < count; ++i) {
                block.red[i] = number(rgb[3 * i]);
                block.green[i] = number(rgb[3 * i + 1]);
                block.blue[i] = number(rgb[3 * i + 2]);
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

void recolour(const ColourTable& table, int row, Size size, int channels, uint8_t* pixels,
              std::vector<uint8_t>& scratch, std::vector<float>& floats) {
    const size_t plane = static_cast<size_t>(size.height) * static_cast<size_t>(size.width);
    const size_t values = plane * static_cast<size_t>(channels);
    if (scratch.size() < 2 * values) scratch.resize(2 * values);
    const float* weights =
        table.weights ? table.weights + static_cast<ptrdiff_t>(row) * (1 + table.chains) : nullptr;
    if (weights && floats.size() < values) floats.resize(values);
    uint8_t *current = scratch.data(), *next = current + values;
    for (int chain = 0; chain < table.chains; ++chain) {
        const ptrdiff_t first = (static_cast<ptrdiff_t>(row) * table.chains + chain) * table.steps;
        if (!weights && std::all_of(table.kinds + first, table.kinds + first + table.steps,
                                    [](int32_t kind) { return kind < 0; }))
            return;
        if (!weights && channels == 3 && recolour_in_blocks(table, first, plane, pixels)) return;
        to_planes(pixels, plane, channels, current);
        if (weights && chain == 0) {
            for (size_t i = 0; i < values; ++i) floats[i] = number(current[i]) * weights[0];
        }
        for (int step = 0; step < table.steps; ++step) {
            const int32_t kind = table.kinds[first + step];
            if (kind < 0) continue;
            colour_step({current, next, size, channels}, static_cast<ColourKind>(kind),
                        table.numbers + (first + step) * kColourNumbers, table);
            std::swap(current, next);
        }
        if (weights) {
            const float weight = weights[1 + chain];
            for (size_t i = 0; i < values; ++i) floats[i] = floats[i] + number(current[i]) * weight;
        }
    }
    if (weights) {
        for (size_t i = 0; i < values; ++i) current[i] = cut(floats[i]);
    }
    to_pixels(current, plane, channels, pixels);
}

inline int mirrored(int position, int length) {
    if (position < 0) position = -position;
    return position < length ? position : 2 * (length - 1) - position;
}

void blur(const BlurTable& table, int row, int count, Size size, int channels, uint8_t* pixels,
          std::vector<uint8_t>& scratch, std::vector<float>& floats) {
    const size_t line = static_cast<size_t>(size.width) * static_cast<size_t>(channels);
    const int half_down = table.down_taps / 2, half = table.across_taps / 2;
    const size_t beside = static_cast<size_t>(half) * static_cast<size_t>(channels);
    const size_t bytes = line * static_cast<size_t>(size.height);
    if (scratch.size() < bytes) scratch.resize(bytes);
    if (floats.size() < 2 * line + 2 * beside) floats.resize(2 * line + 2 * beside);
    std::memcpy(scratch.data(), pixels, bytes);
    float *padded = floats.data(), *middle = padded + beside, *total = middle + line + beside;
    auto weight = [&](const float* of, int tap) {
        return of[static_cast<ptrdiff_t>(tap) * count + row];
    };
    for (int y = 0; y < size.height; ++y) {
        for (int tap = 0; tap < table.down_taps; ++tap) {
            const int from = mirrored(y + tap - half_down, size.height);
            const uint8_t* source = scratch.data() + line * static_cast<size_t>(from);
            const float w = weight(table.down, tap);
            if (tap == 0) {
                for (size_t i = 0; i < line; ++i) middle[i] = number(source[i]) * w;
            } else {
                for (size_t i = 0; i < line; ++i)
                    middle[i] = mul_add(number(source[i]), w, middle[i]);
            }
        }
        for (int x = 1; x <= half; ++x) {
            const auto each = static_cast<ptrdiff_t>(channels);
            const ptrdiff_t left = mirrored(-x, size.width) * each,
                            right = mirrored(size.width - 1 + x, size.width) * each,
                            end = (size.width - 1 + x) * each;
            for (ptrdiff_t channel = 0; channel < each; ++channel) {
                middle[-x * each + channel] = middle[left + channel];
                middle[end + channel] = middle[right + channel];
            }
        }
        for (int tap = 0; tap < table.across_taps; ++tap) {
            const float* source = padded + static_cast<size_t>(tap) * static_cast<size_t>(channels);
            const float w = weight(table.across, tap);
            if (tap == 0) {
                for (size_t i = 0; i < line; ++i) total[i] = source[i] * w;
            } else {
                for (size_t i = 0; i < line; ++i) total[i] = mul_add(source[i], w, total[i]);
            }
        }
        uint8_t* out = pixels + line * static_cast<size_t>(y);
        for (size_t i = 0; i < line; ++i) out[i] = cut(rounded(total[i]));
    }
}

}  // namespace
}  // namespace fastload
