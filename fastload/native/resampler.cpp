#include "resampler.hpp"

#include <cmath>
#include <cstring>

namespace fastload {
namespace {

// Columns that are copies of source pixels.
void copy_columns(const uint8_t* row, const Taps& taps, uint8_t* out) {
    for (int x = 0; x < taps.count; ++x, out += 3) {
        const uint8_t* pixel = row + 4 * static_cast<int64_t>(taps.first[x]);
        out[0] = pixel[0];
        out[1] = pixel[1];
        out[2] = pixel[2];
    }
}

constexpr int kMostRows = 16;

}  // namespace

void Resampler::begin(const Geometry& geometry, const ResampleOptions& options, int shift, Size lead) {
    Box box = geometry.box;
    const Box& window = geometry.window;
    options_ = options;
    Interpolation& interpolation = options_.interpolation;
    if (geometry.bicubic && interpolation.filter == Filter::bilinear) interpolation.filter = Filter::bicubic;
    window_ = {window.height, window.width};
    const auto plan = [&](int& start, int& length, int before, int output, int window_start, int window_length,
                          bool mirror, Taps& taps) {
        const int first = (start + before) >> shift, stop = (start + before + length + (1 << shift) - 1) >> shift;
        builder_.build({stop - first, output, window_start, window_length, mirror,
                        std::ldexp(start + before - (first << shift), -shift), std::ldexp(length, -shift)},
                       interpolation, options.padding, taps);
        start = first;
        length = stop - first;
    };
    plan(box.left, box.width, lead.width, geometry.size.width, window.left, window.width, geometry.mirror, columns_);
    plan(box.top, box.height, lead.height, geometry.size.height, window.top, window.height, geometry.upside_down, rows_);
    is_split_ = false;
    if (kernels_->split != nullptr && !columns_.copies) {
        split_.resize(static_cast<size_t>(columns_.count) * 2 * static_cast<size_t>((columns_.width + 3) / 4));
        is_split_ = kernels_->split(columns_.weights.data(), columns_.count, columns_.width, split_.data());
    }
    if (columns_.count == 0 || rows_.count == 0) {
        // Nothing but padding. One pixel is read all the same, so that a damaged file is still noticed.
        needed_ = {box.top, box.left, 1, 1};
        rows_.count = 0;
    } else {
        needed_ = {box.top + rows_.input_start, box.left + columns_.input_start, rows_.input_stop - rows_.input_start,
                   columns_.input_stop - columns_.input_start};
    }
    middle_stride_ = (static_cast<size_t>(columns_.count) * 3 + kRowSlack + 63) / 64 * 64;
    const size_t bytes = middle_stride_ * static_cast<size_t>(needed_.height);
    if (middle_.size() < bytes) middle_.resize(bytes);
    taken_ = 0;
}

void Resampler::take(const uint8_t* const* rows, int count) {
    if (rows_.count == 0) return;
    if (columns_.copies) {
        for (int y = 0; y < count; ++y) {
            uint8_t* to = middle_.data() + middle_stride_ * (taken_ + y);
            if (columns_.contiguous) {
                kernels_->pack(rows[y] + 4 * static_cast<int64_t>(columns_.first[0]), to, columns_.count);
            } else {
                copy_columns(rows[y], columns_, to);
            }
        }
        taken_ += count;
        return;
    }
    for (int done = 0; done < count;) {
        const int chunk = count - done < kMostRows ? count - done : kMostRows;
        uint8_t* targets[kMostRows];
        for (int y = 0; y < chunk; ++y) targets[y] = middle_.data() + middle_stride_ * (taken_ + y);
        kernels_->horizontal({rows + done, targets, chunk, columns_.count, columns_.first.data(),
                              columns_.weights.data(), columns_.width, columns_.precision,
                              is_split_ ? split_.data() : nullptr});
        taken_ += chunk;
        done += chunk;
    }
}

void Resampler::finish(uint8_t* out) {
    const size_t stride = static_cast<size_t>(window_.width) * 3;
    for (int y = 0; y < window_.height; ++y, out += stride) {
        const int row = y - rows_.lead;
        if (row < 0 || row >= rows_.count) {
            fill(out, window_.width);
            continue;
        }
        uint8_t* middle = out + static_cast<size_t>(columns_.lead) * 3;
        const int bytes = columns_.count * 3;
        const uint8_t* from = middle_.data() + middle_stride_ * static_cast<size_t>(rows_.first[row]);
        if (rows_.copies) {
            std::memcpy(middle, from, static_cast<size_t>(bytes));
        } else {
            kernels_->vertical({from, static_cast<int64_t>(middle_stride_), rows_.at(row), rows_.length[row],
                                rows_.precision, middle, bytes});
        }
        fill(out, columns_.lead);
        fill(middle + bytes, window_.width - columns_.lead - columns_.count);
    }
}

void Resampler::fill(uint8_t* out, int pixels) const {
    for (int x = 0; x < pixels; ++x, out += 3) std::memcpy(out, options_.fill, 3);
}

}  // namespace fastload
