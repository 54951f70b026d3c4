// Steps of colour on packed RGB pixels, 64 at a time: the pixels of `recolour_in_blocks`. What
// makes a byte of a byte is a table, and neighbouring tables are one; the others work on channels
// in registers. Included as colour.inl.hpp is.
#pragma once

#include "colour_blocks.inl.hpp"
#include "packed_pixels.inl.hpp"

#if defined(FASTLOAD_PACKED_PIXELS)
namespace fastload {
namespace {

// A step that makes a byte of each byte. Returns whether it is one. `mean`: of the greys, for
// contrast.
template <typename Then>
bool byte_step(ColourKind kind, const float* numbers, float mean, Then then) {
    const float factor = numbers[0], second = numbers[1];
    switch (kind) {
        case ColourKind::brightness:
            then([&](uint8_t x) { return to_byte(to_float(x) * factor); });
            return true;
        case ColourKind::contrast:
            then([&](uint8_t x) { return to_byte(mul_add(mean, second, to_float(x) * factor)); });
            return true;
        case ColourKind::linear:
            then([&](uint8_t x) { return to_byte(to_float(x) * factor + second); });
            return true;
        case ColourKind::posterize:
            then([mask = to_byte(factor)](uint8_t x) { return static_cast<uint8_t>(x & mask); });
            return true;
        case ColourKind::solarize:
            then([&](uint8_t x) {
                return to_float(x) >= factor ? static_cast<uint8_t>(255 - x) : x;
            });
            return true;
        case ColourKind::solarize_add:
            then([&](uint8_t x) { return x < 128 ? to_byte(to_float(x) + factor) : x; });
            return true;
        default: return false;
    }
}

// Whether `PixelSteps` has this step.
inline bool fits_pixels(ColourKind kind, const float* numbers) {
    switch (kind) {
        case ColourKind::hue: return numbers[0] >= -3.0f && numbers[0] <= 3.0f;
        case ColourKind::saturation:
        case ColourKind::grey: return true;
        default: return byte_step(kind, numbers, 0.0f, [](auto) {});
    }
}

// Some steps, one after the other.
class PixelSteps {
  public:
    static constexpr int kMost = 8;

    void clear() { count_ = 0; }
    bool empty() const { return count_ == 0; }

    // At most kMost of them, which fit.
    void add(ColourKind kind, const float* numbers, float mean) {
        const bool after_table = count_ > 0 && steps_[count_ - 1].is_table;
        const bool is_table = byte_step(kind, numbers, mean, [&](auto function) {
            uint8_t* const table = steps_[after_table ? count_ - 1 : count_].table;
            for (int x = 0; x < 256; ++x)
                table[x] = function(after_table ? table[x] : static_cast<uint8_t>(x));
        });
        if (is_table && after_table) return;
        Step& step = steps_[count_++];
        step.is_table = is_table;
        step.kind = kind;
        step.numbers = numbers;
    }

    // Changes packed pixels. Returns the sum of their greys if `sums`, else 0.
    int64_t run(uint8_t* pixels, size_t plane, bool sums) const {
        __m512i total = _mm512_setzero_si512(), rgb[3];
        for (size_t done = 0; done < plane; done += PackedPixels::kMost) {
            const size_t count = std::min(PackedPixels::kMost, plane - done);
            const PackedPixels shown(count);
            shown.read(pixels + 3 * done, rgb);
            for (int step = 0; step < count_; ++step) change(steps_[step], rgb);
            if (sums) {
                __m512i greys[4];
                greys_of(rgb, greys);
                const __m512i all = bytes_of(greys);  // at most 255
                const __m512i some = _mm512_maskz_mov_epi8(PackedPixels::first(count), all);
                // In each eight bytes their sum.
                total = _mm512_add_epi64(total, _mm512_sad_epu8(some, _mm512_setzero_si512()));
            }
            if (count_ > 0) shown.write(pixels + 3 * done, rgb);
        }
        return _mm512_reduce_add_epi64(total);
    }

  private:
    struct Step {
        alignas(64) uint8_t table[256];
        bool is_table;
        ColourKind kind;
        const float* numbers;
    };

    static void change(const Step& step, __m512i (&rgb)[3]) {
        if (step.is_table) {
            const __m512i* const parts = reinterpret_cast<const __m512i*>(step.table);
            for (__m512i& channel : rgb) {
                const __mmask64 upper = _mm512_movepi8_mask(channel);
                channel = _mm512_mask_blend_epi8(
                    upper, _mm512_permutex2var_epi8(parts[0], channel, parts[1]),
                    _mm512_permutex2var_epi8(parts[2], channel, parts[3]));
            }
            return;
        }
        __m512i made[3][4];
        if (step.kind == ColourKind::grey) {
            greys_of(rgb, made[0]);
            rgb[0] = rgb[1] = rgb[2] = bytes_of(made[0]);
            return;
        }
        if (step.kind == ColourKind::saturation) {
            const __m512 factor = _mm512_set1_ps(step.numbers[0]),
                         rest = _mm512_set1_ps(step.numbers[1]);
            saturate<0>(rgb, factor, rest, made);
            saturate<1>(rgb, factor, rest, made);
            saturate<2>(rgb, factor, rest, made);
            saturate<3>(rgb, factor, rest, made);
        } else {
            const __m512 shift = _mm512_set1_ps(step.numbers[0]);
            turn<0>(rgb, shift, made);
            turn<1>(rgb, shift, made);
            turn<2>(rgb, shift, made);
            turn<3>(rgb, shift, made);
        }
        for (int c = 0; c < 3; ++c) rgb[c] = bytes_of(made[c]);
    }

    // As `grey_of`, of 16 pixels.
    static __m512i grey(__m512 red, __m512 green, __m512 blue) {
        const __m512 sum =
            _mm512_fmadd_ps(blue, _mm512_set1_ps(0.114f),
                            _mm512_fmadd_ps(green, _mm512_set1_ps(0.587f),
                                            _mm512_mul_ps(red, _mm512_set1_ps(0.2989f))));
        return _mm512_cvttps_epi32(sum);
    }

    static void greys_of(const __m512i (&rgb)[3], __m512i (&greys)[4]) {
        greys[0] = grey(floats_of<0>(rgb[0]), floats_of<0>(rgb[1]), floats_of<0>(rgb[2]));
        greys[1] = grey(floats_of<1>(rgb[0]), floats_of<1>(rgb[1]), floats_of<1>(rgb[2]));
        greys[2] = grey(floats_of<2>(rgb[0]), floats_of<2>(rgb[1]), floats_of<2>(rgb[2]));
        greys[3] = grey(floats_of<3>(rgb[0]), floats_of<3>(rgb[1]), floats_of<3>(rgb[2]));
    }

    // As `to_byte`. Of max and min, the second number counts where one is none.
    static __m512i to_bytes(__m512 x) {
        const __m512 above = _mm512_max_ps(x, _mm512_setzero_ps());
        return _mm512_cvttps_epi32(_mm512_min_ps(above, _mm512_set1_ps(255.0f)));
    }

    // As the function of that name.
    template <int kPart>
    static void saturate(const __m512i (&rgb)[3], __m512 factor, __m512 rest,
                         __m512i (&made)[3][4]) {
        const __m512 channels[3] = {floats_of<kPart>(rgb[0]), floats_of<kPart>(rgb[1]),
                                    floats_of<kPart>(rgb[2])};
        const __m512 greys = _mm512_cvtepi32_ps(grey(channels[0], channels[1], channels[2]));
        for (int c = 0; c < 3; ++c)
            made[c][kPart] =
                to_bytes(_mm512_fmadd_ps(greys, rest, _mm512_mul_ps(channels[c], factor)));
    }

    // As `turn_hue` and `channel_of_hue` in range.
    template <int kPart>
    static void turn(const __m512i (&rgb)[3], __m512 shift, __m512i (&made)[3][4]) {
        const __m512 of_255 = _mm512_set1_ps(0.003921568859368563f), zero = _mm512_setzero_ps();
        const __m512 x = _mm512_mul_ps(floats_of<kPart>(rgb[0]), of_255),
                     y = _mm512_mul_ps(floats_of<kPart>(rgb[1]), of_255),
                     z = _mm512_mul_ps(floats_of<kPart>(rgb[2]), of_255);
        const __m512 largest = _mm512_max_ps(_mm512_max_ps(x, y), z),
                     least = _mm512_min_ps(_mm512_min_ps(x, y), z),
                     chroma = _mm512_sub_ps(largest, least),
                     divisor = _mm512_max_ps(chroma, _mm512_set1_ps(1e-12f));
        const __mmask16 red = _mm512_cmpeq_ps_mask(largest, x),
                        green = _mm512_cmpeq_ps_mask(largest, y);
        const __m512 minuend = _mm512_mask_mov_ps(_mm512_mask_mov_ps(x, green, z), red, y),
                     subtrahend = _mm512_mask_mov_ps(_mm512_mask_mov_ps(y, green, x), red, z);
        const __m512 first = _mm512_mask_mov_ps(
            _mm512_mask_mov_ps(_mm512_set1_ps(4.0f), green, _mm512_set1_ps(2.0f)), red, zero);
        const __m512 angle = _mm512_add_ps(
            _mm512_add_ps(_mm512_div_ps(_mm512_sub_ps(minuend, subtrahend), divisor), first),
            shift);
        made[0][kPart] = channel(5.0f, angle, largest, chroma);
        made[1][kPart] = channel(3.0f, angle, largest, chroma);
        made[2][kPart] = channel(1.0f, angle, largest, chroma);
    }

    static __m512i channel(float n, __m512 angle, __m512 largest, __m512 chroma) {
        const __m512 one = _mm512_set1_ps(1.0f), zero = _mm512_setzero_ps(),
                     six = _mm512_set1_ps(6.0f);
        __m512 k = _mm512_add_ps(angle, _mm512_set1_ps(n));
        // Whole turns less: one rounding, as of the product with a whole number and the sum.
        const __mmask16 below = _mm512_cmp_ps_mask(k, zero, _CMP_LT_OQ),
                        once = _mm512_cmp_ps_mask(k, six, _CMP_GE_OQ),
                        twice = _mm512_cmp_ps_mask(k, _mm512_set1_ps(12.0f), _CMP_GE_OQ);
        const __m512 turns = _mm512_mask_mov_ps(
            _mm512_mask_mov_ps(_mm512_maskz_mov_ps(below, _mm512_set1_ps(-6.0f)), once, six), twice,
            _mm512_set1_ps(12.0f));
        k = _mm512_sub_ps(k, turns);
        __m512 weight = _mm512_min_ps(k, _mm512_sub_ps(_mm512_set1_ps(4.0f), k));
        weight = _mm512_min_ps(_mm512_max_ps(weight, zero), one);
        return to_bytes(
            _mm512_mul_ps(_mm512_fnmadd_ps(weight, chroma, largest), _mm512_set1_ps(255.999f)));
    }

    Step steps_[kMost];
    int count_ = 0;
};

// As `recolour_in_blocks`, for up to PixelSteps::kMost steps that fit.
bool recolour_pixels(const ColourTable& table, ptrdiff_t first, size_t plane, uint8_t* pixels) {
    const int32_t* kinds = table.kinds + first;
    const auto kind_of = [&](int step) { return static_cast<ColourKind>(kinds[step]); };
    const auto numbers_of = [&](int step) {
        return table.numbers + (first + step) * kColourNumbers;
    };
    if (table.steps > PixelSteps::kMost) return false;
    for (int step = 0; step < table.steps; ++step)
        if (kinds[step] >= 0 && !fits_pixels(kind_of(step), numbers_of(step))) return false;
    PixelSteps steps;
    float mean = 0.0f;
    for (int step = 0; step < table.steps; ++step) {
        if (kinds[step] < 0) continue;
        if (kind_of(step) == ColourKind::contrast) {
            const auto total = static_cast<double>(steps.run(pixels, plane, true));
            mean = static_cast<float>(total / static_cast<double>(plane));
            steps.clear();
        }
        steps.add(kind_of(step), numbers_of(step), mean);
    }
    if (!steps.empty()) steps.run(pixels, plane, false);
    return true;
}

}  // namespace
}  // namespace fastload
#endif
