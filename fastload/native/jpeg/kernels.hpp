// The inner loops of the JPEG decoder, once per instruction set; all variants compute the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "jpeg/huffman.hpp"

namespace fastload::jpeg {

// Blocks that are entropy-decoded at a time: their coefficients stay in the first-level cache.
constexpr int kMostBlocks = 48;
// Bytes of entropy-coded data that so many blocks can take: each step of a block moves on in it, so that there are at
// most 64 a block; and what the last refill reads beyond.
constexpr size_t kMostChunkBytes = size_t{kMostBlocks} * 64 * kMostStepBits / 8 + 24;

// Where coefficient k - 1 of the zigzag lies in a block; beyond the last, the place behind the block. At 0, where
// entries that do nothing write theirs, the first.
struct Places {
    uint8_t at[256] = {};
    constexpr Places() {
        for (int k = 1; k < 256; ++k) at[k] = 64;
        int row = 0, column = 0;
        for (int k = 1; k <= 64; ++k) {
            at[k] = static_cast<uint8_t>(8 * row + column);
            const bool up = (row + column) % 2 == 0;
            if (up && column < 7) {
                ++column;
                if (row > 0) --row;
            } else if (up) {
                ++row;
            } else if (row < 7) {
                ++row;
                if (column > 0) --column;
            } else {
                ++column;
            }
        }
    }
};
inline constexpr Places kPlaces;

// The next bits of data without stuffing: `count` of them, from the highest on, in `bits`; the following at `next`.
struct BitState {
    const uint8_t* next = nullptr;
    uint64_t bits = 0;
    uint32_t count = 0;
};

// A block that is decoded or skipped.
template <typename E>
struct Block {
    const CodeTable<E>* dc = nullptr;  // what its entries are looked up in
    const CodeTable<E>* ac = nullptr;
    // decode_blocks: 64 coefficients in natural order, zeros before, and one place more, which is scratch. The first is
    // the difference to the block before of its component.
    int16_t* coefficients = nullptr;
    // decode_blocks: kEndAdvance and, in zigzag order, the position behind the last coefficient (kFilled for all places).
    // skip_blocks: the sum of the DC differences of all blocks up to this one, from the first of the chunk.
    int32_t result = 0;
};

template <typename E>
struct BlocksTask {
    BitState bits;  // in and out; kMostChunkBytes from `next` on are readable
    // Behind the last one are two more, with tables of entries that do nothing.
    Block<E>* blocks;
    int count;
    bool passes = false;  // decode_blocks: whether some of the tables are of CodeTables::passing
};

// Blocks of one component, side by side in the image, from coefficients to samples.
struct SamplesTask {
    const Block<DoubleEntry>* blocks;  // as decode_blocks leaves them, but that the first coefficient is the DC coefficient
    const uint16_t* order;             // which of them
    int count;
    const int16_t* quantisers;    // natural order
    uint8_t* out;                 // the first sample of the first block; kRowTail writable behind the last
    ptrdiff_t stride;
    int size;  // 8, or 4, 2 or 1: samples on each side that a block becomes
};

// What loops may read and write beyond the last sample or pixel of a row: some of the longest vectors. And before the
// first sample, of which one is read.
constexpr size_t kRowTail = 256;
constexpr size_t kRowLead = 64;

struct Kernels {
    // Both false where the data are not what a sound encoder makes.
    bool (*decode_blocks)(BlocksTask<DoubleEntry>&);
    bool (*skip_blocks)(BlocksTask<Entry>&);
    void (*to_samples)(const SamplesTask&);
    // libjpeg's "fancy" upsampling of a row. Samples at -1 and `width` are the neighbours, or copies of the outermost.
    void (*double_width)(const uint8_t* row, uint8_t* out, int width);
    // The rows: 3/4 of `near` and 1/4 of `far`. `above`: `far` is the row above, which decides how halves are rounded.
    void (*blend_rows)(const uint8_t* near, const uint8_t* far, bool above, uint8_t* out, int width);
    void (*blend_and_double)(const uint8_t* near, const uint8_t* far, uint8_t* out, int width, int16_t* scratch);
    // Rows of samples to a row of 4-byte pixels, the fourth byte 255.
    void (*ycc_to_rgbx)(const uint8_t* const* rows, uint8_t* out, int width);
    void (*rgb_to_rgbx)(const uint8_t* const* rows, uint8_t* out, int width);
};

}  // namespace fastload::jpeg
