// Rows of a box in, an output image out: separable resampling, window, padding, mirroring.
#pragma once

#include <vector>

#include "geometry.hpp"
#include "kernels.hpp"
#include "taps.hpp"

namespace fastload {

struct ResampleOptions {
    Interpolation interpolation;
    Padding padding = Padding::constant;
    uint8_t fill[4] = {0, 0, 0, 0};  // one a channel
};

// Horizontal pass as the rows arrive, vertical pass at the end. The state and the memory are reused between images;
// for one thread at a time. The order and the 8-bit rounding between the passes are torch's.
class Resampler final : public RowSink {
  public:
    explicit Resampler(const Kernels& kernels) : kernels_(&kernels) {}

    void use(const Kernels& kernels) { kernels_ = &kernels; }

    // Plans one image; `needed()` is then the part of the source image whose rows it wants to be given. The image may have
    // been made 2^shift times smaller than the geometry knows it, and have `lead` rows and columns of its first pixels
    // before the first of the geometry's.
    void begin(const Geometry& geometry, const ResampleOptions& options, int shift = 0, Size lead = {});
    const Box& needed() const { return needed_; }

    // RGBX rows of `needed()`, top to bottom.
    void take(const uint8_t* const* rows, int count) override;
    void restart() override { taken_ = 0; }

    // Writes window.height x window.width packed RGB pixels; `out` has exactly that many bytes.
    void finish(uint8_t* out);

  private:
    void fill(uint8_t* out, int pixels) const;

    const Kernels* kernels_;
    TapsBuilder builder_;
    Taps columns_, rows_;
    Box needed_;
    Size window_;
    ResampleOptions options_;
    std::vector<uint8_t> middle_;  // rows of the box, columns of the window
    std::vector<int32_t> split_;
    bool is_split_ = false;
    size_t middle_stride_ = 0;
    int taken_ = 0;
};

}  // namespace fastload
