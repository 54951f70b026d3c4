// 64 packed RGB pixels at a time, as bytes of their channels, and tables of bytes: for processors
// that look up 64 bytes with one instruction (AVX-512 VBMI and VBMI2). Included as colour.inl.hpp
// is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#if defined(__AVX512VBMI__) && defined(__AVX512VBMI2__)
#include <immintrin.h>

#define FASTLOAD_PACKED_PIXELS 1

namespace fastload {
namespace {

// kCount bytes, each a function of its place.
template <int kCount>
struct Listed {
    alignas(64) uint8_t bytes[kCount] = {};

    template <typename Function>
    constexpr explicit Listed(Function of) {
        for (int x = 0; x < kCount; ++x) bytes[x] = static_cast<uint8_t>(of(x));
    }
    __m512i part(int i) const { return _mm512_load_si512(bytes + 64 * i); }
};

// A number for each byte.
struct ByteTable {
    const __m512i parts[4];

    explicit ByteTable(const Listed<256>& from)
        : parts{from.part(0), from.part(1), from.part(2), from.part(3)} {}

    __m512i at(__m512i bytes) const {
        return _mm512_mask_blend_epi8(_mm512_movepi8_mask(bytes),
                                      _mm512_permutex2var_epi8(parts[0], bytes, parts[1]),
                                      _mm512_permutex2var_epi8(parts[2], bytes, parts[3]));
    }
};

// Of the 192 bytes of 64 pixels: where those of channel k lie, modulo 128; and where the bytes
// 64 * k to 64 * k + 63 come from: in the channels of red and green, one after the other, or in
// that of blue.
template <int k>
constexpr Listed<64> kFromPixels([](int i) { return (3 * i + k) & 127; });
template <int k>
constexpr Listed<64> kToPixels([](int i) {
    return (64 * k + i) / 3 + ((64 * k + i) % 3 == 1 ? 64 : 0);
});

// A bit for each of 64 bytes.
template <typename Function>
constexpr uint64_t bits_of(Function is) {
    uint64_t found = 0;
    for (int i = 0; i < 64; ++i) found |= static_cast<uint64_t>(is(i)) << i;
    return found;
}
template <int k>
constexpr uint64_t kInThird = bits_of([](int i) { return 3 * i + k >= 128; });
template <int k>
constexpr uint64_t kIsBlue = bits_of([](int i) { return (64 * k + i) % 3 == 2; });

// Bytes as 16-bit numbers, and these as bytes again. What `low` and `high` interleave, `packed`
// puts back in order: they work on lanes of 16 bytes.
inline __m512i low(__m512i a, __m512i b) { return _mm512_unpacklo_epi8(a, b); }
inline __m512i high(__m512i a, __m512i b) { return _mm512_unpackhi_epi8(a, b); }

// 16 of 64 numbers, lane by lane, of one byte or of three.
template <int kPart>
__m512 floats_of(__m512i bytes, __m512i second = _mm512_setzero_si512(),
                 __m512i third = _mm512_setzero_si512()) {
    const __m512i lower = kPart < 2 ? low(bytes, second) : high(bytes, second),
                  upper = kPart < 2 ? low(third, _mm512_setzero_si512())
                                    : high(third, _mm512_setzero_si512());
    return _mm512_cvtepi32_ps(kPart % 2 == 0 ? _mm512_unpacklo_epi16(lower, upper)
                                             : _mm512_unpackhi_epi16(lower, upper));
}

// The 64 numbers of such parts, cut to bytes.
inline __m512i bytes_of(const __m512i (&parts)[4]) {
    return _mm512_packus_epi16(_mm512_packs_epi32(parts[0], parts[1]),
                               _mm512_packs_epi32(parts[2], parts[3]));
}

// Reads and writes up to kMost pixels.
class PackedPixels {
  public:
    static constexpr size_t kMost = 64;

    explicit PackedPixels(size_t count) {
        for (size_t k = 0; k < 3; ++k) {
            const size_t bytes = 3 * count > 64 * k ? std::min<size_t>(3 * count - 64 * k, 64) : 0;
            shown_[k] = first(bytes);
        }
    }

    // As many bits.
    static __mmask64 first(size_t count) {
        return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
    }

    // The channels; 0 for pixels that there are not.
    void read(const uint8_t* pixels, __m512i (&rgb)[3]) const {
        __m512i taken[3];
        for (size_t k = 0; k < 3; ++k)
            taken[k] = _mm512_maskz_loadu_epi8(shown_[k], pixels + 64 * k);
        rgb[0] = channel<0>(taken);
        rgb[1] = channel<1>(taken);
        rgb[2] = channel<2>(taken);
    }

    void write(uint8_t* pixels, const __m512i (&rgb)[3]) const {
        _mm512_mask_storeu_epi8(pixels, shown_[0], packed<0>(rgb));
        _mm512_mask_storeu_epi8(pixels + 64, shown_[1], packed<1>(rgb));
        _mm512_mask_storeu_epi8(pixels + 128, shown_[2], packed<2>(rgb));
    }

  private:
    template <int k>
    static __m512i channel(const __m512i (&taken)[3]) {
        const __m512i places = kFromPixels<k>.part(0);
        return _mm512_mask_permutexvar_epi8(_mm512_permutex2var_epi8(taken[0], places, taken[1]),
                                            kInThird<k>, places, taken[2]);
    }

    template <int k>
    static __m512i packed(const __m512i (&rgb)[3]) {
        const __m512i places = kToPixels<k>.part(0);
        return _mm512_mask_permutexvar_epi8(_mm512_permutex2var_epi8(rgb[0], places, rgb[1]),
                                            kIsBlue<k>, places, rgb[2]);
    }

    __mmask64 shown_[3];
};

}  // namespace
}  // namespace fastload
#endif
