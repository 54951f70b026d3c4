// Numbers as the kernels of images round them. Every function gives the bits of the operations of
// torch on a CPU that it takes the place of, and of the kernels in Triton (fastload/render/).
#pragma once

#include "cuda/block.cuh"

namespace fastload::device {

// To whole numbers, halves to even ones, for magnitudes below 2^22: added to 1.5 * 2^23, a float
// has no fraction left.
FASTLOAD_DEVICE float to_whole(float x) { return (x + 12582912.0f) - 12582912.0f; }

// To multiples of 1 / scale, a power of two.
FASTLOAD_DEVICE float in_bits(float weight, float scale) {
    return to_whole(weight * scale) * (1.0f / scale);
}

FASTLOAD_DEVICE float least(float a, float b) { return a < b ? a : b; }
FASTLOAD_DEVICE float most(float a, float b) { return a > b ? a : b; }
FASTLOAD_DEVICE int32_t least(int32_t a, int32_t b) { return a < b ? a : b; }
FASTLOAD_DEVICE int32_t most(int32_t a, int32_t b) { return a > b ? a : b; }

// To whole numbers from 0 to 255.
FASTLOAD_DEVICE float whole_pixel(float x) { return least(most(to_whole(x), 0.0f), 255.0f); }

// What lies outside of an image.
enum Padding : int32_t { kConstant, kEdge, kReflect, kSymmetric };

// The position inside of an image that is shown for one that may be outside.
FASTLOAD_DEVICE int32_t folded(int32_t position, int32_t limit, int32_t mode) {
    if (mode == kConstant || mode == kEdge) return least(most(position, 0), limit - 1);
    const int32_t turn = 2 * limit - (mode == kSymmetric ? 1 : 2);
    const int32_t period = mode == kSymmetric ? turn + 1 : most(turn, 1);
    int32_t rest = position % period;
    if (rest < 0) rest += period;
    const int32_t distance = 2 * rest - turn;
    return (turn - (distance < 0 ? -distance : distance)) >> 1;
}

// What numbers are delivered as.
enum Type : int32_t { kBytes, kFloat32, kFloat16, kBfloat16, kFloat64 };

FASTLOAD_DEVICE uint16_t bfloat16_of(float x) {
    const uint32_t bits = bits_of(x);
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

constexpr int kFour = 4;  // values of a thread, one after the other in memory

template <typename T>
struct alignas(kFour * sizeof(T)) Four {
    T at[kFour];
};

template <typename T>
FASTLOAD_DEVICE bool is_aligned(const T* place) {
    return reinterpret_cast<uint64_t>(place) % sizeof(Four<T>) == 0;
}

// Up to four bytes; 0 for what is not there.
FASTLOAD_DEVICE Four<uint8_t> load_four(const uint8_t* from, int32_t count) {
    if (count == kFour && is_aligned(from)) return *reinterpret_cast<const Four<uint8_t>*>(from);
    Four<uint8_t> values = {};
    for (int32_t i = 0; i < kFour; ++i) values.at[i] = i < count ? from[i] : uint8_t{0};
    return values;
}

template <typename T, typename Convert>
FASTLOAD_DEVICE void store_four_as(T* to, const float (&values)[kFour], int32_t count,
                                   Convert convert) {
    Four<T> made;
    for (int i = 0; i < kFour; ++i) made.at[i] = convert(values[i]);
    if (count == kFour && is_aligned(to)) {
        *reinterpret_cast<Four<T>*>(to) = made;
    } else {
        for (int32_t i = 0; i < kFour; ++i)
            if (i < count) to[i] = made.at[i];
    }
}

// Up to four values to the places from `at` on.
FASTLOAD_DEVICE void store_four(void* out, uint64_t at, const float (&values)[kFour], int32_t count,
                                int32_t type) {
    if (type == kBytes) {
        store_four_as(static_cast<uint8_t*>(out) + at, values, count,
                      [](float x) { return static_cast<uint8_t>(x); });
    } else if (type == kFloat32) {
        store_four_as(static_cast<float*>(out) + at, values, count, [](float x) { return x; });
    } else if (type == kFloat16) {
        store_four_as(static_cast<uint16_t*>(out) + at, values, count,
                      [](float x) { return half_of(x); });
    } else if (type == kBfloat16) {
        store_four_as(static_cast<uint16_t*>(out) + at, values, count,
                      [](float x) { return bfloat16_of(x); });
    } else {
        store_four_as(static_cast<double*>(out) + at, values, count,
                      [](float x) { return static_cast<double>(x); });
    }
}

}  // namespace fastload::device
