// Makes an output image from the rows of a source image, as a geometry says: separable resampling,
// window, padding, mirroring.
#pragma once

#include <vector>

#include "geometry.hpp"
#include "kernels.hpp"

namespace fastload {

enum class Filter { nearest, nearest_exact, bilinear, bicubic, lanczos };
enum class Padding { constant, edge, reflect, symmetric };

struct ResampleOptions {
    Filter filter = Filter::bilinear;
    bool antialias = true;  // of bilinear and bicubic; lanczos always is
    Padding padding = Padding::constant;
    uint8_t fill[4] = {0, 0, 0, 0};  // of constant padding: the value of each channel
};

// The position in [0, length) whose pixel is shown at `position`, or -1 for constant padding. The
// modes are those of numpy.pad. `length` must be at least 1.
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

// One axis of a geometry. Positions are pixels along it.
struct AxisRequest {
    int input = 0;         // pixels of the image that the box covers, wholly or in part
    int output = 0;        // length that the box is resampled to
    int window_start = 0;  // first position of the window in the resampled box, or outside of it
    int window_length = 0;
    bool mirror = false;
    // Where the box begins, counted from the first of the `input` pixels, and its length. Not whole
    // numbers if the image was reduced in decoding.
    double from = 0.0;
    double extent = 0.0;
    bool mirror_first = false;  // as in Geometry
};

// The weights of an axis: for each position of the window, which input positions are summed, and
// with which weights, as torch computes them for uint8 images.
class Taps {
  public:
    // Computes all members. The memory is reused.
    void build(const AxisRequest& request, const ResampleOptions& options);

    // Makes it safe to read all `width` inputs of each position, as `Kernels::horizontal` does:
    // where they reach beyond the last input position in use, `first` is moved back, and zeros are
    // put before the weights. The sums stay the same. Up to three positions beyond `inputs()` are
    // read all the same: where there are fewer inputs than weights, or as kernels read four inputs
    // for two weights.
    void keep_inside();

    int inputs() const { return input_stop - input_start; }

    // Positions [0, lead) and [lead + count, window_length) of the window are constant padding; the
    // `count` between them have weights.
    int lead = 0;
    int count = 0;
    int width = 0;      // weights stored for each position, padded with zeros: 2 or a multiple of 4
    int precision = 0;  // fractional bits of the weights, which are fixed-point numbers
    bool copies = false;      // each position is a copy of one input position
    bool contiguous = false;  // copies, of inputs that follow each other
    int input_start = 0;      // the input positions in use: [input_start, input_stop)
    int input_stop = 0;
    std::vector<int32_t> first;    // of each position: its first input, relative to input_start
    std::vector<int32_t> length;   // of each position: how many weights, from `first` on
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
    void weigh_linear(const AxisRequest& request);

    std::vector<int32_t> grid_;  // of each position of the window: the one in the resampled box
    // Of all positions of the resampled box: weights, `stride_` for each; the first input, and how
    // many; and the largest of all weights.
    std::vector<double> exact_;
    std::vector<int32_t> begin_, size_;
    int stride_ = 0;
    double largest_ = 0.0;
};

// Resamples one image at a time: the horizontal pass as the rows arrive, the vertical pass at the
// end. The order of the passes and the rounding to 8 bits between them are torch's. Memory is
// reused between images. For one thread at a time. `kernels` must live as long as the object.
// `begin` may throw std::bad_alloc, the others throw nothing.
class Resampler final : public RowSink {
  public:
    explicit Resampler(const Kernels& kernels) : kernels_(kernels) {}

    // Plans one image; then `needed()` is the part of the source image whose rows must be given.
    // `geometry` was checked by `resolve`. `shift`: the image was made 2^shift times smaller in
    // decoding than the geometry says. `lead`: rows and columns of the full image that were added
    // before its first ones, to round its size up. `channels`: 3, or 1, which takes the first byte
    // of each pixel and is only for "nearest" filters or where nothing is resampled. `out`,
    // `stride`: what `finish` will get, if it may be written to until then: rows of which none is
    // resampled are written as they come, and not kept.
    void begin(const Geometry& geometry, const ResampleOptions& options, int shift = 0,
               Size lead = {}, int channels = 3, uint8_t* out = nullptr, int64_t stride = 0);
    const Box& needed() const { return needed_; }

    // The next rows of `needed()`, as in RowSink.
    void take(const uint8_t* const* rows, int count) override;
    void restart() override { taken_ = 0; }
    // The next `count` rows, which are equal to the last one.
    void repeat(int count);

    // Writes the output, (window.height, window.width, channels), after all rows were taken.
    // `stride`: bytes from one row of `out` to the next; 0: the rows follow each other.
    void finish(uint8_t* out, int64_t stride = 0);

  private:
    // A row after the horizontal pass.
    uint8_t* middle_row(int y) { return middle_.data() + middle_stride_ * static_cast<size_t>(y); }
    // Where row `y` of those that are written as they come goes.
    uint8_t* out_row(int y) const {
        return out_ + out_stride_ * (rows_.lead + y) + int64_t{columns_.lead} * channels_;
    }
    void fill(uint8_t* out, int pixels) const;
    void copy(const uint8_t* row, uint8_t* out) const;

    const Kernels& kernels_;
    Taps columns_, rows_;
    Box needed_;
    Size window_;
    ResampleOptions options_;
    // After the horizontal pass: rows of the box, columns of the window.
    std::vector<uint8_t> middle_;
    size_t middle_stride_ = 0;    // bytes from one of these rows to the next
    std::vector<int32_t> split_;  // the weights of columns as `Kernels::split` gives them
    bool is_split_ = false;       // whether they could be split
    int taken_ = 0;               // rows so far
    uint8_t* out_ = nullptr;      // where rows are written as they come; null: they are kept
    int64_t out_stride_ = 0;
    int channels_ = 3;
};

}  // namespace fastload
