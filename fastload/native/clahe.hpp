// Contrast-limited adaptive histogram equalisation (Zuiderveld, Graphics Gems IV, 1994), with
// OpenCV's rounding.
#pragma once

#include <cstdint>
#include <vector>

#include "image.hpp"

namespace fastload {

// Tiles along a side.
constexpr int kMostTiles = 256;

// Equalises packed pixels of 1 or 3 channels in place; of 3, the lightness of CIE L*a*b*, in bytes.
//
// The image is covered by `down` x `across` tiles of one size; beside the image lies its mirror
// image. Of each tile the histogram is cut at `limit` (above 0) times its mean, and what was cut
// off is shared out over all values; its sums are a table of 256 values. A pixel has the bilinear
// mean of what the tables of the four tiles around it make of it. Grey pixels are OpenCV's; so are
// others, but for one value in 75 that is another by 1, and one in 100,000 by 2. Throws
// std::bad_alloc.
void equalize_tiles(uint8_t* pixels, Size size, int channels, double limit, int down, int across,
                    std::vector<uint8_t>& scratch);

}  // namespace fastload
