// What steps of colour work by: tables of 256 numbers, and gains of whole numbers. Included as
// `colour.inl.hpp` is.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace fastload {
namespace {

// What becomes of each byte raised to a power on the scale 0..1; see fastload/render/gamma.py.
struct GammaTable {
    const float* of = nullptr;  // the exponent that it was made of
    uint8_t made[256];

    void make(const float* exponent) {
        if (of == exponent) return;
        of = exponent;
        for (int x = 0; x < 256; ++x) {
            const double value =
                std::pow(x * (1.0 / 255.0), static_cast<double>(*exponent)) * 255.0;
            made[x] = static_cast<uint8_t>(value > 0.0 ? std::min(value, 255.0) : 0.0);
        }
    }
};

// A gain of whole numbers below 256, cut off after it: x * gain = x * mantissa / 2^shift, of which
// the product is below 2^32 and exact. No gain is below 0; what is no number counts as 0.
struct WholeGain {
    uint32_t mantissa = 0, shift = 0;

    void make(double gain) {
        *this = {};
        if (!(gain > 0.0)) return;
        int exponent = 0;
        const double fraction = std::frexp(std::min(gain, 255.0), &exponent);  // 0.5 to 1
        if (exponent <= -8) return;  // below 2^-8: less than 1 of any of them
        mantissa = static_cast<uint32_t>(fraction * (1 << 24));
        shift = static_cast<uint32_t>(24 - exponent);
    }
};

// What becomes of hue, saturation and value, of a step of three gains; see
// fastload/render/hsv.py.
struct HsvGains {
    const float* of = nullptr;  // the gains that they were made of
    WholeGain hue, saturation, value;

    void make(const float* gains) {
        if (of == gains) return;
        of = gains;
        hue.make(std::fmod(static_cast<double>(gains[0]), 180.0));  // a whole turn more is none
        saturation.make(gains[1]);
        value.make(gains[2]);
    }
};

// Of the steps of an image that work by these, those of the last of each kind.
struct Tables {
    HsvGains hsv;
    GammaTable gamma;
};

}  // namespace
}  // namespace fastload
