// Contrast-limited adaptive histogram equalisation (Zuiderveld, Graphics Gems IV, 1994), with
// OpenCV's rounding.
#pragma once

#include <cstdint>
#include <vector>

#include "colour_loops.hpp"
#include "image.hpp"

namespace fastload {

// Tiles along a side.
constexpr int kMostTiles = 256;

// For CIE L*a*b* in bytes, with as many bits of intermediate values as OpenCV has.
struct LabTables {
    // To L*a*b*: linear light has 3 fractional bits on the scale of bytes, coordinates of CIE XYZ
    // relative to the white of D65 the same, and their cube roots 15 bits.
    static constexpr int kLinearBits = 3, kMatrixBits = 12, kRootBits = 15;
    static constexpr int kLinear = 255 << kLinearBits, kRoots = kLinear * 3 / 2;
    // Back: roots and coordinates have 14 bits, and linear light 12.
    static constexpr int kBackBits = 14, kBack = 1 << kBackBits, kLightBits = 12,
                         kLights = 1 << kLightBits;
    // The roots of X and Z: that of Y, 0.13 to 1, and -128 / 500 to 127 / 500, -127 / 200 to
    // 128 / 200 more.
    static constexpr int kLeast = -kBack, kMost = 2 * kBack;

    int32_t linear[256];
    int32_t roots[kRoots];
    int32_t matrix[3][3];
    int32_t back[3][3];                  // rows: red, green, blue; columns: X, Y, Z
    int32_t lightness[256], light[256];  // the root of Y, and Y
    int32_t more_x[256], less_z[256];    // what the roots of X and Z are more and less than Y's
    int32_t cubes[kMost - kLeast];
    uint8_t bytes[kLights];
};

// Equalises packed pixels of 1 or 3 channels in place; of 3, the lightness of CIE L*a*b*, in bytes.
//
// The image is covered by `down` x `across` tiles of one size; beside the image lies its mirror
// image. Of each tile the histogram is cut at `limit` (above 0) times its mean, and what was cut
// off is shared out over all values; its sums are a table of 256 values. A pixel has the bilinear
// mean of what the tables of the four tiles around it make of it. Grey pixels are OpenCV's; so are
// others, but for one value in 75 that is another by 1, and one in 100,000 by 2. The same with
// all `loops`. Throws std::bad_alloc.
void equalize_tiles(const ColourLoops& loops, uint8_t* pixels, Size size, int channels,
                    double limit, int down, int across, std::vector<uint8_t>& scratch);

}  // namespace fastload
