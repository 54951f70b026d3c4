// Images as they are after a JPEG of some quality.
#pragma once

#include <vector>

#include "image.hpp"
#include "kernels.hpp"

namespace fastload {

// Gives the pixels that libjpeg-turbo's decoder makes of what its encoder makes of an image, both
// with their defaults (chroma of half the height and width, "slow" DCT, "fancy" upsampling). The
// coding of coefficients, which loses nothing, is left out.
class Recompressor {
  public:
    explicit Recompressor(const Kernels& kernels) : kernels_(kernels) {}

    // An image of 3 channels or 1, in place. `quality`: from 1 to 100. `blue_first`: the order of
    // the three.
    void run(uint8_t* pixels, Size size, int channels, int quality, bool blue_first);
    // Gives back the memory of an image of more than so many bytes.
    void trim(size_t most);

  private:
    struct Plane {
        std::vector<uint8_t> samples;
        ptrdiff_t stride = 0;
        int blocks = 0;  // of a row

        void prepare(int width, int height);
        uint8_t* row(int y) { return samples.data() + jpeg::kRowLead + stride * y; }
    };

    void set_quality(int quality);
    void compress_rows(Plane& plane, int y, const jpeg::Quantisation& by);
    void take_rows(const uint8_t* pixels, Size size, int y, bool blue_first);
    void give_rows(uint8_t* pixels, Size size, bool blue_first);
    const uint8_t* chroma_row(Plane& plane, int y, Size size, std::vector<uint8_t>& out);

    const Kernels& kernels_;
    int quality_ = 0;
    jpeg::Quantisation luma_, chroma_;
    Plane planes_[3];
    std::vector<uint8_t> full_[2][2];  // of two rows, their chroma
    std::vector<uint8_t> upsampled_[2], pixels_, packed_;
    std::vector<int16_t> scratch_, coefficients_;
};

}  // namespace fastload
