// A batch of decoded images, from memory or a memory map, to a batch of crops.
#pragma once

#include <memory>

#include "geometry.hpp"
#include "pool.hpp"
#include "resampler.hpp"

namespace fastload {

// uint8 images of `channels` interleaved channels. The arrays are borrowed, and were checked to be in bounds.
struct PixelRows {
    const uint8_t* base = nullptr;
    const int64_t* rows = nullptr;     // which image each sample is
    const int64_t* offsets = nullptr;  // first byte of each image, or nullptr for equal images one behind the other
    const int32_t* sizes = nullptr;    // height, width of each image, or nullptr for `size`
    Size size;
    int channels = 3;
    int count = 0;
};

// Writes row i to `out + i * height * width * channels`. Resampling needs 1 or 3 channels.
class GatherJob final : public Job {
  public:
    GatherJob(const PixelRows& images, std::shared_ptr<const GeometrySource> geometries, const ResampleOptions& options,
              Size size, uint8_t* out);

  private:
    Outcome run(Worker& worker, int row) override;
    void blank(int row) noexcept override;
    Size size_of(int64_t index) const;
    int64_t bytes_of(Size size) const;
    const uint8_t* pixels_of(int64_t index, Size size) const;
    template <int kLocality>
    void fetch(int row) const;
    void copy(Worker& worker, const uint8_t* image, Size size, const Geometry& geometry, uint8_t* out) const;
    void resample(Worker& worker, const uint8_t* image, Size size, const Geometry& geometry, uint8_t* out) const;

    PixelRows images_;
    std::shared_ptr<const GeometrySource> geometries_;
    ResampleOptions options_;
    Size size_;
    uint8_t* out_;
};

}  // namespace fastload
