// Hue, saturation and value of packed RGB pixels, 64 at a time, by tables of bytes: the pixels of
// `change_hsv`, for processors that look up 64 bytes with one instruction (AVX-512 VBMI and VBMI2).
// Included as colour.inl.hpp is.
#pragma once

#include "colour_blocks.inl.hpp"

#if defined(__AVX512VBMI__) && defined(__AVX512VBMI2__)
#include <immintrin.h>

#define FASTLOAD_HSV_PIXELS 1

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

// Bits 8 * kByte to 8 * kByte + 7 of OpenCV's divisors (`divisor_of`) of 0 to kCount - 1.
template <int kScale, int kByte, int kCount>
constexpr Listed<kCount> kDivisors([](int x) {
    const int divisor =
        x == 0 ? 0
               : static_cast<int>(divisor_of(static_cast<float>(kScale), static_cast<float>(x)));
    // That of 1 for the hue has 17 bits: `angles` takes its half.
    return (kScale == 30 && x == 1 ? divisor / 2 : divisor) >> (8 * kByte);
});

// Of the 192 bytes of 64 pixels: where those of channel k lie, modulo 128; and where the bytes
// 64 * k to 64 * k + 63 come from: in the channels of red and green, one after the other, or in
// that of blue.
template <int k>
constexpr Listed<64> kFromPixels([](int i) { return (3 * i + k) & 127; });
template <int k>
constexpr Listed<64> kToPixels([](int i) {
    return (64 * k + i) / 3 + ((64 * k + i) % 3 == 1 ? 64 : 0);
});

// Of each hue, what the channels of a pixel are. One is the value; another, of weight 1, the value
// less the chroma; and the third lies between them, or is one of them: its weight, with 22
// fractional bits, is in the lower three bytes. In the upper one, bit c is set if channel c has the
// weight 1, and bit 4 + c if it is the third.
struct Hues {
    static constexpr float kOne = 1 << 22;
    uint32_t parts[180] = {};
    bool exact = true;  // whether all weights have 22 fractional bits, and there are such channels

    constexpr Hues() {
        for (int hue = 0; hue < 180; ++hue) {
            int whole = -1, none = -1;
            float weights[3] = {};
            for (int c = 0; c < 3; ++c) {
                weights[c] = weight_of_hue(static_cast<float>(5 - 2 * c),
                                           static_cast<float>(hue) * (1.0f / 30.0f));
                if (weights[c] == 1.0f) whole = c;
                if (weights[c] == 0.0f) none = c;
            }
            const int third = 3 - whole - none;
            if (whole < 0 || none < 0) {
                exact = false;
                continue;
            }
            const auto weight = static_cast<uint32_t>(weights[third] * kOne);
            exact = exact && static_cast<float>(weight) == weights[third] * kOne;
            parts[hue] = weight | 1u << (24 + whole) | 1u << (28 + third);
        }
    }
};
constexpr Hues kHues;
static_assert(kHues.exact, "weights of hues");

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

class HsvPixels {
  public:
    static constexpr size_t kMost = 64;

    explicit HsvPixels(const HsvGains& gains)
        : hue_{by_hue(gains, 0), by_hue(gains, 1), by_hue(gains, 2), by_hue(gains, 3)},
          saturation_(Listed<256>([&](int x) {
              const int made = gained(x, gains.saturation) + gains.saturation_shift;
              return x > 0 || gains.colours_grey ? std::clamp(made, 0, 255) : 0;
          })),
          value_(Listed<256>([&](int x) {
              return std::clamp(gained(x, gains.value) + gains.value_shift, 0, 255);
          })) {}

    // Changes up to kMost pixels. kReorders: then their channels are brought in this order.
    template <bool kReorders>
    void change(uint8_t* pixels, size_t count, const ChannelOrder& order) const {
        __m512i taken[3], rgb[3];
        __mmask64 shown[3];
        for (size_t k = 0; k < 3; ++k) {
            const size_t bytes = 3 * count > 64 * k ? std::min<size_t>(3 * count - 64 * k, 64) : 0;
            shown[k] = bytes == 64 ? ~uint64_t{0} : (uint64_t{1} << bytes) - 1;
            taken[k] = _mm512_maskz_loadu_epi8(shown[k], pixels + 64 * k);
        }
        rgb[0] = channel<0>(taken);
        rgb[1] = channel<1>(taken);
        rgb[2] = channel<2>(taken);
        to_rgb(to_hsv(rgb), rgb);
        if (kReorders) {
            const __m512i before[3] = {rgb[0], rgb[1], rgb[2]};
            for (int k = 0; k < 3; ++k) rgb[k] = before[order.of[k]];
        }
        _mm512_mask_storeu_epi8(pixels, shown[0], packed<0>(rgb));
        _mm512_mask_storeu_epi8(pixels + 64, shown[1], packed<1>(rgb));
        _mm512_mask_storeu_epi8(pixels + 128, shown[2], packed<2>(rgb));
    }

  private:
    struct Hsv {
        __m512i hue[4];  // the parts of Hues
        __m512i saturation, value;
    };

    // Part k of what there is for the hue that becomes of another one. `angles` makes these from
    // -30 to 150, and adds 30.
    static ByteTable by_hue(const HsvGains& gains, int k) {
        return ByteTable(Listed<256>([&](int x) {
            const int hue = gained(x < 30 ? x + 150 : x - 30, gains.hue) + gains.hue_shift;
            return kHues.parts[hue % 180] >> (8 * k);
        }));
    }

    static int gained(int x, WholeGain gain) {
        return static_cast<int>((static_cast<uint32_t>(x) * gain.mantissa) >> gain.shift);
    }

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

    // (a * b) >> 11 of 16-bit numbers, of which the lowest 16 bits are kept.
    template <bool kSigned>
    static __m512i product(__m512i a, __m512i b) {
        __m512i upper = _mm512_mulhi_epu16(a, b);
        if (kSigned) upper = _mm512_mask_sub_epi16(upper, _mm512_movepi16_mask(a), upper, b);
        return _mm512_shldi_epi16(upper, _mm512_mullo_epi16(a, b), 5);
    }

    // The hue of 32 pixels, from -30 to 150, and 30: `difference` of two channels, in interleaved
    // bytes, and the chroma as often as it counts, twice each.
    static __m512i angles(__m512i difference, __m512i added, __m512i chroma, __m512i divisor) {
        const __m512i sixths = _mm512_add_epi16(
            _mm512_maddubs_epi16(difference, _mm512_set1_epi16(static_cast<int16_t>(0xff01))),
            _mm512_maddubs_epi16(added, _mm512_set1_epi16(0x0202)));
        const __m512i twice = product<true>(sixths, divisor);
        // The divisor of 1 has 17 bits: its half is taken, and the result not halved.
        const __mmask32 one = _mm512_cmpeq_epi16_mask(chroma, _mm512_set1_epi16(1));
        const __m512i made = _mm512_srai_epi16(_mm512_add_epi16(twice, _mm512_set1_epi16(61)), 1);
        return _mm512_mask_add_epi16(made, one, twice, _mm512_set1_epi16(30));
    }

    static __m512i strengths(__m512i chroma, __m512i divisor, __m512i above) {
        const __m512i more = _mm512_slli_epi16(_mm512_mullo_epi16(chroma, above), 5);
        return _mm512_avg_epu16(_mm512_add_epi16(product<false>(chroma, divisor), more),
                                _mm512_setzero_si512());
    }

    Hsv to_hsv(const __m512i (&rgb)[3]) const {
        Hsv hsv;
        const __m512i r = rgb[0], g = rgb[1], b = rgb[2], zero = _mm512_setzero_si512();
        const __m512i most = _mm512_max_epu8(_mm512_max_epu8(r, g), b),
                      least = _mm512_min_epu8(_mm512_min_epu8(r, g), b),
                      chroma = _mm512_sub_epi8(most, least);
        const __mmask64 not_red = _mm512_cmpneq_epu8_mask(most, r),
                        blue = _mm512_mask_cmpneq_epu8_mask(not_red, most, g);
        // g - b; b - r + 2 * chroma; r - g + 4 * chroma.
        const __m512i first = _mm512_mask_mov_epi8(_mm512_mask_mov_epi8(g, not_red, b), blue, r);
        const __m512i second = _mm512_mask_mov_epi8(_mm512_mask_mov_epi8(b, not_red, r), blue, g);
        const __m512i once = _mm512_maskz_mov_epi8(not_red, chroma),
                      again = _mm512_maskz_mov_epi8(blue, chroma);
        const __m512i chroma_low = low(chroma, zero), chroma_high = high(chroma, zero);
        __m512i below = hue_low_.at(chroma), above = hue_high_.at(chroma);
        const __m512i angle = _mm512_packus_epi16(
            angles(low(first, second), low(once, again), chroma_low, low(below, above)),
            angles(high(first, second), high(once, again), chroma_high, high(below, above)));
        for (int k = 0; k < 4; ++k) hsv.hue[k] = hue_[k].at(angle);
        below = saturation_low_.at(most), above = saturation_high_.at(most);
        // Divisors have more than 16 bits below 16. From there on the index has its upper bit set,
        // which gives 0.
        const __m512i upper = _mm512_shuffle_epi8(
            _mm512_broadcast_i32x4(
                _mm_load_si128(reinterpret_cast<const __m128i*>(kDivisors<255, 2, 16>.bytes))),
            _mm512_adds_epu8(most, _mm512_set1_epi8(112)));
        hsv.saturation = saturation_.at(
            _mm512_packus_epi16(strengths(chroma_low, low(below, above), low(upper, zero)),
                                strengths(chroma_high, high(below, above), high(upper, zero))));
        hsv.value = value_.at(most);
        return hsv;
    }

    // 16 of 64 numbers, lane by lane, of one byte or of three.
    template <int kPart>
    static __m512 floats(__m512i bytes, __m512i second = _mm512_setzero_si512(),
                         __m512i third = _mm512_setzero_si512()) {
        const __m512i lower = kPart < 2 ? low(bytes, second) : high(bytes, second),
                      upper = kPart < 2 ? low(third, _mm512_setzero_si512())
                                        : high(third, _mm512_setzero_si512());
        return _mm512_cvtepi32_ps(kPart % 2 == 0 ? _mm512_unpacklo_epi16(lower, upper)
                                                 : _mm512_unpackhi_epi16(lower, upper));
    }

    // Of 16 pixels: the value less the chroma, and less a part of it. As `change_hsv`.
    template <int kPart>
    static void mix(const Hsv& hsv, __m512i* least, __m512i* third) {
        const __m512 s = _mm512_mul_ps(floats<kPart>(hsv.saturation),
                                       _mm512_set1_ps(1.0f / 255.0f)),
                     v = floats<kPart>(hsv.value), chroma = _mm512_mul_ps(v, s),
                     weight = _mm512_mul_ps(floats<kPart>(hsv.hue[0], hsv.hue[1], hsv.hue[2]),
                                            _mm512_set1_ps(1.0f / Hues::kOne));
        least[kPart] = _mm512_cvtps_epi32(_mm512_sub_ps(v, chroma));
        third[kPart] = _mm512_cvtps_epi32(_mm512_sub_ps(v, _mm512_mul_ps(chroma, weight)));
    }

    static __m512i bytes_of(const __m512i (&parts)[4]) {
        return _mm512_packus_epi16(_mm512_packs_epi32(parts[0], parts[1]),
                                   _mm512_packs_epi32(parts[2], parts[3]));
    }

    static void to_rgb(const Hsv& hsv, __m512i (&rgb)[3]) {
        __m512i parts[4], thirds[4];
        mix<0>(hsv, parts, thirds);
        mix<1>(hsv, parts, thirds);
        mix<2>(hsv, parts, thirds);
        mix<3>(hsv, parts, thirds);
        const __m512i least = bytes_of(parts), third = bytes_of(thirds);
        for (int c = 0; c < 3; ++c) {
            const auto has = [&](int bit) {
                return _mm512_test_epi8_mask(hsv.hue[3],
                                             _mm512_set1_epi8(static_cast<char>(1 << bit)));
            };
            rgb[c] = _mm512_mask_mov_epi8(_mm512_mask_mov_epi8(hsv.value, has(c), least),
                                          has(4 + c), third);
        }
    }

    const ByteTable hue_[4], saturation_, value_;
    const ByteTable hue_low_{kDivisors<30, 0, 256>}, hue_high_{kDivisors<30, 1, 256>},
        saturation_low_{kDivisors<255, 0, 256>}, saturation_high_{kDivisors<255, 1, 256>};
};

}  // namespace
}  // namespace fastload
#endif
