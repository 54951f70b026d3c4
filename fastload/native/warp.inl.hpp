// Where the pixels of a warp lie, and the part of a bilinear warp where all four neighbours of a
// pixel lie in the image: whole vectors of pixels. Included once per instruction set; compiled
// without contraction into fused multiply-adds.
//
// Coordinates are computed in double precision, weights and sums in single precision: the
// operations of `warp` in warp.cpp, which makes the other pixels, in the same order. So the results
// are equal.
#pragma once

#include <new>
#include <type_traits>

#include "kernels.hpp"
#include "simd.hpp"

namespace fastload {
namespace {

inline bool is_affine(const WarpRow& row) {
    return row.m[6] == 0.0 && row.m[7] == 0.0 && row.m[8] == 1.0;
}

// As Kernels::warp_places: loops of which compilers make vectors.
void warp_places(const WarpRow& row, int x, WarpPlaces& places) {
    const double a = row.m[0], b = row.m[3], c = row.m[6], u = row.u, v = row.v, w = row.w;
    const bool affine = is_affine(row);
    for (int i = 0; i < places.count; ++i) {
        const double across = static_cast<double>(x + i) + 0.5;
        places.u[i] = a * across + u;
        places.v[i] = b * across + v;
    }
    for (int i = 0; !affine && i < places.count; ++i) {
        const double depth = c * (static_cast<double>(x + i) + 0.5) + w;
        places.u[i] /= depth;
        places.v[i] /= depth;
    }
}

// As Kernels::warp_offsets.
void warp_offsets(const WarpPlaces& places, const WarpRow& row, Size size, int32_t* offsets) {
    const double width = size.width, height = size.height;
    const auto stride = static_cast<int32_t>(row.stride);
    const int32_t channels = row.channels;
    for (int i = 0; i < places.count; ++i) {
        const double u = places.u[i], v = places.v[i];
        const bool shown = (u >= 0.0) & (v >= 0.0) & (u < width) & (v < height);
        const double x = shown ? u : 0.0, y = shown ? v : 0.0;
        const int32_t at = static_cast<int32_t>(y) * stride + static_cast<int32_t>(x) * channels;
        offsets[i] = shown ? at : -1;
    }
}

#if !defined(FASTLOAD_SIMD_PORTABLE) && defined(__AVX2__)

// The eight bytes at each of two offsets.
inline __m128d two_places(const uint8_t* from, const int32_t* at) {
    const __m128i first = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + at[0]));
    return _mm_loadh_pd(_mm_castsi128_pd(first), reinterpret_cast<const double*>(from + at[1]));
}

#endif

#if !defined(FASTLOAD_SIMD_PORTABLE) && defined(__AVX512BW__)

// Operations on vectors of doubles (D), floats (F) and 32-bit integers (W). kCount pixels are made
// at a time: one vector of floats, so two of doubles.
struct WarpSimd {
    using D = __m512d;
    using F = __m512;
    using W = __m512i;
    static constexpr int kCount = 16;

    static D all(double x) { return _mm512_set1_pd(x); }
    static F all(float x) { return _mm512_set1_ps(x); }
    static D steps(int half) {
        const D first = _mm512_setr_pd(0, 1, 2, 3, 4, 5, 6, 7);
        return half ? _mm512_add_pd(first, all(8.0)) : first;
    }
    static D add(D a, D b) { return _mm512_add_pd(a, b); }
    static D sub(D a, D b) { return _mm512_sub_pd(a, b); }
    static D mul(D a, D b) { return _mm512_mul_pd(a, b); }
    static D div(D a, D b) { return _mm512_div_pd(a, b); }
    static F add(F a, F b) { return _mm512_add_ps(a, b); }
    static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
    // A bit for each number that is at least 0 and below `end`; it is 0 for NaN.
    static unsigned within(D a, D end) {
        return _mm512_cmp_pd_mask(a, _mm512_setzero_pd(), _CMP_GE_OQ) &
               _mm512_cmp_pd_mask(a, end, _CMP_LT_OQ);
    }
    static constexpr unsigned kAll = 0xff;
    static D floor(D a) {
        return _mm512_roundscale_pd(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    }
    static F floats(D low, D high) {
        return _mm512_castsi512_ps(
            _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_castps_si256(_mm512_cvtpd_ps(low))),
                               _mm256_castps_si256(_mm512_cvtpd_ps(high)), 1));
    }
    static W wholes(D low, D high) {
        return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvttpd_epi32(low)),
                                  _mm512_cvttpd_epi32(high), 1);
    }
    static W all(int x) { return _mm512_set1_epi32(x); }
    static W add(W a, W b) { return _mm512_add_epi32(a, b); }
    static W mul(W a, W b) { return _mm512_mullo_epi32(a, b); }
    // The eight bytes at each of 16 offsets: their first halves and their second halves. (A gather
    // takes longer, on AMD's processors several times so.)
    static void take_pairs(const uint8_t* from, const int32_t* at, W& first, W& second) {
        const F low = eight(from, at), high = eight(from, at + 2);
        first = _mm512_castps_si512(_mm512_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0)));
        second = _mm512_castps_si512(_mm512_shuffle_ps(low, high, _MM_SHUFFLE(3, 1, 3, 1)));
    }
    // Two of each four offsets.
    static F eight(const uint8_t* from, const int32_t* at) {
        const __m256d low = _mm256_insertf128_pd(_mm256_castpd128_pd256(two_places(from, at)),
                                                 two_places(from, at + 4), 1),
                      high = _mm256_insertf128_pd(_mm256_castpd128_pd256(two_places(from, at + 8)),
                                                  two_places(from, at + 12), 1);
        return _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castpd256_pd512(low), high, 1));
    }
    static void store_wholes(int32_t* out, D a) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(out), _mm512_cvttpd_epi32(a));
    }
    template <int kByte>
    static F byte_of(W words) {
        if (kByte == 0) return _mm512_cvtepi32_ps(_mm512_and_si512(words, _mm512_set1_epi32(255)));
        const __m128i places = _mm_setr_epi8(kByte, -1, -1, -1, 4 + kByte, -1, -1, -1, 8 + kByte,
                                             -1, -1, -1, 12 + kByte, -1, -1, -1);
        return _mm512_cvtepi32_ps(_mm512_shuffle_epi8(words, _mm512_broadcast_i32x4(places)));
    }
    static W rounded(F a) { return _mm512_cvtps_epi32(a); }
    static W cut(F a) { return _mm512_cvttps_epi32(a); }
    template <int kByte>
    static W at_byte(W sum, W values) {
        return _mm512_or_si512(sum, _mm512_slli_epi32(values, 8 * kByte));
    }
    static void store3(uint8_t* out, W pixels) {
        const W packed = _mm512_shuffle_epi8(
            pixels, _mm512_broadcast_i32x4(
                        _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1)));
        const W places = _mm512_setr_epi32(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 15, 15, 15, 15);
        _mm512_mask_storeu_epi32(out, 0x0fff, _mm512_permutexvar_epi32(places, packed));
    }
    static void store4(uint8_t* out, W pixels) { _mm512_storeu_si512(out, pixels); }

    // Takes 3-byte pixels out of a window of 128 bytes of a row, without a gather. Of each place,
    // the offset of a pixel in the row, this pixel and the one after it are taken: four bytes from
    // an even offset in the window, then shifted if the pixel begins at an odd one.
    struct Window {
        static constexpr int kBytes = 128;
        W words[2];
        __mmask16 odd[2];
        int base;  // where the window begins

        // Places ascend or descend. False: the window is too short for them.
        bool set(W places) {
            const int first = _mm_cvtsi128_si32(_mm512_castsi512_si128(places)),
                      last = _mm_extract_epi32(_mm512_extracti32x4_epi32(places, 3), 3);
            base = first < last ? first : last;
            places = add(places, all(-base));
            const bool fits = _mm512_cmpgt_epi32_mask(places, all(kBytes - 7)) == 0;
            for (int i = 0; i < 2; ++i, places = add(places, all(3))) {
                const W even = _mm512_srli_epi32(places, 1);
                words[i] = _mm512_or_si512(even, _mm512_slli_epi32(add(even, all(1)), 16));
                odd[i] = _mm512_test_epi32_mask(places, all(1));
            }
            return fits;
        }
        void take(const uint8_t* row, W* near) const {
            const W low = _mm512_loadu_si512(row + base),
                    high = _mm512_loadu_si512(row + base + 64);
            for (int i = 0; i < 2; ++i) {
                const W taken = _mm512_permutex2var_epi16(low, words[i], high);
                near[i] = _mm512_mask_srli_epi32(taken, odd[i], taken, 8);
            }
        }
    };
};

#define FASTLOAD_WARPS 1

#elif !defined(FASTLOAD_SIMD_PORTABLE) && defined(__AVX2__)

struct WarpSimd {
    using D = __m256d;
    using F = __m256;
    using W = __m256i;
    static constexpr int kCount = 8;

    static D all(double x) { return _mm256_set1_pd(x); }
    static F all(float x) { return _mm256_set1_ps(x); }
    static D steps(int half) {
        const D first = _mm256_setr_pd(0, 1, 2, 3);
        return half ? _mm256_add_pd(first, all(4.0)) : first;
    }
    static D add(D a, D b) { return _mm256_add_pd(a, b); }
    static D sub(D a, D b) { return _mm256_sub_pd(a, b); }
    static D mul(D a, D b) { return _mm256_mul_pd(a, b); }
    static D div(D a, D b) { return _mm256_div_pd(a, b); }
    static F add(F a, F b) { return _mm256_add_ps(a, b); }
    static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
    static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
    static unsigned within(D a, D end) {
        const D good = _mm256_and_pd(_mm256_cmp_pd(a, _mm256_setzero_pd(), _CMP_GE_OQ),
                                     _mm256_cmp_pd(a, end, _CMP_LT_OQ));
        return static_cast<unsigned>(_mm256_movemask_pd(good));
    }
    static constexpr unsigned kAll = 0xf;
    static D floor(D a) { return _mm256_floor_pd(a); }
    static F floats(D low, D high) {
        return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(low)),
                                    _mm256_cvtpd_ps(high), 1);
    }
    static W wholes(D low, D high) {
        return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm256_cvttpd_epi32(low)),
                                       _mm256_cvttpd_epi32(high), 1);
    }
    static W all(int x) { return _mm256_set1_epi32(x); }
    static W add(W a, W b) { return _mm256_add_epi32(a, b); }
    // The eight bytes at each of 8 offsets: their first halves and their second halves.
    static void take_pairs(const uint8_t* from, const int32_t* at, W& first, W& second) {
        const F low = four(from, at), high = four(from, at + 2);
        first = _mm256_castps_si256(_mm256_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0)));
        second = _mm256_castps_si256(_mm256_shuffle_ps(low, high, _MM_SHUFFLE(3, 1, 3, 1)));
    }
    // Two of each four offsets.
    static F four(const uint8_t* from, const int32_t* at) {
        return _mm256_castpd_ps(_mm256_insertf128_pd(_mm256_castpd128_pd256(two_places(from, at)),
                                                     two_places(from, at + 4), 1));
    }
    static void store_wholes(int32_t* out, D a) { store16(out, _mm256_cvttpd_epi32(a)); }
    template <int kByte>
    static F byte_of(W words) {
        if (kByte == 0) return _mm256_cvtepi32_ps(_mm256_and_si256(words, _mm256_set1_epi32(255)));
        const __m128i places = _mm_setr_epi8(kByte, -1, -1, -1, 4 + kByte, -1, -1, -1, 8 + kByte,
                                             -1, -1, -1, 12 + kByte, -1, -1, -1);
        return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(words, _mm256_broadcastsi128_si256(places)));
    }
    static W rounded(F a) { return _mm256_cvtps_epi32(a); }
    static W cut(F a) { return _mm256_cvttps_epi32(a); }
    template <int kByte>
    static W at_byte(W sum, W values) {
        return _mm256_or_si256(sum, _mm256_slli_epi32(values, 8 * kByte));
    }
    static void store3(uint8_t* out, W pixels) {
        const __m128i places =
            _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
        const W packed = _mm256_permutevar8x32_epi32(
            _mm256_shuffle_epi8(pixels, _mm256_broadcastsi128_si256(places)),
            _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 7, 7));
        store16(out, _mm256_castsi256_si128(packed));
        _mm_storel_epi64(reinterpret_cast<__m128i*>(out + 16), _mm256_extracti128_si256(packed, 1));
    }
    static void store4(uint8_t* out, W pixels) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), pixels);
    }
};

#define FASTLOAD_WARPS 1

#endif

#if defined(FASTLOAD_WARPS)

// The four neighbours of pixels. kPairs: of three channels, the first halves and the second halves
// of the eight bytes where the two neighbours of a row begin. Else a word for each neighbour.
template <int kChannels, bool kPairs>
struct Near {
    WarpSimd::W words[4];

    // Of a neighbour, 0 to 3.
    template <int kNeighbour, int kChannel>
    WarpSimd::F channel() const {
        constexpr int kByte = (kNeighbour & 1) * (kPairs ? kChannels : 4) + kChannel;
        return WarpSimd::byte_of<kByte % 4>(words[(kNeighbour & 2) + kByte / 4]);
    }
};

// The weighted sums of four neighbours, packed to one byte a channel. The weights are at least 0,
// and their sum is 1 up to rounding: so each sum is above -0.001 and below 255.001, and needs no
// limits.
template <bool kFades, int kChannels, bool kPairs>
__attribute__((always_inline)) inline WarpSimd::W mixed(const Near<kChannels, kPairs>& near,
                                                        const WarpSimd::F* weights,
                                                        const float* fills) {
    using Ops = WarpSimd;
    Ops::W made = Ops::all(0);
    const auto channel = [&](auto byte) {
        constexpr int kByte = decltype(byte)::value;
        auto sum = Ops::add(Ops::mul(weights[0], near.template channel<0, kByte>()),
                            Ops::mul(weights[1], near.template channel<1, kByte>()));
        sum = Ops::add(sum, Ops::mul(weights[2], near.template channel<2, kByte>()));
        sum = Ops::add(sum, Ops::mul(weights[3], near.template channel<3, kByte>()));
        if (kFades) {
            const auto fill = Ops::all(fills[kByte]);
            sum = Ops::add(Ops::sub(sum, fill), fill);
        }
        made = Ops::at_byte<kByte>(made, kFades ? Ops::rounded(sum) : Ops::cut(sum));
    };
    channel(std::integral_constant<int, 0>());
    channel(std::integral_constant<int, 1>());
    channel(std::integral_constant<int, 2>());
    if (kChannels == 4) channel(std::integral_constant<int, 3>());
    return made;
}

// As Kernels::warp_inner.
template <int kChannels, bool kFades, bool kAffine>
int warp_some(const WarpRow& row, int x, int end, uint8_t* out) {
    using Ops = WarpSimd;
    if (end - x < Ops::kCount) return 0;
    const auto half = Ops::all(0.5);
    const auto end_x = Ops::all(static_cast<double>(row.most_x) + 1.0),
               end_y = Ops::all(static_cast<double>(row.most_y) + 1.0);
    const auto ones = Ops::all(1.0f);
    const auto stride = Ops::all(static_cast<double>(row.stride)),
               each = Ops::all(static_cast<double>(kChannels));
    alignas(64) int32_t places[Ops::kCount];
    // How far from a pixel's neighbours those of the same column, kRowsAhead rows later, lie about.
    constexpr double kRowsAhead = 4.0;
    const auto near_whole = [](double a) {
        return a > -1e6 && a < 1e6 ? static_cast<int64_t>(a) : int64_t{0};
    };
    const auto later = reinterpret_cast<uintptr_t>(row.pixels) +
                       static_cast<uintptr_t>(near_whole(kRowsAhead * row.m[4]) * row.stride +
                                              near_whole(kRowsAhead * row.m[1]) * kChannels);
    const auto make = [&](int at, uint8_t* to) {
        Ops::D fraction_x[2], fraction_y[2];
        for (int i = 0; i < 2; ++i) {
            const auto across =
                Ops::add(Ops::add(Ops::all(static_cast<double>(at)), Ops::steps(i)), half);
            auto u = Ops::add(Ops::mul(Ops::all(row.m[0]), across), Ops::all(row.u));
            auto v = Ops::add(Ops::mul(Ops::all(row.m[3]), across), Ops::all(row.v));
            if (!kAffine) {
                const auto w = Ops::add(Ops::mul(Ops::all(row.m[6]), across), Ops::all(row.w));
                u = Ops::div(u, w);
                v = Ops::div(v, w);
            }
            u = Ops::sub(u, half);
            v = Ops::sub(v, half);
            if (!kAffine && (Ops::within(u, end_x) & Ops::within(v, end_y)) != Ops::kAll)
                return false;
            const auto whole_x = Ops::floor(u), whole_y = Ops::floor(v);
            fraction_x[i] = Ops::sub(u, whole_x);
            fraction_y[i] = Ops::sub(v, whole_y);
            // Whole numbers below 2^31: exact.
            Ops::store_wholes(places + i * (Ops::kCount / 2),
                              Ops::add(Ops::mul(whole_y, stride), Ops::mul(whole_x, each)));
        }
        if (kAffine) {
            // Lines of the cache are taken in an order that the processor does not foresee.
            const auto* const soon =
                reinterpret_cast<const char*>(later + static_cast<uintptr_t>(places[0]));
            _mm_prefetch(soon, _MM_HINT_T0);
        }
        const auto fx = Ops::floats(fraction_x[0], fraction_x[1]),
                   fy = Ops::floats(fraction_y[0], fraction_y[1]);
        const auto gx = Ops::sub(ones, fx), gy = Ops::sub(ones, fy);
        const Ops::F weights[4] = {Ops::mul(gx, gy), Ops::mul(fx, gy), Ops::mul(gx, fy),
                                   Ops::mul(fx, fy)};
        Near<kChannels, true> near;
        Ops::take_pairs(row.pixels, places, near.words[0], near.words[1]);
        Ops::take_pairs(row.pixels + row.stride, places, near.words[2], near.words[3]);
        const Ops::W made = mixed<kFades>(near, weights, row.fill);
        kChannels == 3 ? Ops::store3(to, made) : Ops::store4(to, made);
        return true;
    };
    if (kAffine) {
        // The last vector begins where it ends at `end`: some pixels are made twice.
        const int last = end - Ops::kCount;
        for (int at = x;; at = at + Ops::kCount < last ? at + Ops::kCount : last) {
            make(at, out + kChannels * (at - x));
            if (at == last) return end - x;
        }
    }
    int at = x;
    while (at + Ops::kCount <= end && make(at, out + kChannels * (at - x))) at += Ops::kCount;
    return at - x;
}

#if defined(__AVX512BW__)

// Where a vector of columns lies in the image, for output rows that show one row of it.
struct LevelBlock {
    WarpSimd::F fraction;
    WarpSimd::Window window;

    // The columns x, x + 1, ..., which have no neighbour outside of the image. False if the window
    // is too short.
    bool set(const WarpRow& row, int x) {
        using Ops = WarpSimd;
        const auto half = Ops::all(0.5);
        Ops::D whole[2], part[2];
        for (int i = 0; i < 2; ++i) {
            const auto across =
                Ops::add(Ops::add(Ops::all(static_cast<double>(x)), Ops::steps(i)), half);
            const auto u =
                Ops::sub(Ops::add(Ops::mul(Ops::all(row.m[0]), across), Ops::all(row.u)), half);
            whole[i] = Ops::floor(u);
            part[i] = Ops::sub(u, whole[i]);
        }
        fraction = Ops::floats(part[0], part[1]);
        return window.set(Ops::mul(Ops::wholes(whole[0], whole[1]), Ops::all(3)));
    }
};
static_assert(sizeof(LevelBlock) == WarpColumns::kBlockBytes);

// As warp_some for 3 channels where an output row shows one row of the image (`is_level`):
// neighbours lie close together, and are taken out of a window of 128 bytes, which is faster than
// one by one.
template <bool kFades>
int warp_level(const WarpRow& row, int x, int end, uint8_t* out) {
    using Ops = WarpSimd;
    const int last = end - Ops::kCount;
    if (last < x) return 0;
    const double v = row.v - 0.5;
    const int y = static_cast<int>(v);
    const auto ones = Ops::all(1.0f), fy = Ops::all(static_cast<float>(v - y)),
               gy = Ops::sub(ones, fy);
    const uint8_t* const above = row.pixels + row.stride * y;
    const auto make = [&](const LevelBlock& block, uint8_t* to) {
        const auto fx = block.fraction, gx = Ops::sub(ones, fx);
        const Ops::F weights[4] = {Ops::mul(gx, gy), Ops::mul(fx, gy), Ops::mul(gx, fy),
                                   Ops::mul(fx, fy)};
        Near<3, false> near;
        block.window.take(above, near.words);
        block.window.take(above + row.stride, near.words + 2);
        Ops::store3(to, mixed<kFades>(near, weights, row.fill));
    };
    const WarpColumns* const columns = row.columns;
    const int known =
        columns != nullptr && x == columns->first && end == columns->end ? columns->count : 0;
    // The last block begins where it ends at `end`: some pixels are made twice.
    const auto next = [last](int at) { return at + Ops::kCount < last ? at + Ops::kCount : last; };
    int at = x;
    for (int n = 0; n < known; ++n, at = next(at)) {
        const unsigned char* const block = columns->blocks + n * WarpColumns::kBlockBytes;
        make(*reinterpret_cast<const LevelBlock*>(block), out + 3 * (at - x));
        if (at == last) return end - x;
    }
    for (;; at = next(at)) {
        LevelBlock block;
        if (!block.set(row, at)) {
            warp_some<3, kFades, true>(row, at, end, out + 3 * (at - x));
            return end - x;
        }
        make(block, out + 3 * (at - x));
        if (at == last) return end - x;
    }
}

// Whether `warp_level` may be used: 3 channels, output rows show rows of the image, and a row is at
// least as long as a window. A window in the lower of the two rows then ends within the row below,
// which exists, as most_y leaves one more row for images of 3 channels.
bool is_level(const WarpRow& row) {
    return row.channels == 3 && row.m[3] == 0.0 && row.stride >= WarpSimd::Window::kBytes;
}

// As Kernels::warp_columns.
void warp_columns(const WarpRow& row, int first, int end, WarpColumns& columns) {
    constexpr int kCount = WarpSimd::kCount;
    const int last = end - kCount;
    if (!is_affine(row) || !is_level(row) || row.m[1] != 0.0 || last < first) return;
    columns.first = first;
    columns.end = end;
    LevelBlock block;
    for (int at = first; columns.count < WarpColumns::kMost;
         at = at + kCount < last ? at + kCount : last) {
        if (!block.set(row, at)) return;
        new (columns.blocks + columns.count++ * WarpColumns::kBlockBytes) LevelBlock(block);
        if (at == last) return;
    }
}

constexpr auto kWarpColumns = warp_columns;

#else

constexpr void (*kWarpColumns)(const WarpRow&, int, int, WarpColumns&) = nullptr;

#endif

int warp_inner(const WarpRow& row, int x, int end, uint8_t* out) {
    const bool affine = is_affine(row);
#if defined(__AVX512BW__)
    if (affine && is_level(row))
        return row.fades ? warp_level<true>(row, x, end, out) : warp_level<false>(row, x, end, out);
#endif
    if (row.channels == 3) {
        if (row.fades) {
            return affine ? warp_some<3, true, true>(row, x, end, out)
                          : warp_some<3, true, false>(row, x, end, out);
        }
        return affine ? warp_some<3, false, true>(row, x, end, out)
                      : warp_some<3, false, false>(row, x, end, out);
    }
    if (row.fades) {
        return affine ? warp_some<4, true, true>(row, x, end, out)
                      : warp_some<4, true, false>(row, x, end, out);
    }
    return affine ? warp_some<4, false, true>(row, x, end, out)
                  : warp_some<4, false, false>(row, x, end, out);
}

constexpr auto kWarpInner = warp_inner;

#else

constexpr int (*kWarpInner)(const WarpRow&, int, int, uint8_t*) = nullptr;
constexpr void (*kWarpColumns)(const WarpRow&, int, int, WarpColumns&) = nullptr;

#endif

}  // namespace
}  // namespace fastload
