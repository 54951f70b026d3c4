// Normal numbers as a function of their index, and noise made of them. Included as colour.inl.hpp
// is. Compiled without contraction, and the only function of the C library is the square root,
// whose result IEEE 754 defines: so all instruction sets, and torch on any device, give the same
// bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "draws.hpp"
#include "noise.hpp"

namespace fastload {
namespace {

// The bits of a float as an integer, and the reverse.
inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// The natural logarithm of x / 2^31, for whole x from 1 to 2^31: the polynomial of FreeBSD's
// e_logf.c (Sun Microsystems, 1993), off by less than one in the last place.
inline float log_of_share(float x) {
    constexpr uint32_t kRootOfHalf = 0x3f3504f3;
    const uint32_t from_root = bits_of(x) - kRootOfHalf;
    const float exponent = static_cast<float>(static_cast<int32_t>(from_root >> 23) - 31);
    const float f = float_of((from_root & 0x7fffff) + kRootOfHalf) - 1.0f;
    const float s = f / (2.0f + f), z = s * s, w = z * z;
    const float even = w * (0.40000972152f + w * 0.24279078841f);
    const float odd = z * (0.66666662693f + w * 0.28498786688f);
    const float half_square = 0.5f * f * f;
    const float rest = s * (half_square + (odd + even)) + exponent * 9.0580006145e-06f;
    return ((rest - half_square) + f) + exponent * 6.9313812256e-01f;
}

struct Pair {
    float first, second;
};

// Two normal numbers from two random words (Box and Muller, 1958). The first word gives the radius,
// the second the angle: a multiple of a quarter turn, and a rest of up to an eighth turn, whose
// sine and cosine are the polynomials of Cephes' sinf.c.
inline Pair normal_pair(uint32_t of_radius, uint32_t of_angle) {
    // The lowest bit is set, so that the share is not zero.
    const float share = static_cast<float>(static_cast<int32_t>(of_radius >> 1 | 1));
    const float radius = std::sqrt(-2.0f * log_of_share(share));
    const uint32_t quarter = (of_angle + 0x20000000u) >> 30;
    const float angle = static_cast<float>(static_cast<int32_t>(of_angle - (quarter << 30))) *
                        1.46291807927e-09f;  // 2 pi / 2^32
    const float z = angle * angle;
    const float sine =
        ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * angle + angle;
    const float cosine =
        ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * z * z -
        0.5f * z + 1.0f;
    const bool crosses = (quarter & 1) != 0;
    const float x = crosses ? sine : cosine, y = crosses ? cosine : sine;
    const uint32_t x_sign = (quarter + 1) << 30 & 0x80000000u, y_sign = quarter << 30 & 0x80000000u;
    return {radius * float_of(bits_of(x) ^ x_sign), radius * float_of(bits_of(y) ^ y_sign)};
}

// Numbers are made in groups of 16 blocks of four words. The order in a group: the numbers of the
// first words of all blocks, then those of the second words, and so on.
constexpr size_t kNoiseBlocks = 16, kNoiseGroup = 4 * kNoiseBlocks;

// Writes the kNoiseGroup numbers of group `group` of a key.
inline void normal_group(uint64_t key, uint32_t group, float* out) {
    uint32_t a[kNoiseBlocks], b[kNoiseBlocks], c[kNoiseBlocks], d[kNoiseBlocks];
    for (size_t i = 0; i < kNoiseBlocks; ++i) {
        a[i] = group * static_cast<uint32_t>(kNoiseBlocks) + static_cast<uint32_t>(i);
        b[i] = c[i] = d[i] = 0;
    }
    // The rounds of `philox` (draws.hpp), each for all blocks at once.
    uint32_t low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        for (size_t i = 0; i < kNoiseBlocks; ++i) {
            const uint64_t p = uint64_t{0xD2511F53} * a[i], q = uint64_t{0xCD9E8D57} * c[i];
            a[i] = static_cast<uint32_t>(q >> 32) ^ b[i] ^ low;
            b[i] = static_cast<uint32_t>(q);
            c[i] = static_cast<uint32_t>(p >> 32) ^ d[i] ^ high;
            d[i] = static_cast<uint32_t>(p);
        }
        low += 0x9E3779B9;
        high += 0xBB67AE85;
    }
    for (size_t i = 0; i < kNoiseBlocks; ++i) {
        const Pair pair = normal_pair(a[i], b[i]);
        out[i] = pair.first;
        out[kNoiseBlocks + i] = pair.second;
    }
    for (size_t i = 0; i < kNoiseBlocks; ++i) {
        const Pair pair = normal_pair(c[i], d[i]);
        out[2 * kNoiseBlocks + i] = pair.first;
        out[3 * kNoiseBlocks + i] = pair.second;
    }
}

void normals(uint64_t key, size_t count, float* out) {
    size_t at = 0;
    for (; at + kNoiseGroup <= count; at += kNoiseGroup)
        normal_group(key, static_cast<uint32_t>(at / kNoiseGroup), out + at);
    if (at == count) return;
    float last[kNoiseGroup];
    normal_group(key, static_cast<uint32_t>(at / kNoiseGroup), last);
    std::copy_n(last, count - at, out + at);
}

// The numbers of kCounters counters of a key, from `counter` on: the 64 bits that SplitMix64's
// output function (Steele, Lea, Flood, 2014) makes of each give the radius and the angle, and the
// first of the two normal numbers counts.
constexpr size_t kCounters = 16;
inline void counted_normals(uint64_t key, uint64_t counter, float* out) {
    uint32_t of_radius[kCounters], of_angle[kCounters];
    for (size_t i = 0; i < kCounters; ++i) {
        uint64_t z = key + (counter + i + 1) * 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        z ^= z >> 31;
        of_radius[i] = static_cast<uint32_t>(z >> 32);
        of_angle[i] = static_cast<uint32_t>(z);
    }
    for (size_t i = 0; i < kCounters; ++i) out[i] = normal_pair(of_radius[i], of_angle[i]).first;
}

void box_normals(uint64_t key, const CounterBox& box, float* out) {
    const auto width = static_cast<size_t>(box.width);
    for (int64_t plane = 0; plane < box.planes; ++plane) {
        for (int64_t line = 0; line < box.lines; ++line, out += width) {
            const uint64_t counter =
                static_cast<uint64_t>(box.first) +
                static_cast<uint64_t>(plane) * static_cast<uint64_t>(box.plane_step) +
                static_cast<uint64_t>(line) * static_cast<uint64_t>(box.line_step);
            size_t at = 0;
            for (; at + kCounters <= width; at += kCounters)
                counted_normals(key, counter + at, out + at);
            if (at == width) continue;
            float last[kCounters];
            counted_normals(key, counter + at, last);
            std::copy_n(last, width - at, out + at);
        }
    }
}

// A byte plus noise, of which the fraction is cut off first. NaN counts as -32768.
template <bool kClips>
inline uint8_t noisy(uint8_t value, float noise) {
    noise = noise > -32768.0f ? noise : -32768.0f;
    noise = noise < 32767.0f ? noise : 32767.0f;
    const int32_t sum = value + static_cast<int32_t>(noise);
    return static_cast<uint8_t>(kClips ? std::clamp(sum, 0, 255) : sum & 255);
}

// Adds noise to `pixels` pixels; the channels of each get the same number.
template <bool kClips>
void add_noise_to(uint64_t key, float scale, float shift, size_t pixels, size_t channels,
                  uint8_t* values) {
    float noise[kNoiseGroup];
    for (size_t at = 0; at < pixels; at += kNoiseGroup, values += kNoiseGroup * channels) {
        normal_group(key, static_cast<uint32_t>(at / kNoiseGroup), noise);
        for (float& x : noise) x = x * scale + shift;
        const size_t count = std::min(kNoiseGroup, pixels - at);
        if (channels > 1) {
            for (size_t i = 0; i < count; ++i) {
                for (size_t c = 0; c < channels; ++c) {
                    uint8_t& value = values[i * channels + c];
                    value = noisy<kClips>(value, noise[i]);
                }
            }
        } else if (count == kNoiseGroup) {
            for (size_t i = 0; i < kNoiseGroup; ++i) values[i] = noisy<kClips>(values[i], noise[i]);
        } else {
            for (size_t i = 0; i < count; ++i) values[i] = noisy<kClips>(values[i], noise[i]);
        }
    }
}

void add_noise(const NoiseTable& table, int row, Size size, int channels, uint8_t* values) {
    size_t pixels = static_cast<size_t>(size.height) * static_cast<size_t>(size.width);
    size_t together = static_cast<size_t>(channels);
    if (!table.shared) {
        pixels *= together;
        together = 1;
    }
    const auto work = table.clips ? add_noise_to<true> : add_noise_to<false>;
    work(table.keys[row], table.scales[row], table.shifts[row], pixels, together, values);
}

}  // namespace
}  // namespace fastload
