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

// Of D65.
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

LabTables made_tables() {
    constexpr int kBack = LabTables::kBack;
    LabTables made;
    for (int i = 0; i < kLevels; ++i)
        made.linear[i] =
            static_cast<int32_t>(std::lrint(LabTables::kLinear * to_linear(i / 255.0)));
    for (int i = 0; i < LabTables::kRoots; ++i) {
        const double x = static_cast<double>(i) / LabTables::kLinear;
        // In single precision, by which OpenCV rounds some of them to another number.
        const auto root = static_cast<float>(x < kBend ? x * kSlope + kStart : std::cbrt(x));
        made.roots[i] = static_cast<int32_t>(std::lrint((1 << LabTables::kRootBits) * root));
    }
    for (int row = 0; row < 3; ++row) {
        for (int column = 0; column < 3; ++column) {
            constexpr int kOne = 1 << LabTables::kMatrixBits;
            made.matrix[row][column] =
                static_cast<int32_t>(std::lrint(kOne * kToXyz[row][column] / kWhite[row]));
            made.back[row][column] =
                static_cast<int32_t>(std::lrint(kOne * kFromXyz[row][column] * kWhite[column]));
        }
    }
    for (int i = 0; i < kLevels; ++i) {
        const double root = (i * (100.0 / 255.0) + 16.0) / 116.0,
                     cube = root > kBent ? root * root * root : (root - kStart) / kSlope;
        made.lightness[i] = static_cast<int32_t>(std::lrint(kBack * root));
        made.light[i] = static_cast<int32_t>(std::lrint(kBack * cube));
        // Rounded as OpenCV does: the middle of b is 1 of 2^14 beside 0.
        made.more_x[i] = i * kBack / 500 - 128 * kBack / 500;
        made.less_z[i] = i * kBack / 200 - 128 * kBack / 200 + 1;
    }
    for (int i = LabTables::kLeast; i < LabTables::kMost; ++i) {
        // Rounded down after each product, as OpenCV does.
        const int64_t x = i, cube = x * x / kBack * x / kBack;
        const auto line = static_cast<int64_t>(std::floor((x - kStart * kBack) / kSlope));
        made.cubes[i - LabTables::kLeast] = static_cast<int32_t>(x > kBent * kBack ? cube : line);
    }
    for (int i = 0; i < LabTables::kLights; ++i)
        made.bytes[i] = to_byte(static_cast<float>(
            255.0 * from_linear(static_cast<double>(i) / (LabTables::kLights - 1))));
    return made;
}

const LabTables& lab_tables() {
    static const LabTables tables = made_tables();
    return tables;
}

// -- Tiles -------------------------------------------------------------------------------------

// The place in an image of a place after it, mirrored without the border as often as it takes.
int reflected(int place, int length) {
    if (length == 1) return 0;
    place %= 2 * (length - 1);
    return place < length ? place : 2 * (length - 1) - place;
}

// One channel.
struct Plane {
    uint8_t* values;
    Size size;

    uint8_t* row(int y) const {
        return values + static_cast<size_t>(y) * static_cast<size_t>(size.width);
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
    // In turns: equal neighbours would wait for each other.
    int32_t some[4][kLevels] = {};
    const int left = column * tiles.width, right = left + tiles.width;
    for (int y = row * tiles.height; y < (row + 1) * tiles.height; ++y) {
        const uint8_t* const line = plane.row(reflected(y, plane.size.height));
        int x = left;
        for (; x + 4 <= std::min(right, plane.size.width); x += 4) {
            for (int i = 0; i < 4; ++i) ++some[i][line[x + i]];
        }
        for (; x < right; ++x) ++some[0][line[reflected(x, plane.size.width)]];
    }
    for (int i = 0; i < kLevels; ++i)
        counts[i] = int64_t{some[0][i]} + some[1][i] + some[2][i] + some[3][i];
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
    int64_t counts[kLevels];
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

void interpolate(const ColourLoops& loops, const Plane& plane, const Tiles& tiles,
                 const uint8_t* tables) {
    const auto table = [&](int row, int column) {
        return tables + static_cast<ptrdiff_t>(row * tiles.across + column) * kLevels;
    };
    std::vector<Between> columns;
    std::vector<float> weights;
    columns.reserve(static_cast<size_t>(plane.size.width));
    weights.reserve(static_cast<size_t>(plane.size.width));
    for (int x = 0; x < plane.size.width; ++x) {
        columns.emplace_back(x, tiles.width, tiles.across);
        weights.push_back(columns.back().weight);
    }
    const size_t width = columns.size();
    for (int y = 0; y < plane.size.height; ++y) {
        const Between rows(y, tiles.height, tiles.down);
        uint8_t* const line = plane.row(y);
        for (size_t x = 0, end; x < width; x = end) {
            // Columns between the same two tiles.
            const int first = columns[x].first, second = columns[x].second;
            for (end = x + 1;
                 end < width && columns[end].first == first && columns[end].second == second;)
                ++end;
            const uint8_t* const near[4] = {table(rows.first, first), table(rows.first, second),
                                            table(rows.second, first), table(rows.second, second)};
            loops.mix_tables(near, weights.data() + x, rows.weight, end - x, line + x);
        }
    }
}

void equalize(const ColourLoops& loops, const Plane& plane, const Tiles& tiles, double limit,
              uint8_t* tables) {
    for (int row = 0; row < tiles.down; ++row) {
        for (int column = 0; column < tiles.across; ++column)
            make_table(plane, tiles, limit, row, column,
                       tables + static_cast<ptrdiff_t>(row * tiles.across + column) * kLevels);
    }
    interpolate(loops, plane, tiles, tables);
}

}  // namespace

void equalize_tiles(const ColourLoops& loops, uint8_t* pixels, Size size, int channels,
                    double limit, int down, int across, std::vector<uint8_t>& scratch) {
    const Tiles tiles(size, down, across);
    const size_t table_bytes = static_cast<size_t>(down) * static_cast<size_t>(across) * kLevels,
                 count = static_cast<size_t>(size.height) * static_cast<size_t>(size.width);
    uint8_t* const tables = grow(scratch, table_bytes + (channels == 3 ? 3 * count : 0));
    if (channels == 1) return equalize(loops, {pixels, size}, tiles, limit, tables);
    uint8_t *const lightness = tables + table_bytes, *const a = lightness + count,
                   *const b = a + count;
    const LabTables& lab = lab_tables();
    loops.to_lab(lab, pixels, count, lightness, a, b);
    equalize(loops, {lightness, size}, tiles, limit, tables);
    loops.from_lab(lab, lightness, a, b, count, pixels);
}

}  // namespace fastload
