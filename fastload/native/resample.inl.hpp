// The two passes of resampling, packing and mirroring. Included once per instruction set.
//
// In the horizontal pass each lane of a vector works on one row: the bytes of two or four
// neighbouring pixels are sorted by channel, so that one instruction multiplies and adds them. In
// the vertical pass the lanes work on different columns.
#pragma once

#include "kernels.hpp"
#include "simd.hpp"

namespace fastload {
namespace {

inline uint8_t clamp_to_byte(int32_t value) {
    return static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
}

// Two weights in each 32 bits of a vector.
inline V weight_pair(const int16_t* weights) {
    int32_t pair;
    std::memcpy(&pair, weights, 4);
    return Simd::all32(pair);
}

// VNNI instructions multiply four unsigned bytes (pixels) by four signed bytes and add the
// products. A 16-bit weight is 256 * high + low with two signed bytes, so two instructions give the
// exact sum. Weights above 127 * 256 + 127 = 32,639 (there are weights up to 32,767) cannot be
// split like this: axes with such a weight, one in a hundred, are computed by pairs, with the same
// result.
constexpr int32_t kLargestSplit = 127 * 256 + 127;

// As Kernels::split: for each four weights the four low bytes, then the four high bytes; zeros
// after the last of `width`.
[[maybe_unused]] bool split(const int16_t* weights, int outputs, int width, int32_t* low_high) {
    bool good = true;
    for (int x = 0; x < outputs; ++x, weights += width) {
        for (int k = 0; k < width; k += 4, low_high += 2) {
            uint32_t low = 0, high = 0;
            for (int i = 0; i < 4 && k + i < width; ++i) {
                const int32_t weight = weights[k + i];
                const int32_t low_byte = static_cast<int8_t>(static_cast<uint8_t>(weight & 0xff));
                good &= weight <= kLargestSplit;
                low |= static_cast<uint32_t>(low_byte & 0xff) << (8 * i);
                high |= static_cast<uint32_t>((weight - low_byte) >> 8 & 0xff) << (8 * i);
            }
            low_high[0] = static_cast<int32_t>(low);
            low_high[1] = static_cast<int32_t>(high);
        }
    }
    return good;
}

// sum + Simd::madd16(a, b).
inline V add_products(V sum, V a, V b) {
#if !defined(FASTLOAD_SIMD_PORTABLE) && defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(sum, a, b);
#else
    return Simd::add32(sum, Simd::madd16(a, b));
#endif
}

// One output pixel in each lane's row, as four 32-bit sums (red, green, blue, unused). `sum`: what
// they start with. kWidth: the number of weights, 0 for any multiple of four.
template <int kWidth>
inline V convolve(const uint8_t* const* rows, int64_t offset, const int16_t* weights, int width,
                  V sum) {
    // Two neighbouring pixels as 16-bit numbers r0 r1 g0 g1 b0 b1 x0 x1: the first two of four, and
    // the last two.
    alignas(16) static constexpr int8_t kFirst[16] = {0, -1, 4, -1, 1, -1, 5, -1,
                                                      2, -1, 6, -1, 3, -1, 7, -1};
    alignas(16) static constexpr int8_t kLast[16] = {8,  -1, 12, -1, 9,  -1, 13, -1,
                                                     10, -1, 14, -1, 11, -1, 15, -1};
    const V first = Simd::repeat(kFirst), last = Simd::repeat(kLast);
    const int stop = kWidth ? kWidth : width;
    for (int k = 0; k < stop; k += 4) {
        const V pixels = Simd::load_lanes(rows, offset + 4 * k);
        sum = add_products(sum, Simd::shuffle(pixels, first), weight_pair(weights + k));
        if (kWidth == 2) break;
        sum = add_products(sum, Simd::shuffle(pixels, last), weight_pair(weights + k + 2));
    }
    return sum;
}

// The same by fours of pixels, with split weights. kFours: their number, 0 for any.
template <int kFours>
inline V convolve_fours(const uint8_t* const* rows, int64_t offset, const int32_t* low_high,
                        int fours, V low) {
    alignas(16) static constexpr int8_t kByChannel[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                          2, 6, 10, 14, 3, 7, 11, 15};
    const V by_channel = Simd::repeat(kByChannel);
    V high = Simd::zero();
    const int stop = kFours ? kFours : fours;
    for (int k = 0; k < stop; ++k, low_high += 2, offset += 16) {
        const V pixels = Simd::shuffle(Simd::load_lanes(rows, offset), by_channel);
        low = Simd::dot(low, pixels, Simd::all32(low_high[0]));
        high = Simd::dot(high, pixels, Simd::all32(low_high[1]));
    }
    return Simd::add32(low, Simd::left32<8>(high));
}

// A shuffle of four 4-byte pixels that moves their first three bytes to the front: 12 bytes.
inline V drop_fourth() {
    alignas(16) static constexpr int8_t kPlaces[16] = {0,  1,  2,  4,  5,  6,  8,  9,
                                                       10, 12, 13, 14, -1, -1, -1, -1};
    return Simd::repeat(kPlaces);
}

// Makes all output pixels of kLanes rows. `pixel(x)`: one output pixel of each row as 32-bit sums,
// with the fractional bits of the weights.
template <typename Function>
inline void make_rows(const HorizontalTask& task, uint8_t* const* out, Function pixel) {
    for (int x = 0; x < task.outputs; x += 4) {
        V sums[4];
        for (int i = 0; i < 4; ++i) {
            // The last group may have fewer pixels: its last one is computed again, and these
            // copies are written to the slack after the row.
            sums[i] = Simd::right32(pixel(x + i < task.outputs ? x + i : task.outputs - 1),
                                    task.precision);
        }
        const V bytes =
            Simd::pack16u(Simd::pack32(sums[0], sums[1]), Simd::pack32(sums[2], sums[3]));
        Simd::store_each(out, 3 * static_cast<int64_t>(x), Simd::shuffle(bytes, drop_fourth()));
    }
}

template <int kWidth>
void pairs_pass(const HorizontalTask& task, const uint8_t* const* rows, uint8_t* const* out) {
    const int width = kWidth ? kWidth : task.width;
    const V half = Simd::all32(1 << (task.precision - 1));
    make_rows(task, out, [&](int x) {
        return convolve<kWidth>(rows, 4 * static_cast<int64_t>(task.first[x]),
                                task.weights + static_cast<int64_t>(x) * width, width, half);
    });
}

template <int kFours>
void fours_pass(const HorizontalTask& task, const uint8_t* const* rows, uint8_t* const* out) {
    const int fours = kFours ? kFours : (task.width + 3) / 4;
    const V half = Simd::all32(1 << (task.precision - 1));
    make_rows(task, out, [&](int x) {
        return convolve_fours<kFours>(rows, 4 * static_cast<int64_t>(task.first[x]),
                                      task.split + 2 * fours * x, fours, half);
    });
}

#if !defined(FASTLOAD_SIMD_PORTABLE) && defined(__AVX512BW__)

// Two weights for each output pixel: 16 of them at a time, of one row after the other, by places in
// 32 pixels of the row. Returns how many output pixels of the rows it made: up to some whose inputs
// lie further apart.
int two_weights(const HorizontalTask& task) {
    const V half = Simd::all32(1 << (task.precision - 1)), zero = Simd::zero();
    const V places = _mm512_setr_epi32(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 15, 15, 15, 15);
    int x = 0;
    for (; x < task.outputs; x += 16) {
        const int count = task.outputs - x < 16 ? task.outputs - x : 16;
        const auto used = static_cast<__mmask16>((1 << count) - 1);
        const V first = _mm512_maskz_loadu_epi32(used, task.first + x);
        const int from = _mm512_mask_reduce_min_epi32(used, first),
                  inputs = _mm512_mask_reduce_max_epi32(used, first) + 2 - from;
        if (inputs > 32) break;
        const auto readable = static_cast<uint32_t>((uint64_t{1} << inputs) - 1);
        const V left = Simd::sub32(first, Simd::all32(from)),
                right = Simd::add32(left, Simd::all32(1));
        const V weights = _mm512_maskz_loadu_epi32(used, task.weights + 2 * int64_t{x});
        // Of the first pixel of each lane, and so on.
        const V pairs[4] = {_mm512_shuffle_epi32(weights, _MM_PERM_AAAA),
                            _mm512_shuffle_epi32(weights, _MM_PERM_BBBB),
                            _mm512_shuffle_epi32(weights, _MM_PERM_CCCC),
                            _mm512_shuffle_epi32(weights, _MM_PERM_DDDD)};
        const auto written = static_cast<__mmask16>((1 << (3 * count + 3) / 4) - 1);
        for (int y = 0; y < task.row_count; ++y) {
            const uint8_t* const row = task.rows[y] + 4 * int64_t{from};
            const V near = _mm512_maskz_loadu_epi32(static_cast<__mmask16>(readable), row),
                    far =
                        _mm512_maskz_loadu_epi32(static_cast<__mmask16>(readable >> 16), row + 64);
            const V one = _mm512_permutex2var_epi32(near, left, far),
                    other = _mm512_permutex2var_epi32(near, right, far);
            const V low = Simd::low8(one, other), high = Simd::high8(one, other);
            V sums[4] = {add_products(half, Simd::low8(low, zero), pairs[0]),
                         add_products(half, Simd::high8(low, zero), pairs[1]),
                         add_products(half, Simd::low8(high, zero), pairs[2]),
                         add_products(half, Simd::high8(high, zero), pairs[3])};
            for (V& sum : sums) sum = Simd::right32(sum, task.precision);
            const V bytes =
                Simd::pack16u(Simd::pack32(sums[0], sums[1]), Simd::pack32(sums[2], sums[3]));
            _mm512_mask_storeu_epi32(
                task.out[y] + 3 * int64_t{x}, written,
                _mm512_permutexvar_epi32(places, Simd::shuffle(bytes, drop_fourth())));
        }
    }
    return x < task.outputs ? x : task.outputs;
}

#endif

void horizontal(const HorizontalTask& whole) {
    HorizontalTask task = whole;
#if !defined(FASTLOAD_SIMD_PORTABLE) && defined(__AVX512BW__)
    uint8_t* rest[kMostTaskRows];
    if (task.width == 2 && task.row_count <= kMostTaskRows) {
        const int made = two_weights(task);
        if (made == task.outputs) return;
        for (int y = 0; y < task.row_count; ++y) rest[y] = task.out[y] + 3 * int64_t{made};
        task.out = rest;
        task.outputs -= made;
        task.first += made;
        task.weights += 2 * int64_t{made};
        if (task.split != nullptr) task.split += 2 * int64_t{made};
    }
#endif
    for (int y = 0; y < task.row_count; y += kLanes) {
        const uint8_t* rows[kLanes];
        uint8_t* out[kLanes];
        for (int i = 0; i < kLanes; ++i) {
            // Lanes without a row of their own compute the last row again.
            const int at = y + i < task.row_count ? y + i : task.row_count - 1;
            rows[i] = task.rows[at];
            out[i] = task.out[at];
        }
        const bool fours = Simd::kDots && task.split != nullptr;
        if (fours && task.width <= 4) {
            fours_pass<1>(task, rows, out);
        } else if (fours && task.width == 8) {
            fours_pass<2>(task, rows, out);
        } else if (fours) {
            fours_pass<0>(task, rows, out);
        } else if (task.width == 2) {
            pairs_pass<2>(task, rows, out);
        } else if (task.width == 4) {
            pairs_pass<4>(task, rows, out);
        } else {
            pairs_pass<0>(task, rows, out);
        }
    }
}

// Writes kVectorBytes outputs.
inline void store_column(const VerticalTask& task, int offset, V (&sums)[4]) {
    for (V& sum : sums) sum = Simd::right32(sum, task.precision);
    Simd::store(task.out + offset,
                Simd::pack16u(Simd::pack32(sums[0], sums[1]), Simd::pack32(sums[2], sums[3])));
}

// kVectorBytes outputs, two rows at a time. kTwo: there are two.
template <bool kTwo>
inline void pairs_column(const VerticalTask& task, int offset, V half) {
    const V zero = Simd::zero();
    V sums[4] = {half, half, half, half};
    const uint8_t* from = task.rows + offset;
    for (int k = 0; k < task.count; k += 2, from += 2 * task.stride) {
        const bool pair = kTwo || k + 1 < task.count;
        const V upper = Simd::load(from), lower = pair ? Simd::load(from + task.stride) : zero;
        const V weights = pair ? weight_pair(task.weights + k)
                               : Simd::all32(static_cast<uint16_t>(task.weights[k]));
        const V low = Simd::low8(upper, lower), high = Simd::high8(upper, lower);
        sums[0] = add_products(sums[0], Simd::low8(low, zero), weights);
        sums[1] = add_products(sums[1], Simd::high8(low, zero), weights);
        sums[2] = add_products(sums[2], Simd::low8(high, zero), weights);
        sums[3] = add_products(sums[3], Simd::high8(high, zero), weights);
        if (kTwo) break;
    }
    store_column(task, offset, sums);
}

// kVectorBytes outputs, four rows at a time, with split weights.
inline void fours_column(const VerticalTask& task, const int32_t* low_high, int offset, V half) {
    const V zero = Simd::zero();
    V low[4] = {half, half, half, half}, high[4] = {zero, zero, zero, zero};
    const uint8_t* last = task.rows + (task.count - 1) * task.stride + offset;
    const uint8_t* from = task.rows + offset;
    for (int k = 0; k < task.count; k += 4, from += 4 * task.stride, low_high += 2) {
        // After the last row it is read again, with weight zero.
        const V a = Simd::load(from),
                b = Simd::load(k + 1 < task.count ? from + task.stride : last);
        const V c = Simd::load(k + 2 < task.count ? from + 2 * task.stride : last);
        const V d = Simd::load(k + 3 < task.count ? from + 3 * task.stride : last);
        const V ab_low = Simd::low8(a, b), ab_high = Simd::high8(a, b);
        const V cd_low = Simd::low8(c, d), cd_high = Simd::high8(c, d);
        const V fours[4] = {Simd::low16(ab_low, cd_low), Simd::high16(ab_low, cd_low),
                            Simd::low16(ab_high, cd_high), Simd::high16(ab_high, cd_high)};
        for (int i = 0; i < 4; ++i) {
            low[i] = Simd::dot(low[i], fours[i], Simd::all32(low_high[0]));
            high[i] = Simd::dot(high[i], fours[i], Simd::all32(low_high[1]));
        }
    }
    for (int i = 0; i < 4; ++i) low[i] = Simd::add32(low[i], Simd::left32<8>(high[i]));
    store_column(task, offset, low);
}

void vertical(const VerticalTask& task) {
    const int32_t half = 1 << (task.precision - 1);
    if (task.bytes < kVectorBytes) {
        for (int i = 0; i < task.bytes; ++i) {
            int32_t sum = half;
            for (int k = 0; k < task.count; ++k)
                sum += task.weights[k] * task.rows[k * task.stride + i];
            task.out[i] = clamp_to_byte(sum >> task.precision);
        }
        return;
    }
    constexpr int kMostTaps = 64;
    int32_t low_high[kMostTaps / 2];
    // One or two rows are one pair, which is faster than a four that is half empty.
    const bool fours = Simd::kDots && task.count > 2 && task.count <= kMostTaps &&
                       split(task.weights, 1, task.count, low_high);
    for (int offset = 0; offset < task.bytes; offset += kVectorBytes) {
        // The last vector overlaps the one before: the same values are written again.
        const int at = offset + kVectorBytes <= task.bytes ? offset : task.bytes - kVectorBytes;
        if (fours) {
            fours_column(task, low_high, at, Simd::all32(half));
        } else if (task.count == 2) {
            pairs_column<true>(task, at, Simd::all32(half));
        } else {
            pairs_column<false>(task, at, Simd::all32(half));
        }
    }
}

void pack(const uint8_t* pixels, uint8_t* out, int count) {
    for (int x = 0; x < count; x += 4 * kLanes) {
        Simd::store_lanes(
            out + 3 * static_cast<int64_t>(x), 12,
            Simd::shuffle(Simd::load(pixels + 4 * static_cast<int64_t>(x)), drop_fourth()));
    }
}

void mirror(const uint8_t* row, uint8_t* out, int pixels) {
    // Five pixels a lane: of the last 16 bytes that are left, the first one belongs to a sixth
    // pixel, and is not used.
    alignas(16) static constexpr int8_t kReverse[16] = {13, 14, 15, 10, 11, 12, 7, 8,
                                                        9,  4,  5,  6,  1,  2,  3, -1};
    const V reverse = Simd::repeat(kReverse);
    for (; pixels >= 5 * kLanes + 1; pixels -= 5 * kLanes, out += 15 * kLanes) {
        const uint8_t* from[kLanes];
        for (int i = 0; i < kLanes; ++i)
            from[i] = row + 3 * static_cast<int64_t>(pixels) - 15 * i - 16;
        // Each lane writes one byte too many; the next lane, or the loop below, overwrites it.
        Simd::store_lanes(out, 15, Simd::shuffle(Simd::load_lanes(from, 0), reverse));
    }
    // With fewer than kLanes lanes left, the other lanes repeat the last of these.
    if (const int lanes = (pixels - 1) / 5; lanes > 0) {
        const uint8_t* from[kLanes];
        uint8_t* to[kLanes];
        for (int i = 0; i < kLanes; ++i) {
            const int lane = i < lanes ? i : lanes - 1;
            from[i] = row + 3 * static_cast<int64_t>(pixels) - 15 * lane - 16;
            to[i] = out + 15 * lane;
        }
        Simd::store_each(to, 0, Simd::shuffle(Simd::load_lanes(from, 0), reverse));
        pixels -= 5 * lanes;
        out += 15 * lanes;
    }
    for (; pixels > 0; --pixels, out += 3)
        std::memcpy(out, row + 3 * static_cast<int64_t>(pixels - 1), 3);
}

}  // namespace
}  // namespace fastload
