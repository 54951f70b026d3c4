// Where the pixels of output images come from: geometries, given as arrays or drawn once the size
// of an image is known; the C++ side of fastload/geometry/plan.py.
#pragma once

#include <functional>

#include "image.hpp"

namespace fastload {

// Crop to `box`, resample to `size`, cut to `window` (outside of `size` is padding), mirror.
struct Geometry {
    Box box;
    Size size;
    Box window;
    bool mirror = false;       // left-right
    bool upside_down = false;  // top-bottom
    // Which of the two was done before the resize: it has counted nearest pixels from the other
    // end.
    bool mirror_first = false;
    bool upside_down_first = false;
    bool bicubic = false;  // resampled so where the others of the batch are bilinear
};

// The geometry of sample `row`, whose image has this size.
using GeometrySource = std::function<Outcome(int row, Size image, Geometry& geometry)>;

// The same, checked: it can be run on such an image, and its window is as large as the output.
Outcome resolve(const GeometrySource& source, int row, Size image, Size out, Geometry& geometry);
// The same of an image in between, which may have any size that memory can be taken for.
Outcome resolve(const GeometrySource& source, int row, Size image, Geometry& geometry);

// Random numbers that a sample takes, uniform in [0, 1): ten areas, ten ratios, top, left; and top,
// left.
constexpr int kResizedCropUniforms = 22, kPaddedCropUniforms = 2;

struct RandomResizedCropPlan {
    Size size;
    double scale_low = 0.08, scale_high = 1.0;             // of the image's area
    double ratio_low = 3.0 / 4.0, ratio_high = 4.0 / 3.0;  // width / height
    double log_ratio_low = 0.0,
           log_ratio_high = 0.0;  // given, because libraries' logarithms differ in the last bit
};

struct ResizePlan {
    Size size;        // exact, or 0x0 for the shorter side
    int shorter = 0;  // or 0
    int longest = 0;  // bound on the longer side, or 0 for none
    Size crop;        // central crop afterwards; 0x0 for none
};

// Padding around the whole image, then a cut of one size anywhere.
struct PaddedCropPlan {
    Size size;
    Size before, after;  // rows and columns of padding
};

// Arrays of the Geometry of fastload/geometry/plan.py, one row a sample. Borrowed, as all arrays
// here; `bicubic` and `flips_first` may be null, for none.
GeometrySource given_geometry(const int32_t* boxes, const int32_t* sizes, const int32_t* windows,
                              const bool* flips, const bool* bicubic,
                              const bool* flips_first = nullptr);

// A plan for all samples, with random numbers and flips (left-right, top-bottom) for each. Equal to
// fastload/geometry/boxes.py and fastload/recipe, bit for bit: the same IEEE operations in the same
// order, which is why geometry.cpp must be compiled without contraction into fused multiply-adds.
GeometrySource whole_images(const bool* flips);
GeometrySource random_resized_crops(const double* uniforms, const bool* flips,
                                    const RandomResizedCropPlan& plan,
                                    const bool* bicubic = nullptr);
GeometrySource resized_images(const bool* flips, const ResizePlan& plan);
// The box is the whole image, where Python's is what the window shows of it: the same pixels.
GeometrySource padded_crops(const double* uniforms, const bool* flips, const PaddedCropPlan& plan);

}  // namespace fastload
