// What a kernel needs of its compiler: NVRTC, which compiles it for a GPU, or g++ or Clang, which
// run one block of it on the host. The kernels use nothing else of either.
//
// A kernel is a sequence of loops over the threads of its block, with barriers between them:
//
//     FASTLOAD_KERNEL(name, Arguments, kThreads) {
//         FASTLOAD_SHARED(Memory, memory);
//         FASTLOAD_THREADS(t) memory.first[t] = ...;
//         FASTLOAD_BARRIER();
//         FASTLOAD_THREADS(t) ... = memory.first[other];
//     }
//
// On a GPU each loop runs once, for the thread that runs it. On the host it runs for all threads of
// the block, one after the other, or for every n-th of them where n threads of the host share a
// block (host.hpp): then a missing barrier is a race that ThreadSanitizer sees. A function with
// such loops of its own begins its parameters with FASTLOAD_WITHIN, and is called with
// FASTLOAD_HERE.
#pragma once

#ifdef __CUDACC__

// NVRTC has no headers.
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;

#define FASTLOAD_KERNEL(name, Arguments, threads) \
    extern "C" __global__ void __launch_bounds__(threads) name(const Arguments arguments)
#define FASTLOAD_DEVICE __device__ __forceinline__
#define FASTLOAD_CONSTANT __device__ const
#define FASTLOAD_SHARED(Type, name) __shared__ Type name
#define FASTLOAD_THREADS(t) for (uint32_t t = threadIdx.x, once = 0; once == 0; ++once)
#define FASTLOAD_BARRIER() __syncthreads()
#define FASTLOAD_BLOCK (blockIdx.x)
#define FASTLOAD_WITHIN
#define FASTLOAD_HERE
#define FASTLOAD_COUNT_TURN(segment)

namespace fastload::device {

// The 32 bits of `high` and `low`, one after the other, from bit `shift` (0 to 31) on.
FASTLOAD_DEVICE uint32_t bits_from(uint32_t high, uint32_t low, uint32_t shift) {
    return __funnelshift_l(low, high, shift);
}
FASTLOAD_DEVICE uint32_t reversed_bytes(uint32_t word) { return __byte_perm(word, 0, 0x0123); }
FASTLOAD_DEVICE void set_flag(uint32_t* flag) { atomicOr(flag, 1u); }

// Rounded once. No other product is part of a sum (`--fmad=false`).
FASTLOAD_DEVICE float times_plus(float a, float b, float c) { return __fmaf_rn(a, b, c); }
FASTLOAD_DEVICE float floor_of(float x) { return floorf(x); }
FASTLOAD_DEVICE uint32_t bits_of(float x) { return __float_as_uint(x); }
FASTLOAD_DEVICE float from_bits(uint32_t bits) { return __uint_as_float(bits); }
// The nearest float16, halves to even.
FASTLOAD_DEVICE uint16_t half_of(float x) {
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}
FASTLOAD_DEVICE double power_of(double base, double exponent) {
    return exp2(exponent * log2(base));
}

// Sums and extremes that threads of one block, or of several, come to: of whole numbers, so that
// their order does not matter.
FASTLOAD_DEVICE void add_to(uint32_t* sum, uint32_t value) { atomicAdd(sum, value); }
FASTLOAD_DEVICE void add_to(uint64_t* sum, uint64_t value) { atomicAdd(sum, value); }
FASTLOAD_DEVICE void keep_least(int32_t* least, int32_t value) { atomicMin(least, value); }
FASTLOAD_DEVICE void keep_most(int32_t* most, int32_t value) { atomicMax(most, value); }

}  // namespace fastload::device

#else

#include <cmath>
#include <cstring>

#include "cuda/host.hpp"

#define FASTLOAD_KERNEL(name, Arguments, threads) \
    inline void name([[maybe_unused]] const HostBlock& host, const Arguments& arguments)
#define FASTLOAD_DEVICE inline
#define FASTLOAD_CONSTANT constexpr
#define FASTLOAD_SHARED(Type, name) Type& name = *static_cast<Type*>(host.shared)
#define FASTLOAD_THREADS(t) for (uint32_t t = host.first; t < host.threads; t += host.step)
#define FASTLOAD_BARRIER() host.barrier()
#define FASTLOAD_BLOCK (host.index)
#define FASTLOAD_WITHIN [[maybe_unused]] const HostBlock &host,
#define FASTLOAD_HERE host,
#define FASTLOAD_COUNT_TURN(segment) \
    if (arguments.turns != nullptr) ++arguments.turns[segment]

namespace fastload::device {

inline uint32_t bits_from(uint32_t high, uint32_t low, uint32_t shift) {
    return static_cast<uint32_t>(((uint64_t{high} << 32 | low) << shift) >> 32);
}
inline uint32_t reversed_bytes(uint32_t word) { return __builtin_bswap32(word); }
inline void set_flag(uint32_t* flag) { __atomic_fetch_or(flag, 1u, __ATOMIC_RELAXED); }

// Compiled with -ffp-contract=off.
inline float times_plus(float a, float b, float c) { return std::fma(a, b, c); }
inline float floor_of(float x) { return std::floor(x); }
inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
inline uint16_t half_of(float x) {
    const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // not a number
    if (size >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // from 65,520 on
    // Below 2^-14 in steps of 2^-24: the sum with 0.5, whose last bit is that step, is rounded so.
    if (size < 0x38800000u)
        return static_cast<uint16_t>(sign | (bits_of(from_bits(size) + 0.5f) - 0x3f000000u));
    return static_cast<uint16_t>(sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13);
}
inline double power_of(double base, double exponent) {
    return std::exp2(exponent * std::log2(base));
}

template <typename T>
void add_to(T* sum, T value) {
    __atomic_fetch_add(sum, value, __ATOMIC_RELAXED);
}
inline void keep_least(int32_t* least, int32_t value) {
    int32_t known = __atomic_load_n(least, __ATOMIC_RELAXED);
    while (value < known && !__atomic_compare_exchange_n(least, &known, value, true,
                                                         __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}
inline void keep_most(int32_t* most, int32_t value) {
    int32_t known = __atomic_load_n(most, __ATOMIC_RELAXED);
    while (value > known && !__atomic_compare_exchange_n(most, &known, value, true,
                                                         __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

}  // namespace fastload::device

#endif
