// The chunks of a PNG (W3C, Portable Network Graphics, third edition), as far as pixels need them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "inflate.hpp"

namespace fastload::png {

enum class Colour : uint8_t { grey = 0, rgb = 2, palette = 3, grey_alpha = 4, rgb_alpha = 6 };

// The pixels (y, x) of an interlaced image that come together, as an image of their own.
struct Pass {
    int top, left, down, right;

    int rows(int height) const { return (height - top + down - 1) / down; }
    int columns(int width) const { return (width - left + right - 1) / right; }
};
inline constexpr Pass kPasses[] = {{0, 0, 8, 8}, {0, 4, 8, 8}, {4, 0, 8, 4}, {0, 2, 4, 4},
                                   {2, 0, 4, 2}, {0, 1, 2, 2}, {1, 0, 2, 1}};

struct Frame {
    const uint8_t* start = nullptr;  // of the file
    int width = 0, height = 0;
    int depth = 0;  // bits a sample
    Colour colour = Colour::grey;
    bool interlaced = false;
    const uint8_t* palette = nullptr;  // RGB
    int colours = 0;                   // in it
    Pieces data;
    const uint8_t* exif = nullptr;
    size_t exif_size = 0;

    int components() const;
    int64_t row_bytes(int columns) const;
    // Of all the rows, each with the number of its filter in front.
    int64_t raw_bytes() const;
};

// Reads what a sound encoder writes; false for anything else, which is for other readers to judge. Metadata do not
// count: no chunk that pixels do without is looked into.
bool parse(const uint8_t* data, size_t size, Frame& frame);

// Whether the checksums of the chunks that pixels need are right.
bool sound(const Frame& frame);

}  // namespace fastload::png
