// Reversing the filters of PNG rows (W3C, section 9): each byte was stored as its difference from a
// prediction, made from the pixel to the left, the pixel above, and the pixel above that to the
// left. Included once per instruction set.
//
// Each pixel depends on the one before it, so a row cannot be split among vector lanes; the time is
// that of the chain of operations from one pixel to the next. Where two rows in succession have the
// Paeth filter, as nearly all rows of photographs have, both are done at once, in the two halves of
// a vector, the second row two pixels after the first. The vectors are the compiler's own types, of
// 16 bytes; simd.hpp has operations on as many bytes as the processor allows.
#pragma once

#include <cstring>

#if defined(__SSE4_1__)
#include <immintrin.h>
#endif

#include "kernels.hpp"

namespace fastload::png {
namespace {

using Bytes8 = uint8_t __attribute__((vector_size(8)));
using Bytes16 = uint8_t __attribute__((vector_size(16)));
// The bytes of one pixel, or of two, as numbers of 16 bits.
using Wide = int16_t __attribute__((vector_size(16)));
using Halves = uint64_t __attribute__((vector_size(16)));

// Compilers make six instructions of each of the general forms in the second branch.
#if defined(__SSE4_1__)
inline Wide widen(uint64_t bytes) {
    return reinterpret_cast<Wide>(
        _mm_cvtepu8_epi16(_mm_cvtsi64_si128(static_cast<int64_t>(bytes))));
}
inline uint64_t narrow(Wide numbers) {
    return static_cast<uint64_t>(
        _mm_cvtsi128_si64(_mm_packus_epi16(reinterpret_cast<__m128i>(numbers), __m128i{})));
}
inline Wide low_halves(Wide a, Wide b) {
    return reinterpret_cast<Wide>(
        _mm_unpacklo_epi64(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
}
#else
inline Wide low_halves(Wide a, Wide b) {
    const Halves halves = {reinterpret_cast<Halves>(a)[0], reinterpret_cast<Halves>(b)[0]};
    return reinterpret_cast<Wide>(halves);
}
inline Wide widen(uint64_t bytes) {
    return __builtin_convertvector(reinterpret_cast<Bytes8>(bytes), Wide);
}
inline uint64_t narrow(Wide numbers) {
    return reinterpret_cast<uint64_t>(__builtin_convertvector(numbers, Bytes8));
}
#endif

// The pixel at `from` in the lower half. Reads 8 bytes: what follows the pixel is ignored later.
inline Wide load_pixel(const uint8_t* from) {
    uint64_t bytes;
    std::memcpy(&bytes, from, 8);
    return widen(bytes);
}

inline void store_pixel(uint8_t* to, Wide pixel) {
    const auto bytes = static_cast<uint32_t>(narrow(pixel));
    std::memcpy(to, &bytes, 4);
}

// Sums modulo 256: the upper byte of each number is and stays zero.
inline Wide add_bytes(Wide a, Wide b) {
    return reinterpret_cast<Wide>(reinterpret_cast<Bytes16>(a) + reinterpret_cast<Bytes16>(b));
}

template <typename T>
inline T lesser(T a, T b) {
    return a < b ? a : b;
}
template <typename T>
inline T greater(T a, T b) {
    return a > b ? a : b;
}

// The Paeth predictor: of a (left), b (above) and c (upper left), the one nearest to a + b - c, the
// first of them if several are. Let low and high be the lesser and greater of a and b. The
// predictor is high if 3c <= 2 low + high, that is, c is at most a third of the way from low to
// high; low if 3c >= low + 2 high; and c otherwise. This equals the definition for all 256^3
// inputs.
template <typename T>
inline T paeth(T a, T b, T c) {
    const T low = lesser(a, b), high = greater(a, b);
    const T mark = (c + c + c - b) - a;  // 3c - low - high; only the last step waits for `a`
    const T first = high > mark ? c : low;
    return mark > low ? first : high;
}

template <Filter kFilter>
inline Wide predict(Wide left, Wide up, Wide upper_left) {
    if (kFilter == kSub) return left;
    if (kFilter == kUp) return up;
    if (kFilter == kAverage) return (left + up) >> 1;
    if (kFilter == kPaeth) return paeth(left, up, upper_left);
    return Wide{};
}

// As FilterKernels::unfilter_pixels, of pixels of kBytes bytes.
template <Filter kFilter, int kBytes>
void pixels_of(const uint8_t* raw, const uint8_t* above, uint8_t* out, int count) {
    Wide left = {}, upper_left = {};
    for (int x = 0; x < count; ++x) {
        const Wide up = kFilter > kSub ? load_pixel(above + 4 * x) : Wide{};
        left = add_bytes(load_pixel(raw + kBytes * x), predict<kFilter>(left, up, upper_left));
        upper_left = up;
        store_pixel(out + 4 * x, left);
    }
}

template <int kBytes>
void paeth_pair_of(const uint8_t* const* raw, const uint8_t* above, uint8_t* const* out,
                   int count) {
    // Lower half: pixel x of the first row. Upper half: pixel x - 2 of the second row, whose pixel
    // above is then two steps old.
    Wide left = {}, before = {}, upper_left = {};
    for (int x = 0; x < count + 2; ++x) {
        uint32_t low, high = 0;
        std::memcpy(&low, raw[0] + kBytes * x, 4);
        if (x > 1) std::memcpy(&high, raw[1] + kBytes * (x - 2), 4);
        const Wide up = low_halves(load_pixel(above + 4 * x), before);
        before = left;
        left = add_bytes(widen(low | uint64_t{high} << 32), paeth(left, up, upper_left));
        upper_left = up;
        const uint64_t pixels = narrow(left);
        low = static_cast<uint32_t>(pixels);
        high = static_cast<uint32_t>(pixels >> 32);
        if (x < count) std::memcpy(out[0] + 4 * x, &low, 4);
        if (x > 1) std::memcpy(out[1] + 4 * (x - 2), &high, 4);
    }
}

void unfilter_pixels(Filter filter, int bytes, const uint8_t* raw, const uint8_t* above,
                     uint8_t* out, int count) {
    using Function = void (*)(const uint8_t*, const uint8_t*, uint8_t*, int);
    static constexpr Function kFunctions[2][kFilters] = {
        {pixels_of<kNone, 3>, pixels_of<kSub, 3>, pixels_of<kUp, 3>, pixels_of<kAverage, 3>,
         pixels_of<kPaeth, 3>},
        {pixels_of<kNone, 4>, pixels_of<kSub, 4>, pixels_of<kUp, 4>, pixels_of<kAverage, 4>,
         pixels_of<kPaeth, 4>}};
    kFunctions[bytes - 3][filter](raw, above, out, count);
}

void paeth_pair(int bytes, const uint8_t* const* raw, const uint8_t* above, uint8_t* const* out,
                int count) {
    (bytes == 3 ? paeth_pair_of<3> : paeth_pair_of<4>)(raw, above, out, count);
}

template <int kBytes>
void bytes_of(Filter filter, uint8_t* row, const uint8_t* above, int count) {
    // The first pixel has nothing to its left.
    for (int i = 0; i < kBytes && i < count; ++i) {
        const int up = filter > kSub ? above[i] : 0;
        row[i] = static_cast<uint8_t>(row[i] + (filter == kAverage ? up >> 1 : up));
    }
    switch (filter) {
        case kSub:
            for (int i = kBytes; i < count; ++i)
                row[i] = static_cast<uint8_t>(row[i] + row[i - kBytes]);
            break;
        case kUp:
            for (int i = kBytes; i < count; ++i) row[i] = static_cast<uint8_t>(row[i] + above[i]);
            break;
        case kAverage:
            for (int i = kBytes; i < count; ++i) {
                row[i] = static_cast<uint8_t>(row[i] + (row[i - kBytes] + above[i]) / 2);
            }
            break;
        case kPaeth:
            for (int i = kBytes; i < count; ++i) {
                row[i] = static_cast<uint8_t>(
                    row[i] + paeth<int>(row[i - kBytes], above[i], above[i - kBytes]));
            }
            break;
        default: break;
    }
}

void unfilter_bytes(Filter filter, int bytes, uint8_t* row, const uint8_t* above, int count) {
    switch (bytes) {
        case 1: return bytes_of<1>(filter, row, above, count);
        case 2: return bytes_of<2>(filter, row, above, count);
        case 3: return bytes_of<3>(filter, row, above, count);
        case 4: return bytes_of<4>(filter, row, above, count);
        case 6: return bytes_of<6>(filter, row, above, count);
        default: return bytes_of<8>(filter, row, above, count);
    }
}

const FilterKernels kKernels = {unfilter_pixels, paeth_pair, unfilter_bytes};

}  // namespace
}  // namespace fastload::png
