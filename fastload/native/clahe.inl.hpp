// CIE L*a*b* in bytes, and means of tables: the loops of clahe.cpp. Included as colour.inl.hpp is,
// and compiled without contraction. Tables are looked up one by one, some pixels at a time, so that
// what is between two of them are loops of which compilers make vectors.
#pragma once

#include <algorithm>
#include <cstring>

#include "clahe.hpp"

namespace fastload {
namespace {

// Pixels at a time: what is between two look-ups stays in the first-level cache.
constexpr size_t kLabPixels = 256;

// Shifted to the right, rounded.
inline int32_t lab_descaled(int32_t x, int bits) { return (x + (1 << (bits - 1))) >> bits; }

inline uint8_t lab_limited(int32_t x) {
    const int32_t above = x > 0 ? x : 0;
    return static_cast<uint8_t>(above < 255 ? above : 255);
}

// Compilers make vectors of loops that look up tables as well, which takes longer: they do not see
// through this.
template <typename T>
inline T looked_up(const T* table, int32_t at) {
    __asm__("" : "+r"(at));
    return table[at];
}

// As ColourLoops::to_lab.
void to_lab(const LabTables& tables, const uint8_t* rgb, size_t count, uint8_t* lightness,
            uint8_t* a, uint8_t* b) {
    int32_t light[3][kLabPixels], place[3][kLabPixels], root[3][kLabPixels];
    uint8_t made[3][kLabPixels];
    for (size_t at = 0; at < count; at += kLabPixels) {
        const size_t some = std::min(kLabPixels, count - at);
        for (size_t i = 0; i < some; ++i, rgb += 3) {
            light[0][i] = looked_up(tables.linear, rgb[0]);
            light[1][i] = looked_up(tables.linear, rgb[1]);
            light[2][i] = looked_up(tables.linear, rgb[2]);
        }
        for (int row = 0; row < 3; ++row) {
            const int32_t m0 = tables.matrix[row][0], m1 = tables.matrix[row][1],
                          m2 = tables.matrix[row][2];
            for (size_t i = 0; i < some; ++i) {
                const int32_t found = lab_descaled(
                    light[0][i] * m0 + light[1][i] * m1 + light[2][i] * m2, LabTables::kMatrixBits);
                place[row][i] = found < LabTables::kRoots - 1 ? found : LabTables::kRoots - 1;
            }
        }
        for (size_t i = 0; i < some; ++i) {
            root[0][i] = looked_up(tables.roots, place[0][i]);
            root[1][i] = looked_up(tables.roots, place[1][i]);
            root[2][i] = looked_up(tables.roots, place[2][i]);
        }
        constexpr int kBits = LabTables::kRootBits;
        constexpr int32_t kScale = (116 * 255 + 50) / 100, kMiddle = 128 << kBits,
                          kShift = -((16 * 255 * (1 << kBits) + 50) / 100);
        for (size_t i = 0; i < some; ++i) {
            const int32_t x = root[0][i], y = root[1][i], z = root[2][i];
            made[0][i] = lab_limited(lab_descaled(kScale * y + kShift, kBits));
            made[1][i] = lab_limited(lab_descaled(500 * (x - y) + kMiddle, kBits));
            made[2][i] = lab_limited(lab_descaled(200 * (y - z) + kMiddle, kBits));
        }
        std::memcpy(lightness + at, made[0], some);
        std::memcpy(a + at, made[1], some);
        std::memcpy(b + at, made[2], some);
    }
}

// As ColourLoops::from_lab.
void from_lab(const LabTables& tables, const uint8_t* lightness, const uint8_t* a, const uint8_t* b,
              size_t count, uint8_t* rgb) {
    const int32_t* const cubes = tables.cubes - LabTables::kLeast;
    int32_t xyz[3][kLabPixels], place[3][kLabPixels];
    for (size_t at = 0; at < count; at += kLabPixels) {
        const size_t some = std::min(kLabPixels, count - at);
        for (size_t i = 0; i < some; ++i) {
            const int32_t y = looked_up(tables.lightness, lightness[at + i]);
            xyz[0][i] = looked_up(cubes, y + looked_up(tables.more_x, a[at + i]));
            xyz[1][i] = looked_up(tables.light, lightness[at + i]);
            xyz[2][i] = looked_up(cubes, y - looked_up(tables.less_z, b[at + i]));
        }
        for (int row = 0; row < 3; ++row) {
            const int32_t m0 = tables.back[row][0], m1 = tables.back[row][1],
                          m2 = tables.back[row][2];
            for (size_t i = 0; i < some; ++i) {
                const int32_t light = lab_descaled(
                    xyz[0][i] * m0 + xyz[1][i] * m1 + xyz[2][i] * m2,
                    LabTables::kMatrixBits + LabTables::kBackBits - LabTables::kLightBits);
                const int32_t above = light > 0 ? light : 0;
                place[row][i] = above < LabTables::kLights - 1 ? above : LabTables::kLights - 1;
            }
        }
        for (size_t i = 0; i < some; ++i, rgb += 3) {
            rgb[0] = looked_up(tables.bytes, place[0][i]);
            rgb[1] = looked_up(tables.bytes, place[1][i]);
            rgb[2] = looked_up(tables.bytes, place[2][i]);
        }
    }
}

// As ColourLoops::mix_tables.
void mix_tables(const uint8_t* const* tables, const float* weights, float below, size_t count,
                uint8_t* values) {
    uint8_t near[4][kLabPixels];
    int32_t made[kLabPixels];
    for (size_t at = 0; at < count; at += kLabPixels) {
        const size_t some = std::min(kLabPixels, count - at);
        for (size_t i = 0; i < some; ++i) {
            const uint8_t value = values[at + i];
            near[0][i] = looked_up(tables[0], value);
            near[1][i] = looked_up(tables[1], value);
            near[2][i] = looked_up(tables[2], value);
            near[3][i] = looked_up(tables[3], value);
        }
        const float* const weight = weights + at;
        for (size_t i = 0; i < some; ++i) {
            const float second = weight[i], first = 1.0f - second;
            const float upper = static_cast<float>(near[0][i]) * first +
                                static_cast<float>(near[1][i]) * second,
                        lower = static_cast<float>(near[2][i]) * first +
                                static_cast<float>(near[3][i]) * second;
            const float mean = upper * (1.0f - below) + lower * below;
            const float above = mean > 0.0f ? mean : 0.0f;
            // Rounded, halves to even: adding 1.5 * 2^23 leaves no bits for a fraction.
            made[i] = static_cast<int32_t>(((above < 255.0f ? above : 255.0f) + 12582912.0f) -
                                           12582912.0f);
        }
        for (size_t i = 0; i < some; ++i) values[at + i] = static_cast<uint8_t>(made[i]);
    }
}

}  // namespace
}  // namespace fastload
