// AVX-512 with VNNI: four rows side by side in one register (horizontal), 64 bytes at a time (vertical), four taps an
// instruction.
//
// VNNI multiplies unsigned by signed bytes. A 16-bit weight is 256 * high + low with two signed bytes, so that two
// instructions give the exact sum: 256 * dot(pixels, high) + dot(pixels, low). Weights above 32,639 (they are up to
// 32,767) have no such bytes; axes with one of these, one in a hundred, go to the AVX2 loops, which compute the same.
#include <immintrin.h>

#include "jpeg/blocks.inl.hpp"
#include "jpeg/samples.inl.hpp"
#include "kernels.hpp"

namespace fastload {
namespace {

constexpr int32_t kLargestSplit = 127 * 256 + 127;

// Four weights, those beyond `count` zero, as four low bytes and four high bytes. False if they cannot be split.
inline bool split_quad(const int16_t* weights, int count, int32_t* low_high) {
    uint32_t low = 0, high = 0;
    bool good = true;
    for (int i = 0; i < 4 && i < count; ++i) {
        const int32_t weight = weights[i];
        const int32_t low_byte = static_cast<int8_t>(static_cast<uint8_t>(weight & 0xff));
        const int32_t high_byte = (weight - low_byte) >> 8;
        good &= weight <= kLargestSplit;
        low |= static_cast<uint32_t>(low_byte & 0xff) << (8 * i);
        high |= static_cast<uint32_t>(high_byte & 0xff) << (8 * i);
    }
    low_high[0] = static_cast<int32_t>(low);
    low_high[1] = static_cast<int32_t>(high);
    return good;
}

bool split(const int16_t* weights, int outputs, int width, int32_t* low_high) {
    bool good = true;
    for (int x = 0; x < outputs; ++x, weights += width) {
        for (int k = 0; k < width; k += 4, low_high += 2) good &= split_quad(weights + k, width - k, low_high);
    }
    return good;
}

inline __m512i four_rows(const uint8_t* const* rows, int64_t offset) {
    auto load = [&](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[i] + offset)); };
    __m512i pixels = _mm512_castsi128_si512(load(0));
    pixels = _mm512_inserti32x4(pixels, load(1), 1);
    pixels = _mm512_inserti32x4(pixels, load(2), 2);
    return _mm512_inserti32x4(pixels, load(3), 3);
}

// One output pixel of four rows; kQuads 0 means any number.
template <int kQuads>
inline __m512i convolve(const uint8_t* const* rows, int64_t offset, const int32_t* low_high, int quads, __m512i half) {
    // Four pixels by channel: r0 r1 r2 r3 g0 ...
    const __m512i by_channel =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m512i low = half, high = _mm512_setzero_si512();
    const int stop = kQuads ? kQuads : quads;
    for (int k = 0; k < stop; ++k, low_high += 2, offset += 16) {
        const __m512i pixels = _mm512_shuffle_epi8(four_rows(rows, offset), by_channel);
        low = _mm512_dpbusd_epi32(low, pixels, _mm512_set1_epi32(low_high[0]));
        high = _mm512_dpbusd_epi32(high, pixels, _mm512_set1_epi32(low_high[1]));
    }
    return _mm512_add_epi32(low, _mm512_slli_epi32(high, 8));
}

template <int kQuads>
void four_row_pass(const HorizontalTask& task, const uint8_t* const* rows, uint8_t* const* out) {
    const int quads = kQuads ? kQuads : (task.width + 3) / 4;
    const __m512i half = _mm512_set1_epi32(1 << (task.precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(task.precision);
    const __m512i drop_fourth =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1));
    const int32_t* low_high = task.split;
    for (int x = 0; x < task.outputs; x += 4) {
        __m512i sums[4];
        for (int i = 0; i < 4; ++i) {
            // The last group may have fewer pixels: the last one is repeated, its copies land in the slack.
            const int at = x + i < task.outputs ? x + i : task.outputs - 1;
            sums[i] = _mm512_sra_epi32(convolve<kQuads>(rows, 4 * static_cast<int64_t>(task.first[at]),
                                                        low_high + 2 * quads * at, quads, half),
                                       shift);
        }
        const __m512i bytes = _mm512_shuffle_epi8(
            _mm512_packus_epi16(_mm512_packs_epi32(sums[0], sums[1]), _mm512_packs_epi32(sums[2], sums[3])),
            drop_fourth);
        const int64_t to = 3 * static_cast<int64_t>(x);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out[0] + to), _mm512_castsi512_si128(bytes));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out[1] + to), _mm512_extracti32x4_epi32(bytes, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out[2] + to), _mm512_extracti32x4_epi32(bytes, 2));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out[3] + to), _mm512_extracti32x4_epi32(bytes, 3));
    }
}

void horizontal(const HorizontalTask& task) {
    if (task.split == nullptr) return kAvx2Kernels.horizontal(task);
    for (int y = 0; y < task.row_count; y += 4) {
        const uint8_t* rows[4];
        uint8_t* out[4];
        for (int i = 0; i < 4; ++i) {
            // Missing rows repeat the last one.
            const int at = y + i < task.row_count ? y + i : task.row_count - 1;
            rows[i] = task.rows[at];
            out[i] = task.out[at];
        }
        if (task.width <= 4) {
            four_row_pass<1>(task, rows, out);
        } else if (task.width == 8) {
            four_row_pass<2>(task, rows, out);
        } else {
            four_row_pass<0>(task, rows, out);
        }
    }
}

inline __m512i load(const uint8_t* from) { return _mm512_loadu_si512(from); }

inline void vertical_block(const VerticalTask& task, const int32_t* low_high, int offset, __m512i half, __m128i shift) {
    __m512i low[4] = {half, half, half, half};
    __m512i high[4] = {};
    const uint8_t* last = task.rows + (task.count - 1) * task.stride + offset;
    const uint8_t* from = task.rows + offset;
    for (int k = 0; k < task.count; k += 4, from += 4 * task.stride, low_high += 2) {
        // Rows beyond the last have weight zero.
        const __m512i a = load(from);
        const __m512i b = load(k + 1 < task.count ? from + task.stride : last);
        const __m512i c = load(k + 2 < task.count ? from + 2 * task.stride : last);
        const __m512i d = load(k + 3 < task.count ? from + 3 * task.stride : last);
        const __m512i ab_low = _mm512_unpacklo_epi8(a, b), ab_high = _mm512_unpackhi_epi8(a, b);
        const __m512i cd_low = _mm512_unpacklo_epi8(c, d), cd_high = _mm512_unpackhi_epi8(c, d);
        const __m512i quads[4] = {_mm512_unpacklo_epi16(ab_low, cd_low), _mm512_unpackhi_epi16(ab_low, cd_low),
                                  _mm512_unpacklo_epi16(ab_high, cd_high), _mm512_unpackhi_epi16(ab_high, cd_high)};
        const __m512i low_weights = _mm512_set1_epi32(low_high[0]), high_weights = _mm512_set1_epi32(low_high[1]);
        for (int i = 0; i < 4; ++i) {
            low[i] = _mm512_dpbusd_epi32(low[i], quads[i], low_weights);
            high[i] = _mm512_dpbusd_epi32(high[i], quads[i], high_weights);
        }
    }
    for (int i = 0; i < 4; ++i) {
        low[i] = _mm512_sra_epi32(_mm512_add_epi32(low[i], _mm512_slli_epi32(high[i], 8)), shift);
    }
    _mm512_storeu_si512(task.out + offset, _mm512_packus_epi16(_mm512_packs_epi32(low[0], low[1]),
                                                               _mm512_packs_epi32(low[2], low[3])));
}

void vertical(const VerticalTask& task) {
    constexpr int kMostTaps = 64;
    int32_t low_high[kMostTaps / 2];
    if (task.bytes < 64 || task.count > kMostTaps || !split(task.weights, 1, task.count, low_high)) {
        return kAvx2Kernels.vertical(task);
    }
    const __m512i half = _mm512_set1_epi32(1 << (task.precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(task.precision);
    int offset = 0;
    for (; offset + 64 <= task.bytes; offset += 64) vertical_block(task, low_high, offset, half, shift);
    // The rest by a block that overlaps the one before: the same values are written again.
    if (offset < task.bytes) vertical_block(task, low_high, task.bytes - 64, half, shift);
}

void mirror(const uint8_t* row, uint8_t* out, int pixels) { kSse41Kernels.mirror(row, out, pixels); }

}  // namespace

const Kernels kAvx512Kernels = {"avx512", horizontal, vertical, mirror, split, &jpeg::kKernels};

}  // namespace fastload
