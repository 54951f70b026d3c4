// Resampling weights of one axis, as torch computes them for uint8 images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastload {

enum class Filter { nearest, nearest_exact, bilinear, bicubic };
enum class Padding { constant, edge, reflect, symmetric };

struct Interpolation {
    Filter filter = Filter::bilinear;
    bool antialias = true;
};

// Position in [0, length) that a position outside stands for, or -1 for constant padding (the names are numpy.pad's).
int padded_position(int position, int length, Padding padding);

// What one axis of a geometry asks for.
struct AxisRequest {
    int input = 0;          // positions that the box takes up
    int output = 0;         // length it is resampled to
    int window_start = 0;   // first position wanted of the resampled grid; may be outside it
    int window_length = 0;  // how many
    bool mirror = false;
    // Where in these the box begins, and its length: other than whole numbers in an image that was reduced in decoding.
    double from = 0.0;
    double extent = 0.0;
};

// For each position of the window: which input positions it is made of, and how much of each.
struct Taps {
    // Positions [0, lead) and [lead + count, window_length) are constant padding; the `count` between have weights.
    int lead = 0;
    int count = 0;
    int width = 0;      // weights stored per position, zeros behind the last: 2 or a multiple of 4
    int precision = 0;  // weights are fixed point with this many fractional bits
    bool copies = false;        // each position is one input position, unchanged
    bool contiguous = false;    // copies, and of ascending neighbours
    int input_start = 0;        // input positions in use: [input_start, input_stop)
    int input_stop = 0;
    std::vector<int32_t> first;    // relative to input_start
    std::vector<int32_t> length;   // weights that matter
    std::vector<int16_t> weights;  // count * width

    const int16_t* at(int position) const { return weights.data() + static_cast<size_t>(position) * width; }
};

class TapsBuilder {
  public:
    void build(const AxisRequest& request, const Interpolation& interpolation, Padding padding, Taps& taps);

  private:
    void weigh(const AxisRequest& request, const Interpolation& interpolation);

    std::vector<double> scratch_;
    std::vector<int32_t> begin_, size_, grid_;
    int stride_ = 0;
    double largest_ = 0.0;
};

}  // namespace fastload
