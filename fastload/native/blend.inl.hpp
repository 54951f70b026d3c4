// The weighted sum of two images (MixUp). Included once per instruction set; compiled without
// contraction.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {
namespace {

// As `blend` with weights of a half each, without floats: YOLOX blends so.
void blend_halves(uint8_t* __restrict__ out, const uint8_t* __restrict__ other, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
        // The mean, rounded up. If it lies halfway (the lowest bits differ) and this is odd, the
        // even number is one less.
        const auto up = static_cast<uint8_t>((out[i] + other[i] + 1) >> 1);
        out[i] = static_cast<uint8_t>(up - ((out[i] ^ other[i]) & up & 1));
    }
}

// As Kernels::blend. Adding 1.5 * 2^23 leaves no bits for a fraction.
void blend(uint8_t* __restrict__ out, const uint8_t* __restrict__ other, size_t bytes, float own,
           float others) {
    if (own == 0.5f && others == 0.5f) return blend_halves(out, other, bytes);
    for (size_t i = 0; i < bytes; ++i) {
        const float sum = static_cast<float>(out[i]) * own + static_cast<float>(other[i]) * others;
        out[i] = static_cast<uint8_t>(static_cast<int32_t>((sum + 12582912.0f) - 12582912.0f));
    }
}

}  // namespace
}  // namespace fastload
