// The vector operations that the inner loops are written with, once per instruction set.
//
// A vector is `kLanes` lanes of 16 bytes, and no operation crosses lanes: what a loop does to one lane it does to all,
// so that the same source runs on 16, 32 and 64 bytes. Wrappers of our own and not a library (Google Highway): the
// loops need about forty operations, most of them one instruction everywhere; a library would be one more thing that
// has to be there when `pip install` builds this, and those in use (Highway's in Debian, for one) have the saturating
// and pairwise operations in other shapes.
//
// Every file that includes this is compiled for one target; all is in an anonymous namespace so that the linker never
// mixes them. `Simd` is the best that the flags of the file allow, or the portable one with FASTLOAD_SIMD_PORTABLE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

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

struct Simd {
    struct V {
        alignas(16) uint8_t b[16];
    };
    static constexpr int kLanes = 1;
    static constexpr bool kDots = false;

    template <typename T>
    struct Of {
        static constexpr int kCount = 16 / sizeof(T);
        T at[kCount];
        Of() = default;
        explicit Of(V v) { std::memcpy(at, v.b, 16); }
        operator V() const {
            V v;
            std::memcpy(v.b, at, 16);
            return v;
        }
    };
    template <typename T, typename F>
    static V map(V a, V b, F function) {
        Of<T> x(a), y(b), out;
        for (int i = 0; i < Of<T>::kCount; ++i) out.at[i] = static_cast<T>(function(x.at[i], y.at[i]));
        return out;
    }
    template <typename T>
    static V interleave(V a, V b, int from) {
        Of<T> x(a), y(b), out;
        constexpr int half = Of<T>::kCount / 2;
        for (int i = 0; i < half; ++i) {
            out.at[2 * i] = x.at[from * half + i];
            out.at[2 * i + 1] = y.at[from * half + i];
        }
        return out;
    }
    template <typename From, typename To>
    static V narrow(V a, V b) {
        Of<From> x(a), y(b);
        Of<To> out;
        constexpr From low = sizeof(To) == 2 ? -32768 : (To(-1) < 0 ? -128 : 0);
        constexpr From high = sizeof(To) == 2 ? 32767 : (To(-1) < 0 ? 127 : 255);
        for (int i = 0; i < Of<To>::kCount; ++i) {
            const From value = i < Of<From>::kCount ? x.at[i] : y.at[i - Of<From>::kCount];
            out.at[i] = static_cast<To>(value < low ? low : value > high ? high : value);
        }
        return out;
    }
    template <typename T>
    static V fill(T value) {
        Of<T> out;
        for (T& element : out.at) element = value;
        return out;
    }

    static V load(const void* from) { V v; std::memcpy(v.b, from, 16); return v; }
    static void store(void* to, V v) { std::memcpy(to, v.b, 16); }
    static V repeat(const void* from) { return load(from); }
    template <typename T>
    static V load_lanes(const T* const* from, int64_t offset) { return load(from[0] + offset); }
    static void store_lanes(uint8_t* to, ptrdiff_t, V v) { store(to, v); }
    static void store_each(uint8_t* const* to, int64_t offset, V v) { store(to[0] + offset, v); }
    static void store_halves(uint8_t* to, V v) { std::memcpy(to, v.b, 8); }
    static V shuffle(V a, V places) {
        return map<uint8_t>(places, places, [&a](int place, int) { return place < 16 ? a.b[place] : 0; });
    }
    static V zero() { return fill<uint8_t>(0); }
    static V all8(int value) { return fill(static_cast<uint8_t>(value)); }
    static V all16(int value) { return fill(static_cast<int16_t>(value)); }
    static V all32(int value) { return fill(value); }
    static V add8(V a, V b) { return map<uint8_t>(a, b, [](int x, int y) { return x + y; }); }
    static V add16(V a, V b) { return map<int16_t>(a, b, [](int x, int y) { return x + y; }); }
    static V sub16(V a, V b) { return map<int16_t>(a, b, [](int x, int y) { return x - y; }); }
    static V mul16(V a, V b) { return map<int16_t>(a, b, [](int x, int y) { return x * y; }); }
    static V mul_round16(V a, V b) {
        return map<int16_t>(a, b, [](int x, int y) { return ((x * y >> 14) + 1) >> 1; });
    }
    static V add32(V a, V b) { return map<uint32_t>(a, b, [](uint32_t x, uint32_t y) { return x + y; }); }
    static V sub32(V a, V b) { return map<uint32_t>(a, b, [](uint32_t x, uint32_t y) { return x - y; }); }
    template <int kBits> static V left16(V a) { return map<uint16_t>(a, a, [](int x, int) { return x << kBits; }); }
    template <int kBits> static V left32(V a) {
        return map<uint32_t>(a, a, [](uint32_t x, uint32_t) { return x << kBits; });
    }
    template <int kBits> static V right16(V a) { return map<int16_t>(a, a, [](int x, int) { return x >> kBits; }); }
    template <int kBits> static V right32(V a) { return map<int32_t>(a, a, [](int x, int) { return x >> kBits; }); }
    static V right32(V a, int bits) { return map<int32_t>(a, a, [bits](int x, int) { return x >> bits; }); }
    static V madd16(V a, V b) {
        Of<int16_t> x(a), y(b);
        Of<uint32_t> out;
        for (int i = 0; i < 4; ++i) {
            out.at[i] = static_cast<uint32_t>(x.at[2 * i] * y.at[2 * i]) +
                        static_cast<uint32_t>(x.at[2 * i + 1] * y.at[2 * i + 1]);
        }
        return out;
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
    static V either(V a, V b) { return map<uint8_t>(a, b, [](int x, int y) { return x | y; }); }
    static V both(V a, V b) { return map<uint8_t>(a, b, [](int x, int y) { return x & y; }); }
    static V differ(V a, V b) { return map<uint8_t>(a, b, [](int x, int y) { return x ^ y; }); }
    static V equal32(V a, V b) { return map<int32_t>(a, b, [](int x, int y) { return x == y ? -1 : 0; }); }
    static V swap64(V a) { V v; std::memcpy(v.b, a.b + 8, 8); std::memcpy(v.b + 8, a.b, 8); return v; }
    static V swap32(V a) { Of<uint32_t> x(a), out; for (int i = 0; i < 4; ++i) out.at[i] = x.at[i ^ 1]; return out; }
    static V dot(V sum, V, V) { return sum; }
};

#elif defined(__aarch64__)

struct Simd {
    using V = uint8x16_t;
    static constexpr int kLanes = 1;
    static constexpr bool kDots = false;

    static int16x8_t s16(V v) { return vreinterpretq_s16_u8(v); }
    static uint16x8_t u16(V v) { return vreinterpretq_u16_u8(v); }
    static int32x4_t s32(V v) { return vreinterpretq_s32_u8(v); }
    static uint32x4_t u32(V v) { return vreinterpretq_u32_u8(v); }
    static uint64x2_t u64(V v) { return vreinterpretq_u64_u8(v); }
    static V v8(int16x8_t v) { return vreinterpretq_u8_s16(v); }
    static V v8(uint16x8_t v) { return vreinterpretq_u8_u16(v); }
    static V v8(int32x4_t v) { return vreinterpretq_u8_s32(v); }
    static V v8(uint32x4_t v) { return vreinterpretq_u8_u32(v); }
    static V v8(uint64x2_t v) { return vreinterpretq_u8_u64(v); }

    static V load(const void* from) { return vld1q_u8(static_cast<const uint8_t*>(from)); }
    static void store(void* to, V v) { vst1q_u8(static_cast<uint8_t*>(to), v); }
    static V repeat(const void* from) { return load(from); }
    template <typename T>
    static V load_lanes(const T* const* from, int64_t offset) { return load(from[0] + offset); }
    static void store_lanes(uint8_t* to, ptrdiff_t, V v) { store(to, v); }
    static void store_each(uint8_t* const* to, int64_t offset, V v) { store(to[0] + offset, v); }
    static V shuffle(V a, V places) { return vqtbl1q_u8(a, places); }
    static void store_halves(uint8_t* to, V v) { vst1_u8(to, vget_low_u8(v)); }
    static V zero() { return vdupq_n_u8(0); }
    static V all8(int value) { return vdupq_n_u8(static_cast<uint8_t>(value)); }
    static V all16(int value) { return v8(vdupq_n_s16(static_cast<int16_t>(value))); }
    static V all32(int value) { return v8(vdupq_n_s32(value)); }
    static V add8(V a, V b) { return vaddq_u8(a, b); }
    static V add16(V a, V b) { return v8(vaddq_s16(s16(a), s16(b))); }
    static V sub16(V a, V b) { return v8(vsubq_s16(s16(a), s16(b))); }
    static V mul16(V a, V b) { return v8(vmulq_s16(s16(a), s16(b))); }
    static V mul_round16(V a, V b) { return v8(vqrdmulhq_s16(s16(a), s16(b))); }
    static V add32(V a, V b) { return v8(vaddq_s32(s32(a), s32(b))); }
    static V sub32(V a, V b) { return v8(vsubq_s32(s32(a), s32(b))); }
    template <int kBits> static V left16(V a) { return v8(vshlq_n_s16(s16(a), kBits)); }
    template <int kBits> static V left32(V a) { return v8(vshlq_n_s32(s32(a), kBits)); }
    template <int kBits> static V right16(V a) { return v8(vshrq_n_s16(s16(a), kBits)); }
    template <int kBits> static V right32(V a) { return v8(vshrq_n_s32(s32(a), kBits)); }
    static V right32(V a, int bits) { return v8(vshlq_s32(s32(a), vdupq_n_s32(-bits))); }
    static V madd16(V a, V b) {
        const int32x4_t low = vmull_s16(vget_low_s16(s16(a)), vget_low_s16(s16(b)));
        return v8(vpaddq_s32(low, vmull_high_s16(s16(a), s16(b))));
    }
    static V pack32(V a, V b) { return v8(vcombine_s16(vqmovn_s32(s32(a)), vqmovn_s32(s32(b)))); }
    static V pack16(V a, V b) {
        return vreinterpretq_u8_s8(vcombine_s8(vqmovn_s16(s16(a)), vqmovn_s16(s16(b))));
    }
    static V pack16u(V a, V b) { return vcombine_u8(vqmovun_s16(s16(a)), vqmovun_s16(s16(b))); }
    static V low8(V a, V b) { return vzip1q_u8(a, b); }
    static V high8(V a, V b) { return vzip2q_u8(a, b); }
    static V low16(V a, V b) { return v8(vzip1q_u16(u16(a), u16(b))); }
    static V high16(V a, V b) { return v8(vzip2q_u16(u16(a), u16(b))); }
    static V low32(V a, V b) { return v8(vzip1q_u32(u32(a), u32(b))); }
    static V high32(V a, V b) { return v8(vzip2q_u32(u32(a), u32(b))); }
    static V low64(V a, V b) { return v8(vzip1q_u64(u64(a), u64(b))); }
    static V high64(V a, V b) { return v8(vzip2q_u64(u64(a), u64(b))); }
    static V either(V a, V b) { return vorrq_u8(a, b); }
    static V both(V a, V b) { return vandq_u8(a, b); }
    static V differ(V a, V b) { return veorq_u8(a, b); }
    static V equal32(V a, V b) { return v8(vceqq_s32(s32(a), s32(b))); }
    static V swap64(V a) { return vextq_u8(a, a, 8); }
    static V swap32(V a) { return v8(vrev64q_u32(u32(a))); }
    static V dot(V sum, V, V) { return sum; }
};

#else  // x86

#if defined(__AVX512BW__)
#define FASTLOAD_VECTOR __m512i
#define FASTLOAD_OP(name) _mm512_##name
#elif defined(__AVX2__)
#define FASTLOAD_VECTOR __m256i
#define FASTLOAD_OP(name) _mm256_##name
#else
#define FASTLOAD_VECTOR __m128i
#define FASTLOAD_OP(name) _mm_##name
#endif

struct Simd {
    using V = FASTLOAD_VECTOR;
    static constexpr int kLanes = sizeof(V) / 16;
#if defined(__AVX512VNNI__)
    static constexpr bool kDots = true;
    static V dot(V sum, V bytes, V weights) { return _mm512_dpbusd_epi32(sum, bytes, weights); }
#else
    static constexpr bool kDots = false;
    static V dot(V sum, V, V) { return sum; }
#endif

    static __m128i load16(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
    static void store16(void* to, __m128i v) { _mm_storeu_si128(static_cast<__m128i*>(to), v); }
    static void store8(void* to, __m128i v) { _mm_storel_epi64(static_cast<__m128i*>(to), v); }

#if defined(__AVX512BW__)
    static V load(const void* from) { return _mm512_loadu_si512(from); }
    static void store(void* to, V v) { _mm512_storeu_si512(to, v); }
    static V repeat(const void* from) { return _mm512_broadcast_i32x4(load16(from)); }
    template <typename T>
    static V load_lanes(const T* const* from, int64_t offset) {
        V v = _mm512_castsi128_si512(load16(from[0] + offset));
        v = _mm512_inserti32x4(v, load16(from[1] + offset), 1);
        v = _mm512_inserti32x4(v, load16(from[2] + offset), 2);
        return _mm512_inserti32x4(v, load16(from[3] + offset), 3);
    }
    static void store_lanes(uint8_t* to, ptrdiff_t stride, V v) {
        store16(to, _mm512_castsi512_si128(v));
        store16(to + stride, _mm512_extracti32x4_epi32(v, 1));
        store16(to + 2 * stride, _mm512_extracti32x4_epi32(v, 2));
        store16(to + 3 * stride, _mm512_extracti32x4_epi32(v, 3));
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
    static V zero() { return _mm512_setzero_si512(); }
    static V either(V a, V b) { return _mm512_or_si512(a, b); }
    static V both(V a, V b) { return _mm512_and_si512(a, b); }
    static V differ(V a, V b) { return _mm512_xor_si512(a, b); }
    static V equal32(V a, V b) { return _mm512_maskz_set1_epi32(_mm512_cmpeq_epi32_mask(a, b), -1); }
    static V swap64(V a) { return _mm512_shuffle_epi32(a, _MM_PERM_BADC); }
    static V swap32(V a) { return _mm512_shuffle_epi32(a, _MM_PERM_CDAB); }
#elif defined(__AVX2__)
    static V load(const void* from) { return _mm256_loadu_si256(static_cast<const V*>(from)); }
    static void store(void* to, V v) { _mm256_storeu_si256(static_cast<V*>(to), v); }
    static V repeat(const void* from) { return _mm256_broadcastsi128_si256(load16(from)); }
    template <typename T>
    static V load_lanes(const T* const* from, int64_t offset) {
        return _mm256_inserti128_si256(_mm256_castsi128_si256(load16(from[0] + offset)), load16(from[1] + offset), 1);
    }
    static void store_lanes(uint8_t* to, ptrdiff_t stride, V v) {
        store16(to, _mm256_castsi256_si128(v));
        store16(to + stride, _mm256_extracti128_si256(v, 1));
    }
    static void store_each(uint8_t* const* to, int64_t offset, V v) {
        store16(to[0] + offset, _mm256_castsi256_si128(v));
        store16(to[1] + offset, _mm256_extracti128_si256(v, 1));
    }
    static void store_halves(uint8_t* to, V v) {
        store16(to, _mm256_castsi256_si128(_mm256_permute4x64_epi64(v, 0x08)));
    }
    static V zero() { return _mm256_setzero_si256(); }
    static V either(V a, V b) { return _mm256_or_si256(a, b); }
    static V both(V a, V b) { return _mm256_and_si256(a, b); }
    static V differ(V a, V b) { return _mm256_xor_si256(a, b); }
    static V equal32(V a, V b) { return _mm256_cmpeq_epi32(a, b); }
    static V swap64(V a) { return _mm256_shuffle_epi32(a, 0x4e); }
    static V swap32(V a) { return _mm256_shuffle_epi32(a, 0xb1); }
#else
    static V load(const void* from) { return load16(from); }
    static void store(void* to, V v) { store16(to, v); }
    static V repeat(const void* from) { return load16(from); }
    template <typename T>
    static V load_lanes(const T* const* from, int64_t offset) { return load16(from[0] + offset); }
    static void store_lanes(uint8_t* to, ptrdiff_t, V v) { store16(to, v); }
    static void store_each(uint8_t* const* to, int64_t offset, V v) { store16(to[0] + offset, v); }
    static void store_halves(uint8_t* to, V v) { store8(to, v); }
    static V zero() { return _mm_setzero_si128(); }
    static V either(V a, V b) { return _mm_or_si128(a, b); }
    static V both(V a, V b) { return _mm_and_si128(a, b); }
    static V differ(V a, V b) { return _mm_xor_si128(a, b); }
    static V equal32(V a, V b) { return _mm_cmpeq_epi32(a, b); }
    static V swap64(V a) { return _mm_shuffle_epi32(a, 0x4e); }
    static V swap32(V a) { return _mm_shuffle_epi32(a, 0xb1); }
#endif
    static V all8(int value) { return FASTLOAD_OP(set1_epi8)(static_cast<char>(value)); }
    static V all16(int value) { return FASTLOAD_OP(set1_epi16)(static_cast<int16_t>(value)); }
    static V all32(int value) { return FASTLOAD_OP(set1_epi32)(value); }
    static V add8(V a, V b) { return FASTLOAD_OP(add_epi8)(a, b); }
    static V add16(V a, V b) { return FASTLOAD_OP(add_epi16)(a, b); }
    static V sub16(V a, V b) { return FASTLOAD_OP(sub_epi16)(a, b); }
    static V mul16(V a, V b) { return FASTLOAD_OP(mullo_epi16)(a, b); }
    static V mul_round16(V a, V b) { return FASTLOAD_OP(mulhrs_epi16)(a, b); }
    static V add32(V a, V b) { return FASTLOAD_OP(add_epi32)(a, b); }
    static V sub32(V a, V b) { return FASTLOAD_OP(sub_epi32)(a, b); }
    static V shuffle(V a, V places) { return FASTLOAD_OP(shuffle_epi8)(a, places); }
    template <int kBits> static V left16(V a) { return FASTLOAD_OP(slli_epi16)(a, kBits); }
    template <int kBits> static V left32(V a) { return FASTLOAD_OP(slli_epi32)(a, kBits); }
    template <int kBits> static V right16(V a) { return FASTLOAD_OP(srai_epi16)(a, kBits); }
    template <int kBits> static V right32(V a) { return FASTLOAD_OP(srai_epi32)(a, kBits); }
    static V right32(V a, int bits) { return FASTLOAD_OP(sra_epi32)(a, _mm_cvtsi32_si128(bits)); }
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
};

#undef FASTLOAD_VECTOR
#undef FASTLOAD_OP

#endif

constexpr int kVectorBytes = 16 * Simd::kLanes;

}  // namespace
}  // namespace fastload
