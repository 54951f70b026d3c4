// Rows of a box in, an output image out: separable resampling, window, padding, mirroring.
#pragma once

#include <vector>

#include "geometry.hpp"
#include "kernels.hpp"

namespace fastload {

enum class Filter { nearest, nearest_exact, bilinear, bicubic };
enum class Padding { constant, edge, reflect, symmetric };

struct ResampleOptions {
    Filter filter = Filter::bilinear;
    bool antialias = true;
    Padding padding = Padding::constant;
    uint8_t fill[4] = {0, 0, 0, 0};  // one a channel
};

// Position in [0, length) that a position outside stands for, or -1 for constant padding (the names
// are numpy.pad's).
inline int padded_position(int position, int length, Padding padding) {
    if (position >= 0 && position < length) return position;
    if (padding == Padding::constant) return -1;
    if (padding == Padding::edge || length == 1) return position < 0 ? 0 : length - 1;
    const int period = padding == Padding::reflect ? 2 * (length - 1) : 2 * length;
    int phase = position % period;
    if (phase < 0) phase += period;
    if (phase < length) return phase;
    return padding == Padding::reflect ? period - phase : period - 1 - phase;
}

// What one axis of a geometry asks for.
struct AxisRequest {
    int input = 0;          // positions that the box takes up
    int output = 0;         // length it is resampled to
    int window_start = 0;   // first position wanted of the resampled grid; may be outside it
    int window_length = 0;  // how many
    bool mirror = false;
    // Where in these the box begins, and its length: other than whole numbers in an image that was
    // reduced in decoding.
    double from = 0.0;
    double extent = 0.0;
    bool mirror_first = false;  // as of `Geometry`
};

// For each position of a window along one axis: which input positions it is made of, and how much
// of each, as torch computes it for uint8 images.
class Taps {
  public:
    void build(const AxisRequest& request, const ResampleOptions& options);

    // Moves each position whose `width` weights reach beyond the last input position in use back,
    // with zeros before its first weight: the same sums, and nothing beyond `inputs()` is read, but
    // for up to three positions where there are fewer inputs than weights, or four are read for two
    // weights. `Kernels::horizontal` reads the full width.
    void keep_inside();

    int inputs() const { return input_stop - input_start; }

    // Positions [0, lead) and [lead + count, window_length) are constant padding; the `count`
    // between have weights.
    int lead = 0;
    int count = 0;
    int width = 0;        // weights stored per position, zeros after the last: 2 or a multiple of 4
    int precision = 0;    // weights are fixed point with this many fractional bits
    bool copies = false;  // each position is one input position, unchanged
    bool contiguous = false;  // copies, and of ascending neighbours
    int input_start = 0;      // input positions in use: [input_start, input_stop)
    int input_stop = 0;
    std::vector<int32_t> first;    // relative to input_start
    std::vector<int32_t> length;   // weights that matter, from `first` on
    std::vector<int16_t> weights;  // count * width

    const int16_t* at(int position) const {
        return weights.data() + static_cast<size_t>(position) * width;
    }

  private:
    void copy(const AxisRequest& request, Filter filter);
    void weigh(const AxisRequest& request, const ResampleOptions& options);
    template <typename Function>
    void weigh_antialiased(const AxisRequest& request, int support, Function function);
    template <typename Function>
    void weigh_interpolated(const AxisRequest& request, int support, Function function);

    std::vector<int32_t> grid_;  // where the positions lie in the resampled grid
    // Of all of that grid: weights, `stride_` a position, the first input position and how many,
    // and the largest weight.
    std::vector<double> exact_;
    std::vector<int32_t> begin_, size_;
    int stride_ = 0;
    double largest_ = 0.0;
};

// Horizontal pass as the rows arrive, vertical pass at the end. The state and the memory are reused
// between images; for one thread at a time. The order and the 8-bit rounding between the passes are
// torch's.
class Resampler final : public RowSink {
  public:
    explicit Resampler(const Kernels& kernels) : kernels_(kernels) {}

    // Plans one image; `needed()` is then the part of the source image whose rows it wants to be
    // given. The image may have been made 2^shift times smaller than the geometry knows it, and
    // have `lead` rows and columns of its first pixels before the first of the geometry's.
    // `channels`: 3, or 1 for the first byte of each pixel, which cannot be weighed: that is for
    // "nearest", and where nothing is resampled.
    void begin(const Geometry& geometry, const ResampleOptions& options, int shift = 0,
               Size lead = {}, int channels = 3);
    const Box& needed() const { return needed_; }

    // RGBX rows of `needed()`, top to bottom.
    void take(const uint8_t* const* rows, int count) override;
    void restart() override { taken_ = 0; }
    // So many rows more that are like the last one.
    void repeat(int count);

    // Writes window.height x window.width pixels of these channels, and nothing beside them;
    // `stride`: bytes from a row to the next, 0 for rows that are packed.
    void finish(uint8_t* out, int64_t stride = 0);

  private:
    uint8_t* middle_row(int y) { return middle_.data() + middle_stride_ * static_cast<size_t>(y); }
    void fill(uint8_t* out, int pixels) const;
    void copy(const uint8_t* row, uint8_t* out) const;

    const Kernels& kernels_;
    Taps columns_, rows_;
    Box needed_;
    Size window_;
    ResampleOptions options_;
    std::vector<uint8_t> middle_;  // rows of the box, columns of the window
    std::vector<int32_t> split_;
    bool is_split_ = false;
    size_t middle_stride_ = 0;
    int taken_ = 0;
    int channels_ = 3;
};

}  // namespace fastload
