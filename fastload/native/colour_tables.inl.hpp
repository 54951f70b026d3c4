// Parameters of colour operations, prepared once per image: a table of 256 bytes, and factors in
// fixed point. Included once per instruction set.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace fastload {
namespace {

// A gamma curve: 255 * (x / 255)^exponent for each byte x, cut to a byte; see
// fastload/render/gamma.py.
struct GammaTable {
    const float* source = nullptr;  // where the exponent of `made` was read
    uint8_t made[256];

    void make(const float* exponent) {
        if (source == exponent) return;
        source = exponent;
        for (int x = 0; x < 256; ++x) {
            const double value =
                std::pow(x * (1.0 / 255.0), static_cast<double>(*exponent)) * 255.0;
            made[x] = static_cast<uint8_t>(value > 0.0 ? std::min(value, 255.0) : 0.0);
        }
    }
};

// A factor for whole numbers x below 256, whose product is cut to a whole number: x * gain =
// x * mantissa / 2^shift. The mantissa has 24 bits, as a float's: x * mantissa is below 2^32, and
// the result exact. Gains below 0 and NaN count as 0.
struct WholeGain {
    uint32_t mantissa = 0, shift = 0;

    void make(double gain) {
        *this = {};
        if (!(gain > 0.0)) return;
        int exponent = 0;
        const double fraction = std::frexp(std::min(gain, 255.0), &exponent);  // 0.5 to 1
        if (exponent <= -8) return;  // below 2^-8: all products are below 1
        mantissa = static_cast<uint32_t>(fraction * (1 << 24));
        shift = static_cast<uint32_t>(24 - exponent);
    }
};

// A whole number from -255 to 255 that is added to whole numbers; 0 for anything else.
inline int32_t whole_shift(float number) {
    return number > -256.0f && number < 256.0f ? static_cast<int32_t>(number) : 0;
}

// The factors of an `hsv` step, and what is added then; see fastload/render/hsv.py.
struct HsvGains {
    const float* source = nullptr;  // where the numbers were read
    WholeGain hue, saturation, value;
    int32_t hue_shift = 0, saturation_shift = 0, value_shift = 0;  // the first is 0 to 179
    bool colours_grey = false;  // whether grey pixels get what is added to the saturation, too

    void make(const float* numbers) {
        if (source == numbers) return;
        source = numbers;
        hue.make(std::fmod(static_cast<double>(numbers[0]), 180.0));  // whole turns change nothing
        saturation.make(std::fabs(numbers[1]));
        colours_grey = numbers[1] < 0.0f;
        value.make(numbers[2]);
        hue_shift = (whole_shift(numbers[3]) + 360) % 180;
        saturation_shift = whole_shift(numbers[4]);
        value_shift = whole_shift(numbers[5]);
    }
};

// The parameters of the last step of each kind.
struct StepTables {
    HsvGains hsv;
    GammaTable gamma;
};

}  // namespace
}  // namespace fastload
