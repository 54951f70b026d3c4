// What a thread keeps between samples.
#pragma once

#include <vector>

#include "jpeg.hpp"
#include "resampler.hpp"

namespace fastload {

class Worker {
  public:
    explicit Worker(const Kernels& chosen, DecoderCounts* counts = nullptr)
        : kernels(chosen), decoder(chosen, counts), resampler(chosen) {}

    const Kernels& kernels;
    JpegDecoder decoder;
    Resampler resampler;
    std::vector<uint8_t> bytes;    // of the compressed file
    std::vector<uint8_t> scratch;  // pixels in between

    // Gives back the memory of an unusually large image, so that one of these does not stay with every thread.
    void trim() {
        constexpr size_t kMost = size_t{32} << 20;
        if (bytes.size() > kMost) std::vector<uint8_t>().swap(bytes);
        if (scratch.size() > kMost) std::vector<uint8_t>().swap(scratch);
    }
};

}  // namespace fastload
