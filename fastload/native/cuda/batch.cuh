// A batch of crops of JPEGs as the kernels get it. All of it is made by the host (device_plan.hpp),
// which has checked every number: kernels read and write within these bounds whatever the files
// contain, as the only other thing that they read are entropy-coded data and Huffman codes.
#pragma once

#include "cuda/block.cuh"

namespace fastload::device {

constexpr int kComponents = 3;
constexpr int kMostTables = 6;        // Huffman codes of an image: a DC and an AC code a component
constexpr int kMostBlocksInMcu = 10;  // 4 x 2 of luma and two of chroma
// 16 counts by length, then the symbols, which are 256 with the zeros after them.
constexpr int kCodeBytes = 16 + 256;
// Zeros after the data of a crop: a thread holds three words, of which the first contains the bit
// after its last one at the most.
constexpr uint32_t kDataPadding = 16;

// Entropy-coded blocks between two places that the host knows: points of the seek index, restart
// markers. One thread decodes it. Positions are bits from the start of the crop's data.
struct Segment {
    uint32_t begin;
    // The first bit after it must lie in [end_least, end_most]: of a point, both are the same.
    uint32_t end_least, end_most;
    int32_t column;               // its first MCU, from the left edge of the rectangle
    uint16_t row;                 // of MCUs, in the rectangle
    uint16_t mcus;                // at least 1, all in one row
    int16_t dc[kComponents];      // the last DC coefficient of each component before it
    int16_t end_dc[kComponents];  // the same after it, if `has_end_dc`
    uint32_t has_end_dc;
};

// A component of a crop.
struct Plane {
    uint32_t h, v;         // blocks in a MCU, across and down
    uint32_t width;        // blocks in a row of the rectangle
    uint32_t first_block;  // in its chunk
    uint32_t dc_code, ac_code;
    int16_t quantisers[64];  // column by column
};

// A crop: a rectangle of MCUs of an image, which are decoded, and a box in it, which is returned.
struct alignas(16) Crop {
    // Where its entropy-coded data are, a multiple of 16: in the batch [bytes], or if `is_resident`
    // their address on the device.
    uint64_t data;
    uint64_t codes;  // likewise its Huffman codes: the first `dc_codes` of them are for DC
    uint64_t out;    // where its pixels begin, in those of its chunk [bytes]
    uint32_t first_segment;
    uint32_t first_block;  // of its chunk; those of all components lie one after the other
    uint32_t first_strip;  // of its chunk (kStrip pixels of the box, the last one fewer)
    int32_t columns;       // of MCUs in the rectangle
    // The first sample of each component in the rectangle, in the image.
    int32_t luma_left, luma_top, chroma_left, chroma_top;
    int32_t chroma_width, chroma_height;  // of the image, without what fills its blocks
    int32_t top, left, height, width;     // the box, in the image
    uint16_t components;
    uint16_t dc_codes, ac_codes;
    uint8_t across, down;  // pixels for a sample of chroma
    uint8_t smooth;        // whether it is upsampled smoothly, or repeated
    uint8_t is_ycc;
    uint8_t is_resident;  // data and codes do not come with the batch: they stay on the device
    Plane plane[kComponents];
};

// An axis of a resize. Positions [lead, lead + count) of the output are sums of `width`
// neighbouring rows or columns of the crop each; the others are padding. The host has made the
// weights, which are those of the CPU (Taps in resample.hpp).
struct Axis {
    // Where in the batch [bytes]:
    uint64_t first;    // int32: of each position the first row or column
    uint64_t weights;  // int16: the first one of each position, then the second of each, ...
    int32_t lead, count, width;
    int32_t precision;  // fractional bits of the weights
};

// What is made of the pixels of a crop: a row of the batch.
struct Resize {
    Axis down, across;
    uint32_t row;
    uint8_t fill[4];  // of padding: red, green, blue
};

// Segments of a crop that are decoded by one block of threads.
struct Task {
    uint32_t crop;  // in the chunk
    uint32_t first_segment;
    uint32_t count;  // at most kSegmentThreads
};

// Threads of a block of each kernel.
constexpr int kSegmentThreads = 128;
constexpr int kSampleThreads = 256;
constexpr int kStrip = 256;

// Crops that are decoded at a time: their coefficients and samples are in memory together.
struct ChunkArguments {
    const uint8_t* batch;     // codes, data and weights
    const Crop* crops;        // of the chunk
    const Segment* segments;  // of the batch
    const Task* tasks;        // of the chunk
    int16_t* coefficients;    // 64 a block, column by column; zeros before and after
    uint8_t* samples;         // 64 a block, in rows of the rectangle
    uint8_t* pixels;          // of the chunk's crops
    uint32_t* failures;       // of the chunk's crops: set where the data are not what they must be
    const Resize* resizes;    // of the chunk's crops
    uint8_t* out;             // (rows, out_height, out_width, 3)
    uint32_t crop_count;
    uint32_t blocks;  // of the chunk
    uint32_t strips;
    uint32_t out_height, out_width;
#ifndef __CUDACC__
    uint32_t* turns = nullptr;  // of each segment of the batch: how often its loop ran
#endif
};

// The compilers lay them out alike, and so does fastload/render/jpegs_on_device.py.
static_assert(sizeof(Segment) == 36 && sizeof(Crop) == 560 && sizeof(Task) == 12 &&
                  sizeof(Resize) == 72,
              "host and device read the same tables");
#ifdef __CUDACC__
static_assert(sizeof(ChunkArguments) == 104, "as the host launches kernels");
#endif

// Which of the crops of a chunk has what is numbered `number`, where each crop has the numbers from
// `first(crop)` on.
template <typename First>
FASTLOAD_DEVICE uint32_t crop_with(uint32_t crops, uint32_t number, First first) {
    uint32_t low = 0, high = crops;  // it is in [low, high)
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (first(middle) <= number) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

}  // namespace fastload::device
