#define FASTLOAD_SIMD_PORTABLE 1
#include "jpeg/blocks.inl.hpp"
#include "jpeg/samples.inl.hpp"
#include "kernels.hpp"

namespace fastload {
namespace {

uint8_t clamp(int32_t value) { return static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value); }

void horizontal(const HorizontalTask& task) {
    const int32_t half = 1 << (task.precision - 1);
    for (int y = 0; y < task.row_count; ++y) {
        uint8_t* out = task.out[y];
        const int16_t* weights = task.weights;
        for (int x = 0; x < task.outputs; ++x, weights += task.width, out += 3) {
            const uint8_t* pixel = task.rows[y] + 4 * static_cast<int64_t>(task.first[x]);
            int32_t red = half, green = half, blue = half;
            for (int k = 0; k < task.width; ++k, pixel += 4) {
                red += weights[k] * pixel[0];
                green += weights[k] * pixel[1];
                blue += weights[k] * pixel[2];
            }
            out[0] = clamp(red >> task.precision);
            out[1] = clamp(green >> task.precision);
            out[2] = clamp(blue >> task.precision);
        }
    }
}

void vertical(const VerticalTask& task) {
    const int32_t half = 1 << (task.precision - 1);
    for (int i = 0; i < task.bytes; ++i) {
        const uint8_t* from = task.rows + i;
        int32_t sum = half;
        for (int k = 0; k < task.count; ++k, from += task.stride) sum += task.weights[k] * *from;
        task.out[i] = clamp(sum >> task.precision);
    }
}

void mirror(const uint8_t* row, uint8_t* out, int pixels) {
    const uint8_t* from = row + 3 * static_cast<int64_t>(pixels);
    for (int x = 0; x < pixels; ++x, out += 3) {
        from -= 3;
        out[0] = from[0];
        out[1] = from[1];
        out[2] = from[2];
    }
}

}  // namespace

const Kernels kPlainKernels = {"plain", horizontal, vertical, mirror, nullptr, &jpeg::kKernels};

}  // namespace fastload
