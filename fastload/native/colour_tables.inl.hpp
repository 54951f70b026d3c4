// Tables of 256 numbers that steps of colour work by. Included as `colour.inl.hpp` is.
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

// What becomes of hue, saturation and value, of a step of three gains; see
// fastload/render/hsv.py.
struct HsvTables {
    const float* of = nullptr;  // the gains that they were made of
    float hue[256], saturation[256], value[256];

    static float scaled(int x, float gain) {
        const double made = x * static_cast<double>(gain);
        return static_cast<float>(static_cast<int>(made > 0.0 ? std::min(made, 255.0) : 0.0));
    }

    void make(const float* gains) {
        if (of == gains) return;
        of = gains;
        for (int x = 0; x < 256; ++x) {
            const double turned = std::fmod(x * static_cast<double>(gains[0]), 180.0);
            hue[x] = static_cast<float>(turned >= 0.0 ? static_cast<int>(turned) : 0);
            saturation[x] = scaled(x, gains[1]);
            value[x] = scaled(x, gains[2]);
        }
    }
};

// Of the steps of an image that work by tables, those of the last of each kind.
struct Tables {
    HsvTables hsv;
    GammaTable gamma;
};

}  // namespace
}  // namespace fastload
