// SSE4.1: one row at a time.
#include <smmintrin.h>

#include "jpeg/blocks.inl.hpp"
#include "jpeg/samples.inl.hpp"
#include "kernels.hpp"

namespace fastload {
namespace {

inline __m128i load(const uint8_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }

inline void store(uint8_t* to, __m128i value) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), value); }

inline __m128i weight_pair(const int16_t* weights) {
    int32_t pair;
    __builtin_memcpy(&pair, weights, 4);
    return _mm_set1_epi32(pair);
}

inline __m128i convolve(const uint8_t* pixel, const int16_t* weights, int width, __m128i sum) {
    // 4 pixels to 16-bit pairs of neighbouring pixels: r0 r1 g0 g1 b0 b1 x0 x1 (and the same of pixels 2, 3).
    const __m128i low = _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1);
    const __m128i high = _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1);
    for (int k = 0; k < width; k += 4) {
        const __m128i pixels = load(pixel + 4 * k);
        sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm_shuffle_epi8(pixels, low), weight_pair(weights + k)));
        if (k + 2 < width) {
            sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm_shuffle_epi8(pixels, high), weight_pair(weights + k + 2)));
        }
    }
    return sum;
}

void horizontal(const HorizontalTask& task) {
    const __m128i half = _mm_set1_epi32(1 << (task.precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(task.precision);
    for (int y = 0; y < task.row_count; ++y) {
        uint8_t* out = task.out[y];
        const int16_t* weights = task.weights;
        for (int x = 0; x < task.outputs; ++x, weights += task.width, out += 3) {
            const uint8_t* pixel = task.rows[y] + 4 * static_cast<int64_t>(task.first[x]);
            __m128i sum = _mm_sra_epi32(convolve(pixel, weights, task.width, half), shift);
            sum = _mm_packs_epi32(sum, sum);
            const int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(sum, sum));
            __builtin_memcpy(out, &bytes, 4);
        }
    }
}

void vertical_block(const VerticalTask& task, int offset, __m128i half, __m128i shift) {
    const __m128i zero = _mm_setzero_si128();
    __m128i sums[4] = {half, half, half, half};
    const uint8_t* from = task.rows + offset;
    for (int k = 0; k < task.count; k += 2, from += 2 * task.stride) {
        const bool pair = k + 1 < task.count;
        const __m128i upper = load(from);
        const __m128i lower = pair ? load(from + task.stride) : zero;
        const __m128i weights =
            pair ? weight_pair(task.weights + k) : _mm_set1_epi32(static_cast<uint16_t>(task.weights[k]));
        const __m128i low = _mm_unpacklo_epi8(upper, lower);
        const __m128i high = _mm_unpackhi_epi8(upper, lower);
        sums[0] = _mm_add_epi32(sums[0], _mm_madd_epi16(_mm_unpacklo_epi8(low, zero), weights));
        sums[1] = _mm_add_epi32(sums[1], _mm_madd_epi16(_mm_unpackhi_epi8(low, zero), weights));
        sums[2] = _mm_add_epi32(sums[2], _mm_madd_epi16(_mm_unpacklo_epi8(high, zero), weights));
        sums[3] = _mm_add_epi32(sums[3], _mm_madd_epi16(_mm_unpackhi_epi8(high, zero), weights));
    }
    for (__m128i& sum : sums) sum = _mm_sra_epi32(sum, shift);
    store(task.out + offset,
          _mm_packus_epi16(_mm_packs_epi32(sums[0], sums[1]), _mm_packs_epi32(sums[2], sums[3])));
}

void vertical(const VerticalTask& task) {
    if (task.bytes < 16) return kPlainKernels.vertical(task);
    const __m128i half = _mm_set1_epi32(1 << (task.precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(task.precision);
    int offset = 0;
    for (; offset + 16 <= task.bytes; offset += 16) vertical_block(task, offset, half, shift);
    // The rest by a block that overlaps the one before: the same values are written again.
    if (offset < task.bytes) vertical_block(task, task.bytes - 16, half, shift);
}

void mirror(const uint8_t* row, uint8_t* out, int pixels) {
    // Five pixels a step: the last 16 bytes of what is left, of which the first byte belongs to the sixth.
    const __m128i reverse = _mm_setr_epi8(13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, -1);
    int left = pixels;
    for (; left >= 6; left -= 5, out += 15) {
        // Writes one byte too many, which the next step or the plain loop (at least one pixel is left) overwrites.
        store(out, _mm_shuffle_epi8(load(row + 3 * static_cast<int64_t>(left) - 16), reverse));
    }
    kPlainKernels.mirror(row, out, left);
}

}  // namespace

const Kernels kSse41Kernels = {"sse4.1", horizontal, vertical, mirror, nullptr, &jpeg::kKernels};

}  // namespace fastload
