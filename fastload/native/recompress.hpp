// Images as they are after a JPEG of some quality.
#pragma once

#include <vector>

#include "image.hpp"
#include "jpeg/planes.hpp"
#include "kernels.hpp"

namespace fastload {

// Gives the pixels that libjpeg-turbo's decoder makes of what its encoder makes of an image, both
// with their defaults (chroma of half the height and width, "slow" DCT, "fancy" upsampling). The
// coding of coefficients, which loses nothing, is left out.
class Recompressor {
  public:
    explicit Recompressor(const Kernels& kernels) : kernels_(kernels), planes_(*kernels.jpeg) {}

    // An image of 3 channels or 1, in place. `quality`: from 1 to 100. `blue_first`: the order of
    // the three.
    void run(uint8_t* pixels, Size size, int channels, int quality, bool blue_first);
    // Gives back the memory of an image of more than so many bytes.
    void trim(size_t most);

  private:
    using Plane = jpeg::SamplePlane;

    void compress(Plane& plane, const jpeg::Quantisation& by);
    void give_rows(uint8_t* pixels, Size size, bool blue_first);
    const uint8_t* chroma_row(Plane& plane, int y, Size size, std::vector<uint8_t>& out);

    const Kernels& kernels_;
    jpeg::Quality quality_;
    jpeg::SamplePlanes planes_;
    std::vector<uint8_t> upsampled_[2], pixels_, packed_;
    std::vector<int16_t> scratch_, coefficients_;
};

}  // namespace fastload
