#include "recompress.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace fastload {

using namespace jpeg;

// Transforms, quantises and transforms back all samples of a plane, in place.
void Recompressor::compress(Plane& plane, const Quantisation& by) {
    int reach[kMostBlocks];
    KeptBlock blocks[kMostBlocks];
    for (int y = 0; y < plane.rows; ++y) {
        for (int first = 0; first < plane.columns; first += kMostBlocks) {
            const int count = std::min(kMostBlocks, plane.columns - first);
            uint8_t* const samples = plane.row(8 * y) + 8 * first;
            kernels_.jpeg->to_coefficients(
                {samples, plane.stride, count, &by, coefficients_.data(), reach});
            for (int i = 0; i < count; ++i) blocks[i] = {coefficients_.data() + 64 * i, reach[i]};
            // What `to_samples` writes after the last block lies in the tail of the row.
            static_assert(kMostBlocks % 4 == 0, "a chunk of all of them is whole vectors");
            kernels_.jpeg->to_samples(
                {nullptr, nullptr, blocks, count, by.quantisers, samples, plane.stride, 8});
        }
    }
}

// The chroma samples for the pixels of row `y`, upsampled to the width of the image.
const uint8_t* Recompressor::chroma_row(Plane& plane, int y, Size size, std::vector<uint8_t>& out) {
    const int width = divide_up(size.width, 2), height = divide_up(size.height, 2);
    uint8_t* const near = plane.row(y / 2);
    if (width <= 2) {  // libjpeg repeats samples of so narrow an image
        for (int x = 0; x < width; ++x) out[2 * x] = out[2 * x + 1] = near[x];
        return out.data();
    }
    const uint8_t* far = plane.row(std::clamp(y / 2 + (y % 2 == 0 ? -1 : 1), 0, height - 1));
    kernels_.jpeg->blend_and_double(near, far, out.data(), width, scratch_.data());
    return out.data();
}

// Upsamples chroma and converts all rows to pixels.
void Recompressor::give_rows(uint8_t* pixels, Size size, bool blue_first) {
    const auto bytes = 3 * static_cast<size_t>(size.width);
    const int width = divide_up(size.width, 2), height = divide_up(size.height, 2);
    for (int c = 1; c < 3; ++c) {
        for (int y = 0; y < height; ++y) {
            uint8_t* const row = planes_[c].row(y);
            row[-1] = row[0];
            row[width] = row[width - 1];
        }
    }
    for (int y = 0; y < size.height; ++y) {
        const uint8_t* const cb = chroma_row(planes_[1], y, size, upsampled_[0]);
        const uint8_t* const cr = chroma_row(planes_[2], y, size, upsampled_[1]);
        const uint8_t* const rows[3] = {planes_[0].row(y), cb, cr};
        kernels_.jpeg->ycc_to_rgbx(rows, pixels_.data(), size.width);
        kernels_.pack(pixels_.data(), packed_.data(), size.width);
        for (size_t i = 0; blue_first && i < bytes; i += 3) std::swap(packed_[i], packed_[i + 2]);
        std::memcpy(pixels + static_cast<size_t>(y) * bytes, packed_.data(), bytes);
    }
}

void Recompressor::run(uint8_t* pixels, Size size, int channels, int quality, bool blue_first) {
    quality_.set(quality);
    grow(coefficients_, 64 * (size_t{kMostBlocks} + 3));
    if (channels == 1) {
        planes_.take_grey(pixels, size);
        compress(planes_[0], quality_.luma);
        const auto width = static_cast<size_t>(size.width);
        for (int y = 0; y < size.height; ++y)
            std::memcpy(pixels + static_cast<size_t>(y) * width, planes_[0].row(y), width);
        return;
    }
    const size_t width = 2 * static_cast<size_t>(divide_up(size.width, 2));
    for (auto& row : upsampled_) grow(row, width + 2 * kRowTail);
    grow(scratch_, width + 2 * kRowTail);
    grow(pixels_, 4 * width + 2 * kRowTail);
    grow(packed_, 3 * width + 2 * kRowTail);
    planes_.take(pixels, size, blue_first);
    for (int c = 0; c < 3; ++c) compress(planes_[c], quality_.of(c));
    give_rows(pixels, size, blue_first);
}

void Recompressor::trim(size_t most) { planes_.trim(most); }

}  // namespace fastload
