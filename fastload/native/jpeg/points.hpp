// Points in the entropy-coded data of a JPEG at which decoding can start, and how they are stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg/frame.hpp"

namespace fastload::jpeg {

// Where the next MCU begins, and what the DC coefficients of its blocks are differences to.
struct Point {
    int64_t position = 0;  // bits from the beginning of the file
    int16_t dc[kMostComponents] = {};
};

inline bool operator==(const Point& a, const Point& b) {
    return a.position == b.position && a.dc[0] == b.dc[0] && a.dc[1] == b.dc[1] &&
           a.dc[2] == b.dc[2];
}

// The points of an image: in each row of MCUs one before the first MCU and before every `step`-th
// after it. Which MCU a point belongs to follows from its number alone.
struct Points {
    int step = 0;  // MCUs
    std::vector<Point> points;

    // Points in a row of `columns` MCUs.
    int in_row(int columns) const { return (columns + step - 1) / step; }
};

// The rows and columns of MCUs of an image.
inline int mcu_rows(const Frame& frame) { return (frame.height + 8 * frame.v - 1) / (8 * frame.v); }
inline int mcu_columns(const Frame& frame) {
    return (frame.width + 8 * frame.h - 1) / (8 * frame.h);
}

// Whether each row of MCUs of an image in one scan begins where a restart interval does.
inline bool restarts_rows(const Frame& frame) {
    return frame.restart_interval != 0 && mcu_columns(frame) % frame.restart_interval == 0;
}
// The offsets at which the first `rows` rows of MCUs of such an image begin, by the restart markers
// before them. False where these are not what has to be there.
bool find_rows(const Frame& frame, const uint8_t* data, size_t size, int rows,
               std::vector<size_t>& starts);

constexpr int kMostStep = 65535;

// Appends the points of an image in one scan to `out`: differences from point to point, in as many
// bits as the largest of the image needs.
void pack(const Frame& frame, const Points& points, std::vector<uint8_t>& out);

// The points that `pack` made of an image with the same frame. False where the bytes cannot be
// that; whether the points are right, only the image's data can tell.
bool unpack(const Frame& frame, const uint8_t* data, size_t size, Points& points);

}  // namespace fastload::jpeg
