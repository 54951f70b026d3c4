// Pixels of one image under a projective map: rotations, shears, perspective.
#pragma once

#include <cstdint>

#include "kernels.hpp"

namespace fastload {

struct WarpOptions {
    bool bilinear = false;  // else the nearest pixel
    // Whether bilinear goes over into the fill around the edge, as torch's grid_sample; else pixels
    // whose centre is outside are filled, and the edge is repeated, as Pillow's.
    bool fades = true;
    // Where it fades: whether the fill is one of the four pixels, with its weight, as OpenCV's;
    // else their sum without it is blended with the fill once more, as torchvision's.
    bool mixes = false;
    float fill[4] = {0, 0, 0, 0};  // one a channel, 0 to 255
};

// Where the centre of an output pixel (x, y), which is at (x + 0.5, y + 0.5), lies in the image:
// ((m0 x + m1 y + m2) / w, (m3 x + m4 y + m5) / w), w = m6 x + m7 y + m8.
//
// `kernels`: the loops that may be used; all make the same pixels.
//
// `in`: packed pixels of 1 to 4 channels; `out` has room for as many of its size. Equal to
// fastload/render/warp.py, bit for bit: the same IEEE operations in the same order, without
// contraction into fused multiply-adds. What is not finite is outside.
void warp(const Kernels& kernels, const uint8_t* in, Size in_size, uint8_t* out, Size out_size,
          int channels, const double inverse[9], const WarpOptions& options);

}  // namespace fastload
