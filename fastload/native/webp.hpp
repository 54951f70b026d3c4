// One WebP to pixels, by libwebp.
#pragma once

#include <atomic>
#include <vector>

#include "image.hpp"

namespace fastload {

// Decoded is down to the last row of the box. Animations, and whatever libwebp finds fault with, are `damaged`: other
// decoders may know better.
class WebpDecoder final : public ImageDecoder {
  public:
    // `count`, of images decoded, may be null.
    explicit WebpDecoder(std::atomic<int64_t>* count) : count_(count) {}

    Outcome open(const uint8_t* data, size_t size, const DecodeLimits& limits) override;
    const ImageHeader& header() const override { return header_; }
    Outcome read(const Box& box, bool whole, RowSink& sink) override;
    void close() override {}

  private:
    std::atomic<int64_t>* count_;
    const uint8_t* data_ = nullptr;
    size_t size_ = 0;
    ImageHeader header_;
    std::vector<uint8_t> pixels_;
};

}  // namespace fastload
