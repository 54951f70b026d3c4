// The JPEG encoder.
#pragma once

#include <vector>

#include "image.hpp"
#include "jpeg/planes.hpp"
#include "kernels.hpp"

namespace fastload {

// Encodes images of 3 channels to the same bytes as libjpeg-turbo with its defaults: 4:2:0, the
// "slow" integer DCT, the Huffman codes of the standard. For one thread at a time; memory is
// reused. `kernels` must live as long as the object.
class JpegEncoder {
  public:
    static constexpr int kLongestSide = 65500;  // JPEG_MAX_DIMENSION of libjpeg [pixels]

    explicit JpegEncoder(const Kernels& kernels) : kernels_(*kernels.jpeg), planes_(kernels_) {}

    // Encodes packed RGB pixels; sides are 1 to kLongestSide, `quality` is 1 to 100. The file is
    // valid until the next call. Throws std::bad_alloc.
    const std::vector<uint8_t>& run(const uint8_t* pixels, Size size, int quality);
    // Frees memory that an image took, if it is more than `most` bytes.
    void trim(size_t most);

  private:
    void write_headers(Size size);
    void plan_row();
    void make_row(int row);
    void stuff(const uint8_t* from, const uint8_t* stop);

    const jpeg::JpegKernels& kernels_;
    jpeg::Quality quality_;
    jpeg::SamplePlanes planes_;
    int columns_ = 0;  // MCUs in a row
    // Coefficients of a row of MCUs: two rows of luma blocks, one each of Cb and Cr blocks.
    std::vector<int16_t> coefficients_[4];
    std::vector<jpeg::WrittenBlock> blocks_;  // of a row of MCUs, in the order of the file
    std::vector<int> reach_;                  // as CoefficientsTask needs it
    std::vector<uint8_t> bits_;               // entropy-coded data before stuffing
    std::vector<uint8_t> file_;
};

}  // namespace fastload
