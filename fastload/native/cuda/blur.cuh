// Weighted sums of uint8 images: of the pixels along an axis, or of several images. The same in
// Triton: fastload/render/kernels_colour.py.
#pragma once

#include "cuda/numbers.cuh"

namespace fastload::device {

constexpr int kBlurThreads = 256;

struct BlurArguments {
    const void* images;    // (rows * planes, H, W): bytes, or float32
    const float* weights;  // (taps, rows)
    void* out;             // the same: float32, or bytes
    int32_t rows, planes;
    int32_t length, step;              // pixels along the axis, and elements from one to the next
    int32_t plane;                     // H * W
    int32_t stride_line, line_length;  // the same along the other axis
    int32_t taps;                      // odd
};

// One pixel; beyond the borders, which are no further than an image, it is mirrored.
template <typename From>
FASTLOAD_DEVICE float blurred(const BlurArguments& arguments, uint32_t number, int32_t along,
                              int64_t line) {
    const From* const from =
        static_cast<const From*>(arguments.images) + number * int64_t{arguments.plane} + line;
    const uint32_t row = number / static_cast<uint32_t>(arguments.planes);
    float total = 0.0f;
    for (int32_t tap = 0; tap < arguments.taps; ++tap) {
        int32_t at = along + tap - arguments.taps / 2;
        at = at < 0 ? -at : at;
        at = at >= arguments.length ? 2 * (arguments.length - 1) - at : at;
        const auto value = static_cast<float>(from[at * int64_t{arguments.step}]);
        const float weight = arguments.weights[tap * int64_t{arguments.rows} + row];
        total = tap == 0 ? value * weight : times_plus(value, weight, total);
    }
    return total;
}

template <typename From, typename To>
FASTLOAD_DEVICE void blur_pixel(const BlurArguments& arguments, uint32_t block, uint32_t t) {
    const auto plane = static_cast<uint32_t>(arguments.plane);
    const uint32_t blocks = (plane + kBlurThreads - 1) / kBlurThreads;
    const uint32_t number = block / blocks, place = block % blocks * kBlurThreads + t;
    if (place >= plane) return;
    const auto lines = static_cast<uint32_t>(arguments.line_length);
    const auto along = static_cast<int32_t>(place / lines);
    const int64_t line = int64_t{place % lines} * arguments.stride_line;
    const float made = blurred<From>(arguments, number, along, line);
    static_cast<To*>(
        arguments.out)[number * int64_t{arguments.plane} + line + along * int64_t{arguments.step}] =
        static_cast<To>(sizeof(To) == 1 ? to_whole(made) : made);
}

FASTLOAD_KERNEL(fastload_blur_down, BlurArguments, kBlurThreads) {
    FASTLOAD_THREADS(t) blur_pixel<uint8_t, float>(arguments, FASTLOAD_BLOCK, t);
}

FASTLOAD_KERNEL(fastload_blur_across, BlurArguments, kBlurThreads) {
    FASTLOAD_THREADS(t) blur_pixel<float, uint8_t>(arguments, FASTLOAD_BLOCK, t);
}

constexpr int kAddBlock = kBlurThreads * kFour;  // values of a block

struct AddArguments {
    const uint8_t* images;  // (rows, size)
    const uint8_t* parts;   // (rows * part_count, size)
    const float* weights;   // (rows, 1 + part_count)
    uint8_t* out;           // (rows, size)
    int64_t size;
    int32_t part_count;
};

// Images times the first of their weights, plus their parts times the others, each product and sum
// rounded; cut to bytes.
FASTLOAD_KERNEL(fastload_add_weighted, AddArguments, kBlurThreads) {
    const auto size = static_cast<uint64_t>(arguments.size);
    const uint64_t blocks = (size + kAddBlock - 1) / kAddBlock;
    const uint64_t row = FASTLOAD_BLOCK / blocks;
    const auto parts = static_cast<uint32_t>(arguments.part_count);
    const float* const weights = arguments.weights + row * (1 + parts);
    FASTLOAD_THREADS(t) {
        const uint64_t place = FASTLOAD_BLOCK % blocks * kAddBlock + kFour * t;
        if (place < size) {
            const int32_t count = size - place < kFour ? static_cast<int32_t>(size - place) : kFour;
            const Four<uint8_t> own = load_four(arguments.images + row * size + place, count);
            float total[kFour];
            for (int i = 0; i < kFour; ++i) total[i] = static_cast<float>(own.at[i]) * weights[0];
            for (uint32_t part = 0; part < parts; ++part) {
                const Four<uint8_t> more =
                    load_four(arguments.parts + (row * parts + part) * size + place, count);
                for (int i = 0; i < kFour; ++i)
                    total[i] = total[i] + static_cast<float>(more.at[i]) * weights[1 + part];
            }
            store_four_as(arguments.out + row * size + place, total, count,
                          [](float x) { return static_cast<uint8_t>(static_cast<int32_t>(x)); });
        }
    }
}

}  // namespace fastload::device
