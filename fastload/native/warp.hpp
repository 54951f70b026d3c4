// Warps an image by a projective map: rotations, shears, perspective.
#pragma once

#include <cstdint>

#include "kernels.hpp"

namespace fastload {

struct WarpOptions {
    bool bilinear = false;  // interpolate; else take the nearest pixel
    // Of bilinear, at the edge of the image. True: pixels outside count as the fill, so that the
    // edge is blended with it, as torch's grid_sample. False: an output pixel whose centre lies
    // outside is the fill; for others the edge is repeated, as in Pillow.
    bool fades = true;
    // Of `fades`. True: the fill takes the place of each of the four neighbours that lies outside,
    // as in OpenCV. False: the sum of the others is blended with the fill, as in torchvision.
    bool mixes = false;
    float fill[4] = {0, 0, 0, 0};  // of each channel, 0 to 255
};

// Warps `in`, packed pixels of 1 to 4 channels, and writes the part `shown` of the output to `out`,
// packed.
//
// `inverse` = m maps the output to the image: the centre of output pixel (i, j) is x = j + 0.5,
// y = i + 0.5, and lies in the image at ((m0 x + m1 y + m2) / w, (m3 x + m4 y + m5) / w), where
// w = m6 x + m7 y + m8. Any numbers are allowed; coordinates that are not finite are outside.
//
// `kernels`: the loops to use; the pixels are the same with all. Equal to fastload/render/warp.py
// bit for bit: the same IEEE operations in the same order, compiled without contraction into fused
// multiply-adds. Throws nothing.
void warp(const Kernels& kernels, const uint8_t* in, Size in_size, uint8_t* out, const Box& shown,
          int channels, const double inverse[9], const WarpOptions& options);

// The part of an image of size `in_size` that `warp` reads for this part of its output: at least
// one pixel; all of the image where `inverse` gives no bounds.
Box warped_part(Size in_size, const Box& shown, const double inverse[9]);

// Bytes after the pixels of a part that `warp_part` may read.
constexpr int kWarpSlack = 128;

// The same as `warp`, with only a part of the image in memory, which contains `warped_part`:
// `pixels` are those of `part`, packed, followed by kWarpSlack bytes.
void warp_part(const Kernels& kernels, const uint8_t* pixels, const Box& part, Size in_size,
               uint8_t* out, const Box& shown, int channels, const double inverse[9],
               const WarpOptions& options);

// The same as `warp` with the place of each output pixel in the image, (out_size.height,
// out_size.width) each: any numbers; those that are not finite are outside. Throws nothing.
void remap(const uint8_t* in, Size in_size, uint8_t* out, Size out_size, int channels,
           const double* x, const double* y, const WarpOptions& options);

}  // namespace fastload
