// The inner loops of the PNG decoder, once per instruction set; all variants compute the same.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload::png {

enum Filter : uint8_t { kNone, kSub, kUp, kAverage, kPaeth, kFilters };

// What loops may read beyond the last byte of a row, and write beyond the last pixel.
constexpr size_t kTail = 16;

struct Kernels {
    // Pixels of 3 or 4 bytes out of their filter, to 4 bytes each, of which the fourth means nothing. `above`: the
    // pixels of the row above, or zeros.
    void (*unfilter_pixels)(Filter filter, int bytes, const uint8_t* raw, const uint8_t* above, uint8_t* out, int count);
    // The same of two rows behind each other that both have Paeth's filter.
    void (*paeth_pair)(int bytes, const uint8_t* const* raw, const uint8_t* above, uint8_t* const* out, int count);
    // A row out of its filter, where it lies; pixels have 1, 2, 3, 4, 6 or 8 bytes.
    void (*unfilter_bytes)(Filter filter, int bytes, uint8_t* row, const uint8_t* above, int count);
};

}  // namespace fastload::png
