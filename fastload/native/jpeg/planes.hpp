// The samples of an image that becomes a JPEG, and what its coefficients are divided by, as
// libjpeg-turbo's encoder has them with its defaults: chroma of half the height and width.
#pragma once

#include <vector>

#include "image.hpp"
#include "jpeg/kernels.hpp"

namespace fastload::jpeg {

// One component: whole blocks, the last row and column of the image repeated to their end.
struct SamplePlane {
    std::vector<uint8_t> samples;
    ptrdiff_t stride = 0;
    int columns = 0, rows = 0;  // of blocks

    void prepare(int width, int height);
    uint8_t* row(int y) { return samples.data() + kRowLead + stride * y; }
};

class SamplePlanes {
  public:
    explicit SamplePlanes(const JpegKernels& kernels) : kernels_(kernels) {}

    // An image of 3 channels. `blue_first`: their order.
    void take(const uint8_t* pixels, Size size, bool blue_first);
    // Of 1 channel: the first plane.
    void take_grey(const uint8_t* pixels, Size size);
    SamplePlane& operator[](int component) { return planes_[component]; }
    // Gives back the memory of an image of more than so many bytes.
    void trim(size_t most);

  private:
    void take_rows(const uint8_t* pixels, Size size, int y, bool blue_first);

    const JpegKernels& kernels_;
    SamplePlane planes_[3];
    std::vector<uint8_t> full_[2][2];  // of two rows, their chroma
};

// Of luma and of chroma.
struct Quality {
    int number = 0;  // 1 to 100; 0: not set
    Quantisation luma, chroma;

    void set(int quality);
    const Quantisation& of(int component) const { return component == 0 ? luma : chroma; }
};

}  // namespace fastload::jpeg
