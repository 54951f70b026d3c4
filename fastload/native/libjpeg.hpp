// JPEGs decoded by libjpeg-turbo.
#pragma once

#include <memory>

#include "image.hpp"

namespace fastload {

// Opens the library, once; throws std::runtime_error if it is not there or too old.
void load_libjpeg();

// With the accurate integer DCT and fancy upsampling. Damage that libjpeg only warns about and paints over (missing or
// undecodable data) is an error.
class LibJpegDecoder final : public ImageDecoder {
  public:
    LibJpegDecoder();
    ~LibJpegDecoder() override;

    Outcome open(const uint8_t* data, size_t size, const DecodeLimits& limits) override;
    const ImageHeader& header() const override;
    bool reduce(int shift) override;
    Outcome read(const Box& box, bool whole, RowSink& sink) override;
    void close() override;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace fastload
