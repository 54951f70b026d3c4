// JPEG compression as an augmentation.
#pragma once

#include <vector>

#include "image.hpp"
#include "jpeg/planes.hpp"
#include "kernels.hpp"

namespace fastload {

// Computes the pixels that libjpeg-turbo decodes from the JPEG that it encodes of an image, both
// with its defaults (4:2:0, "slow" integer DCT, "fancy" upsampling). Entropy coding is lossless, so
// it is left out. For one thread at a time; memory is reused. `kernels` must live as long as the
// object.
class Recompressor {
  public:
    explicit Recompressor(const Kernels& kernels) : kernels_(kernels), planes_(*kernels.jpeg) {}

    // Changes an image of packed pixels of 1 or 3 channels in place. `quality`: 1 to 100.
    // `blue_first`: the three channels are blue, green, red. Throws std::bad_alloc.
    void run(uint8_t* pixels, Size size, int channels, int quality, bool blue_first);
    // Frees memory that an image took, if it is more than `most` bytes.
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
