#include "class_counts.hpp"

namespace fastload {

void count_classes(const uint8_t* mask, int64_t stride, const int32_t* rows, int64_t height,
                   const int32_t* columns, int64_t width, int64_t counts[256]) {
    // Neighbours are mostly of one class: with one table each addition would wait for the last.
    int64_t own[4][256] = {};
    for (int64_t i = 0; i < height; ++i) {
        const uint8_t* row = mask + stride * rows[i];
        int64_t times = 1;  // an enlarged mask repeats rows
        for (; i + 1 < height && rows[i + 1] == rows[i]; ++i) ++times;
        int64_t j = 0;
        for (; j + 4 <= width; j += 4) {
            for (int k = 0; k < 4; ++k) own[k][row[columns[j + k]]] += times;
        }
        for (; j < width; ++j) own[0][row[columns[j]]] += times;
    }
    for (int k = 0; k < 256; ++k) counts[k] += own[0][k] + own[1][k] + own[2][k] + own[3][k];
}

}  // namespace fastload
