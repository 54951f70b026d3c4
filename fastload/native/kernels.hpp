// The inner loops, compiled once per instruction set and chosen at run time. All variants compute
// the same integers, and so the same pixels. None of them throws or takes memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu.hpp"
#include "draws.hpp"
#include "image.hpp"
#include "jpeg/kernels.hpp"

namespace fastload {

constexpr int kMostTaskRows = 16;

// The horizontal pass of resampling: rows of the image to rows with as many pixels as the output.
struct HorizontalTask {
    const uint8_t* const* rows;  // 4-byte pixels; kRowSlack bytes readable after each row
    uint8_t* const* out;         // 3-byte pixels; kRowSlack bytes writable after each row
    int row_count;               // at most kMostTaskRows
    int outputs;                 // pixels of an output row
    const int32_t* first;        // of each output pixel: the first input pixel
    const int16_t* weights;      // of each output pixel: `width` weights
    int width;                   // 2 or a multiple of 4
    int precision;               // fractional bits of the weights
    const int32_t* split;        // the weights as `Kernels::split` gives them, or null
};

// The vertical pass: one output row as a weighted sum of `count` rows.
struct VerticalTask {
    const uint8_t* rows;     // the first of them
    int64_t stride;          // bytes from one to the next
    const int16_t* weights;  // one for each row
    int count;
    int precision;  // fractional bits of the weights
    uint8_t* out;
    int bytes;  // of a row; nothing after them is read or written
};

// Where blocks of columns of a warp lie in the image, as `Kernels::warp_columns` has found.
struct WarpColumns {
    static constexpr int kMost = 48, kBlockBytes = 256;
    alignas(64) unsigned char blocks[kMost * kBlockBytes];
    int first = 0, end = 0;  // of the columns whose neighbours all lie in the image
    int count = 0;           // blocks, from `first` on; the last may begin before its one ends
};

// One row of the output of a bilinear warp (warp.hpp). The image has 3 or 4 channels.
struct WarpRow {
    const uint8_t* pixels;  // of the image
    int64_t stride;         // bytes of a row of the image; the whole image has less than 2^31
    int channels;
    // The upper left of the four neighbours lies at most here if all of them lie in the image, and
    // four bytes can be read at each.
    int most_x, most_y;
    const double* m;  // the nine numbers of the matrix
    double u, v, w;   // m[0] x + u, m[3] x + v, m[6] x + w: numerators and denominator at column x
    const float* fill;                     // of each channel
    bool fades;                            // as in WarpOptions
    const WarpColumns* columns = nullptr;  // the same for all rows
};

// Where pixels x, x + 1, ... of a row of a warp lie in the image.
struct WarpPlaces {
    static constexpr int kMost = 64;
    int count = 0;
    alignas(64) double u[kMost], v[kMost];
};

namespace png {

// The filter types of PNG, and their number.
enum Filter : uint8_t { kNone, kSub, kUp, kAverage, kPaeth, kFilters };

// Bytes that the loops may read after the last byte of a row, and write after the last pixel.
constexpr size_t kTail = 16;

// Reverse the filter of `count` pixels, or bytes, of a row (png.inl.hpp).
struct FilterKernels {
    // Pixels of `bytes` = 3 or 4 bytes to 4 bytes each; the fourth of 3 has no meaning. `raw`: the
    // row as stored. `above`: the pixels of the row above, 4 bytes each, or zeros.
    void (*unfilter_pixels)(Filter filter, int bytes, const uint8_t* raw, const uint8_t* above,
                            uint8_t* out, int count);
    // The same for two rows in succession that both have the Paeth filter.
    void (*paeth_pair)(int bytes, const uint8_t* const* raw, const uint8_t* above,
                       uint8_t* const* out, int count);
    // A row of `count` bytes in place. `bytes`: of a pixel, 1, 2, 3, 4, 6 or 8. `above`: the row
    // above, without its filter.
    void (*unfilter_bytes)(Filter filter, int bytes, uint8_t* row, const uint8_t* above, int count);
};

}  // namespace png

// All inner loops for one instruction set. The objects live for ever.
struct Kernels {
    const char* name;  // as users know it
    void (*horizontal)(const HorizontalTask&);
    void (*vertical)(const VerticalTask&);
    // Copies 4-byte pixels to 3-byte pixels, without the fourth byte. kRowSlack bytes must be
    // readable after the former and writable after the latter.
    void (*pack)(const uint8_t* pixels, uint8_t* out, int count);
    // Copies a row of `pixels` 3-byte pixels in reverse order. `row` and `out` do not overlap.
    void (*mirror)(const uint8_t* row, uint8_t* out, int pixels);
    // Null where the processor has no use for it. Converts the weights of an axis to the form with
    // which `horizontal` is fastest: two numbers for every four weights of an output pixel, or for
    // what is left of them. False if a weight does not fit this form.
    bool (*split)(const int16_t* weights, int outputs, int width, int32_t* low_high);
    const jpeg::JpegKernels* jpeg;
    const png::FilterKernels* png;
    // Null where the processor has no use for it. Makes pixels x, x + 1, ... of a row of a warp, a
    // vector at a time, up to `end`. `out`: of pixel x. Returns how many were made. Of an affine
    // map all neighbours of these pixels lie in the image, and all are made, or none if they are
    // fewer than a vector has. Of others, until a pixel of the next vector has a neighbour outside
    // of it.
    int (*warp_inner)(const WarpRow& row, int x, int end, uint8_t* out);
    // Null where the processor has no use for it. Finds where the columns from `first` on lie in
    // the image, if that is the same in all rows: `warp_inner` would find it for each row again,
    // which is half of its time. `row`: any of them; `end`: where those end whose neighbours all
    // lie in the image.
    void (*warp_columns)(const WarpRow& row, int first, int end, WarpColumns& columns);
    // Finds where places.count pixels of a row of a warp lie, from x on.
    void (*warp_places)(const WarpRow& row, int x, WarpPlaces& places);
    // Finds where the pixels of the image begin that these places lie in [bytes]; -1 for places
    // outside. Of the row, stride and channels are read.
    void (*warp_offsets)(const WarpPlaces& places, const WarpRow& row, Size size, int32_t* offsets);
    // out = own * out + others * other, in single precision, products and sums rounded one by one,
    // then to whole numbers, halves to even: as numpy in fastload/backends/composites.py. `out` and
    // `other` do not overlap.
    void (*blend)(uint8_t* out, const uint8_t* other, size_t bytes, float own, float others);
    // Null where the processor has no use for it. As `draw_integers`, which is slower.
    void (*integers)(const Counter& counter, uint64_t* out);
};

extern const Kernels kPlainKernels;
#if defined(FASTLOAD_X86)
extern const Kernels kSse41Kernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#elif defined(FASTLOAD_ARM64)
extern const Kernels kNeonKernels;
#endif

// The kernels of this name, or, for "auto", the fastest that this processor runs. Null if the name
// is unknown or the processor lacks the instructions.
inline const Kernels* find_kernels(const char* name) {
    const bool any = std::strcmp(name, "auto") == 0;
    auto wanted = [&](const Kernels& kernels) {
        return any || std::strcmp(name, kernels.name) == 0;
    };
#if defined(FASTLOAD_X86)
    const Processor& has = this_processor();
    const bool avx2 = has.avx2 && has.bmi && has.bmi2;
    if (wanted(kAvx512Kernels) && avx2 && has.avx512f && has.avx512bw && has.avx512vl &&
        has.avx512vnni) {
        return &kAvx512Kernels;
    }
    if (wanted(kAvx2Kernels) && avx2) return &kAvx2Kernels;
    if (wanted(kSse41Kernels) && has.sse41) return &kSse41Kernels;
#elif defined(FASTLOAD_ARM64)
    if (wanted(kNeonKernels)) return &kNeonKernels;  // every 64-bit ARM processor has them
#endif
    return wanted(kPlainKernels) ? &kPlainKernels : nullptr;
}

}  // namespace fastload
