// Vector operations for the inner loops, for SSE4.1, AVX2, AVX-512, NEON, and without any of these.
//
// A vector V has kLanes lanes of 16 bytes, and no operation moves data between lanes. So a loop
// that is written for one lane runs unchanged on vectors of 16, 32 and 64 bytes. Our own wrappers
// are used and no library (Google Highway), which would have to be installed when `pip install`
// builds this, and defines the saturating and pairwise operations differently.
//
// Each file that includes this is compiled for one instruction set. Everything is in an anonymous
// namespace, so that the linker does not mix variants. `Simd` is the best that the compiler flags
// allow, or the portable one with FASTLOAD_SIMD_PORTABLE.
//
// Names of operations: the number at the end is the width of the elements [bits]. `madd16`
// multiplies 16-bit numbers and adds neighbouring products; `mul_round16` is the upper half of 2 a
// b, rounded; `mul_wide32` multiplies the lower halves of 64-bit numbers, unsigned; `packN` narrows
// N-bit numbers with saturation, `pack16u` to unsigned bytes; `lowN` and `highN` interleave the
// lower or upper halves of two lanes; `shuffle` picks bytes of a lane, 0 for a negative index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#if !defined(FASTLOAD_SIMD_PORTABLE) && (defined(__SSE4_1__) || defined(__AVX2__))
#include <immintrin.h>
#elif !defined(FASTLOAD_SIMD_PORTABLE) && defined(__aarch64__)
#include <arm_neon.h>
#else
#undef FASTLOAD_SIMD_PORTABLE
#define FASTLOAD_SIMD_PORTABLE 1
#endif

namespace fastload {
namespace {

#if defined(FASTLOAD_SIMD_PORTABLE)
#define FASTLOAD_LANES 1
using V = uint8_t __attribute__((vector_size(16)));
#elif defined(__aarch64__)
#define FASTLOAD_LANES 1
using V = uint8x16_t;
#elif defined(__AVX512BW__)
#define FASTLOAD_LANES 4
#define FASTLOAD_OP(name) _mm512_##name
using V = __m512i;
#elif defined(__AVX2__)
#define FASTLOAD_LANES 2
#define FASTLOAD_OP(name) _mm256_##name
using V = __m256i;
#else
#define FASTLOAD_LANES 1
#define FASTLOAD_OP(name) _mm_##name
using V = __m128i;
#endif

constexpr int kLanes = FASTLOAD_LANES, kVectorBytes = 16 * kLanes;

using Loose __attribute__((aligned(1), may_alias)) = V;  // a vector at any address
using U8 = uint8_t __attribute__((vector_size(kVectorBytes)));
using I16 = int16_t __attribute__((vector_size(kVectorBytes)));
using U16 = uint16_t __attribute__((vector_size(kVectorBytes)));
using I32 = int32_t __attribute__((vector_size(kVectorBytes)));
using U32 = uint32_t __attribute__((vector_size(kVectorBytes)));
using U64 = uint64_t __attribute__((vector_size(kVectorBytes)));

// Operations that compilers have for vector types.
struct Common {
    static V load(const void* from) { return *static_cast<const Loose*>(from); }
    static void store(void* to, V v) { *static_cast<Loose*>(to) = v; }
    static V zero() { return V{}; }
    static V all8(int value) { return V(U8{} + static_cast<uint8_t>(value)); }
    static V all16(int value) { return V(U16{} + static_cast<uint16_t>(value)); }
    static V all32(int value) { return V(U32{} + static_cast<uint32_t>(value)); }
    static V add8(V a, V b) { return V(U8(a) + U8(b)); }
    static V add16(V a, V b) { return V(U16(a) + U16(b)); }
    static V sub16(V a, V b) { return V(U16(a) - U16(b)); }
    static V mul16(V a, V b) { return V(U16(a) * U16(b)); }
    static V add32(V a, V b) { return V(U32(a) + U32(b)); }
    static V sub32(V a, V b) { return V(U32(a) - U32(b)); }
    template <int kBits>
    static V left16(V a) {
        return V(U16(a) << kBits);
    }
    template <int kBits>
    static V left32(V a) {
        return V(U32(a) << kBits);
    }
    template <int kBits>
    static V right16(V a) {
        return V(I16(a) >> kBits);
    }
    template <int kBits>
    static V right32(V a) {
        return V(I32(a) >> kBits);
    }
    static V right32(V a, int bits) { return V(I32(a) >> bits); }
    static V bit_or(V a, V b) { return V(U8(a) | U8(b)); }
    static V bit_and(V a, V b) { return V(U8(a) & U8(b)); }
    static V bit_xor(V a, V b) { return V(U8(a) ^ U8(b)); }
    static V equal32(V a, V b) { return V(I32(a) == I32(b)); }
    // Whether there is `dot`: to each 32-bit number of `sum`, adds the products of four unsigned
    // bytes and four signed bytes.
    static constexpr bool kDots = false;
    static V dot(V sum, V, V) { return sum; }
};

#if FASTLOAD_LANES > 1
inline __m128i load16(const void* from) {
    return _mm_loadu_si128(static_cast<const __m128i*>(from));
}
inline void store16(void* to, __m128i v) { _mm_storeu_si128(static_cast<__m128i*>(to), v); }
#endif

// Loads the lanes of a vector from different addresses, and stores them there. `repeat`: the same
// 16 bytes in all lanes. `store_halves`: the lower 8 bytes of each lane, one after the other.
struct Lanes : Common {
#if FASTLOAD_LANES == 1
    static V repeat(const void* from) { return load(from); }
    template <typename T>
    static V load_lanes(const T* const* from, int64_t offset) {
        return load(from[0] + offset);
    }
    static void store_each(uint8_t* const* to, int64_t offset, V v) { store(to[0] + offset, v); }
    static void store_halves(uint8_t* to, V v) { std::memcpy(to, &v, 8); }
#elif FASTLOAD_LANES == 4
    static V repeat(const void* from) { return _mm512_broadcast_i32x4(load16(from)); }
    template <typename T>
    static V load_lanes(const T* const* from, int64_t offset) {
        V v = _mm512_castsi128_si512(load16(from[0] + offset));
        v = _mm512_inserti32x4(v, load16(from[1] + offset), 1);
        v = _mm512_inserti32x4(v, load16(from[2] + offset), 2);
        return _mm512_inserti32x4(v, load16(from[3] + offset), 3);
    }
    static void store_each(uint8_t* const* to, int64_t offset, V v) {
        store16(to[0] + offset, _mm512_castsi512_si128(v));
        store16(to[1] + offset, _mm512_extracti32x4_epi32(v, 1));
        store16(to[2] + offset, _mm512_extracti32x4_epi32(v, 2));
        store16(to[3] + offset, _mm512_extracti32x4_epi32(v, 3));
    }
    static void store_halves(uint8_t* to, V v) {
        const V low = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 0, 2, 4, 6), v);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(low));
    }
#else
    static V repeat(const void* from) { return _mm256_broadcastsi128_si256(load16(from)); }
    template <typename T>
    static V load_lanes(const T* const* from, int64_t offset) {
        return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(from[0] + offset)),
                                       load16(from[1] + offset), 1);
    }
    static void store_each(uint8_t* const* to, int64_t offset, V v) {
        store16(to[0] + offset, _mm256_castsi256_si128(v));
        store16(to[1] + offset, _mm256_extracti128_si256(v, 1));
    }
    static void store_halves(uint8_t* to, V v) {
        store16(to, _mm256_castsi256_si128(_mm256_permute4x64_epi64(v, 0x08)));
    }
#endif
    static void store_lanes(uint8_t* to, ptrdiff_t stride, V v) {
        uint8_t* each[kLanes];
        for (int i = 0; i < kLanes; ++i) each[i] = to + i * stride;
        store_each(each, 0, v);
    }
};

#if defined(FASTLOAD_SIMD_PORTABLE)

struct Simd : Lanes {
    // Alternating numbers of a and b: of their lower halves, or their upper ones if `half` is 1.
    template <typename T>
    static V interleave(V a, V b, int half) {
        constexpr int kCount = 8 / sizeof(T);
        T x[2 * kCount], y[2 * kCount], out[2 * kCount];
        store(x, a);
        store(y, b);
        for (int i = 0; i < kCount; ++i) {
            out[2 * i] = x[half * kCount + i];
            out[2 * i + 1] = y[half * kCount + i];
        }
        return load(out);
    }
    // The numbers of a, then of b, with saturation to half as many bytes.
    template <typename From, typename To>
    static V narrow(V a, V b) {
        constexpr int kCount = 16 / sizeof(From);
        constexpr From kLeast = std::numeric_limits<To>::min(),
                       kMost = std::numeric_limits<To>::max();
        From from[2 * kCount];
        To out[2 * kCount];
        store(from, a);
        store(from + kCount, b);
        for (int i = 0; i < 2 * kCount; ++i) {
            out[i] = static_cast<To>(from[i] < kLeast ? kLeast : from[i] > kMost ? kMost : from[i]);
        }
        return load(out);
    }

    static V shuffle(V a, V places) {
        uint8_t bytes[16], from[16], out[16];
        store(bytes, a);
        store(from, places);
        for (int i = 0; i < 16; ++i) out[i] = from[i] < 16 ? bytes[from[i]] : 0;
        return load(out);
    }
    static V mul_round16(V a, V b) {
        int16_t x[8], y[8];
        store(x, a);
        store(y, b);
        for (int i = 0; i < 8; ++i) x[i] = static_cast<int16_t>(((x[i] * y[i] >> 14) + 1) >> 1);
        return load(x);
    }
    static V madd16(V a, V b) {
        int16_t x[8], y[8];
        uint32_t out[4];
        store(x, a);
        store(y, b);
        for (int i = 0; i < 8; i += 2) {
            out[i / 2] =
                static_cast<uint32_t>(x[i] * y[i]) + static_cast<uint32_t>(x[i + 1] * y[i + 1]);
        }
        return load(out);
    }
    static V pack32(V a, V b) { return narrow<int32_t, int16_t>(a, b); }
    static V pack16(V a, V b) { return narrow<int16_t, int8_t>(a, b); }
    static V pack16u(V a, V b) { return narrow<int16_t, uint8_t>(a, b); }
    static V low8(V a, V b) { return interleave<uint8_t>(a, b, 0); }
    static V high8(V a, V b) { return interleave<uint8_t>(a, b, 1); }
    static V low16(V a, V b) { return interleave<uint16_t>(a, b, 0); }
    static V high16(V a, V b) { return interleave<uint16_t>(a, b, 1); }
    static V low32(V a, V b) { return interleave<uint32_t>(a, b, 0); }
    static V high32(V a, V b) { return interleave<uint32_t>(a, b, 1); }
    static V low64(V a, V b) { return interleave<uint64_t>(a, b, 0); }
    static V high64(V a, V b) { return interleave<uint64_t>(a, b, 1); }
    static V swap64(V a) { return low64(high64(a, a), a); }
    static V swap32(V a) { return V(U64(a) << 32 | U64(a) >> 32); }
    // Bit k is set if byte k is not zero.
    static uint64_t nonzero8(V a) {
        uint8_t bytes[16];
        store(bytes, a);
        uint64_t found = 0;
        for (int i = 0; i < 16; ++i) found |= uint64_t{bytes[i] != 0} << i;
        return found;
    }
};

#elif defined(__aarch64__)

struct Simd : Lanes {
    static V shuffle(V a, V places) { return vqtbl1q_u8(a, places); }
    static V mul_round16(V a, V b) { return V(vqrdmulhq_s16(int16x8_t(a), int16x8_t(b))); }
    static V mul_wide32(V a, V b) {
        return V(vmull_u32(vmovn_u64(uint64x2_t(a)), vmovn_u64(uint64x2_t(b))));
    }
    static V madd16(V a, V b) {
        const int32x4_t low = vmull_s16(vget_low_s16(int16x8_t(a)), vget_low_s16(int16x8_t(b)));
        return V(vpaddq_s32(low, vmull_high_s16(int16x8_t(a), int16x8_t(b))));
    }
    static V pack32(V a, V b) {
        return V(vcombine_s16(vqmovn_s32(int32x4_t(a)), vqmovn_s32(int32x4_t(b))));
    }
    static V pack16(V a, V b) {
        return V(vcombine_s8(vqmovn_s16(int16x8_t(a)), vqmovn_s16(int16x8_t(b))));
    }
    static V pack16u(V a, V b) {
        return vcombine_u8(vqmovun_s16(int16x8_t(a)), vqmovun_s16(int16x8_t(b)));
    }
    static V low8(V a, V b) { return vzip1q_u8(a, b); }
    static V high8(V a, V b) { return vzip2q_u8(a, b); }
    static V low16(V a, V b) { return V(vzip1q_u16(uint16x8_t(a), uint16x8_t(b))); }
    static V high16(V a, V b) { return V(vzip2q_u16(uint16x8_t(a), uint16x8_t(b))); }
    static V low32(V a, V b) { return V(vzip1q_u32(uint32x4_t(a), uint32x4_t(b))); }
    static V high32(V a, V b) { return V(vzip2q_u32(uint32x4_t(a), uint32x4_t(b))); }
    static V low64(V a, V b) { return V(vzip1q_u64(uint64x2_t(a), uint64x2_t(b))); }
    static V high64(V a, V b) { return V(vzip2q_u64(uint64x2_t(a), uint64x2_t(b))); }
    static V swap64(V a) { return vextq_u8(a, a, 8); }
    static V swap32(V a) { return V(vrev64q_u32(uint32x4_t(a))); }
    static uint64_t nonzero8(V a) {
        alignas(16) static constexpr uint8_t kBits[16] = {1, 2, 4, 8, 16, 32, 64, 128,
                                                          1, 2, 4, 8, 16, 32, 64, 128};
        const uint8x16_t set = vandq_u8(vtstq_u8(a, a), vld1q_u8(kBits));
        return static_cast<uint64_t>(vaddv_u8(vget_low_u8(set)) | vaddv_u8(vget_high_u8(set)) << 8);
    }
};

#else  // x86

struct Simd : Lanes {
#if defined(__AVX512VNNI__)
    static constexpr bool kDots = true;
    static V dot(V sum, V bytes, V weights) { return _mm512_dpbusd_epi32(sum, bytes, weights); }
#endif

    static V mul_round16(V a, V b) { return FASTLOAD_OP(mulhrs_epi16)(a, b); }
    static V mul_wide32(V a, V b) { return FASTLOAD_OP(mul_epu32)(a, b); }
    static V shuffle(V a, V places) { return FASTLOAD_OP(shuffle_epi8)(a, places); }
    static V madd16(V a, V b) { return FASTLOAD_OP(madd_epi16)(a, b); }
    static V pack32(V a, V b) { return FASTLOAD_OP(packs_epi32)(a, b); }
    static V pack16(V a, V b) { return FASTLOAD_OP(packs_epi16)(a, b); }
    static V pack16u(V a, V b) { return FASTLOAD_OP(packus_epi16)(a, b); }
    static V low8(V a, V b) { return FASTLOAD_OP(unpacklo_epi8)(a, b); }
    static V high8(V a, V b) { return FASTLOAD_OP(unpackhi_epi8)(a, b); }
    static V low16(V a, V b) { return FASTLOAD_OP(unpacklo_epi16)(a, b); }
    static V high16(V a, V b) { return FASTLOAD_OP(unpackhi_epi16)(a, b); }
    static V low32(V a, V b) { return FASTLOAD_OP(unpacklo_epi32)(a, b); }
    static V high32(V a, V b) { return FASTLOAD_OP(unpackhi_epi32)(a, b); }
    static V low64(V a, V b) { return FASTLOAD_OP(unpacklo_epi64)(a, b); }
    static V high64(V a, V b) { return FASTLOAD_OP(unpackhi_epi64)(a, b); }
    static V swap64(V a) { return FASTLOAD_OP(shuffle_epi32)(a, static_cast<_MM_PERM_ENUM>(0x4e)); }
    static V swap32(V a) { return FASTLOAD_OP(shuffle_epi32)(a, static_cast<_MM_PERM_ENUM>(0xb1)); }
#if FASTLOAD_LANES == 4
    static uint64_t nonzero8(V a) { return _mm512_test_epi8_mask(a, a); }
#else
    static uint64_t nonzero8(V a) {
        const V is_zero = FASTLOAD_OP(cmpeq_epi8)(a, zero());
        const auto zeros = static_cast<uint32_t>(FASTLOAD_OP(movemask_epi8)(is_zero));
        return ~zeros & (~uint32_t{0} >> (32 - kVectorBytes));
    }
#endif
};

#endif

}  // namespace
}  // namespace fastload
