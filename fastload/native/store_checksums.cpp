#include "store_checksums.hpp"

#include <cstring>

#include "cpu.hpp"

#ifdef FASTLOAD_X86
#include <immintrin.h>
#endif

namespace fastload {
namespace {

// Of a polynomial with its coefficients in reverse, the lowest bit that of the highest power.
constexpr uint32_t kPolynomial32 = 0x82F63B78;
constexpr uint64_t kPolynomial64 = 0x9A6C9329AC4BC9B5;

// Times x, modulo the polynomial.
template <typename Word>
constexpr Word times_x(Word value, Word polynomial) {
    return static_cast<Word>((value >> 1) ^ ((value & 1) != 0 ? polynomial : 0));
}

// tables.of[k][b]: what a byte b adds that k bytes come after, in a block of 8.
template <typename Word, Word kPolynomial>
struct Tables {
    Word of[8][256];

    Tables() {
        for (unsigned byte = 0; byte < 256; ++byte) {
            Word value = static_cast<Word>(byte);
            for (int bit = 0; bit < 8; ++bit) value = times_x(value, kPolynomial);
            of[0][byte] = value;
        }
        for (int after = 1; after < 8; ++after)
            for (unsigned byte = 0; byte < 256; ++byte)
                of[after][byte] = static_cast<Word>((of[after - 1][byte] >> 8) ^
                                                    of[0][of[after - 1][byte] & 0xFF]);
    }
};

// The remainder after these bytes, from the one before them. By 8 bytes at a time (M. Kounavis and
// F. Berry, "A systematic approach to building high performance software-based CRC generators",
// 2005).
template <typename Word, Word kPolynomial>
Word by_tables(const uint8_t* data, size_t size, Word value) {
    static const Tables<Word, kPolynomial> tables;
    for (; size >= 8; data += 8, size -= 8) {
        Word next = 0;
        for (unsigned at = 0; at < 8; ++at) {
            const Word before = at < sizeof(Word) ? static_cast<Word>(value >> (8 * at)) : Word(0);
            next ^= tables.of[7 - at][(data[at] ^ before) & 0xFF];
        }
        value = next;
    }
    for (; size > 0; ++data, --size)
        value = static_cast<Word>((value >> 8) ^ tables.of[0][(value ^ *data) & 0xFF]);
    return value;
}

#ifdef FASTLOAD_X86
// Zig's compiler takes each extension that is not named for switched off, CRC32 beside SSE4.2, too.
__attribute__((target("sse4.2,crc32"))) uint32_t crc32c_by_instruction(const uint8_t* data,
                                                                       size_t size,
                                                                       uint32_t value) {
    uint64_t wide = value;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t block;
        std::memcpy(&block, data, 8);
        wide = _mm_crc32_u64(wide, block);
    }
    value = static_cast<uint32_t>(wide);
    for (; size > 0; ++data, --size) value = _mm_crc32_u8(value, *data);
    return value;
}

// x to this power, modulo the polynomial.
constexpr uint64_t power_of_x(int power) {
    uint64_t value = uint64_t{1} << 63;
    for (int times = 0; times < power; ++times) value = times_x(value, kPolynomial64);
    return value;
}

// Multiplications without carries: a block of 16 bytes, of which the first 8 are `a` and the others
// `b`, times x^128 is a * (x^192 mod P) + b * (x^128 mod P), and is added to the next block. The
// product of reversed numbers is that of the numbers, reversed, times x: so the powers are one
// less. The remainder of the last block is that of all bytes, 16 of them at least.
__attribute__((target("pclmul,sse4.1"))) uint64_t crc64_by_instruction(const uint8_t* data,
                                                                       size_t size,
                                                                       uint64_t value) {
    constexpr uint64_t kOfFirst = power_of_x(191), kOfSecond = power_of_x(127);
    const __m128i powers =
        _mm_set_epi64x(static_cast<long long>(kOfSecond), static_cast<long long>(kOfFirst));
    __m128i sum = _mm_cvtsi64_si128(static_cast<long long>(value));
    sum = _mm_xor_si128(sum, _mm_loadu_si128(reinterpret_cast<const __m128i*>(data)));
    for (data += 16, size -= 16; size >= 16; data += 16, size -= 16) {
        const __m128i first = _mm_clmulepi64_si128(sum, powers, 0x00);
        const __m128i second = _mm_clmulepi64_si128(sum, powers, 0x11);
        const __m128i next = _mm_loadu_si128(reinterpret_cast<const __m128i*>(data));
        sum = _mm_xor_si128(_mm_xor_si128(first, second), next);
    }
    uint8_t last[16];
    std::memcpy(last, &sum, 16);
    value = by_tables<uint64_t, kPolynomial64>(last, 16, 0);
    return by_tables<uint64_t, kPolynomial64>(data, size, value);
}
#endif

}  // namespace

uint32_t crc32c(const uint8_t* data, size_t size, bool plain) {
    const uint32_t start = ~uint32_t{0};
#ifdef FASTLOAD_X86
    static const bool has = this_processor().sse42;
    if (has && !plain) return ~crc32c_by_instruction(data, size, start);
#endif
    return ~by_tables<uint32_t, kPolynomial32>(data, size, start);
}

uint64_t crc64nvme(const uint8_t* data, size_t size, bool plain) {
    const uint64_t start = ~uint64_t{0};
#ifdef FASTLOAD_X86
    static const bool has = this_processor().pclmul;
    if (has && !plain && size >= 16) return ~crc64_by_instruction(data, size, start);
#endif
    return ~by_tables<uint64_t, kPolynomial64>(data, size, start);
}

}  // namespace fastload
