// Rows of a PNG out of their filters (W3C, section 9): each byte was stored as its difference from
// a guess, made from the pixel to the left, the one above, and the one between those two.
//
// One pixel depends on the one before it, so that there is little for vectors to do at once; what
// counts is how many operations lie between two of them. Where two rows have Paeth's filter, as
// nearly all rows of photographs have, the second is done in the other half of the vectors, a pixel
// after the first. Vectors of the compiler's and not of simd.hpp: those are of whole lanes, many
// at a time.
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
using Wide =
    int16_t __attribute__((vector_size(16)));  // the bytes of a pixel, or of two, a number each
using Halves = uint64_t __attribute__((vector_size(16)));

// Compilers make six instructions of the general forms.
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

// A pixel and what follows it, which does no harm.
inline Wide load_pixel(const uint8_t* from) {
    uint64_t bytes;
    std::memcpy(&bytes, from, 8);
    return widen(bytes);
}

inline void store_pixel(uint8_t* to, Wide pixel) {
    const auto bytes = static_cast<uint32_t>(narrow(pixel));
    std::memcpy(to, &bytes, 4);
}

// Byte by byte, modulo 256; the upper bytes are zeros.
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

// Paeth's choice: whichever of left a, above b and between c is nearest to a + b - c, the first of
// them where they are equally near. With a and b in order, that is the greater if c is less than a
// third of the way up from the lesser to it, the lesser if c is at least two thirds of the way up,
// and c itself in the middle; equal to the definition for all 256^3 numbers.
template <typename T>
inline T paeth(T a, T b, T c) {
    const T low = lesser(a, b), high = greater(a, b);
    const T mark = (c + c + c - b) - a;  // only the last step waits for `a`
    const T first = high > mark ? c : low;
    return mark > low ? first : high;
}

template <Filter kFilter>
inline Wide guess(Wide left, Wide up, Wide between) {
    if (kFilter == kSub) return left;
    if (kFilter == kUp) return up;
    if (kFilter == kAverage) return (left + up) >> 1;
    if (kFilter == kPaeth) return paeth(left, up, between);
    return Wide{};
}

template <Filter kFilter, int kBytes>
void pixels_of(const uint8_t* raw, const uint8_t* above, uint8_t* out, int count) {
    Wide left = {}, between = {};
    for (int x = 0; x < count; ++x) {
        const Wide up = kFilter > kSub ? load_pixel(above + 4 * x) : Wide{};
        left = add_bytes(load_pixel(raw + kBytes * x), guess<kFilter>(left, up, between));
        between = up;
        store_pixel(out + 4 * x, left);
    }
}

template <int kBytes>
void paeth_pair_of(const uint8_t* const* raw, const uint8_t* above, uint8_t* const* out,
                   int count) {
    // Halves: the first row at x, the second two pixels after, so that it need not wait for the
    // one above it.
    Wide left = {}, before = {}, between = {};
    for (int x = 0; x < count + 2; ++x) {
        uint32_t low, high = 0;
        std::memcpy(&low, raw[0] + kBytes * x, 4);
        if (x > 1) std::memcpy(&high, raw[1] + kBytes * (x - 2), 4);
        const Wide up = low_halves(load_pixel(above + 4 * x), before);
        before = left;
        left = add_bytes(widen(low | uint64_t{high} << 32), paeth(left, up, between));
        between = up;
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
