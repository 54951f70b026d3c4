// Geometries: which pixels of a source image an output image shows, and where. They are given as
// arrays, or computed from random numbers once the size of an image is known. The C++ counterpart
// of fastload/geometry/plan.py. Arrays are borrowed: they must live as long as the GeometrySource
// that reads them.
#pragma once

#include <functional>

#include "image.hpp"

namespace fastload {

// Longest side that a box may be resized to, and longest distance of a window from it [pixels]. A
// JPEG has at most 65,535 pixels a side; with this limit the arithmetic fits an int.
constexpr int kLargestSide = 1 << 20;

// Steps in this order: crop the source image to `box`, resample that to `size`, cut out `window`
// (what of it lies outside of `size` is padding), mirror.
struct Geometry {
    Box box;                   // in the source image
    Size size;                 // equal to that of the box: nothing is resampled
    Box window;                // in the resampled box
    bool mirror = false;       // left-right
    bool upside_down = false;  // top-bottom
    // Whether this mirroring was done before the resize. It makes a difference for nearest pixels:
    // they are counted from the other end.
    bool mirror_first = false;
    bool upside_down_first = false;
    bool bicubic = false;  // resample with "bicubic" where the batch is resampled with "bilinear"
};

// Computes the geometry of sample `row`, whose image has the size `image`. Not ok where the plan
// cannot be applied to such an image.
using GeometrySource = std::function<Outcome(int row, Size image, Geometry& geometry)>;

// Computes a geometry and checks it: the box lies in the image, and the window has the size `out`.
// `bad_geometry` otherwise.
Outcome resolve(const GeometrySource& source, int row, Size image, Size out, Geometry& geometry);
// The same for an intermediate image, whose window may have any size up to 2^28 pixels.
Outcome resolve(const GeometrySource& source, int row, Size image, Geometry& geometry);

// Random numbers, uniform in [0, 1), for each sample: of RandomResizedCrop ten areas, ten ratios,
// top and left; of a crop with padding top and left.
constexpr int kResizedCropUniforms = 22, kPaddedCropUniforms = 2;

// torchvision's RandomResizedCrop.
struct RandomResizedCropPlan {
    Size size;                                             // of the output
    double scale_low = 0.08, scale_high = 1.0;             // fractions of the image's area
    double ratio_low = 3.0 / 4.0, ratio_high = 4.0 / 3.0;  // width / height
    // Natural logarithms of the ratios. Given, because those of C libraries differ in the last bit.
    double log_ratio_low = 0.0, log_ratio_high = 0.0;
};

// torchvision's Resize, and a CenterCrop after it.
struct ResizePlan {
    Size size;        // of the resized image; 0x0: by the next two
    int shorter = 0;  // length of the shorter side; 0: by `longest` alone
    int longest = 0;  // greatest length of the longer side; 0: no limit
    Size crop;        // of the crop; 0x0: no crop
};

// Padding around the whole image, then a crop of a fixed size at a random place.
struct PaddedCropPlan {
    Size size;           // of the crop
    Size before, after;  // rows and columns of padding
};

// Geometries as arrays, one row a sample: boxes and windows (top, left, height, width), sizes
// (height, width), flips and flips_first (left-right, top-bottom). `bicubic` and `flips_first` may
// be null: false for all.
GeometrySource given_geometry(const int32_t* boxes, const int32_t* sizes, const int32_t* windows,
                              const bool* flips, const bool* bicubic,
                              const bool* flips_first = nullptr);

// One plan for all samples, with the random numbers and flips (left-right, top-bottom) of each. The
// boxes equal those of fastload/geometry and fastload/recipe bit for bit: the same IEEE
// operations in the same order. So geometry.cpp must be compiled without contraction into fused
// multiply-adds.
GeometrySource whole_images(const bool* flips);
GeometrySource random_resized_crops(const double* uniforms, const bool* flips,
                                    const RandomResizedCropPlan& plan,
                                    const bool* bicubic = nullptr);
GeometrySource resized_images(const bool* flips, const ResizePlan& plan);
// The box is the whole image, where in Python it is the part that the window shows: the pixels are
// the same.
GeometrySource padded_crops(const double* uniforms, const bool* flips, const PaddedCropPlan& plan);

}  // namespace fastload
