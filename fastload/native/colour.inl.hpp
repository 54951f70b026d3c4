// The loops of the colour operations. Included once for each instruction set, by colour_target.cpp,
// and compiled without contraction: products and sums are rounded one by one, except by `mul_add`,
// which is used where torch's kernels multiply and add in one rounding on processors that can.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "colour_blocks.inl.hpp"
#include "colour_loops.hpp"
#include "colour_pixels.inl.hpp"
#include "colour_tables.inl.hpp"
#include "hsv.inl.hpp"
#include "move.inl.hpp"
#include "neighbours.inl.hpp"
#include "planes.inl.hpp"

namespace fastload {
namespace {

void brightness(Planes p, float factor) {
    const size_t values = p.values();
    for (size_t i = 0; i < values; ++i) p.to[i] = to_byte(to_float(p.from[i]) * factor);
}

void linear(Planes p, float factor, float added) {
    const size_t values = p.values();
    for (size_t i = 0; i < values; ++i) p.to[i] = to_byte(to_float(p.from[i]) * factor + added);
}

void gamma(Planes p, const float* exponent) {
    GammaTable table;
    table.make(exponent);
    const size_t values = p.values();
    for (size_t i = 0; i < values; ++i) p.to[i] = table.made[p.from[i]];
}

void contrast(Planes p, float factor, float rest) {
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
        p.to[i] = to_byte(mul_add(mean, rest, to_float(p.from[i]) * factor));
}

// One step on all pixels of a planar image.
void step_in_blocks(Planes p, ColourKind kind, const float* numbers) {
    const size_t plane = p.plane();
    Block block;
    StepTables tables;
    float* const channels[3] = {block.red, block.green, block.blue};
    for (size_t first = 0; first < plane; first += Block::kMost) {
        const size_t count = std::min(Block::kMost, plane - first);
        for (size_t c = 0; c < 3; ++c) {
            const uint8_t* from = p.from + c * plane + first;
            for (size_t i = 0; i < count; ++i) channels[c][i] = to_float(from[i]);
        }
        step_in_block(block, count, kind, numbers, tables);
        for (size_t c = 0; c < 3; ++c) {
            uint8_t* to = p.to + c * plane + first;
            for (size_t i = 0; i < count; ++i) to[i] = static_cast<uint8_t>(channels[c][i]);
        }
    }
}

// Of grey images an `hsv` step changes the value, by what is added to it alone.
void add_to_value(Planes p, float number) {
    const int32_t shift = whole_shift(number);
    const size_t values = p.values();
    for (size_t i = 0; i < values; ++i)
        p.to[i] = static_cast<uint8_t>(std::clamp(p.from[i] + shift, 0, 255));
}

// `number`: a mask of the bits that stay.
void posterize(Planes p, float number) {
    const uint8_t mask = to_byte(number);
    const size_t values = p.values();
    for (size_t i = 0; i < values; ++i) p.to[i] = p.from[i] & mask;
}

void solarize(Planes p, float smallest) {
    const size_t values = p.values();
    for (size_t i = 0; i < values; ++i) {
        const auto inverted = static_cast<uint8_t>(255 - p.from[i]);
        p.to[i] = to_float(p.from[i]) >= smallest ? inverted : p.from[i];
    }
}

// Adds to the values below 128.
void solarize_add(Planes p, float added) {
    const size_t values = p.values();
    for (size_t i = 0; i < values; ++i) {
        const uint8_t sum = to_byte(to_float(p.from[i]) + added);
        p.to[i] = p.from[i] < 128 ? sum : p.from[i];
    }
}

void grey(Planes p) {
    const size_t plane = p.plane();
    for (size_t i = 0; i < plane; ++i)
        p.to[i] = to_byte(grey_of(p.from[i], p.from[plane + i], p.from[2 * plane + i]));
    std::memcpy(p.to + plane, p.to, plane);
    std::memcpy(p.to + 2 * plane, p.to, plane);
}

// Blends each pixel with the weighted mean of its 3 x 3 neighbourhood, in which the pixel itself
// counts five times. The border pixels stay as they are.
void sharpness(Planes p, float rest) {
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
                const float value = to_float(*here);
                const float smooth = rounded(static_cast<float>(sum) / 13.0f);
                out[x] = to_byte(mul_add(smooth - value, rest, value));
            }
        }
    }
}

// Each byte replaced by that of a table of 256.
void look_up(const uint8_t* table, const uint8_t* from, uint8_t* to, size_t count) {
    size_t i = 0;
#if defined(FASTLOAD_PACKED_PIXELS)
    const ByteTable by_vector(Listed<256>([&](int x) { return table[x]; }));
    for (; i + 64 <= count; i += 64)
        _mm512_storeu_si512(to + i, by_vector.at(_mm512_loadu_si512(from + i)));
#endif
    for (; i < count; ++i) to[i] = table[from[i]];
}

void autocontrast(Planes p) {
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
        const float low = to_float(least), scale = (to_float(most) - low) * (1.0f / 255.0f);
        uint8_t table[256];
        for (int value = 0; value < 256; ++value)
            table[value] = to_byte((static_cast<float>(value) - low) / scale);
        look_up(table, from, to, plane);
    }
}

// As Pillow's ImageOps.equalize.
void equalize(Planes p) {
    const size_t plane = p.plane();
    for (int channel = 0; channel < p.channels; ++channel) {
        const uint8_t* from = p.from + plane * static_cast<size_t>(channel);
        uint8_t* to = p.to + plane * static_cast<size_t>(channel);
        // Neighbours are often equal, and a count that was just written is read late: four counts.
        int64_t counts[256], parts[4][256] = {};
        for (size_t i = 0; i < plane; ++i) ++parts[i % 4][from[i]];
        for (int value = 0; value < 256; ++value)
            counts[value] =
                (parts[0][value] + parts[1][value]) + (parts[2][value] + parts[3][value]);
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
        look_up(table, from, to, plane);
    }
}

// An affine map of the image, centre to centre; `matrix` gives where output pixels lie in the
// input. As _affine of fastload/recipe/augment.py with torch's grid_sample, which has zeros outside
// of the image.
void affine(Planes p, const float* matrix, const ColourTable& table) {
    const int height = p.size.height, width = p.size.width;
    const float half_height = static_cast<float>(height) * 0.5f,
                half_width = static_cast<float>(width) * 0.5f;
    const size_t plane = p.plane();
    auto inside = [&](float y, float x) {  // false for NaN
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
                    const float pixel = shown[i] ? to_float(from[places[i]]) : 0.0f,
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
                // As torch converts to uint8: of a number beyond 0 to 255 (a fill may be one), the
                // lowest 8 bits.
                const float whole = std::nearbyint(value);
                const bool small = whole > -1e9f && whole < 1e9f;
                p.to[plane * static_cast<size_t>(channel) + at] =
                    static_cast<uint8_t>(small ? static_cast<int32_t>(whole) : 0);
            }
        }
    }
}

// A number in 65,536ths, cut to whole ones. What is none, or 2^19 or more, is far to the left.
inline int64_t in_65536ths(float number) {
    constexpr int64_t kMost = int64_t{1} << 35;
    const float whole = std::floor(number * 65536.0f);
    return std::fabs(whole) < static_cast<float>(kMost) ? static_cast<int64_t>(whole) : -kMost;
}

// An affine map of the image, as Pillow's Image.transform takes the nearest pixel: in whole
// 65,536ths of a pixel, of which the place of an output pixel is the sum. Outside of the image it
// is the fill.
void move_nearest(Planes p, const float* matrix, const ColourTable& table) {
    constexpr int kMost = 64;
    const size_t plane = p.plane();
    int64_t m[6];
    for (int i = 0; i < 6; ++i) m[i] = in_65536ths(matrix[i]);
    for (int row = 0; row < p.size.height; ++row) {
        int64_t in_x = m[1] * row + m[2], in_y = m[4] * row + m[5];
        for (int column = 0; column < p.size.width; column += kMost) {
            const int count = std::min(kMost, p.size.width - column);
            ptrdiff_t places[kMost];  // below 0: outside
            for (int i = 0; i < count; ++i, in_x += m[0], in_y += m[3]) {
                const int64_t x = in_x >> 16, y = in_y >> 16;
                const bool inside = (x >= 0) & (x < p.size.width) & (y >= 0) & (y < p.size.height);
                places[i] = inside ? static_cast<ptrdiff_t>(y * p.size.width + x) : -1;
            }
            for (int channel = 0; channel < p.channels; ++channel) {
                const size_t skipped = plane * static_cast<size_t>(channel);
                const uint8_t* from = p.from + skipped;
                uint8_t* to = p.to + skipped +
                              static_cast<size_t>(row) * static_cast<size_t>(p.size.width) + column;
                const uint8_t fill = table.fills ? to_byte(table.fill[channel]) : uint8_t{0};
                for (int i = 0; i < count; ++i) to[i] = places[i] < 0 ? fill : from[places[i]];
            }
        }
    }
}

// A rectangle of one value, the last of its columns and lines in it. `edges`: left, top, right,
// bottom.
void cut_out(Planes p, const float* edges, float value) {
    std::memcpy(p.to, p.from, p.values());
    if (!(edges[0] <= edges[2] && edges[1] <= edges[3])) return;  // nor what is no number
    const auto first = [](float edge, int length) {
        return static_cast<int>(std::ceil(std::clamp(edge, 0.0f, static_cast<float>(length))));
    };
    const auto last = [](float edge, int length) {
        return static_cast<int>(
            std::floor(std::clamp(edge, -1.0f, static_cast<float>(length - 1))));
    };
    const int left = first(edges[0], p.size.width), right = last(edges[2], p.size.width),
              bottom = last(edges[3], p.size.height);
    if (left > right) return;
    for (int channel = 0; channel < p.channels; ++channel) {
        uint8_t* to = p.to + p.plane() * static_cast<size_t>(channel) + left;
        for (int row = first(edges[1], p.size.height); row <= bottom; ++row)
            std::memset(to + static_cast<size_t>(row) * static_cast<size_t>(p.size.width),
                        to_byte(value), static_cast<size_t>(right - left + 1));
    }
}

// One step on a planar image. Operations on colours copy grey images. `bordered`: memory of
// `bordered_bytes`.
void colour_step(Planes p, ColourKind kind, const float* numbers, const ColourTable& table,
                 uint8_t* bordered) {
    const bool coloured = p.channels == 3;
    switch (kind) {
        case ColourKind::brightness: return brightness(p, numbers[0]);
        case ColourKind::contrast: return contrast(p, numbers[0], numbers[1]);
        case ColourKind::posterize: return posterize(p, numbers[0]);
        case ColourKind::linear: return linear(p, numbers[0], numbers[1]);
        case ColourKind::gamma: return gamma(p, numbers);
        case ColourKind::solarize: return solarize(p, numbers[0]);
        case ColourKind::sharpness: return sharpness(p, numbers[0]);
        case ColourKind::autocontrast: return autocontrast(p);
        case ColourKind::equalize: return equalize(p);
        case ColourKind::solarize_add: return solarize_add(p, numbers[0]);
        case ColourKind::affine: return affine(p, numbers, table);
        case ColourKind::move_bilinear: return move<false>(p, numbers, table, bordered);
        case ColourKind::move_bicubic: return move<true>(p, numbers, table, bordered);
        case ColourKind::move_nearest: return move_nearest(p, numbers, table);
        case ColourKind::cut_out: return cut_out(p, numbers, numbers[4]);
        case ColourKind::hsv:
            if (!coloured) return add_to_value(p, numbers[5]);
            return step_in_blocks(p, kind, numbers);
        case ColourKind::saturation:
        case ColourKind::hue:
        case ColourKind::permute:
            if (coloured) return step_in_blocks(p, kind, numbers);
            break;
        case ColourKind::grey:
            if (coloured) return grey(p);
            break;
    }
    std::memcpy(p.to, p.from, p.values());
}

#if defined(FASTLOAD_PACKED_PIXELS)
// Does the steps from table.kinds + first on if they are one of `hsv` and, after it, of `permute`;
// else returns false and changes nothing.
bool change_hsv_alone(const ColourTable& table, ptrdiff_t first, size_t plane, uint8_t* pixels) {
    const float* of_hsv = nullptr;
    bool reorders = false;
    ChannelOrder order;
    for (int step = 0; step < table.steps; ++step) {
        if (table.kinds[first + step] < 0) continue;
        const auto kind = static_cast<ColourKind>(table.kinds[first + step]);
        const float* const numbers = table.numbers + (first + step) * kColourNumbers;
        if (kind == ColourKind::hsv && of_hsv == nullptr) {
            of_hsv = numbers;
        } else if (kind == ColourKind::permute && of_hsv != nullptr) {
            order = order.then(ChannelOrder(numbers));
            reorders = true;
        } else {
            return false;
        }
    }
    if (of_hsv == nullptr) return false;
    HsvGains gains;
    gains.make(of_hsv);
    const HsvPixels hsv(gains);
    const auto each = [&](auto change) {
        for (size_t done = 0; done < plane; done += PackedPixels::kMost)
            change(pixels + 3 * done, std::min(PackedPixels::kMost, plane - done));
    };
    if (reorders) {
        each([&](uint8_t* some, size_t count) { hsv.change<true>(some, count, order); });
    } else {
        each([&](uint8_t* some, size_t count) { hsv.change<false>(some, count, order); });
    }
    return true;
}
#endif

void recolour(const ColourTable& table, int row, Size size, int channels, uint8_t* pixels,
              uint8_t* scratch, float* floats) {
    const size_t plane = static_cast<size_t>(size.height) * static_cast<size_t>(size.width);
    const size_t values = plane * static_cast<size_t>(channels);
    const float* weights =
        table.weights ? table.weights + static_cast<ptrdiff_t>(row) * (1 + table.chains) : nullptr;
    uint8_t *current = scratch, *next = current + values, *const bordered = next + values;
    for (int chain = 0; chain < table.chains; ++chain) {
        const ptrdiff_t first = (static_cast<ptrdiff_t>(row) * table.chains + chain) * table.steps;
        if (!weights && std::all_of(table.kinds + first, table.kinds + first + table.steps,
                                    [](int32_t kind) { return kind < 0; }))
            return;
#if defined(FASTLOAD_PACKED_PIXELS)
        if (!weights && channels == 3 && change_hsv_alone(table, first, plane, pixels)) return;
        if (!weights && channels == 3 && recolour_pixels(table, first, plane, pixels)) return;
#endif
        if (!weights && channels == 3 && recolour_in_blocks(table, first, plane, pixels)) return;
        to_planes(pixels, plane, channels, current);
        if (weights && chain == 0) {
            for (size_t i = 0; i < values; ++i) floats[i] = to_float(current[i]) * weights[0];
        }
        for (int step = 0; step < table.steps; ++step) {
            const int32_t kind = table.kinds[first + step];
            if (kind < 0) continue;
            colour_step({current, next, size, channels}, static_cast<ColourKind>(kind),
                        table.numbers + (first + step) * kColourNumbers, table, bordered);
            std::swap(current, next);
        }
        if (weights) {
            const float weight = weights[1 + chain];
            for (size_t i = 0; i < values; ++i)
                floats[i] = floats[i] + to_float(current[i]) * weight;
        }
    }
    if (weights) {
        for (size_t i = 0; i < values; ++i) current[i] = to_byte(floats[i]);
    }
    to_pixels(current, plane, channels, pixels);
}

// The numbers of as many pixels as fill whole vectors. The arrays are members of one struct, so
// that compilers know that they do not overlap.
struct Factors {
    static constexpr size_t kPixels = 16, kValues = 3 * kPixels;
    float scale[kValues], offset[kValues], made[kValues];

    explicit Factors(const ConvertTable& table) {
        for (size_t i = 0; i < kValues; ++i) {
            scale[i] = table.scale[i % 3];
            offset[i] = table.offset[i % 3];
        }
    }
};

void convert(const ConvertTable& table, const uint8_t* pixels, size_t count, float* out) {
    Factors factors(table);
    size_t left = count;
    for (; left >= Factors::kPixels; left -= Factors::kPixels) {
        for (size_t i = 0; i < Factors::kValues; ++i)
            factors.made[i] = mul_add(to_float(pixels[i]), factors.scale[i], factors.offset[i]);
        std::memcpy(out, factors.made, sizeof factors.made);
        pixels += Factors::kValues;
        out += Factors::kValues;
    }
    for (size_t i = 0; i < 3 * left; ++i)
        out[i] = mul_add(to_float(pixels[i]), factors.scale[i], factors.offset[i]);
}

void blur(const BlurTable& table, int row, int count, Size size, int channels, uint8_t* pixels,
          float* floats) {
    const size_t line = static_cast<size_t>(size.width) * static_cast<size_t>(channels);
    const int half_down = table.down_taps / 2, half = table.across_taps / 2;
    const auto each = static_cast<ptrdiff_t>(channels);
    const size_t beside = static_cast<size_t>(half) * static_cast<size_t>(channels);
    // The last rows of the image as floats, of which a row is at its number modulo the taps; a row
    // of sums across; and one of sums down, with room on either side. The first ones begin at
    // multiples of a vector: a read across two lines of the cache takes as long as two.
    const size_t pitch = blur_pitch(line);
    float *const ring = floats, *const total = ring + pitch * static_cast<size_t>(table.down_taps),
                 *const padded = total + pitch, *const middle = padded + beside;
    const auto ring_row = [&](int y) {
        return ring + pitch * static_cast<size_t>(y % table.down_taps);
    };
    const auto weight = [&](const float* of, int tap) {
        return of[static_cast<ptrdiff_t>(tap) * count + row];
    };
    int read = 0;  // rows that are or were in the ring
    for (int y = 0; y < size.height; ++y) {
        for (; read < size.height && read <= y + half_down; ++read) {
            const uint8_t* const from = pixels + line * static_cast<size_t>(read);
            float* const to = ring_row(read);
            for (size_t i = 0; i < line; ++i) to[i] = to_float(from[i]);
        }
        WeightedSum<float> down(middle, line);
        for (int tap = 0; tap < table.down_taps; ++tap)
            down.add(ring_row(mirrored(y + tap - half_down, size.height)), weight(table.down, tap));
        down.flush();
        for (int x = 1; x <= half; ++x) {
            const ptrdiff_t left = mirrored(-x, size.width) * each,
                            right = mirrored(size.width - 1 + x, size.width) * each,
                            end = (size.width - 1 + x) * each;
            for (ptrdiff_t channel = 0; channel < each; ++channel) {
                middle[-x * each + channel] = middle[left + channel];
                middle[end + channel] = middle[right + channel];
            }
        }
        WeightedSum<float> across(total, line);
        for (int tap = 0; tap < table.across_taps; ++tap)
            across.add(padded + static_cast<size_t>(tap) * static_cast<size_t>(channels),
                       weight(table.across, tap));
        across.flush();
        uint8_t* out = pixels + line * static_cast<size_t>(y);
        for (size_t i = 0; i < line; ++i) out[i] = to_byte(rounded(total[i]));
    }
}

}  // namespace
}  // namespace fastload
