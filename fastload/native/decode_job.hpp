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
    DecodeLimits limits;
    bool exif_orientation = false;  // geometries are then those of the upright image
    bool whole = false;             // also check the data below the box
    bool draft = false;             // reduce in decoding what is at least twice the output, by whole powers of two
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

// What is made of each image: there may be several, out of one decoding.
struct View {
    std::shared_ptr<const GeometrySource> geometries;
    ResampleOptions resample;
    Output out;
};

class DecodeJob final : public Job {
  public:
    DecodeJob(std::unique_ptr<EncodedSource> images, std::vector<View> views, const DecodeOptions& options);

  private:
    Outcome run(Worker& worker, int row) override;
    void blank(int row) noexcept override;

    std::unique_ptr<EncodedSource> images_;
    std::vector<View> views_;
    DecodeOptions options_;
};

// One image from memory, into row `row` of each view, whose windows have the sizes of its output. What the views need
// of the image is decoded once.
Outcome decode_image(Worker& worker, const uint8_t* data, size_t size, const std::vector<View>& views, int row,
                     const DecodeOptions& options);

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
