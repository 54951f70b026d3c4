// What a thread keeps between samples.
#pragma once

#include <vector>

#include "jpeg.hpp"
#include "resampler.hpp"

namespace fastload {

class Worker {
  public:
    explicit Worker(const Kernels& chosen) : kernels(chosen), resampler(chosen) {}

    const Kernels& kernels;
    JpegDecoder decoder;
    Resampler resampler;
    std::vector<uint8_t> bytes;    // of the compressed file
    std::vector<uint8_t> scratch;  // pixels in between
};

}  // namespace fastload
