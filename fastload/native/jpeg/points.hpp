// Points: places in the entropy-coded data of a JPEG at which decoding can start, and how they are
// stored in the seek index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "jpeg/frame.hpp"

namespace fastload::jpeg {

// The place where a MCU begins, and what is needed to decode from there.
struct Point {
    int64_t position = 0;              // bits from the beginning of the file
    int16_t dc[kMostComponents] = {};  // the last DC coefficient of each component before it
};

inline bool operator==(const Point& a, const Point& b) {
    return a.position == b.position && a.dc[0] == b.dc[0] && a.dc[1] == b.dc[1] &&
           a.dc[2] == b.dc[2];
}

// The points of an image: in each row of MCUs one at the first MCU, and at every `step`-th after
// it. The number of a point gives its MCU.
struct Points {
    int step = 0;  // MCUs
    std::vector<Point> points;

    // How many points a row of `columns` MCUs has.
    int in_row(int columns) const { return (columns + step - 1) / step; }
};

// How many rows and columns of MCUs an image has.
inline int mcu_rows(const Frame& frame) { return (frame.height + 8 * frame.v - 1) / (8 * frame.v); }
inline int mcu_columns(const Frame& frame) {
    return (frame.width + 8 * frame.h - 1) / (8 * frame.h);
}

// Whether each row of MCUs of an image in one scan begins with a new restart interval.
inline bool restarts_rows(const Frame& frame) {
    return frame.restart_interval != 0 && mcu_columns(frame) % frame.restart_interval == 0;
}
// Finds the offsets at which the first `rows` rows of MCUs of such an image begin, by their restart
// markers. False if a marker is missing or has the wrong number.
bool find_rows(const Frame& frame, const uint8_t* data, size_t size, int rows,
               std::vector<size_t>& starts);

constexpr int kMostStep = 65535;

// Appends the points of an image in one scan to `out`: the differences from each point to the next,
// in as many bits as the largest difference of the image needs.
void pack(const Frame& frame, const Points& points, std::vector<uint8_t>& out);

// The reverse, for an image with the same frame. False if the bytes have the wrong length or
// header. Whether the points fit the data of the image is not known then:
// `BaselineDecoder::read_by_points` checks that.
bool unpack(const Frame& frame, const uint8_t* data, size_t size, Points& points);

}  // namespace fastload::jpeg
