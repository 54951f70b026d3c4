#include "jpeg/planes.hpp"

#include <algorithm>
#include <cstring>

namespace fastload::jpeg {
namespace {

// The quantisation tables of the JPEG standard, annex K.1, in natural order.
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

// Scales a table as jpeg_set_quality does with force_baseline.
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

// Repeats the last of `width` samples up to `stop`.
void extend_row(uint8_t* row, int width, int stop) {
    std::memset(row + width, row[width - 1], static_cast<size_t>(stop - width));
}

// Repeats the last of `height` rows to the end of the blocks.
void repeat_last(SamplePlane& plane, int height) {
    const uint8_t* const last = plane.row(height - 1);
    for (int y = height; y < 8 * plane.rows; ++y)
        std::memcpy(plane.row(y), last, static_cast<size_t>(8 * plane.columns));
}

}  // namespace

void SamplePlane::prepare(int width, int height) {
    columns = divide_up(width, 8);
    rows = divide_up(height, 8);
    stride = static_cast<ptrdiff_t>(kRowLead + static_cast<size_t>(8 * columns) + kRowTail);
    stride = (stride + 63) / 64 * 64;
    grow(samples, static_cast<size_t>(stride) * static_cast<size_t>(8 * rows));
}

// Converts rows `y` and y + 1 of the image; if the latter lies below the image, the last row again.
void SamplePlanes::take_rows(const uint8_t* pixels, Size size, int y, bool blue_first) {
    for (int k = 0; k < 2; ++k) {
        const auto from = static_cast<ptrdiff_t>(std::min(y + k, size.height - 1));
        uint8_t* const rows[3] = {planes_[0].row(y + k), full_[k][0].data(), full_[k][1].data()};
        kernels_.rgb_to_ycc(pixels + from * 3 * size.width, size.width, blue_first, rows);
        extend_row(rows[0], size.width, 8 * planes_[0].columns);
        for (int c = 1; c < 3; ++c) extend_row(rows[c], size.width, 16 * planes_[c].columns);
    }
    for (int c = 0; c < 2; ++c) {
        kernels_.halve(full_[0][c].data(), full_[1][c].data(), planes_[1 + c].row(y / 2),
                       8 * planes_[1 + c].columns);
    }
}

void SamplePlanes::take(const uint8_t* pixels, Size size, bool blue_first) {
    const int even_height = size.height + size.height % 2;
    planes_[0].prepare(size.width, even_height);
    for (int c = 0; c < 2; ++c) {
        planes_[1 + c].prepare(divide_up(size.width, 2), even_height / 2);
        for (auto& pair : full_) grow(pair[c], 16 * static_cast<size_t>(planes_[1 + c].columns));
    }
    for (int y = 0; y < size.height; y += 2) take_rows(pixels, size, y, blue_first);
    repeat_last(planes_[0], even_height);
    for (int c = 1; c < 3; ++c) repeat_last(planes_[c], even_height / 2);
}

void SamplePlanes::take_grey(const uint8_t* pixels, Size size) {
    SamplePlane& plane = planes_[0];
    plane.prepare(size.width, size.height);
    const auto width = static_cast<size_t>(size.width);
    for (int y = 0; y < size.height; ++y) {
        std::memcpy(plane.row(y), pixels + static_cast<size_t>(y) * width, width);
        extend_row(plane.row(y), size.width, 8 * plane.columns);
    }
    repeat_last(plane, size.height);
}

void SamplePlanes::trim(size_t most) {
    if (planes_[0].samples.size() <= most) return;
    for (SamplePlane& plane : planes_) std::vector<uint8_t>().swap(plane.samples);
}

void Quality::set(int quality) {
    if (quality == number) return;
    fill(luma, kLuma, quality);
    fill(chroma, kChroma, quality);
    number = quality;
}

}  // namespace fastload::jpeg
