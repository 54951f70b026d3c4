// From the pixels of a crop to a row of the batch: resampled, cut, mirrored and padded, a thread a
// pixel. The arithmetic is that of the CPU, integer by integer: columns first, each sum rounded to
// 8 bits; then rows. Mirrorings and windows are in the weights that the host has made.
#pragma once

#include "cuda/batch.cuh"

namespace fastload::device {

// A sum of pixels, with `precision` fractional bits, to 8 bits.
FASTLOAD_DEVICE int32_t rounded(int32_t sum, int32_t precision) {
    const int32_t value = (sum + (1 << (precision - 1))) >> precision;
    return value < 0 ? 0 : value > 255 ? 255 : value;
}

struct AxisTables {
    const int32_t* first;
    const int16_t* weights;

    FASTLOAD_DEVICE AxisTables(const uint8_t* batch, const Axis& axis)
        : first(reinterpret_cast<const int32_t*>(batch + axis.first)),
          weights(reinterpret_cast<const int16_t*>(batch + axis.weights)) {}
};

FASTLOAD_KERNEL(fastload_resize, ChunkArguments, kStrip) {
    const uint32_t width = arguments.out_width;
    const uint32_t pixels = arguments.out_height * width;
    const uint32_t strips = (pixels + kStrip - 1) / kStrip;
    const uint32_t number = FASTLOAD_BLOCK / strips;
    const Crop& crop = arguments.crops[number];
    const Resize& resize = arguments.resizes[number];
    const AxisTables rows(arguments.batch, resize.down), columns(arguments.batch, resize.across);
    FASTLOAD_THREADS(t) {
        const uint32_t place = FASTLOAD_BLOCK % strips * kStrip + t;
        if (place < pixels) {
            const Axis &down = resize.down, &across = resize.across;
            const int32_t y = static_cast<int32_t>(place / width) - down.lead,
                          x = static_cast<int32_t>(place % width) - across.lead;
            int32_t red = resize.fill[0], green = resize.fill[1], blue = resize.fill[2];
            if (y >= 0 && y < down.count && x >= 0 && x < across.count) {
                red = green = blue = 0;
                for (int32_t i = 0; i < down.width; ++i) {
                    const int32_t of_row = rows.weights[i * down.count + y];
                    if (of_row == 0) continue;
                    const int32_t line = rows.first[y] + i;
                    const uint8_t* const from = arguments.pixels + crop.out +
                                                uint64_t{3} * (static_cast<uint64_t>(line) *
                                                               static_cast<uint64_t>(crop.width));
                    int32_t sums[3] = {0, 0, 0};
                    for (int32_t k = 0; k < across.width; ++k) {
                        const int32_t weight = columns.weights[k * across.count + x];
                        if (weight == 0) continue;
                        const uint8_t* const pixel = from + 3 * (columns.first[x] + k);
                        sums[0] += weight * pixel[0];
                        sums[1] += weight * pixel[1];
                        sums[2] += weight * pixel[2];
                    }
                    red += of_row * rounded(sums[0], across.precision);
                    green += of_row * rounded(sums[1], across.precision);
                    blue += of_row * rounded(sums[2], across.precision);
                }
                red = rounded(red, down.precision);
                green = rounded(green, down.precision);
                blue = rounded(blue, down.precision);
            }
            uint8_t* const out =
                arguments.out +
                uint64_t{3} * (static_cast<uint64_t>(resize.row) * pixels + uint64_t{place});
            out[0] = static_cast<uint8_t>(red);
            out[1] = static_cast<uint8_t>(green);
            out[2] = static_cast<uint8_t>(blue);
        }
    }
}

}  // namespace fastload::device
