// Where the geometries of a batch come from: given as arrays, or drawn once the size of an image is known.
#pragma once

#include "plan.hpp"

namespace fastload {

class GeometrySource {
  public:
    virtual ~GeometrySource() = default;
    virtual Outcome resolve(int row, Size image, Geometry& geometry) const = 0;
};

// Arrays of the Geometry of fastload/geometry/plan.py, one row a sample. Borrowed.
class GivenGeometry final : public GeometrySource {
  public:
    GivenGeometry(const int32_t* boxes, const int32_t* sizes, const int32_t* windows, const bool* flips)
        : boxes_(boxes), sizes_(sizes), windows_(windows), flips_(flips) {}

    Outcome resolve(int row, Size, Geometry& geometry) const override {
        const int32_t* box = boxes_ + 4 * int64_t{row};
        const int32_t* size = sizes_ + 2 * int64_t{row};
        const int32_t* window = windows_ + 4 * int64_t{row};
        const bool* flip = flips_ + 2 * int64_t{row};
        geometry = {{box[0], box[1], box[2], box[3]},
                    {size[0], size[1]},
                    {window[0], window[1], window[2], window[3]},
                    flip[0],
                    flip[1]};
        return {};
    }

  private:
    const int32_t* boxes_;
    const int32_t* sizes_;
    const int32_t* windows_;
    const bool* flips_;
};

// Random resized crops from (B, 22) uniform numbers. Borrowed.
class DrawnCrops final : public GeometrySource {
  public:
    DrawnCrops(const double* uniforms, const bool* flips, const RandomResizedCropPlan& plan)
        : uniforms_(uniforms), flips_(flips), plan_(plan) {}

    Outcome resolve(int row, Size image, Geometry& geometry) const override {
        geometry = fastload::resolve(uniforms_ + kCropUniforms * int64_t{row}, image, plan_);
        geometry.mirror = flips_[2 * int64_t{row}];
        geometry.upside_down = flips_[2 * int64_t{row} + 1];
        return {};
    }

  private:
    const double* uniforms_;
    const bool* flips_;
    RandomResizedCropPlan plan_;
};

// A resize and perhaps a central crop, the same for all samples. Flips are borrowed.
class ResizedImages final : public GeometrySource {
  public:
    ResizedImages(const bool* flips, const ResizePlan& plan) : flips_(flips), plan_(plan) {}

    Outcome resolve(int row, Size image, Geometry& geometry) const override {
        geometry.mirror = flips_[2 * int64_t{row}];
        geometry.upside_down = flips_[2 * int64_t{row} + 1];
        return fastload::resolve(image, plan_, geometry);
    }

  private:
    const bool* flips_;
    ResizePlan plan_;
};

// Cuts of padded images from (B, 2) uniform numbers. Borrowed.
class PaddedCrops final : public GeometrySource {
  public:
    PaddedCrops(const double* uniforms, const bool* flips, const PaddedCropPlan& plan)
        : uniforms_(uniforms), flips_(flips), plan_(plan) {}

    Outcome resolve(int row, Size image, Geometry& geometry) const override {
        geometry.mirror = flips_[2 * int64_t{row}];
        geometry.upside_down = flips_[2 * int64_t{row} + 1];
        return fastload::resolve(uniforms_ + kPaddedCropUniforms * int64_t{row}, image, plan_, geometry);
    }

  private:
    const double* uniforms_;
    const bool* flips_;
    PaddedCropPlan plan_;
};

// Images as they are, but for flips. Borrowed.
class WholeImages final : public GeometrySource {
  public:
    explicit WholeImages(const bool* flips) : flips_(flips) {}

    Outcome resolve(int row, Size image, Geometry& geometry) const override {
        const bool* flip = flips_ + 2 * int64_t{row};
        geometry = {{0, 0, image.height, image.width}, image, {0, 0, image.height, image.width}, flip[0], flip[1]};
        return {};
    }

  private:
    const bool* flips_;
};

}  // namespace fastload
