// Images to JPEG files.
#pragma once

#include <vector>

#include "image.hpp"
#include "jpeg/planes.hpp"
#include "kernels.hpp"

namespace fastload {

// Writes the file that libjpeg-turbo's encoder writes of an image of 3 channels with its defaults
// (chroma of half the height and width, "slow" DCT, the Huffman codes of the standard), byte for
// byte.
class JpegEncoder {
  public:
    static constexpr int kLongestSide = 65500;  // libjpeg's own limit

    explicit JpegEncoder(const Kernels& kernels) : kernels_(*kernels.jpeg), planes_(kernels_) {}

    // Red first. `quality`: from 1 to 100. The file stays until the next one.
    const std::vector<uint8_t>& run(const uint8_t* pixels, Size size, int quality);
    // Gives back the memory of an image of more than so many bytes.
    void trim(size_t most);

  private:
    void write_headers(Size size);
    void plan_row();
    void make_row(int row);
    void stuff(const uint8_t* from, const uint8_t* stop);

    const jpeg::JpegKernels& kernels_;
    jpeg::Quality quality_;
    jpeg::SamplePlanes planes_;
    int columns_ = 0;  // of MCUs
    // Of a row of MCUs: two rows of luma, one each of chroma.
    std::vector<int16_t> coefficients_[4];
    std::vector<jpeg::WrittenBlock> blocks_;  // as they are written
    std::vector<int> reach_;
    std::vector<uint8_t> bits_;  // before stuffing
    std::vector<uint8_t> file_;
};

}  // namespace fastload
