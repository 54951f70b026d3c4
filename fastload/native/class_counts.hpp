// How often each number comes in a part of a mask that is resampled by the nearest pixel.
#pragma once

#include <cstdint>

namespace fastload {

// Adds to counts[k], for each k of 0 to 255, how many of the `height` x `width` pixels at
// (rows[i], columns[j]) of a mask are k. `stride`: bytes from one row of the mask to the next. Rows
// and columns lie in it, in any order, any number of times. Throws nothing.
void count_classes(const uint8_t* mask, int64_t stride, const int32_t* rows, int64_t height,
                   const int32_t* columns, int64_t width, int64_t counts[256]);

}  // namespace fastload
