// For encoding: the samples of an image in YCbCr 4:2:0, and the quantisation tables, as
// libjpeg-turbo's encoder computes them with its defaults.
#pragma once

#include <vector>

#include "image.hpp"
#include "jpeg/kernels.hpp"

namespace fastload::jpeg {

// The samples of one component, in whole blocks: the last row and column of the image are repeated
// to fill them.
struct SamplePlane {
    std::vector<uint8_t> samples;
    ptrdiff_t stride = 0;       // bytes from one row to the next
    int columns = 0, rows = 0;  // of blocks

    // Takes memory for so many samples.
    void prepare(int width, int height);
    uint8_t* row(int y) { return samples.data() + kRowLead + stride * y; }
};

class SamplePlanes {
  public:
    explicit SamplePlanes(const JpegKernels& kernels) : kernels_(kernels) {}

    // Converts packed pixels of 3 channels: red, green, blue, or the reverse if `blue_first`.
    void take(const uint8_t* pixels, Size size, bool blue_first);
    // Copies pixels of 1 channel to the first plane.
    void take_grey(const uint8_t* pixels, Size size);
    SamplePlane& operator[](int component) { return planes_[component]; }
    // Frees the planes if luma takes more than `most` bytes.
    void trim(size_t most);

  private:
    void take_rows(const uint8_t* pixels, Size size, int y, bool blue_first);

    const JpegKernels& kernels_;
    SamplePlane planes_[3];
    std::vector<uint8_t> full_[2][2];  // [row][Cb or Cr]: chroma of two rows, before it is halved
};

// The quantisation tables of a quality.
struct Quality {
    int number = 0;  // 1 to 100; 0: not set
    Quantisation luma, chroma;

    // Computes the tables of a quality from 1 to 100, unless it is the one before.
    void set(int quality);
    const Quantisation& of(int component) const { return component == 0 ? luma : chroma; }
};

}  // namespace fastload::jpeg
