#include "clahe.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace fastload {
namespace {

constexpr int kLevels = 256;

// Limited to 0 to 255 and rounded, halves to even: adding 1.5 * 2^23 leaves no bits for a fraction.
uint8_t to_byte(float x) {
    return static_cast<uint8_t>((std::clamp(x, 0.0f, 255.0f) + 12582912.0f) - 12582912.0f);
}

// -- L*a*b* in bytes, with as many bits of intermediate values as OpenCV has ---------------------

// To L*a*b*: linear light has 3 fractional bits on the scale of bytes, coordinates of CIE XYZ
// relative to the white of D65 the same, and their cube roots 15 bits.
constexpr int kLinearBits = 3, kMatrixBits = 12, kRootBits = 15;
constexpr int kLinear = 255 << kLinearBits;
// Back: roots and coordinates have 14 bits, and linear light 12.
constexpr int kBackBits = 14, kBack = 1 << kBackBits, kLightBits = 12;
constexpr double kWhite[3] = {0.950456, 1.0, 1.088754};
constexpr double kToXyz[3][3] = {
    {0.412453, 0.357580, 0.180423}, {0.212671, 0.715160, 0.072169}, {0.019334, 0.119193, 0.950227}};
constexpr double kFromXyz[3][3] = {{3.240479, -1.53715, -0.498535},
                                   {-0.969256, 1.875991, 0.041556},
                                   {0.055648, -0.204043, 1.057311}};
// Below this the cube root is a line.
constexpr double kBent = 6.0 / 29.0;
constexpr double kBend = kBent * kBent * kBent, kSlope = 841.0 / 108.0, kStart = 16.0 / 116.0;

double to_linear(double x) { return x <= 0.04045 ? x / 12.92 : std::pow((x + 0.055) / 1.055, 2.4); }

double from_linear(double x) {
    return x <= 0.0031308 ? x * 12.92 : 1.055 * std::pow(x, 1.0 / 2.4) - 0.055;
}

struct LabTables {
    static constexpr int kRoots = kLinear * 3 / 2;
    static constexpr int kLights = 1 << kLightBits;
    // The roots of X and Z: that of Y, 0.13 to 1, and -128 / 500 to 127 / 500, -127 / 200 to
    // 128 / 200 more.
    static constexpr int kLeast = -kBack, kMost = 2 * kBack;

    int linear[kLevels];
    int roots[kRoots];
    int matrix[3][3];
    int back[3][3];                          // rows: red, green, blue; columns: X, Y, Z
    int lightness[kLevels], light[kLevels];  // the root of Y, and Y
    int cubes[kMost - kLeast];
    uint8_t bytes[kLights];

    LabTables() {
        for (int i = 0; i < kLevels; ++i)
            linear[i] = static_cast<int>(std::lrint(kLinear * to_linear(i / 255.0)));
        for (int i = 0; i < kRoots; ++i) {
            const double x = static_cast<double>(i) / kLinear;
            // In single precision, by which OpenCV rounds some of them to another number.
            const auto root = static_cast<float>(x < kBend ? x * kSlope + kStart : std::cbrt(x));
            roots[i] = static_cast<int>(std::lrint((1 << kRootBits) * root));
        }
        for (int row = 0; row < 3; ++row) {
            for (int column = 0; column < 3; ++column) {
                matrix[row][column] = static_cast<int>(
                    std::lrint((1 << kMatrixBits) * kToXyz[row][column] / kWhite[row]));
                back[row][column] = static_cast<int>(
                    std::lrint((1 << kMatrixBits) * kFromXyz[row][column] * kWhite[column]));
            }
        }
        for (int i = 0; i < kLevels; ++i) {
            const double root = (i * (100.0 / 255.0) + 16.0) / 116.0,
                         cube = root > kBent ? root * root * root : (root - kStart) / kSlope;
            lightness[i] = static_cast<int>(std::lrint(kBack * root));
            light[i] = static_cast<int>(std::lrint(kBack * cube));
        }
        for (int i = kLeast; i < kMost; ++i) {
            // Rounded down after each product, as OpenCV does.
            const int64_t x = i, cube = x * x / kBack * x / kBack;
            const auto line = static_cast<int64_t>(std::floor((x - kStart * kBack) / kSlope));
            cubes[i - kLeast] = static_cast<int>(x > kBent * kBack ? cube : line);
        }
        for (int i = 0; i < kLights; ++i)
            bytes[i] = to_byte(
                static_cast<float>(255.0 * from_linear(static_cast<double>(i) / (kLights - 1))));
    }
};

const LabTables& lab_tables() {
    static const LabTables tables;
    return tables;
}

// Shifted to the right, rounded.
int descaled(int x, int bits) { return (x + (1 << (bits - 1))) >> bits; }

uint8_t limited(int x) { return static_cast<uint8_t>(std::clamp(x, 0, 255)); }

void to_lab(const LabTables& tables, const uint8_t* rgb, uint8_t* lab) {
    const int light[3] = {tables.linear[rgb[0]], tables.linear[rgb[1]], tables.linear[rgb[2]]};
    int root[3];
    for (int row = 0; row < 3; ++row) {
        const int* const m = tables.matrix[row];
        const int place =
            descaled(light[0] * m[0] + light[1] * m[1] + light[2] * m[2], kMatrixBits);
        root[row] = tables.roots[std::min(place, LabTables::kRoots - 1)];
    }
    constexpr int kScale = (116 * 255 + 50) / 100, kMiddle = 128 << kRootBits,
                  kShift = -((16 * 255 * (1 << kRootBits) + 50) / 100);
    lab[0] = limited(descaled(kScale * root[1] + kShift, kRootBits));
    lab[1] = limited(descaled(500 * (root[0] - root[1]) + kMiddle, kRootBits));
    lab[2] = limited(descaled(200 * (root[1] - root[2]) + kMiddle, kRootBits));
}

void from_lab(const LabTables& tables, const uint8_t* lab, uint8_t* rgb) {
    const int* const cubes = tables.cubes - LabTables::kLeast;
    // Rounded as OpenCV does: the middle of b is 1 of 2^14 beside 0.
    const int y = tables.lightness[lab[0]], a = lab[1] * kBack / 500 - 128 * kBack / 500,
              b = lab[2] * kBack / 200 - 128 * kBack / 200 + 1;
    const int xyz[3] = {cubes[y + a], tables.light[lab[0]], cubes[y - b]};
    for (int i = 0; i < 3; ++i) {
        const int* const m = tables.back[i];
        const int light = descaled(xyz[0] * m[0] + xyz[1] * m[1] + xyz[2] * m[2],
                                   kMatrixBits + kBackBits - kLightBits);
        rgb[i] = tables.bytes[std::clamp(light, 0, LabTables::kLights - 1)];
    }
}

// -- Tiles -------------------------------------------------------------------------------------

// The place in an image of a place after it, mirrored without the border as often as it takes.
int reflected(int place, int length) {
    if (length == 1) return 0;
    place %= 2 * (length - 1);
    return place < length ? place : 2 * (length - 1) - place;
}

// One channel whose values are `step` bytes apart.
struct Plane {
    uint8_t* values;
    Size size;
    size_t step;

    uint8_t* row(int y) const {
        return values + static_cast<size_t>(y) * static_cast<size_t>(size.width) * step;
    }
};

struct Tiles {
    int down, across;
    int height, width;  // of a tile

    Tiles(Size size, int rows, int columns) : down(rows), across(columns) {
        // Where one side is not a multiple, OpenCV adds to both.
        const bool fits = size.height % rows == 0 && size.width % columns == 0;
        height = size.height / rows + (fits ? 0 : 1);
        width = size.width / columns + (fits ? 0 : 1);
    }
};

void count_tile(const Plane& plane, const Tiles& tiles, int row, int column, int64_t* counts) {
    for (int y = row * tiles.height; y < (row + 1) * tiles.height; ++y) {
        const uint8_t* const line = plane.row(reflected(y, plane.size.height));
        for (int x = column * tiles.width; x < (column + 1) * tiles.width; ++x)
            ++counts[line[static_cast<size_t>(reflected(x, plane.size.width)) * plane.step]];
    }
}

void limit_counts(int64_t* counts, int64_t limit) {
    int64_t cut = 0;
    for (int i = 0; i < kLevels; ++i) {
        cut += std::max<int64_t>(counts[i] - limit, 0);
        counts[i] = std::min(counts[i], limit);
    }
    const int64_t each = cut / kLevels;
    const auto rest = static_cast<int>(cut % kLevels);
    for (int i = 0; i < kLevels; ++i) counts[i] += each;
    if (rest == 0) return;
    const int step = std::max(kLevels / rest, 1);
    for (int i = 0, left = rest; i < kLevels && left > 0; i += step, --left) ++counts[i];
}

void make_table(const Plane& plane, const Tiles& tiles, double limit, int row, int column,
                uint8_t* table) {
    int64_t counts[kLevels] = {};
    count_tile(plane, tiles, row, column, counts);
    const int64_t area = int64_t{tiles.height} * tiles.width;
    const double all = static_cast<double>(area);
    limit_counts(counts,
                 std::max<int64_t>(static_cast<int64_t>(std::min(limit * all / kLevels, all)), 1));
    const float scale = static_cast<float>(kLevels - 1) / static_cast<float>(area);
    int64_t sum = 0;
    for (int i = 0; i < kLevels; ++i) {
        sum += counts[i];
        table[i] = to_byte(static_cast<float>(sum) * scale);
    }
}

// Between which tiles a row or column lies, and the weight of the second.
struct Between {
    int first, second;
    float weight;

    Between(int place, int side, int count) {
        const float at = static_cast<float>(place) * (1.0f / static_cast<float>(side)) - 0.5f;
        const auto whole = static_cast<int>(std::floor(at));
        weight = at - static_cast<float>(whole);
        first = std::max(whole, 0);
        second = std::min(whole + 1, count - 1);
        first = std::min(first, count - 1);
    }
};

void interpolate(const Plane& plane, const Tiles& tiles, const uint8_t* tables) {
    const auto table = [&](int row, int column) {
        return tables + static_cast<ptrdiff_t>(row * tiles.across + column) * kLevels;
    };
    std::vector<Between> columns;
    columns.reserve(static_cast<size_t>(plane.size.width));
    for (int x = 0; x < plane.size.width; ++x) columns.emplace_back(x, tiles.width, tiles.across);
    for (int y = 0; y < plane.size.height; ++y) {
        const Between rows(y, tiles.height, tiles.down);
        const uint8_t *const above = table(rows.first, 0), *const below = table(rows.second, 0);
        uint8_t* value = plane.row(y);
        for (const Between& column : columns) {
            const ptrdiff_t first = ptrdiff_t{column.first} * kLevels + *value,
                            second = ptrdiff_t{column.second} * kLevels + *value;
            const auto mean = [&](const uint8_t* of) {
                return static_cast<float>(of[first]) * (1.0f - column.weight) +
                       static_cast<float>(of[second]) * column.weight;
            };
            *value = to_byte(mean(above) * (1.0f - rows.weight) + mean(below) * rows.weight);
            value += plane.step;
        }
    }
}

void equalize(const Plane& plane, const Tiles& tiles, double limit, uint8_t* tables) {
    for (int row = 0; row < tiles.down; ++row) {
        for (int column = 0; column < tiles.across; ++column)
            make_table(plane, tiles, limit, row, column,
                       tables + static_cast<ptrdiff_t>(row * tiles.across + column) * kLevels);
    }
    interpolate(plane, tiles, tables);
}

}  // namespace

void equalize_tiles(uint8_t* pixels, Size size, int channels, double limit, int down, int across,
                    std::vector<uint8_t>& scratch) {
    const Tiles tiles(size, down, across);
    uint8_t* const tables =
        grow(scratch, static_cast<size_t>(down) * static_cast<size_t>(across) * kLevels);
    const size_t bytes = static_cast<size_t>(size.height) * static_cast<size_t>(size.width) *
                         static_cast<size_t>(channels);
    if (channels == 1) return equalize({pixels, size, 1}, tiles, limit, tables);
    const LabTables& lab = lab_tables();
    for (size_t i = 0; i < bytes; i += 3) to_lab(lab, pixels + i, pixels + i);
    equalize({pixels, size, 3}, tiles, limit, tables);
    for (size_t i = 0; i < bytes; i += 3) from_lab(lab, pixels + i, pixels + i);
}

}  // namespace fastload
