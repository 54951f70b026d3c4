#include "png.hpp"

#include <algorithm>
#include <cstring>

#include "kernels.hpp"
#include "orientation.hpp"

namespace fastload {
namespace {

// Rows handed over at a time, as many as the resampler works on at once, and rows kept.
constexpr int kChunk = 8;
constexpr int kRing = 16;
// Bytes inflated at a time: few enough to stay in the second-level cache.
constexpr int64_t kInflated = 64 << 10;
// An interlaced image is whole in memory before its first row is.
constexpr int64_t kMostInterlaced = 16 << 20;

Outcome refused(const char* why) { return {Status::damaged, why}; }

}  // namespace

Outcome PngDecoder::open(const uint8_t* data, size_t size, const DecodeLimits& limits) {
    if (!png::parse(data, size, frame_)) return refused("a PNG that is cut off or odd");
    header_.size = {frame_.height, frame_.width};
    header_.components = frame_.components();
    header_.orientation = frame_.exif == nullptr ? 1 : tiff_orientation(frame_.exif, frame_.exif_size);
    return limits.check(header_.size);
}

Outcome PngDecoder::read(const Box& box, bool whole, RowSink& sink) {
    if (!png::sound(frame_)) return refused("a PNG with a wrong checksum");
    inflater_.begin(frame_.data);
    begin_colours();
    // The last row, too, has to be there where all is to be checked.
    const bool to_end = whole || box.top + box.height == frame_.height;
    bool good = frame_.interlaced ? read_interlaced(box, sink) : read_box(box, sink);
    if (good && whole && !frame_.interlaced) {
        const int bottom = box.top + box.height;
        raw_.resize(std::max(raw_.size(), static_cast<size_t>(frame_.row_bytes(frame_.width)) + 1));
        for (int y = bottom; y < frame_.height && good; ++y) {
            good = inflater_.read(raw_.data(), static_cast<size_t>(frame_.row_bytes(frame_.width)) + 1) &&
                   raw_[0] < png::kFilters;
        }
    }
    if (!good || (to_end && !inflater_.ends())) return refused("a PNG with damaged data");
    if (count_ != nullptr) count_->fetch_add(1, std::memory_order_relaxed);
    return {};
}

void PngDecoder::begin_colours() {
    if (frame_.depth == 16 || frame_.colour == png::Colour::grey_alpha || frame_.colour == png::Colour::grey) {
        const int most = frame_.depth < 8 ? (1 << frame_.depth) - 1 : 255;
        for (int i = 0; i <= most; ++i) {
            std::memset(colours_ + i, 255 / most * i, 4);
        }
    } else if (frame_.colour == png::Colour::palette) {
        for (int i = 0; i < frame_.colours; ++i) std::memcpy(colours_ + i, frame_.palette + 3 * i, 3);
    }
}

bool PngDecoder::to_pixels(const uint8_t* row, uint8_t* out, int count) const {
    const int depth = frame_.depth, step = frame_.components() * depth / 8;
    const auto put = [out](int x, const void* pixel) { std::memcpy(out + 4 * int64_t{x}, pixel, 4); };
    if (frame_.components() >= 3) {  // of 16 bits
        for (int x = 0; x < count; ++x) {
            const uint8_t* from = row + int64_t{x} * step;
            const uint8_t pixel[4] = {from[0], from[2], from[4], 255};
            put(x, pixel);
        }
        return true;
    }
    if (depth >= 8) {
        int highest = 0;
        for (int x = 0; x < count; ++x) {
            const int number = row[int64_t{x} * step];
            highest = std::max(highest, number);
            put(x, colours_ + number);
        }
        return frame_.colour != png::Colour::palette || highest < frame_.colours;
    }
    int highest = 0;
    const int mask = (1 << depth) - 1;
    for (int x = 0; x < count; ++x) {
        const int64_t bit = int64_t{x} * depth;
        const int number = row[bit / 8] >> (8 - depth - bit % 8) & mask;
        highest = std::max(highest, number);
        put(x, colours_ + number);
    }
    return frame_.colour != png::Colour::palette || highest < frame_.colours;
}

template <typename Take>
bool PngDecoder::for_rows(int width, int columns, int first, int end, Take take) {
    const auto stride = static_cast<size_t>(frame_.row_bytes(width)) + 1;
    const auto used = static_cast<int>(frame_.row_bytes(columns));
    const int most = static_cast<int>(std::clamp<int64_t>(kInflated / static_cast<int64_t>(stride), 2, end));
    const int bytes = std::max(frame_.components() * frame_.depth / 8, 1);  // that a filter looks back
    const bool direct = frame_.depth == 8 && frame_.components() >= 3;
    const size_t pixels = size_t{4} * static_cast<size_t>(columns) + kRowSlack;
    if (raw_.size() < stride * static_cast<size_t>(most + 1) + png::kTail) {
        raw_.resize(stride * static_cast<size_t>(most + 1) + png::kTail);
    }
    if (rows_.size() < pixels * (kRing + 1)) rows_.resize(pixels * (kRing + 1));
    uint8_t* const zeros = rows_.data();
    const auto target = [&](int y) { return zeros + pixels * static_cast<size_t>(1 + y % kRing); };
    std::fill_n(zeros, pixels, uint8_t{0});
    std::fill_n(raw_.data(), stride, uint8_t{0});

    for (int y = 0; y < end;) {
        const int count = std::min(most, end - y);
        uint8_t* row = raw_.data() + stride;  // a filter's number and bytes; behind those of the row before
        if (!inflater_.read(row, stride * static_cast<size_t>(count))) return false;
        for (const int stop = y + count; y < stop;) {
            const auto filter = static_cast<png::Filter>(row[0]);
            if (filter >= png::kFilters) return false;
            int made = 1;
            if (direct) {
                const uint8_t* above = y == 0 ? zeros : target(y - 1);
                if (filter == png::kPaeth && y + 1 < stop && row[stride] == png::kPaeth) {
                    const uint8_t* const raw[] = {row + 1, row + stride + 1};
                    uint8_t* const out[] = {target(y), target(y + 1)};
                    kernels_.paeth_pair(bytes, raw, above, out, columns);
                    made = 2;
                } else {
                    kernels_.unfilter_pixels(filter, bytes, row + 1, above, target(y), columns);
                }
            } else {
                kernels_.unfilter_bytes(filter, bytes, row + 1, row + 1 - stride, used);
                if (y >= first && !to_pixels(row + 1, target(y), columns)) return false;
            }
            for (; made > 0; --made, ++y, row += stride) {
                if (y >= first) take(target(y));
            }
        }
        std::memcpy(raw_.data(), row - stride, stride);
    }
    return true;
}

bool PngDecoder::read_box(const Box& box, RowSink& sink) {
    const uint8_t* visible[kChunk];
    int waiting = 0;
    const auto take = [&](const uint8_t* row) {
        visible[waiting++] = row + size_t{4} * static_cast<size_t>(box.left);
        if (waiting < kChunk) return;
        sink.take(visible, waiting);
        waiting = 0;
    };
    if (!for_rows(frame_.width, box.left + box.width, box.top, box.top + box.height, take)) return false;
    if (waiting > 0) sink.take(visible, waiting);
    return true;
}

bool PngDecoder::read_interlaced(const Box& box, RowSink& sink) {
    if (int64_t{frame_.width} * frame_.height > kMostInterlaced) return false;
    const size_t stride = size_t{4} * static_cast<size_t>(frame_.width);
    std::vector<uint8_t> image(stride * static_cast<size_t>(frame_.height) + kRowSlack);
    for (const png::Pass& pass : png::kPasses) {
        const int columns = pass.columns(frame_.width), rows = pass.rows(frame_.height);
        if (columns == 0 || rows == 0) continue;
        int y = pass.top;
        const auto take = [&](const uint8_t* row) {
            uint8_t* out = image.data() + stride * static_cast<size_t>(y) + 4 * pass.left;
            for (int x = 0; x < columns; ++x) std::memcpy(out + size_t{4} * static_cast<size_t>(x * pass.right), row + 4 * x, 4);
            y += pass.down;
        };
        if (!for_rows(columns, columns, 0, rows, take)) return false;
    }
    for (int y = box.top; y < box.top + box.height; ++y) {
        const uint8_t* row = image.data() + stride * static_cast<size_t>(y) + size_t{4} * static_cast<size_t>(box.left);
        sink.take(&row, 1);
    }
    return true;
}

}  // namespace fastload
