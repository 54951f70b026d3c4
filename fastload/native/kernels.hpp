// The inner loops, once per instruction set. All variants compute the same integers, and so the
// same pixels.
#pragma once

#include <cstring>

#include "image.hpp"
#include "jpeg/kernels.hpp"

namespace fastload {

struct HorizontalTask {
    const uint8_t* const* rows;  // 4-byte pixels; kRowSlack readable after each
    uint8_t* const* out;         // 3-byte pixels; kRowSlack writable after each
    int row_count;
    int outputs;             // pixels per output row
    const int32_t* first;    // per output: first source pixel
    const int16_t* weights;  // per output: `width` weights
    int width;               // 2 or a multiple of 4
    int precision;           // fractional bits of the weights
    const int32_t* split;    // what `Kernels::split` made of the weights, or nullptr
};

struct VerticalTask {
    const uint8_t* rows;     // the first of `count` rows
    int64_t stride;          // bytes between them
    const int16_t* weights;  // one a row
    int count;
    int precision;
    uint8_t* out;
    int bytes;  // per row; nothing after them is read or written
};

// One row of the output of a bilinear warp (warp.hpp), of an image of 3 or 4 channels.
struct WarpRow {
    const uint8_t* pixels;
    int64_t stride;  // bytes of a row of the image, all of which fits in 2^31 bytes
    int channels;
    int most_x, most_y;  // where the upper left neighbour lies at most if all four are in the
                         // image, and four bytes of each
    const double* m;     // nine numbers
    double u, v, w;      // what the row adds to m[0] x, m[3] x, m[6] x
    const float* fill;   // one a channel
    bool fades;
};

namespace png {

enum Filter : uint8_t { kNone, kSub, kUp, kAverage, kPaeth, kFilters };

// What loops may read beyond the last byte of a row, and write beyond the last pixel.
constexpr size_t kTail = 16;

struct FilterKernels {
    // Pixels of 3 or 4 bytes out of their filter, to 4 bytes each, of which the fourth means
    // nothing. `above`: the pixels of the row above, or zeros.
    void (*unfilter_pixels)(Filter filter, int bytes, const uint8_t* raw, const uint8_t* above,
                            uint8_t* out, int count);
    // The same of two rows, one after the other, that both have Paeth's filter.
    void (*paeth_pair)(int bytes, const uint8_t* const* raw, const uint8_t* above,
                       uint8_t* const* out, int count);
    // A row out of its filter, where it lies; pixels have 1, 2, 3, 4, 6 or 8 bytes.
    void (*unfilter_bytes)(Filter filter, int bytes, uint8_t* row, const uint8_t* above, int count);
};

}  // namespace png

struct Kernels {
    const char* name;
    void (*horizontal)(const HorizontalTask&);
    void (*vertical)(const VerticalTask&);
    // 4-byte pixels to 3-byte pixels; kRowSlack readable after the former, writable after
    // the latter.
    void (*pack)(const uint8_t* pixels, uint8_t* out, int count);
    // Packed RGB row of `pixels` pixels, last pixel first; source and target do not overlap.
    void (*mirror)(const uint8_t* row, uint8_t* out, int pixels);
    // Where not null: brings the weights of an axis into the form that `horizontal` is fastest
    // with, two numbers for every four weights (the last four may be fewer); false if they do not
    // fit it.
    bool (*split)(const int16_t* weights, int outputs, int width, int32_t* low_high);
    const jpeg::JpegKernels* jpeg;
    const png::FilterKernels* png;
    // Where not null: makes pixels [x, end) of a warp from the first one on, a vector at a time,
    // until one of them has not all neighbours in the image; returns how many. `out`: of pixel x.
    int (*warp_inner)(const WarpRow& row, int x, int end, uint8_t* out);
};

extern const Kernels kPlainKernels;
#if defined(FASTLOAD_X86)
extern const Kernels kSse41Kernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#elif defined(FASTLOAD_ARM64)
extern const Kernels kNeonKernels;
#endif

// The best that this processor runs for "auto", or the one named; nullptr if it is unknown or
// cannot run here.
inline const Kernels* find_kernels(const char* name) {
    const bool any = std::strcmp(name, "auto") == 0;
    auto wanted = [&](const Kernels& kernels) {
        return any || std::strcmp(name, kernels.name) == 0;
    };
#if defined(FASTLOAD_X86)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
                      __builtin_cpu_supports("bmi2");
    if (wanted(kAvx512Kernels) && avx2 && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni")) {
        return &kAvx512Kernels;
    }
    if (wanted(kAvx2Kernels) && avx2) return &kAvx2Kernels;
    if (wanted(kSse41Kernels) && __builtin_cpu_supports("sse4.1")) return &kSse41Kernels;
#elif defined(FASTLOAD_ARM64)
    if (wanted(kNeonKernels)) return &kNeonKernels;  // every 64-bit ARM processor has them
#endif
    return wanted(kPlainKernels) ? &kPlainKernels : nullptr;
}

}  // namespace fastload
