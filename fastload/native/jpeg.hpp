// One JPEG to pixels, by our own decoder or by libjpeg-turbo.
#pragma once

#include <atomic>

#include "jpeg/baseline.hpp"
#include "libjpeg.hpp"

namespace fastload {

struct Kernels;

// How many images were decoded by what: JPEGs by our own decoder at `jpeg::Reason::none`, by libjpeg-turbo for each other
// reason; and those of other formats.
struct DecoderCounts {
    std::atomic<int64_t> of[jpeg::kReasons] = {};
    std::atomic<int64_t> png{0}, webp{0};
    std::atomic<int64_t> reduced{0};  // JPEGs, of all of these
};

// Baseline files are decoded by our own decoder; the others, and all in which it sees anything unusual, by libjpeg-turbo.
class JpegDecoder final : public ImageDecoder {
  public:
    // `counts` may be null.
    explicit JpegDecoder(const Kernels& kernels, DecoderCounts* counts = nullptr);

    Outcome open(const uint8_t* data, size_t size, const DecodeLimits& limits) override;
    const ImageHeader& header() const override { return header_; }
    bool reduce(int shift) override;
    Outcome read(const Box& box, bool whole, RowSink& sink) override;
    void close() override { libjpeg_.close(); }

    // From now on libjpeg-turbo decodes all images, or only those that it has to.
    void use_libjpeg(bool always) { always_libjpeg_ = always; }

  private:
    Outcome open_libjpeg();

    jpeg::BaselineDecoder own_;
    LibJpegDecoder libjpeg_;
    DecoderCounts* counts_;
    bool always_libjpeg_ = false;
    jpeg::Reason reason_ = jpeg::Reason::none;  // why not by our own decoder
    int shift_ = 0;
    const uint8_t* data_ = nullptr;
    size_t size_ = 0;
    DecodeLimits limits_;
    ImageHeader header_;
};

}  // namespace fastload
