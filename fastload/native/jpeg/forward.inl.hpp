// Encoding: from pixels to quantised coefficients by colour conversion, downsampling of chroma and
// forward DCT. Included once per instruction set. Each step gives the same integers as
// libjpeg-turbo with its defaults (the "slow" integer DCT).
#pragma once

#include <cstring>

#include "jpeg/kernels.hpp"
#include "jpeg/samples.inl.hpp"
#include "simd.hpp"

namespace fastload::jpeg {
namespace {

// How many pixels `colour_chunk` converts: four vectors, with four pixels in each lane.
constexpr int kColourChunk = 16 * kLanes;

// Converts kColourChunk pixels to samples of Y, Cb and Cr. The 4 bytes after the last pixel are
// read. `red_green`, `blue_green`: shuffles that take two channels of 3-byte pixels.
inline void colour_chunk(const uint8_t* pixels, V red_green, V blue_green, uint8_t* const* out) {
    // The weights have 16 fractional bits; those of luma add up to 1, those of chroma to 0. kHalf
    // rounds.
    constexpr int32_t kHalf = 1 << 15, kCentre = (128 << 16) + kHalf - 1;
    V sums[3][4];
    for (int k = 0; k < 4; ++k) {
        const uint8_t* from[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) from[lane] = pixels + 48 * lane + 12 * k;
        const V four = Simd::load_lanes(from, 0);
        const V rg = Simd::shuffle(four, red_green), bg = Simd::shuffle(four, blue_green);
        // Times 32768 by shifts, as that is no signed 16-bit number. Green is shifted out.
        const V red = Simd::right32<1>(Simd::left32<16>(rg)),
                blue = Simd::right32<1>(Simd::left32<16>(bg));
        const auto sum = [](V x, V y, int32_t constant) {
            return Simd::right32<16>(Simd::add32(Simd::add32(x, y), Simd::all32(constant)));
        };
        sums[0][k] = sum(Simd::madd16(rg, pair(19595, 38470 - 16384)),
                         Simd::madd16(bg, pair(7471, 16384)), kHalf);
        sums[1][k] = sum(Simd::madd16(rg, pair(-11059, -21709)), blue, kCentre);
        sums[2][k] = sum(Simd::madd16(bg, pair(-5329, -27439)), red, kCentre);
    }
    for (int c = 0; c < 3; ++c) {
        Simd::store(out[c], Simd::pack16u(Simd::pack32(sums[c][0], sums[c][1]),
                                          Simd::pack32(sums[c][2], sums[c][3])));
    }
}

void rgb_to_ycc(const uint8_t* pixels, int width, bool blue_first, uint8_t* const* rows) {
    // Two channels of each of four pixels as 16-bit numbers.
    alignas(16) static constexpr int8_t kFirstTwo[16] = {0, -1, 1, -1, 3, -1, 4,  -1,
                                                         6, -1, 7, -1, 9, -1, 10, -1};
    alignas(16) static constexpr int8_t kLastTwo[16] = {2, -1, 1, -1, 5,  -1, 4,  -1,
                                                        8, -1, 7, -1, 11, -1, 10, -1};
    const V red_green = Simd::repeat(blue_first ? kLastTwo : kFirstTwo);
    const V blue_green = Simd::repeat(blue_first ? kFirstTwo : kLastTwo);
    int x = 0;
    for (; x + kColourChunk + 2 <= width; x += kColourChunk) {
        uint8_t* const out[3] = {rows[0] + x, rows[1] + x, rows[2] + x};
        colour_chunk(pixels + 3 * static_cast<int64_t>(x), red_green, blue_green, out);
    }
    for (; x < width; x += kColourChunk) {  // once or twice
        const auto count = static_cast<size_t>(width - x < kColourChunk ? width - x : kColourChunk);
        uint8_t last[3 * kColourChunk + 4] = {}, samples[3][kColourChunk];
        uint8_t* const out[3] = {samples[0], samples[1], samples[2]};
        std::memcpy(last, pixels + 3 * static_cast<int64_t>(x), 3 * count);
        colour_chunk(last, red_green, blue_green, out);
        for (int c = 0; c < 3; ++c) std::memcpy(rows[c] + x, samples[c], count);
    }
}

// Means of 2 x 2 samples, `width` of them. Halves are rounded down and up in turn, as in libjpeg.
void halve(const uint8_t* upper, const uint8_t* lower, uint8_t* out, int width) {
    for (int x = 0; x < width; ++x) {
        const int sum = upper[2 * x] + upper[2 * x + 1] + lower[2 * x] + lower[2 * x + 1];
        out[x] = static_cast<uint8_t>((sum + 1 + (x & 1)) >> 2);
    }
}

// One dimension of the forward DCT of all columns, as in libjpeg's jfdctint.c: the reverse of
// `transform`. kFirst: the first of the two dimensions, whose results have kPassBits fractional
// bits.
template <bool kFirst>
inline void forward_transform(V (&x)[8]) {
    constexpr int kShift = kFirst ? kConstantBits - kPassBits : kConstantBits + kPassBits;
    V sums[4], differences[4];  // of x[i] and x[7 - i]
    for (int i = 0; i < 4; ++i) {
        sums[i] = Simd::add16(x[i], x[7 - i]);
        differences[i] = Simd::sub16(x[i], x[7 - i]);
    }
    const V outer = Simd::add16(sums[0], sums[3]), inner = Simd::add16(sums[1], sums[2]);
    const auto whole = [](V v) {
        if (kFirst) return Simd::left16<kPassBits>(v);
        return Simd::right16<kPassBits>(Simd::add16(v, Simd::all16(1 << (kPassBits - 1))));
    };
    x[0] = whole(Simd::add16(outer, inner));
    x[4] = whole(Simd::sub16(outer, inner));
    const Pairs even(Simd::sub16(sums[0], sums[3]), Simd::sub16(sums[1], sums[2]));
    x[2] = descale<kShift>(even.times(k0541 + k0765, k0541));
    x[6] = descale<kShift>(even.times(k0541, k0541 - k1847));

    const V d7 = differences[0], d6 = differences[1], d5 = differences[2], d4 = differences[3];
    const Pairs both(Simd::add16(d4, d6), Simd::add16(d5, d7));
    const Wide z3 = both.times(k1175 - k1961, k1175), z4 = both.times(k1175, k1175 - k0390);
    const Pairs ends(d4, d7), middles(d5, d6);
    x[7] = descale<kShift>(ends.times(k0298 - k0899, -k0899) + z3);
    x[5] = descale<kShift>(middles.times(k2053 - k2562, -k2562) + z4);
    x[3] = descale<kShift>(middles.times(-k2562, k3072 - k2562) + z3);
    x[1] = descale<kShift>(ends.times(-k0899, k1501 - k0899) + z4);
}

// Divides coefficients by their quantisers, rounded, halves away from zero. Returns the reach of
// the block, as one of 1, kCorner and 64. The dividend is below 2^16 and a half more than a whole
// number: so the quotient is farther from a whole number than the rounding of `inverse` and of the
// product can move it.
inline int quantise(int16_t* block, const Quantisation& by) {
    int32_t beyond_mean = 0, beyond_corner = 0;
    for (int k = 0; k < 64; ++k) {
        const int32_t value = block[k], sign = value >> 15;
        const float size = static_cast<float>((value ^ sign) - sign);
        const auto quotient = static_cast<int32_t>((size + by.half[k]) * by.inverse[k]);
        block[k] = static_cast<int16_t>((quotient ^ sign) - sign);
        beyond_corner |= quotient & by.beyond_corner[k];
        beyond_mean |= quotient & by.beyond_mean[k];
    }
    return beyond_corner != 0 ? 64 : beyond_mean != 0 ? kCorner : 1;
}

void to_coefficients(const CoefficientsTask& task) {
    const V centre = Simd::all16(128);
    for (int first = 0; first < task.count; first += kLanes) {
        const uint8_t* samples[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) samples[lane] = task.samples + 8 * (first + lane);
        V x[8];
        for (int y = 0; y < 8; ++y) {
            x[y] = Simd::sub16(widen_low(Simd::load_lanes(samples, y * task.stride)), centre);
        }
        transpose(x);
        forward_transform<true>(x);
        transpose(x);
        forward_transform<false>(x);
        for (int y = 0; y < 8; ++y) {
            Simd::store_lanes(reinterpret_cast<uint8_t*>(task.coefficients + 64 * first + 8 * y),
                              64 * sizeof(int16_t), x[y]);
        }
    }
    for (int i = 0; i < task.count; ++i)
        task.reach[i] = quantise(task.coefficients + 64 * i, *task.by);
}

}  // namespace
}  // namespace fastload::jpeg
