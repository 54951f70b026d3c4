// Operations that make a pixel of those around it: weighted sums and medians. Included as
// colour.inl.hpp is, which says how it is compiled.
#pragma once

#include <algorithm>
#include <cstring>

#include "colour_blocks.inl.hpp"
#include "colour_loops.hpp"

namespace fastload {
namespace {

// The position of a pixel that is shown beside the image, at most length - 1 outside of it.
inline int mirrored(int position, int length) {
    if (position < 0) position = -position;
    return position < length ? position : 2 * (length - 1) - position;
}

// Copies packed rows, with `half` pixels more on either side: those of the image in the columns
// that `column` gives. Returns the bytes of a row.
template <typename Column>
size_t widen(const uint8_t* pixels, Size size, int channels, int half, uint8_t* out,
             Column column) {
    const auto each = static_cast<size_t>(channels), beside = static_cast<size_t>(half) * each,
               line = static_cast<size_t>(size.width) * each, wide = line + 2 * beside;
    for (int y = 0; y < size.height; ++y, pixels += line, out += wide) {
        std::memcpy(out + beside, pixels, line);
        for (int x = 0; x < half; ++x) {
            const auto left = static_cast<size_t>(column(x - half)),
                       right = static_cast<size_t>(column(size.width + x));
            std::memcpy(out + static_cast<size_t>(x) * each, pixels + left * each, each);
            std::memcpy(out + beside + line + static_cast<size_t>(x) * each, pixels + right * each,
                        each);
        }
    }
    return wide;
}

void convolve(const FilterTable& table, int row, Size size, int channels, uint8_t* pixels,
              uint8_t* scratch, float* floats) {
    const int side = table.side, half = side / 2;
    const float* const weights = table.kernels + static_cast<ptrdiff_t>(row) * side * side;
    const size_t line = static_cast<size_t>(size.width) * static_cast<size_t>(channels);
    const size_t wide = widen(pixels, size, channels, half, scratch,
                              [&](int x) { return mirrored(x, size.width); });
    for (int y = 0; y < size.height; ++y) {
        std::fill_n(floats, line, 0.0f);
        for (int tap = 0; tap < side * side; ++tap) {
            const float weight = weights[tap];
            if (weight == 0.0f) continue;
            const auto from = static_cast<size_t>(mirrored(y + tap / side - half, size.height));
            const uint8_t* const source =
                scratch + from * wide +
                static_cast<size_t>(tap % side) * static_cast<size_t>(channels);
            for (size_t i = 0; i < line; ++i)
                floats[i] = mul_add(to_float(source[i]), weight, floats[i]);
        }
        uint8_t* const out = pixels + line * static_cast<size_t>(y);
        for (size_t i = 0; i < line; ++i) out[i] = to_byte(rounded(floats[i]));
    }
}

// Medians of as many values at a time. The arrays are members of one struct, so that compilers know
// that they do not overlap.
struct MedianBlock {
    static constexpr size_t kMost = 256;
    uint8_t found[kMost], tried[kMost], count[kMost];
};

// The largest number that more than half of the neighbours are not below, bit by bit from the
// highest on. Beside the image lie copies of its border.
void median(int side, Size size, int channels, uint8_t* pixels, uint8_t* scratch) {
    const int half = side / 2;
    const auto needed = static_cast<uint8_t>(side * side / 2 + 1);
    const size_t line = static_cast<size_t>(size.width) * static_cast<size_t>(channels);
    const size_t wide = widen(pixels, size, channels, half, scratch,
                              [&](int x) { return std::clamp(x, 0, size.width - 1); });
    MedianBlock block;
    for (int y = 0; y < size.height; ++y) {
        uint8_t* const out = pixels + line * static_cast<size_t>(y);
        for (size_t first = 0; first < line; first += MedianBlock::kMost) {
            const size_t count = std::min(MedianBlock::kMost, line - first);
            std::memset(block.found, 0, sizeof block.found);
            for (int bit = 128; bit > 0; bit >>= 1) {
                for (size_t i = 0; i < count; ++i)
                    block.tried[i] = static_cast<uint8_t>(block.found[i] | bit);
                std::memset(block.count, 0, sizeof block.count);
                for (int tap = 0; tap < side * side; ++tap) {
                    const int from = std::clamp(y + tap / side - half, 0, size.height - 1);
                    const uint8_t* const source =
                        scratch + static_cast<size_t>(from) * wide + first +
                        static_cast<size_t>(tap % side) * static_cast<size_t>(channels);
                    for (size_t i = 0; i < count; ++i)
                        block.count[i] =
                            static_cast<uint8_t>(block.count[i] + (source[i] >= block.tried[i]));
                }
                for (size_t i = 0; i < count; ++i)
                    block.found[i] = block.count[i] >= needed ? block.tried[i] : block.found[i];
            }
            std::memcpy(out + first, block.found, count);
        }
    }
}

}  // namespace
}  // namespace fastload
