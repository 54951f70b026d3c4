// Hue, saturation and value of packed RGB pixels, 64 at a time, by tables of bytes: the pixels of
// `change_hsv`, for processors that look up 64 bytes with one instruction (AVX-512 VBMI and VBMI2).
// Included as colour.inl.hpp is.
#pragma once

#include "colour_blocks.inl.hpp"
#include "packed_pixels.inl.hpp"

#if defined(FASTLOAD_PACKED_PIXELS)
namespace fastload {
namespace {

// Bits 8 * kByte to 8 * kByte + 7 of OpenCV's divisors (`divisor_of`) of 0 to kCount - 1.
template <int kScale, int kByte, int kCount>
constexpr Listed<kCount> kDivisors([](int x) {
    const int divisor =
        x == 0 ? 0
               : static_cast<int>(divisor_of(static_cast<float>(kScale), static_cast<float>(x)));
    // That of 1 for the hue has 17 bits: `angles` takes its half.
    return (kScale == 30 && x == 1 ? divisor / 2 : divisor) >> (8 * kByte);
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

class HsvPixels {
  public:
    explicit HsvPixels(const HsvGains& gains)
        : hue_{by_hue(gains, 0), by_hue(gains, 1), by_hue(gains, 2), by_hue(gains, 3)},
          saturation_(Listed<256>([&](int x) {
              const int made = gained(x, gains.saturation) + gains.saturation_shift;
              return x > 0 || gains.colours_grey ? std::clamp(made, 0, 255) : 0;
          })),
          value_(Listed<256>([&](int x) {
              return std::clamp(gained(x, gains.value) + gains.value_shift, 0, 255);
          })) {}

    // Changes up to PackedPixels::kMost pixels. kReorders: then their channels are brought in this
    // order.
    template <bool kReorders>
    void change(uint8_t* pixels, size_t count, const ChannelOrder& order) const {
        const PackedPixels shown(count);
        __m512i rgb[3];
        shown.read(pixels, rgb);
        to_rgb(to_hsv(rgb), rgb);
        if (kReorders) {
            const __m512i before[3] = {rgb[0], rgb[1], rgb[2]};
            for (int k = 0; k < 3; ++k) rgb[k] = before[order.of[k]];
        }
        shown.write(pixels, rgb);
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

    // Of 16 pixels: the value less the chroma, and less a part of it. As `change_hsv`.
    template <int kPart>
    static void mix(const Hsv& hsv, __m512i* least, __m512i* third) {
        const __m512 s = _mm512_mul_ps(floats_of<kPart>(hsv.saturation),
                                       _mm512_set1_ps(1.0f / 255.0f)),
                     v = floats_of<kPart>(hsv.value), chroma = _mm512_mul_ps(v, s),
                     weight = _mm512_mul_ps(floats_of<kPart>(hsv.hue[0], hsv.hue[1], hsv.hue[2]),
                                            _mm512_set1_ps(1.0f / Hues::kOne));
        least[kPart] = _mm512_cvtps_epi32(_mm512_sub_ps(v, chroma));
        third[kPart] = _mm512_cvtps_epi32(_mm512_sub_ps(v, _mm512_mul_ps(chroma, weight)));
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
