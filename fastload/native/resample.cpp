// The arithmetic follows torch.nn.functional.interpolate on uint8
// (ATen/native/cpu/UpSampleKernel.cpp), itself after Pillow's Resample.c: weights in double,
// normalised, then rounded to 16-bit fixed point with as many fractional bits as the largest weight
// of the axis allows. Equal weights give equal pixels.
#include "resample.hpp"

#include <algorithm>
#include <cmath>

namespace fastload {
namespace {

double triangle(double x) {
    x = std::fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

// Cubic convolution (Keys, 1981); a = -0.5 with antialiasing (as Pillow), -0.75 without (as
// OpenCV).
double cubic(double x, double a) {
    x = std::fabs(x);
    if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
    return 0.0;
}

// Lanczos' filter of three lobes (1956), as Pillow has it.
double lanczos(double x) {
    constexpr double kPi = 3.14159265358979323846;
    if (x == 0.0) return 1.0;
    if (!(std::fabs(x) < 3.0)) return 0.0;
    const double turned = x * kPi;
    return std::sin(turned) / turned * (std::sin(turned / 3.0) / (turned / 3.0));
}

// As many fractional bits, up to 22, as leave the largest weight within 16 bits.
int precision_for(double largest) {
    int precision = 0;
    for (; precision < 22; ++precision) {
        if (static_cast<int>(0.5 + largest * (1 << (precision + 1))) >= (1 << 15)) break;
    }
    return precision;
}

int16_t to_fixed(double weight, int precision) {
    const double scaled = weight * (1 << precision);
    return static_cast<int16_t>(scaled < 0 ? static_cast<int>(scaled - 0.5)
                                           : static_cast<int>(scaled + 0.5));
}

}  // namespace

// Weights of a filter that is widened when shrinking. `support`: how far the filter reaches
// [pixels].
template <typename Function>
void Taps::weigh_antialiased(const AxisRequest& request, int support, Function function) {
    const double scale = request.extent / request.output;
    const double reach = scale >= 1.0 ? support * scale : support,
                 inverse = scale >= 1.0 ? 1.0 / scale : 1.0;
    stride_ = static_cast<int>(std::ceil(reach)) * 2 + 1;
    exact_.resize(static_cast<size_t>(request.output) * stride_);
    for (int i = 0; i < request.output; ++i) {
        const double center = request.from + scale * (i + 0.5);
        const int low = std::max(static_cast<int>(center - reach + 0.5), 0);
        const int taps = std::clamp(
            std::min(static_cast<int>(center + reach + 0.5), request.input) - low, 0, stride_);
        double* row = exact_.data() + static_cast<size_t>(i) * stride_;
        double total = 0.0;
        for (int j = 0; j < taps; ++j) {
            row[j] = function((j + low - center + 0.5) * inverse);
            total += row[j];
        }
        for (int j = 0; total != 0.0 && j < taps; ++j) {
            row[j] /= total;
            largest_ = std::max(largest_, row[j]);
        }
        begin_[i] = low;
        size_[i] = taps;
    }
}

// Weights of a filter that reaches `support` input pixels to each side, whatever the scale.
template <typename Function>
void Taps::weigh_interpolated(const AxisRequest& request, int support, Function function) {
    const double scale = request.extent / request.output;
    stride_ = 2 * support;
    exact_.assign(static_cast<size_t>(request.output) * stride_, 0.0);
    for (int i = 0; i < request.output; ++i) {
        const double position = scale * (i + 0.5) - 0.5;
        const int index = std::min(static_cast<int>(std::floor(position)), request.input - 1);
        const double lambda = std::clamp(position - index, 0.0, 1.0);
        const int unbound_low = index - support + 1;
        const int low = std::max(unbound_low, 0);
        const int taps = std::min(index + support + 1, request.input) - low;
        double* row = exact_.data() + static_cast<size_t>(i) * stride_;
        // Taps beyond an edge read the pixel at the edge: their weights are added to its weight.
        for (int j = 0; j < stride_; ++j) {
            row[std::clamp(unbound_low + j, low, low + taps - 1) - low] +=
                function(j + 1 - support - lambda);
        }
        for (int j = 0; j < taps; ++j) largest_ = std::max(largest_, row[j]);
        begin_[i] = low;
        size_[i] = taps;
    }
}

// As `weigh_interpolated` with `triangle`, of the two nearest pixels.
void Taps::weigh_linear(const AxisRequest& request) {
    const double scale = request.extent / request.output;
    stride_ = 2;
    exact_.resize(static_cast<size_t>(request.output) * 2);
    for (int i = 0; i < request.output; ++i) {
        const double position = std::max(scale * (i + 0.5) - 0.5, 0.0);
        const int index = std::min(static_cast<int>(position), request.input - 1);
        const double near = 1.0 - std::min(position - index, 1.0), far = 1.0 - near;
        const bool both = index + 1 < request.input;
        double* const row = exact_.data() + static_cast<size_t>(i) * 2;
        row[0] = both ? near : near + far;
        row[1] = far;
        largest_ = std::max({largest_, row[0], both ? far : 0.0});
        begin_[i] = index;
        size_[i] = both ? 2 : 1;
    }
}

// Sets each position to one input position: nothing is resampled, or the nearest pixel is taken.
void Taps::copy(const AxisRequest& request, Filter filter) {
    const bool same = request.input == request.output && request.from == 0.0;
    // In single precision, as torch's nearest.
    const float scale = static_cast<float>(request.input) / static_cast<float>(request.output);
    const float shift = filter == Filter::nearest_exact ? 0.5f : 0.0f;
    width = 2;
    precision = 14;
    contiguous = true;
    weights.assign(static_cast<size_t>(count) * 2, 0);
    for (int i = 0; i < count; ++i) {
        length[i] = 1;
        weights[static_cast<size_t>(i) * 2] = 1 << 14;
        const bool back = request.mirror_first && !same;  // count from the other end
        const int grid = back ? request.output - 1 - grid_[i] : grid_[i];
        const int found = same ? grid
                               : std::min(static_cast<int>(std::floor((grid + shift) * scale)),
                                          request.input - 1);
        first[i] = back ? request.input - 1 - found : found;
        contiguous &= i == 0 || first[i] == first[i - 1] + 1;
    }
}

void Taps::weigh(const AxisRequest& request, const ResampleOptions& options) {
    begin_.resize(request.output);
    size_.resize(request.output);
    largest_ = 0.0;
    if (options.filter == Filter::lanczos) {
        weigh_antialiased(request, 3, lanczos);
    } else if (options.filter == Filter::bicubic && options.antialias) {
        weigh_antialiased(request, 2, [](double x) { return cubic(x, -0.5); });
    } else if (options.filter == Filter::bicubic) {
        weigh_interpolated(request, 2, [](double x) { return cubic(x, -0.75); });
    } else if (options.antialias) {
        weigh_antialiased(request, 1, triangle);
    } else {
        weigh_linear(request);
    }
    int longest = 0;
    for (int i = 0; i < count; ++i) {
        first[i] = begin_[grid_[i]];
        length[i] = size_[grid_[i]];
        longest = std::max(longest, length[i]);
    }
    width = longest <= 2 ? 2 : (longest + 3) / 4 * 4;
    precision = precision_for(largest_);
    weights.assign(static_cast<size_t>(count) * width, 0);
    for (int i = 0; i < count; ++i) {
        const double* from = exact_.data() + static_cast<size_t>(grid_[i]) * stride_;
        int16_t* to = weights.data() + static_cast<size_t>(i) * width;
        for (int j = 0; j < length[i]; ++j) to[j] = to_fixed(from[j], precision);
    }
}

void Taps::build(const AxisRequest& request, const ResampleOptions& options) {
    const int window = request.window_length;
    grid_.resize(window);
    lead = count = 0;
    for (int i = 0; i < window; ++i) {
        const int position = request.window_start + (request.mirror ? window - 1 - i : i);
        const int grid = padded_position(position, request.output, options.padding);
        if (grid >= 0) {
            grid_[count++] = grid;
        } else if (count == 0) {
            ++lead;
        }
    }
    first.resize(count);
    length.resize(count);
    contiguous = false;
    copies = (request.input == request.output && request.from == 0.0) ||
             options.filter == Filter::nearest || options.filter == Filter::nearest_exact;
    copies ? copy(request, options.filter) : weigh(request, options);
    input_start = count == 0 ? 0 : request.input;
    input_stop = 0;
    for (int i = 0; i < count; ++i) {
        input_start = std::min(input_start, first[i]);
        input_stop = std::max(input_stop, first[i] + std::max(length[i], 1));
    }
    for (int i = 0; i < count; ++i) first[i] -= input_start;
}

void Taps::keep_inside() {
    if (copies) return;
    // The `length[i]` positions from `first[i]` on are inputs, so first[i] + length[i] <= inputs(),
    // and no length is above `width`. So after a move to inputs() - width the last weight has an
    // index below `width`.
    const int last = std::max(inputs() - width, 0);
    for (int i = 0; i < count; ++i) {
        const int back = first[i] - last;
        if (back <= 0) continue;
        int16_t* const row = weights.data() + static_cast<size_t>(i) * width;
        std::copy_backward(row, row + length[i], row + back + length[i]);
        std::fill_n(row, back, int16_t{0});
        first[i] = last;
        length[i] += back;
    }
}

void Resampler::begin(const Geometry& geometry, const ResampleOptions& options, int shift,
                      Size lead, int channels, uint8_t* out, int64_t stride) {
    Box box = geometry.box;
    const Box& window = geometry.window;
    options_ = options;
    channels_ = channels;
    if (geometry.bicubic && options.filter == Filter::bilinear) options_.filter = Filter::bicubic;
    window_ = {window.height, window.width};
    const auto plan = [&](int& start, int& length, int before, int output, int window_start,
                          int window_length, bool mirror, bool mirror_first, Taps& taps) {
        const int first = (start + before) >> shift,
                  stop = (start + before + length + (1 << shift) - 1) >> shift;
        taps.build({stop - first, output, window_start, window_length, mirror,
                    std::ldexp(start + before - (first << shift), -shift),
                    std::ldexp(length, -shift), mirror_first},
                   options_);
        start = first;
        length = stop - first;
    };
    plan(box.left, box.width, lead.width, geometry.size.width, window.left, window.width,
         geometry.mirror, geometry.mirror_first, columns_);
    plan(box.top, box.height, lead.height, geometry.size.height, window.top, window.height,
         geometry.upside_down, geometry.upside_down_first, rows_);
    columns_.keep_inside();
    is_split_ = false;
    if (kernels_.split != nullptr && !columns_.copies) {
        split_.resize(static_cast<size_t>(columns_.count) * 2 *
                      static_cast<size_t>((columns_.width + 3) / 4));
        is_split_ =
            kernels_.split(columns_.weights.data(), columns_.count, columns_.width, split_.data());
    }
    if (columns_.count == 0 || rows_.count == 0) {
        // Only padding is shown. One pixel is read all the same, so that damage to the file is
        // noticed.
        needed_ = {box.top, box.left, 1, 1};
        rows_.count = 0;
    } else {
        needed_ = {box.top + rows_.input_start, box.left + columns_.input_start,
                   rows_.input_stop - rows_.input_start,
                   columns_.input_stop - columns_.input_start};
    }
    out_ = rows_.copies && rows_.contiguous && columns_.count > 0 ? out : nullptr;
    out_stride_ = stride != 0 ? stride : int64_t{window_.width} * channels_;
    middle_stride_ = (static_cast<size_t>(columns_.count) * 3 + kRowSlack + 63) / 64 * 64;
    const int kept = out_ != nullptr ? kMostTaskRows : needed_.height;
    const size_t bytes = middle_stride_ * static_cast<size_t>(kept);
    grow(middle_, bytes);
    taken_ = 0;
}

void Resampler::take(const uint8_t* const* rows, int count) {
    if (rows_.count == 0) return;
    const size_t bytes = static_cast<size_t>(columns_.count) * static_cast<size_t>(channels_);
    for (int done = 0; done < count;) {
        const int chunk = std::min(count - done, kMostTaskRows);
        uint8_t* targets[kMostTaskRows];
        for (int y = 0; y < chunk; ++y) {
            targets[y] = middle_row(out_ != nullptr ? y : taken_ + y);
            const uint8_t* row = rows[done + y];
            if (columns_.copies) copy(row, targets[y]);
        }
        if (!columns_.copies) {
            kernels_.horizontal({rows + done, targets, chunk, columns_.count, columns_.first.data(),
                                 columns_.weights.data(), columns_.width, columns_.precision,
                                 is_split_ ? split_.data() : nullptr});
        }
        for (int y = 0; out_ != nullptr && y < chunk; ++y)
            std::memcpy(out_row(taken_ + y), targets[y], bytes);
        taken_ += chunk;
        done += chunk;
    }
}

void Resampler::repeat(int count) {
    if (rows_.count == 0 || count <= 0) return;
    const size_t bytes = static_cast<size_t>(columns_.count) * static_cast<size_t>(channels_);
    const auto row = [&](int y) { return out_ != nullptr ? out_row(y) : middle_row(y); };
    for (const uint8_t* last = row(taken_ - 1); count > 0; --count)
        std::memcpy(row(taken_++), last, bytes);
}

// The horizontal pass of a row where each column is a copy.
void Resampler::copy(const uint8_t* row, uint8_t* out) const {
    if (channels_ == 1 && columns_.contiguous) {
        const uint8_t* const from = row + 4 * int64_t{columns_.first[0]};
        for (int x = 0; x < columns_.count; ++x) out[x] = from[4 * int64_t{x}];
    } else if (channels_ == 1) {
        for (int x = 0; x < columns_.count; ++x) out[x] = row[4 * int64_t{columns_.first[x]}];
    } else if (columns_.contiguous) {
        kernels_.pack(row + 4 * int64_t{columns_.first[0]}, out, columns_.count);
    } else {
        for (int x = 0; x < columns_.count; ++x)
            std::memcpy(out + 3 * x, row + 4 * int64_t{columns_.first[x]}, 3);
    }
}

void Resampler::finish(uint8_t* out, int64_t stride) {
    if (stride == 0) stride = int64_t{window_.width} * channels_;
    for (int y = 0; y < window_.height; ++y, out += stride) {
        const int row = y - rows_.lead;
        if (row < 0 || row >= rows_.count) {
            fill(out, window_.width);
            continue;
        }
        uint8_t* middle = out + static_cast<size_t>(columns_.lead) * static_cast<size_t>(channels_);
        const int bytes = columns_.count * channels_;
        if (out_ != nullptr) {
            // Its pixels are there.
        } else if (rows_.copies) {
            std::memcpy(middle, middle_row(rows_.first[row]), static_cast<size_t>(bytes));
        } else {
            kernels_.vertical({middle_row(rows_.first[row]), static_cast<int64_t>(middle_stride_),
                               rows_.at(row), rows_.length[row], rows_.precision, middle, bytes});
        }
        fill(out, columns_.lead);
        fill(middle + bytes, window_.width - columns_.lead - columns_.count);
    }
}

void Resampler::fill(uint8_t* out, int pixels) const {
    for (int x = 0; x < pixels; ++x, out += channels_)
        std::memcpy(out, options_.fill, static_cast<size_t>(channels_));
}

}  // namespace fastload
