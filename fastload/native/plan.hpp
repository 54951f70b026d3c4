// From uniform numbers and an image's size to its geometry, without going back to Python between header and pixels.
#pragma once

#include "geometry.hpp"

namespace fastload {

// Uniform numbers that a random resized crop takes: ten areas, ten ratios, top, left.
constexpr int kCropUniforms = 22;

struct RandomResizedCropPlan {
    Size size;
    double scale_low = 0.08, scale_high = 1.0;  // of the image's area
    double ratio_low = 3.0 / 4.0, ratio_high = 4.0 / 3.0;  // width / height
    double log_ratio_low = 0.0, log_ratio_high = 0.0;  // given, because libraries' logarithms differ in the last bit
};

struct ResizePlan {
    Size size;         // exact, or 0x0 for the shorter side
    int shorter = 0;   // or 0
    int longest = 0;   // bound on the longer side, or 0 for none
    Size crop;         // central crop afterwards; 0x0 for none
};

// Padding around the whole image, then a cut of one size anywhere. Takes two uniform numbers: top, left.
struct PaddedCropPlan {
    Size size;
    Size before, after;  // rows and columns of padding
};
constexpr int kPaddedCropUniforms = 2;

// Equal to fastload/geometry/boxes.py and fastload/recipe, bit for bit: the same IEEE operations in the same order. This
// file's code must be compiled without contraction into fused multiply-adds.
Box random_resized_box(const double* uniforms, Size image, const RandomResizedCropPlan& plan);
Geometry resolve(const double* uniforms, Size image, const RandomResizedCropPlan& plan);
Outcome resolve(Size image, const ResizePlan& plan, Geometry& geometry);
// The box is the whole image, where Python's is what the window shows of it: the same pixels.
Outcome resolve(const double* uniforms, Size image, const PaddedCropPlan& plan, Geometry& geometry);

}  // namespace fastload
