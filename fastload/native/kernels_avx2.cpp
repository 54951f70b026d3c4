// AVX2: two rows side by side in one register (horizontal), 32 bytes at a time (vertical).
#include <immintrin.h>

#include "jpeg/blocks.inl.hpp"
#include "jpeg/samples.inl.hpp"
#include "kernels.hpp"

namespace fastload {
namespace {

// Lanes of 4 pixels to 16-bit pairs of neighbouring pixels: r0 r1 g0 g1 b0 b1 x0 x1 (and the same of pixels 2, 3).
inline __m256i low_pairs() {
    return _mm256_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1,  //
                            0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1);
}

inline __m256i high_pairs() {
    return _mm256_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1,  //
                            8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1);
}

inline __m128i drop_fourth() { return _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1); }

inline __m256i two_rows(const uint8_t* a, const uint8_t* b) {
    const __m256i low = _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a)));
    return _mm256_inserti128_si256(low, _mm_loadu_si128(reinterpret_cast<const __m128i*>(b)), 1);
}

inline __m256i weight_pair(const int16_t* weights) {
    int32_t pair;
    __builtin_memcpy(&pair, weights, 4);
    return _mm256_set1_epi32(pair);
}

// One output pixel of two rows; kWidth 0 means any multiple of four.
template <int kWidth>
inline __m256i convolve(const uint8_t* a, const uint8_t* b, const int16_t* weights, int width, __m256i sum) {
    const __m256i low = low_pairs();
    const __m256i high = high_pairs();
    if (kWidth == 2) {
        const __m256i pixels = two_rows(a, b);
        return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, low), weight_pair(weights)));
    }
    const int stop = kWidth ? kWidth : width;
    for (int k = 0; k < stop; k += 4) {
        const __m256i pixels = two_rows(a + 4 * k, b + 4 * k);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, low), weight_pair(weights + k)));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, high), weight_pair(weights + k + 2)));
    }
    return sum;
}

template <int kWidth>
void two_row_pass(const HorizontalTask& task, const uint8_t* a, const uint8_t* b, uint8_t* out_a, uint8_t* out_b) {
    const int width = kWidth ? kWidth : task.width;
    const __m256i half = _mm256_set1_epi32(1 << (task.precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(task.precision);
    const int16_t* weights = task.weights;
    int x = 0;
    for (; x + 4 <= task.outputs; x += 4, weights += 4 * width) {
        __m256i sums[4];
        for (int i = 0; i < 4; ++i) {
            const int64_t offset = 4 * static_cast<int64_t>(task.first[x + i]);
            sums[i] = _mm256_sra_epi32(convolve<kWidth>(a + offset, b + offset, weights + i * width, width, half), shift);
        }
        const __m256i bytes =
            _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]), _mm256_packs_epi32(sums[2], sums[3]));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out_a + 3 * x),
                         _mm_shuffle_epi8(_mm256_castsi256_si128(bytes), drop_fourth()));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out_b + 3 * x),
                         _mm_shuffle_epi8(_mm256_extracti128_si256(bytes, 1), drop_fourth()));
    }
    for (; x < task.outputs; ++x, weights += width) {
        const int64_t offset = 4 * static_cast<int64_t>(task.first[x]);
        __m256i sum = _mm256_sra_epi32(convolve<kWidth>(a + offset, b + offset, weights, width, half), shift);
        sum = _mm256_packs_epi32(sum, sum);
        sum = _mm256_packus_epi16(sum, sum);
        const int32_t pixel_a = _mm256_extract_epi32(sum, 0);
        const int32_t pixel_b = _mm256_extract_epi32(sum, 4);
        __builtin_memcpy(out_a + 3 * x, &pixel_a, 4);
        __builtin_memcpy(out_b + 3 * x, &pixel_b, 4);
    }
}

void horizontal(const HorizontalTask& task) {
    for (int y = 0; y < task.row_count; y += 2) {
        // An odd last row is computed twice.
        const int next = y + 1 < task.row_count ? y + 1 : y;
        const uint8_t* a = task.rows[y];
        const uint8_t* b = task.rows[next];
        if (task.width == 2) {
            two_row_pass<2>(task, a, b, task.out[y], task.out[next]);
        } else if (task.width == 4) {
            two_row_pass<4>(task, a, b, task.out[y], task.out[next]);
        } else {
            two_row_pass<0>(task, a, b, task.out[y], task.out[next]);
        }
    }
}

void vertical_block(const VerticalTask& task, int offset, __m256i half, __m128i shift) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i sums[4] = {half, half, half, half};
    const uint8_t* from = task.rows + offset;
    for (int k = 0; k < task.count; k += 2, from += 2 * task.stride) {
        const __m256i upper = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
        __m256i lower = zero;
        __m256i weights;
        if (k + 1 < task.count) {
            lower = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + task.stride));
            weights = weight_pair(task.weights + k);
        } else {
            weights = _mm256_set1_epi32(static_cast<uint16_t>(task.weights[k]));
        }
        const __m256i low = _mm256_unpacklo_epi8(upper, lower);
        const __m256i high = _mm256_unpackhi_epi8(upper, lower);
        sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), weights));
        sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), weights));
        sums[2] = _mm256_add_epi32(sums[2], _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), weights));
        sums[3] = _mm256_add_epi32(sums[3], _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), weights));
    }
    for (__m256i& sum : sums) sum = _mm256_sra_epi32(sum, shift);
    const __m256i bytes =
        _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]), _mm256_packs_epi32(sums[2], sums[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(task.out + offset), bytes);
}

void vertical(const VerticalTask& task) {
    if (task.bytes < 32) return kPlainKernels.vertical(task);
    const __m256i half = _mm256_set1_epi32(1 << (task.precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(task.precision);
    int offset = 0;
    for (; offset + 32 <= task.bytes; offset += 32) vertical_block(task, offset, half, shift);
    // The rest by a block that overlaps the one before: the same values are written again.
    if (offset < task.bytes) vertical_block(task, task.bytes - 32, half, shift);
}

void mirror(const uint8_t* row, uint8_t* out, int pixels) { kSse41Kernels.mirror(row, out, pixels); }

}  // namespace

const Kernels kAvx2Kernels = {"avx2", horizontal, vertical, mirror, nullptr, &jpeg::kKernels};

}  // namespace fastload
