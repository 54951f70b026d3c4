// One PNG to pixels: header, and rows of a region.
#pragma once

#include <atomic>
#include <vector>

#include "image.hpp"
#include "png/frame.hpp"
#include "png/kernels.hpp"

namespace fastload {

// All kinds of PNG, to RGB as Pillow makes it: alpha, gamma and colour profiles are left out, of 16 bits the upper eight
// are taken. Decoded are the rows down to the last of the box, and of them no column to its right; but the checksums of
// all data are compared. Whatever is not as a sound encoder writes it is `damaged`: other decoders may know better.
class PngDecoder final : public ImageDecoder {
  public:
    PngDecoder(const png::Kernels& kernels, std::atomic<int64_t>* count) : kernels_(kernels), count_(count) {}

    Outcome open(const uint8_t* data, size_t size, const DecodeLimits& limits) override;
    const ImageHeader& header() const override { return header_; }
    Outcome read(const Box& box, bool whole, RowSink& sink) override;
    void close() override {}

  private:
    bool read_box(const Box& box, RowSink& sink);
    bool read_interlaced(const Box& box, RowSink& sink);
    // Calls `take(row)` with RGBX pixels, `columns` of them, for each row of an image or pass from row `first` to `end`.
    // The last kRing rows stay where they are.
    template <typename Take>
    bool for_rows(int width, int columns, int first, int end, Take take);
    void begin_colours();
    bool to_pixels(const uint8_t* row, uint8_t* out, int count) const;

    const png::Kernels& kernels_;
    std::atomic<int64_t>* count_;  // of images decoded; may be null
    png::Inflater inflater_;
    png::Frame frame_;
    ImageHeader header_;
    uint32_t colours_[256] = {};  // of grey and palettes: the pixel of each number
    std::vector<uint8_t> raw_;   // rows as they are stored: the last one of before, some more
    std::vector<uint8_t> rows_;  // pixels: zeros, and the last rows
};

}  // namespace fastload
