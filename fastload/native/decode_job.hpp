// A batch of compressed images to pixels, and to headers.
#pragma once

#include <memory>
#include <vector>

#include "encoded.hpp"
#include "geometry.hpp"
#include "pool.hpp"
#include "resampler.hpp"

namespace fastload {

struct DecodeOptions {
    ResampleOptions resample;
    DecodeLimits limits;
    bool exif_orientation = false;  // geometries are then those of the upright image
    bool whole = false;             // also check the data below the box
};

// Where the pixels of each row go: images of one size behind each other, or, with arrays (borrowed), anywhere.
struct Output {
    uint8_t* base = nullptr;
    Size size;
    const int64_t* offsets = nullptr;  // first byte of each row
    const int32_t* sizes = nullptr;    // height, width of each row

    Size size_of(int row) const {
        return sizes == nullptr ? size : Size{sizes[2 * int64_t{row}], sizes[2 * int64_t{row} + 1]};
    }
    int64_t bytes(int row) const { return int64_t{3} * size_of(row).height * size_of(row).width; }
    uint8_t* at(int row) const { return base + (offsets == nullptr ? bytes(row) * row : offsets[row]); }
};

class DecodeJob final : public Job {
  public:
    DecodeJob(std::unique_ptr<EncodedSource> images, std::shared_ptr<const GeometrySource> geometries,
              const DecodeOptions& options, const Output& out);

  private:
    Outcome run(Worker& worker, int row) override;
    void blank(int row) noexcept override;

    std::unique_ptr<EncodedSource> images_;
    std::shared_ptr<const GeometrySource> geometries_;
    DecodeOptions options_;
    Output out_;
};

// One image from memory; the window of the geometry is the size of `out`.
Outcome decode_image(Worker& worker, const uint8_t* data, size_t size, const GeometrySource& geometries, int row,
                     const DecodeOptions& options, Size out_size, uint8_t* out);

// Height, width (as stored), components, EXIF orientation, progressive or not, for each row; zeros where it fails.
class HeaderJob final : public Job {
  public:
    static constexpr int kColumns = 5;

    HeaderJob(std::unique_ptr<EncodedSource> images, const DecodeLimits& limits, int32_t* out);

  private:
    Outcome run(Worker& worker, int row) override;
    void blank(int row) noexcept override;

    std::unique_ptr<EncodedSource> images_;
    DecodeLimits limits_;
    int32_t* out_;
};

}  // namespace fastload
