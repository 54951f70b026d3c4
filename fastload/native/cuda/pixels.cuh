// From samples to pixels: libjpeg-turbo's "fancy" upsampling of chroma and its colours, in
// integers, a thread a pixel.
#pragma once

#include "cuda/batch.cuh"

namespace fastload::device {

// The samples of a component: those of the image at (top, left) and further, in rows of `stride`.
struct Samples {
    const uint8_t* first;
    uint64_t stride;
    int32_t top, left;

    FASTLOAD_DEVICE int32_t at(int32_t y, int32_t x) const {
        return first[static_cast<uint64_t>(y - top) * stride + static_cast<uint64_t>(x - left)];
    }
};

FASTLOAD_DEVICE int32_t within(int32_t value, int32_t end) {
    return value < 0 ? 0 : value >= end ? end - 1 : value;
}

// Chroma for the pixel (y, x): where it is upsampled smoothly, 3/4 of the nearest sample in each
// direction and 1/4 of the one on the other side of the pixel, which at the edge of the image is
// the nearest one again. How halves are rounded depends on which side that is.
FASTLOAD_DEVICE int32_t chroma_at(const Crop& crop, const Samples& samples, int32_t y, int32_t x) {
    const int32_t row = y / crop.down, column = x / crop.across;
    const bool blends_rows = crop.smooth != 0 && crop.down == 2;
    const bool blends_columns = crop.smooth != 0 && crop.across == 2;
    const int32_t other_row = within(row + (y % 2 == 0 ? -1 : 1), crop.chroma_height);
    const int32_t other_column = within(column + (x % 2 == 0 ? -1 : 1), crop.chroma_width);
    const int32_t near = samples.at(row, column);
    if (!blends_rows && !blends_columns) return near;
    if (!blends_rows) {
        return (3 * near + samples.at(row, other_column) + (x % 2 == 0 ? 1 : 2)) >> 2;
    }
    const int32_t here = 3 * near + samples.at(other_row, column);
    if (!blends_columns) return (here + (y % 2 == 0 ? 1 : 2)) >> 2;
    const int32_t beside = 3 * samples.at(row, other_column) + samples.at(other_row, other_column);
    return (3 * here + beside + (x % 2 == 0 ? 8 : 7)) >> 4;
}

FASTLOAD_DEVICE uint8_t byte_of(int32_t value) {
    return static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
}

FASTLOAD_KERNEL(fastload_make_pixels, ChunkArguments, kStrip) {
    const Crop* const crops = arguments.crops;
    const Crop& crop = crops[crop_with(arguments.crop_count, FASTLOAD_BLOCK,
                                       [=](uint32_t i) { return crops[i].first_strip; })];
    FASTLOAD_THREADS(t) {
        const uint64_t number = uint64_t{kStrip} * (FASTLOAD_BLOCK - crop.first_strip) + t;
        const auto width = static_cast<uint64_t>(crop.width);
        if (number < width * static_cast<uint64_t>(crop.height)) {
            const int32_t y = crop.top + static_cast<int32_t>(number / width),
                          x = crop.left + static_cast<int32_t>(number % width);
            Samples samples[kComponents];
            for (int i = 0; i < kComponents; ++i) {
                const Plane& plane = crop.plane[i < crop.components ? i : 0];
                samples[i] = {arguments.samples + uint64_t{64} * plane.first_block,
                              uint64_t{8} * plane.width, i == 0 ? crop.luma_top : crop.chroma_top,
                              i == 0 ? crop.luma_left : crop.chroma_left};
            }
            const int32_t luma = samples[0].at(y, x);
            int32_t red = luma, green = luma, blue = luma;
            if (crop.components == 3) {
                const int32_t second = chroma_at(crop, samples[1], y, x),
                              third = chroma_at(crop, samples[2], y, x);
                green = second;
                blue = third;
                if (crop.is_ycc != 0) {
                    // With 16 fractional bits: 1.402, 1.772, 0.34414, 0.71414 (jdcolor.c).
                    constexpr int32_t kHalf = 1 << 15;
                    const int32_t cb = second - 128, cr = third - 128;
                    red = luma + ((91881 * cr + kHalf) >> 16);
                    green = luma + ((-22554 * cb - 46802 * cr + kHalf) >> 16);
                    blue = luma + ((116130 * cb + kHalf) >> 16);
                }
            }
            uint8_t* const out = arguments.pixels + crop.out + 3 * number;
            out[0] = byte_of(red);
            out[1] = byte_of(green);
            out[2] = byte_of(blue);
        }
    }
}

}  // namespace fastload::device
