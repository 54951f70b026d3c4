// One image to pixels, whatever its format.
#pragma once

#include <map>
#include <string>

#include "jpeg.hpp"
#ifdef FASTLOAD_PNG
#include "png.hpp"
#endif
#ifdef FASTLOAD_WEBP
#include "webp.hpp"
#endif

namespace fastload {

// By the decoder of the format that the first bytes say.
class Decoder final : public ImageDecoder {
  public:
    // `counts` may be null.
    explicit Decoder(const Kernels& kernels, DecoderCounts* counts = nullptr);

    Outcome open(const uint8_t* data, size_t size, const DecodeLimits& limits) override;
    const ImageHeader& header() const override { return chosen_->header(); }
    bool reduce(int shift) override { return chosen_->reduce(shift); }
    Outcome read(const Box& box, bool whole, RowSink& sink) override { return chosen_->read(box, whole, sink); }
    void close() override { chosen_->close(); }

    // From now on libjpeg-turbo decodes all JPEGs, or only those that it has to.
    void use_libjpeg(bool always) { jpeg_.use_libjpeg(always); }

    // The formats beside JPEG that this build reads, by Pillow's names, and with which library.
    static const std::map<std::string, std::string>& formats();

  private:
    ImageDecoder* chosen_ = &jpeg_;
    JpegDecoder jpeg_;
#ifdef FASTLOAD_PNG
    PngDecoder png_;
#endif
#ifdef FASTLOAD_WEBP
    WebpDecoder webp_;
#endif
};

}  // namespace fastload
