#include "recompress.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace fastload {

using namespace jpeg;

namespace {

// Of the JPEG standard, annex K.1, in natural order.
constexpr uint8_t kLuma[64] = {
    16, 11, 10, 16, 24,  40,  51,  61,  12, 12, 14, 19, 26,  58,  60,  55,
    14, 13, 16, 24, 40,  57,  69,  56,  14, 17, 22, 29, 51,  87,  80,  62,
    18, 22, 37, 56, 68,  109, 103, 77,  24, 35, 55, 64, 81,  104, 113, 92,
    49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99,
};
constexpr uint8_t kChroma[64] = {
    17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99,
    99, 99, 47, 66, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
};

template <typename T>
void grow(std::vector<T>& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
}

int divide_up(int a, int b) { return (a + b - 1) / b; }

// As jpeg_set_quality with force_baseline.
void fill(Quantisation& out, const uint8_t* base, int quality) {
    const int scale = quality < 50 ? 5000 / quality : 200 - 2 * quality;
    for (int k = 0; k < 64; ++k) {
        const int quantiser = std::clamp((base[k] * scale + 50) / 100, 1, 255);
        out.quantisers[k] = static_cast<int16_t>(quantiser);
        out.half[k] = static_cast<float>(4 * quantiser) + 0.5f;
        out.inverse[k] = 1.0f / static_cast<float>(8 * quantiser);
    }
    for (int place = 1; place <= 64; ++place) {
        out.beyond_mean[kPlaces.at[place]] = place > 1 ? -1 : 0;
        out.beyond_corner[kPlaces.at[place]] = place > kCorner ? -1 : 0;
    }
}

// The last of `width` samples again, up to `stop`.
void extend_row(uint8_t* row, int width, int stop) {
    std::memset(row + width, row[width - 1], static_cast<size_t>(stop - width));
}

}  // namespace

void Recompressor::Plane::prepare(int width, int height) {
    blocks = divide_up(width, 8);
    stride = static_cast<ptrdiff_t>(kRowLead + static_cast<size_t>(8 * blocks) + kRowTail);
    stride = (stride + 63) / 64 * 64;
    grow(samples, static_cast<size_t>(stride) * static_cast<size_t>(divide_up(height, 8) * 8));
}

void Recompressor::set_quality(int quality) {
    if (quality == quality_) return;
    fill(luma_, kLuma, quality);
    fill(chroma_, kChroma, quality);
    quality_ = quality;
}

// Eight rows of samples from row `y` on, in place.
void Recompressor::compress_rows(Plane& plane, int y, const Quantisation& by) {
    int reach[kMostBlocks];
    KeptBlock blocks[kMostBlocks];
    for (int first = 0; first < plane.blocks; first += kMostBlocks) {
        const int count = std::min(kMostBlocks, plane.blocks - first);
        uint8_t* const samples = plane.row(y) + 8 * first;
        kernels_.jpeg->to_coefficients(
            {samples, plane.stride, count, &by, coefficients_.data(), reach});
        for (int i = 0; i < count; ++i) blocks[i] = {coefficients_.data() + 64 * i, reach[i]};
        // What it writes after the last block is in the tail of the row.
        static_assert(kMostBlocks % 4 == 0, "a chunk of all of them is whole vectors");
        kernels_.jpeg->to_samples(
            {nullptr, nullptr, blocks, count, by.quantisers, samples, plane.stride, 8});
    }
}

// The samples of two rows of pixels from row `y` on, the second of which may be below the image.
void Recompressor::take_rows(const uint8_t* pixels, Size size, int y, bool blue_first) {
    for (int k = 0; k < 2; ++k) {
        const auto from = static_cast<ptrdiff_t>(std::min(y + k, size.height - 1));
        uint8_t* const rows[3] = {planes_[0].row(y + k), full_[k][0].data(), full_[k][1].data()};
        kernels_.jpeg->rgb_to_ycc(pixels + from * 3 * size.width, size.width, blue_first, rows);
        extend_row(rows[0], size.width, 8 * planes_[0].blocks);
        for (int c = 1; c < 3; ++c) extend_row(rows[c], size.width, 16 * planes_[c].blocks);
    }
    for (int c = 0; c < 2; ++c) {
        kernels_.jpeg->halve(full_[0][c].data(), full_[1][c].data(), planes_[1 + c].row(y / 2),
                             8 * planes_[1 + c].blocks);
    }
}

// A row of chroma samples for the pixels of row `y`.
const uint8_t* Recompressor::chroma_row(Plane& plane, int y, Size size, std::vector<uint8_t>& out) {
    const int width = divide_up(size.width, 2), height = divide_up(size.height, 2);
    uint8_t* const near = plane.row(y / 2);
    if (width <= 2) {  // not smoothly, by libjpeg
        for (int x = 0; x < width; ++x) out[2 * x] = out[2 * x + 1] = near[x];
        return out.data();
    }
    const uint8_t* far = plane.row(std::clamp(y / 2 + (y % 2 == 0 ? -1 : 1), 0, height - 1));
    kernels_.jpeg->blend_and_double(near, far, out.data(), width, scratch_.data());
    return out.data();
}

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
        // Of the other order, red and blue have each other's place.
        const uint8_t* const rows[3] = {planes_[0].row(y), cb, cr};
        kernels_.jpeg->ycc_to_rgbx(rows, pixels_.data(), size.width);
        kernels_.pack(pixels_.data(), packed_.data(), size.width);
        for (size_t i = 0; blue_first && i < bytes; i += 3) std::swap(packed_[i], packed_[i + 2]);
        std::memcpy(pixels + static_cast<size_t>(y) * bytes, packed_.data(), bytes);
    }
}

void Recompressor::run(uint8_t* pixels, Size size, int channels, int quality, bool blue_first) {
    set_quality(quality);
    grow(coefficients_, 64 * (size_t{kMostBlocks} + 3));
    planes_[0].prepare(size.width, size.height + size.height % 2);
    const int rows = divide_up(size.height, 8) * 8;
    if (channels == 1) {
        Plane& plane = planes_[0];
        const auto width = static_cast<size_t>(size.width);
        for (int y = 0; y < rows; ++y) {
            const auto from = static_cast<size_t>(std::min(y, size.height - 1));
            std::memcpy(plane.row(y), pixels + from * width, width);
            extend_row(plane.row(y), size.width, 8 * plane.blocks);
        }
        for (int y = 0; y < rows; y += 8) compress_rows(plane, y, luma_);
        for (int y = 0; y < size.height; ++y)
            std::memcpy(pixels + static_cast<size_t>(y) * width, plane.row(y), width);
        return;
    }
    const int chroma_width = divide_up(size.width, 2), chroma_height = divide_up(size.height, 2);
    for (int c = 0; c < 2; ++c) {
        planes_[1 + c].prepare(chroma_width, chroma_height);
        for (auto& pair : full_) grow(pair[c], 16 * static_cast<size_t>(planes_[1 + c].blocks));
    }
    const size_t width = 2 * static_cast<size_t>(chroma_width);
    for (auto& row : upsampled_) grow(row, width + 2 * kRowTail);
    grow(scratch_, width + 2 * kRowTail);
    grow(pixels_, 4 * width + 2 * kRowTail);
    grow(packed_, 3 * width + 2 * kRowTail);
    for (int y = 0; y < size.height; y += 2) take_rows(pixels, size, y, blue_first);
    const auto repeat_last = [](Plane& plane, int from) {
        const uint8_t* const last = plane.row(from - 1);
        for (int y = from; y % 8 != 0; ++y)
            std::memcpy(plane.row(y), last, static_cast<size_t>(8 * plane.blocks));
    };
    repeat_last(planes_[0], size.height + size.height % 2);
    for (int c = 1; c < 3; ++c) repeat_last(planes_[c], chroma_height);
    for (int y = 0; y < rows; y += 8) compress_rows(planes_[0], y, luma_);
    for (int c = 1; c < 3; ++c)
        for (int y = 0; y < chroma_height; y += 8) compress_rows(planes_[c], y, chroma_);
    give_rows(pixels, size, blue_first);
}

void Recompressor::trim(size_t most) {
    if (planes_[0].samples.size() <= most) return;
    for (Plane& plane : planes_) std::vector<uint8_t>().swap(plane.samples);
}

}  // namespace fastload
