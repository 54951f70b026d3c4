// The arithmetic follows torch.nn.functional.interpolate on uint8 (ATen/native/cpu/UpSampleKernel.cpp), itself after
// Pillow's Resample.c: weights in double, normalised, then rounded to 16-bit fixed point with as many fractional bits
// as the largest weight of the axis allows. Equal weights give equal pixels.
#include "taps.hpp"

#include <algorithm>
#include <cmath>

namespace fastload {
namespace {

double triangle(double x) {
    x = std::fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

// Keys' cubic convolution; a = -0.5 with antialiasing (as Pillow), -0.75 without (as OpenCV).
double cubic(double x, double a) {
    x = std::fabs(x);
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
    return 0.0;
}

template <typename Function>
double weigh_antialiased(int input, double from, double scale, double support, int stride, Function filter,
                         std::vector<int32_t>& begin, std::vector<int32_t>& size, std::vector<double>& weights) {
    const double inverse = scale >= 1.0 ? 1.0 / scale : 1.0;
    const int outputs = static_cast<int>(begin.size());
    double largest = 0.0;
    for (int i = 0; i < outputs; ++i) {
        const double center = from + scale * (i + 0.5);
        const int low = std::max(static_cast<int>(center - support + 0.5), 0);
        const int count = std::clamp(std::min(static_cast<int>(center + support + 0.5), input) - low, 0, stride);
        double* row = weights.data() + static_cast<size_t>(i) * stride;
        double total = 0.0;
        for (int j = 0; j < count; ++j) {
            row[j] = filter((j + low - center + 0.5) * inverse);
            total += row[j];
        }
        if (total != 0.0) {
            for (int j = 0; j < count; ++j) {
                row[j] /= total;
                largest = std::max(largest, row[j]);
            }
        }
        begin[i] = low;
        size[i] = count;
    }
    return largest;
}

template <typename Function>
double weigh_interpolated(int input, double scale, int taps, Function filter, std::vector<int32_t>& begin,
                          std::vector<int32_t>& size, std::vector<double>& weights) {
    const int support = taps / 2;
    const int outputs = static_cast<int>(begin.size());
    double largest = 0.0;
    for (int i = 0; i < outputs; ++i) {
        double position = scale * (i + 0.5) - 0.5;
        if (taps == 2) position = std::max(position, 0.0);
        const int index = std::min(static_cast<int>(std::floor(position)), input - 1);
        const double lambda = std::clamp(position - index, 0.0, 1.0);
        const int unbound_low = index - support + 1;
        const int low = std::max(unbound_low, 0);
        const int count = std::min(index + support + 1, input) - low;
        double* row = weights.data() + static_cast<size_t>(i) * taps;
        std::fill(row, row + taps, 0.0);
        // Taps beyond an edge read the pixel at the edge: their weights are added to its weight.
        for (int j = 0; j < taps; ++j) {
            row[std::clamp(unbound_low + j, low, low + count - 1) - low] += filter(j + 1 - support - lambda);
        }
        for (int j = 0; j < count; ++j) largest = std::max(largest, row[j]);
        begin[i] = low;
        size[i] = count;
    }
    return largest;
}

int precision_for(double largest) {
    int precision = 0;
    for (; precision < 22; ++precision) {
        if (static_cast<int>(0.5 + largest * (1 << (precision + 1))) >= (1 << 15)) break;
    }
    return precision;
}

int16_t to_fixed(double weight, int precision) {
    const double scaled = weight * (1 << precision);
    return static_cast<int16_t>(scaled < 0 ? static_cast<int>(scaled - 0.5) : static_cast<int>(scaled + 0.5));
}

}  // namespace

int padded_position(int position, int length, Padding padding) {
    if (position >= 0 && position < length) return position;
    if (padding == Padding::constant) return -1;
    if (padding == Padding::edge || length == 1) return position < 0 ? 0 : length - 1;
    const int period = padding == Padding::reflect ? 2 * (length - 1) : 2 * length;
    int phase = position % period;
    if (phase < 0) phase += period;
    if (phase < length) return phase;
    return padding == Padding::reflect ? period - phase : period - 1 - phase;
}

void TapsBuilder::weigh(const AxisRequest& request, const Interpolation& interpolation) {
    const int input = request.input, output = request.output;
    begin_.resize(output);
    size_.resize(output);
    const double scale = request.extent / output;
    const bool bicubic = interpolation.filter == Filter::bicubic;
    const int taps = bicubic ? 4 : 2;
    if (interpolation.antialias) {
        const double support = scale >= 1.0 ? taps * 0.5 * scale : taps * 0.5;
        stride_ = static_cast<int>(std::ceil(support)) * 2 + 1;
        scratch_.resize(static_cast<size_t>(output) * stride_);
        largest_ = bicubic ? weigh_antialiased(input, request.from, scale, support, stride_,
                                               [](double x) { return cubic(x, -0.5); }, begin_, size_, scratch_)
                           : weigh_antialiased(input, request.from, scale, support, stride_, triangle, begin_, size_,
                                               scratch_);
    } else {
        stride_ = taps;
        scratch_.resize(static_cast<size_t>(output) * stride_);
        largest_ = bicubic ? weigh_interpolated(input, scale, taps, [](double x) { return cubic(x, -0.75); }, begin_,
                                                size_, scratch_)
                           : weigh_interpolated(input, scale, taps, triangle, begin_, size_, scratch_);
    }
}

void TapsBuilder::build(const AxisRequest& request, const Interpolation& interpolation, Padding padding, Taps& taps) {
    const int length = request.window_length;
    grid_.resize(length);
    taps.lead = 0;
    taps.count = 0;
    for (int i = 0; i < length; ++i) {
        const int position = request.window_start + (request.mirror ? length - 1 - i : i);
        const int grid = padded_position(position, request.output, padding);
        if (grid < 0) {
            if (taps.count == 0) ++taps.lead;
            continue;
        }
        grid_[taps.count++] = grid;
    }
    taps.first.resize(taps.count);
    taps.length.resize(taps.count);
    taps.contiguous = false;
    const bool same = request.input == request.output && request.from == 0.0;
    taps.copies = same || interpolation.filter == Filter::nearest ||
                  interpolation.filter == Filter::nearest_exact;
    if (taps.copies) {
        taps.width = 2;
        taps.precision = 14;
        // In single precision, as torch's nearest.
        const float scale = static_cast<float>(request.input) / static_cast<float>(request.output);
        const float shift = interpolation.filter == Filter::nearest_exact ? 0.5f : 0.0f;
        for (int i = 0; i < taps.count; ++i) {
            taps.length[i] = 1;
            taps.first[i] = same ? grid_[i]
                                : std::min(static_cast<int>(std::floor((grid_[i] + shift) * scale)), request.input - 1);
        }
        taps.contiguous = true;
        for (int i = 1; i < taps.count; ++i) taps.contiguous &= taps.first[i] == taps.first[i - 1] + 1;
        taps.weights.assign(static_cast<size_t>(taps.count) * 2, 0);
        for (int i = 0; i < taps.count; ++i) taps.weights[static_cast<size_t>(i) * 2] = 1 << 14;
    } else {
        weigh(request, interpolation);
        int longest = 0;
        for (int i = 0; i < taps.count; ++i) {
            taps.first[i] = begin_[grid_[i]];
            taps.length[i] = size_[grid_[i]];
            longest = std::max(longest, size_[grid_[i]]);
        }
        taps.width = longest <= 2 ? 2 : (longest + 3) / 4 * 4;
        taps.precision = precision_for(largest_);
        taps.weights.assign(static_cast<size_t>(taps.count) * taps.width, 0);
        for (int i = 0; i < taps.count; ++i) {
            const double* from = scratch_.data() + static_cast<size_t>(grid_[i]) * stride_;
            int16_t* to = taps.weights.data() + static_cast<size_t>(i) * taps.width;
            for (int j = 0; j < taps.length[i]; ++j) to[j] = to_fixed(from[j], taps.precision);
        }
    }
    taps.input_start = request.input;
    taps.input_stop = 0;
    for (int i = 0; i < taps.count; ++i) {
        taps.input_start = std::min(taps.input_start, taps.first[i]);
        taps.input_stop = std::max(taps.input_stop, taps.first[i] + std::max(taps.length[i], 1));
    }
    if (taps.count == 0) taps.input_start = taps.input_stop = 0;
    for (int i = 0; i < taps.count; ++i) taps.first[i] -= taps.input_start;
}

}  // namespace fastload
