// Affine maps of planar images that interpolate between pixels, by the formulas of Pillow's
// Image.transform. Included as colour.inl.hpp is, which says how it is compiled.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "colour_blocks.inl.hpp"
#include "colour_loops.hpp"
#include "planes.inl.hpp"

namespace fastload {
namespace {

// Planes with kBorder columns more on either side, which repeat the border: then all four columns
// around a place in the image are there.
struct Bordered {
    const uint8_t* planes;
    ptrdiff_t pitch;  // bytes from a line to the next

    // `memory`: `bordered_bytes`.
    Bordered(Planes p, uint8_t* memory) : planes(memory), pitch(p.size.width + 2 * kBorder) {
        const auto width = static_cast<size_t>(p.size.width);
        const size_t lines = p.values() / width;
        const uint8_t* from = p.from;
        for (size_t line = 0; line < lines; ++line, from += width, memory += pitch) {
            std::memset(memory, from[0], kBorder);
            std::memcpy(memory + kBorder, from, width);
            std::memset(memory + kBorder + width, from[width - 1], kBorder);
        }
        std::memset(memory, 0, kReadBeyond);
    }
};

// Some output pixels of a row: where each lies in the input. Beyond kMost all arrays are 0, so that
// loops from any pixel on may run over kMost of them.
struct Places {
    static constexpr size_t kMost = 32;
    float right[2 * kMost] = {}, down[2 * kMost] = {};  // of the pixel at its top left, below 1
    ptrdiff_t lines[4][2 * kMost] = {};   // where the four bytes around it begin, from above it on
    size_t first = 0, end = 0;            // those inside of the image; none: equal
    bool straight = false;                // whether these lie side by side in a line
    bool upright = false, level = false;  // whether `right`, and `down`, are 0 for all of them
};

// Those from `column` on. `matrix` takes the middle of an output pixel to a place in the input, in
// pixels from the top left corner. Places ascend or descend along a row, and so do their roundings:
// those inside of the image are one run of it.
template <int kFirst, int kEnd>
void find_places(Planes p, const float* matrix, int row, int column, ptrdiff_t pitch,
                 Places& found) {
    constexpr size_t kMost = Places::kMost;
    const auto height = static_cast<float>(p.size.height), width = static_cast<float>(p.size.width);
    const float y = static_cast<float>(row) + 0.5f, x_of_y = matrix[1] * y, y_of_y = matrix[4] * y;
    const int32_t count = std::min(static_cast<int32_t>(kMost), p.size.width - column);
    int32_t lefts[kMost], tops[kMost], insides[kMost];
    for (size_t i = 0; i < kMost; ++i) {
        const auto at = static_cast<int32_t>(i);
        const float x = static_cast<float>(column + at) + 0.5f;
        const float in_x = (matrix[0] * x + x_of_y) + matrix[2],
                    in_y = (matrix[3] * x + y_of_y) + matrix[5];
        // False for NaN.
        const bool inside =
            (in_x >= 0.0f) & (in_x < width) & (in_y >= 0.0f) & (in_y < height) & (at < count);
        const float across = (inside ? in_x : 0.0f) - 0.5f, along = (inside ? in_y : 0.0f) - 0.5f;
        const float left = std::floor(across), top = std::floor(along);
        found.right[i] = across - left;
        found.down[i] = along - top;
        lefts[i] = static_cast<int32_t>(left);
        tops[i] = static_cast<int32_t>(top);
        insides[i] = inside;
    }
    int32_t first = count, last = -1;
    for (int32_t i = 0; i < static_cast<int32_t>(kMost); ++i) {
        first = std::min(first, insides[i] ? i : count);
        last = std::max(last, insides[i] ? i : -1);
    }
    found.first = static_cast<size_t>(first);
    found.end = static_cast<size_t>(std::max(last + 1, first));
    if (found.first == found.end) return;
    int32_t crooked = 0, slanted = 0, steep = 0;
    for (int32_t i = 0; i < static_cast<int32_t>(kMost); ++i) {
        const int32_t apart = ((lefts[i] - i) ^ (lefts[first] - first)) | (tops[i] ^ tops[first]);
        crooked |= insides[i] ? apart : 0;
        slanted |= insides[i] & (found.right[i] != 0.0f);
        steep |= insides[i] & (found.down[i] != 0.0f);
    }
    found.straight = crooked == 0;
    found.upright = slanted == 0;
    found.level = steep == 0;
    for (int32_t k = kFirst; k < kEnd; ++k) {
        for (size_t i = 0; i < kMost; ++i) {
            const int32_t line = std::clamp(tops[i] + k - 1, 0, p.size.height - 1);
            found.lines[k][i] = line * pitch + (lefts[i] - 1 + kBorder);
        }
    }
}

// Between two values, and between the middle two of four: equal values give that value.
inline float between(float a, float b, float part) { return a + (b - a) * part; }

inline float between(float a, float b, float c, float d, float part) {
    const float square = (2.0f * (a - b) + c) - d, cube = ((b - a) - c) + d;
    return b + part * ((c - a) + part * (square + part * cube));
}

// Of Places::kMost pixels, interpolated along a line: `tap(i, k)` is the value of pixel i in the
// column `k` of the four around its place. `upright`: `right` is 0 for all that count; then it is
// that of the second column, to the bit.
template <bool kCubic, typename Tap>
inline void along_line(Tap tap, const float* right, bool upright, float* __restrict__ out) {
    constexpr size_t kMost = Places::kMost;
    if (upright) {
        for (size_t i = 0; i < kMost; ++i) out[i] = tap(i, 1);
        return;
    }
    for (size_t i = 0; i < kMost; ++i) {
        out[i] = kCubic ? between(tap(i, 0), tap(i, 1), tap(i, 2), tap(i, 3), right[i])
                        : between(tap(i, 1), tap(i, 2), right[i]);
    }
}

// An affine map of the image, by the formulas of Pillow's Image.transform: a pixel whose place is
// outside of the image is the fill, any other is interpolated with the border repeated, and its
// fraction cut off. `memory`: `bordered_bytes`.
template <bool kCubic>
void move(Planes p, const float* matrix, const ColourTable& table, uint8_t* memory) {
    constexpr size_t kMost = Places::kMost;
    constexpr int kFirst = kCubic ? 0 : 1, kEnd = kCubic ? 4 : 3;
    const Bordered source(p, memory);
    const ptrdiff_t source_plane = source.pitch * p.size.height;
    Places places;
    float lines[4][kMost];
    int32_t whole[kMost];
    uint8_t made[kMost];
    uint8_t* out = p.to;
    for (int row = 0; row < p.size.height; ++row, out += p.size.width) {
        for (int column = 0; column < p.size.width; column += static_cast<int>(kMost)) {
            const size_t count = std::min(kMost, static_cast<size_t>(p.size.width - column));
            find_places<kFirst, kEnd>(p, matrix, row, column, source.pitch, places);
            const size_t first = places.first, inside = places.end - first;
            const float *const right = places.right + first, *const down = places.down + first;
            const int begin = places.level ? 1 : kFirst, end = places.level ? 2 : kEnd;
            for (int channel = 0; channel < p.channels; ++channel) {
                const uint8_t* const from = source.planes + source_plane * channel;
                uint8_t* const to = out + p.plane() * static_cast<size_t>(channel) + column;
                if (inside < count)
                    std::memset(to, table.fills ? to_byte(table.fill[channel]) : 0, count);
                if (inside == 0) continue;
                for (int k = begin; k < end; ++k) {
                    const ptrdiff_t* const at = places.lines[k] + first;
                    if (places.straight) {
                        const uint8_t* const near = from + at[0];
                        along_line<kCubic>(
                            [&](size_t i, size_t tap) { return to_float(near[i + tap]); }, right,
                            places.upright, lines[k]);
                        continue;
                    }
                    uint32_t four[kMost];
                    for (size_t i = 0; i < kMost; ++i) std::memcpy(&four[i], from + at[i], 4);
                    along_line<kCubic>(
                        [&](size_t i, size_t tap) {
                            return static_cast<float>(
                                static_cast<int32_t>(four[i] >> (8 * tap) & 255));
                        },
                        right, places.upright, lines[k]);
                }
                if (!places.level) {
                    for (size_t i = 0; i < kMost; ++i) {
                        lines[1][i] = kCubic ? between(lines[0][i], lines[1][i], lines[2][i],
                                                       lines[3][i], down[i])
                                             : between(lines[1][i], lines[2][i], down[i]);
                    }
                }
                for (size_t i = 0; i < kMost; ++i) {
                    const float value = lines[1][i], above = value > 0.0f ? value : 0.0f;
                    whole[i] = static_cast<int32_t>(above < 255.0f ? above : 255.0f);
                }
                for (size_t i = 0; i < kMost; ++i) made[i] = static_cast<uint8_t>(whole[i]);
                inside == kMost ? std::memcpy(to, made, kMost)
                                : std::memcpy(to + first, made, inside);
            }
        }
    }
}

}  // namespace
}  // namespace fastload
