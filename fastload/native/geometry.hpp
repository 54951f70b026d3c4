// Where the pixels of output images come from: geometries, given as arrays or drawn once the size of an image is known;
// the C++ side of fastload/geometry/plan.py.
#pragma once

#include "image.hpp"

namespace fastload {

// Crop to `box`, resample to `size`, cut to `window` (outside of `size` is padding), mirror.
struct Geometry {
    Box box;
    Size size;
    Box window;
    bool mirror = false;       // left-right
    bool upside_down = false;  // top-bottom
    bool bicubic = false;      // resampled so where the others of the batch are bilinear
};

// Says whether a geometry can be run on an image of this size.
Outcome check_geometry(const Geometry& geometry, Size image);

class GeometrySource {
  public:
    virtual ~GeometrySource() = default;
    virtual Outcome resolve(int row, Size image, Geometry& geometry) const = 0;
};

// Arrays of the Geometry of fastload/geometry/plan.py, one row a sample. Borrowed.
class GivenGeometry final : public GeometrySource {
  public:
    // `bicubic`: of each row; null for none.
    GivenGeometry(const int32_t* boxes, const int32_t* sizes, const int32_t* windows, const bool* flips,
                  const bool* bicubic)
        : boxes_(boxes), sizes_(sizes), windows_(windows), flips_(flips), bicubic_(bicubic) {}

    Outcome resolve(int row, Size image, Geometry& geometry) const override;

  private:
    const int32_t* boxes_;
    const int32_t* sizes_;
    const int32_t* windows_;
    const bool* flips_;
    const bool* bicubic_;
};

// A plan for all samples, with random numbers and flips (left-right, top-bottom) for each. Arrays are borrowed.
//
// Equal to fastload/geometry/boxes.py and fastload/recipe, bit for bit: the same IEEE operations in the same order.
// geometry.cpp must be compiled without contraction into fused multiply-adds.
class PlannedGeometry : public GeometrySource {
  public:
    explicit PlannedGeometry(const bool* flips, const bool* bicubic = nullptr) : flips_(flips), bicubic_(bicubic) {}

    Outcome resolve(int row, Size image, Geometry& geometry) const final {
        geometry.mirror = flips_[2 * int64_t{row}];
        geometry.upside_down = flips_[2 * int64_t{row} + 1];
        geometry.bicubic = bicubic_ != nullptr && bicubic_[row];
        return place(row, image, geometry);
    }

  private:
    virtual Outcome place(int row, Size image, Geometry& geometry) const = 0;

    const bool* flips_;
    const bool* bicubic_;
};

// Images as they are, but for flips.
class WholeImages final : public PlannedGeometry {
  public:
    using PlannedGeometry::PlannedGeometry;

  private:
    Outcome place(int row, Size image, Geometry& geometry) const override;
};

struct RandomResizedCropPlan {
    // Random numbers that a sample takes, uniform in [0, 1): ten areas, ten ratios, top, left.
    static constexpr int kUniforms = 22;
    Size size;
    double scale_low = 0.08, scale_high = 1.0;  // of the image's area
    double ratio_low = 3.0 / 4.0, ratio_high = 4.0 / 3.0;  // width / height
    double log_ratio_low = 0.0, log_ratio_high = 0.0;  // given, because libraries' logarithms differ in the last bit
};

class RandomResizedCrops final : public PlannedGeometry {
  public:
    RandomResizedCrops(const double* uniforms, const bool* flips, const RandomResizedCropPlan& plan,
                       const bool* bicubic = nullptr)
        : PlannedGeometry(flips, bicubic), uniforms_(uniforms), plan_(plan) {}

  private:
    Outcome place(int row, Size image, Geometry& geometry) const override;

    const double* uniforms_;
    RandomResizedCropPlan plan_;
};

struct ResizePlan {
    Size size;         // exact, or 0x0 for the shorter side
    int shorter = 0;   // or 0
    int longest = 0;   // bound on the longer side, or 0 for none
    Size crop;         // central crop afterwards; 0x0 for none
};

class ResizedImages final : public PlannedGeometry {
  public:
    ResizedImages(const bool* flips, const ResizePlan& plan) : PlannedGeometry(flips), plan_(plan) {}

  private:
    Outcome place(int row, Size image, Geometry& geometry) const override;

    ResizePlan plan_;
};

// Padding around the whole image, then a cut of one size anywhere.
struct PaddedCropPlan {
    static constexpr int kUniforms = 2;  // top, left
    Size size;
    Size before, after;  // rows and columns of padding
};

class PaddedCrops final : public PlannedGeometry {
  public:
    PaddedCrops(const double* uniforms, const bool* flips, const PaddedCropPlan& plan)
        : PlannedGeometry(flips), uniforms_(uniforms), plan_(plan) {}

  private:
    // The box is the whole image, where Python's is what the window shows of it: the same pixels.
    Outcome place(int row, Size image, Geometry& geometry) const override;

    const double* uniforms_;
    PaddedCropPlan plan_;
};

}  // namespace fastload
