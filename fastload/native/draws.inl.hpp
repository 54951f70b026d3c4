// Random integers, two vectors of samples at a time. Compiled once for each instruction set, as all
// inner loops are.
#pragma once

#include <algorithm>

#include "draws.hpp"
#include "simd.hpp"

namespace fastload {
namespace {

#if defined(FASTLOAD_SIMD_PORTABLE)
constexpr auto kIntegers = nullptr;
#else

// A multiplication takes several cycles, and each needs the one before it in its vector.
constexpr size_t kVectors = 2, kWords = kVectorBytes / sizeof(uint64_t),
                 kSamples = kVectors * kWords;

// As `draw_integers`, of kSamples samples. The lower half of each 64-bit number of a vector is a
// word of a sample; `mul_wide32` does not read the upper half.
inline void integers_of(const Counter& counter, const int64_t* indices, const int64_t* repeats,
                        uint64_t* out) {
    U64 a[kVectors], b[kVectors], c[kVectors], d[kVectors];
    for (size_t i = 0; i < kVectors; ++i) {
        a[i] = U64(Simd::load(indices + i * kWords));
        b[i] = a[i] >> 32;
        if (repeats != nullptr) b[i] |= U64(Simd::load(repeats + i * kWords)) << 8;
        c[i] = U64{} + counter.epoch;
        d[i] = U64{} + (uint64_t{counter.stream} << 16);
    }
    // The rounds of `philox`.
    uint32_t k0 = static_cast<uint32_t>(counter.seed),
             k1 = static_cast<uint32_t>(counter.seed >> 32);
    for (int round = 0; round < 10; ++round) {
        for (size_t i = 0; i < kVectors; ++i) {
            const U64 p0 = U64(Simd::mul_wide32(V(a[i]), V(U64{} + 0xD2511F53))),
                      p1 = U64(Simd::mul_wide32(V(c[i]), V(U64{} + 0xCD9E8D57)));
            a[i] = p1 >> 32 ^ b[i] ^ (U64{} + k0);
            b[i] = p1;
            c[i] = p0 >> 32 ^ d[i] ^ (U64{} + k1);
            d[i] = p0;
        }
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    for (size_t i = 0; i < kVectors; ++i)
        Simd::store(out + i * kWords, V(a[i] << 32 | (b[i] & (U64{} + 0xFFFFFFFF))));
}

void integers(const Counter& counter, uint64_t* out) {
    size_t at = 0;
    const auto repeats_at = [&] { return counter.repeats ? counter.repeats + at : nullptr; };
    for (; at + kSamples <= counter.count; at += kSamples)
        integers_of(counter, counter.indices + at, repeats_at(), out + at);
    if (at == counter.count) return;
    int64_t indices[kSamples] = {}, repeats[kSamples] = {};
    uint64_t last[kSamples];
    std::copy_n(counter.indices + at, counter.count - at, indices);
    if (counter.repeats) std::copy_n(counter.repeats + at, counter.count - at, repeats);
    integers_of(counter, indices, repeats, last);
    std::copy_n(last, counter.count - at, out + at);
}

constexpr auto kIntegers = integers;
#endif

}  // namespace
}  // namespace fastload
