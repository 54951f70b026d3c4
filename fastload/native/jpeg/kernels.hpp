// What the inner loops of the JPEG decoder work on, and the loops, once per instruction set; all
// variants compute the same.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload::jpeg {

// Codes: tables that turn the next 10 bits of entropy-coded data into what they stand for.
constexpr int kLookupBits =
    10;  // more of them leave the first-level cache, and take longer to build
constexpr int kLookups = 1 << kLookupBits;

// An entry says, from its lowest bit on: how many bits to drop (8 bits), how far to go on in the
// block (8), and a coefficient (16, signed), which is part of the entry: nothing is computed from
// the bits after the code.
using Entry = uint32_t;
// The same for one symbol or two. The coefficient is the first's; above it are the second's (16
// bits, signed), a shift (8), and how far the first of them alone goes on (8). With one symbol,
// there is no second coefficient, and both go on the same. The first coefficient lacks the bits
// that are looked up, and as many of its own lowest bits as are after these: all bits, shifted
// right by the shift, are to be added, modulo 2^16.
using DoubleEntry = uint64_t;

constexpr Entry kLengthMask = 255;
// The end of a block goes on so far, and by that is known.
constexpr int kEndAdvance = 128;
constexpr Entry kEnd = kEndAdvance << 8;
// An entry that goes on so far is incomplete: the code, or code and coefficient, are longer than
// the lookup. The length is the code's, and in place of the coefficient is the symbol, or both are
// 0.
constexpr int kLongAdvance = 64;
constexpr Entry kLong = kLongAdvance << 8;
// Places in a block are below 64, with an end 128 to 191. So bit 6 is set in a position after a
// step exactly if the block is full, or overfull, or the entry long.
constexpr int kFilled = 64;
static_assert(kLongAdvance == kFilled, "one test for both");

// In a namespace of each file that includes them: compiled once per instruction set, and none may
// be shared with another.
namespace {

constexpr Entry entry(int length, int advance, int value) {
    return static_cast<Entry>(length) | static_cast<Entry>(advance) << 8 |
           static_cast<Entry>(value) << 16;
}

constexpr uint32_t advance_of(DoubleEntry entry) { return entry >> 8 & 255; }

// The entry of a lookup; `rest`: how many bits of its coefficient are after it.
constexpr DoubleEntry doubled(Entry single, uint32_t lookup, int rest = 0) {
    const bool is_long = (single & kLong) != 0;
    return (single - (is_long ? 0 : lookup << (16 + rest))) |
           static_cast<DoubleEntry>(64 - kLookupBits - rest) << 48 |
           DoubleEntry{advance_of(single)} << 56;
}

}  // namespace

// The most bits that an entry drops which is not long. So many steps may follow one refill, which
// leaves at least 56 bits.
constexpr int kMostEntryBits = 18, kSteps = 56 / kMostEntryBits;
// A step at the most: a code of 16 and a DC difference of 11.
constexpr int kMostStepBits = 27;

constexpr int kMostDcBits = 11, kMostAcBits = 10;  // of 8-bit images

namespace {

// The coefficient that `size` bits stand for.
inline int extend(int bits, int size) {
    return bits >= 1 << size >> 1 ? bits : bits - (1 << size) + 1;
}

// What a symbol does, but for its coefficient. 0 if its coefficient is too large.
inline Entry meaning(int symbol, bool dc, int code_length) {
    const int size = dc ? symbol : symbol & 15;
    if (size > (dc ? kMostDcBits : kMostAcBits)) return 0;
    if (!dc && size == 0 && symbol != 0xf0) return entry(code_length, kEndAdvance, 0);
    return entry(code_length + size, dc ? 1 : (symbol >> 4) + 1, 0);
}

}  // namespace

// A prefix code, for the symbols that a lookup does not settle.
struct Code {
    bool dc = false;
    // For codes of each length: the first 16-bit number, left-aligned, above all of them; and the
    // index in `symbols` of a code, less its value.
    uint32_t limit[17];
    int32_t offset[17];
    uint8_t symbols[256];
};

// Blocks.

// Blocks that are entropy-decoded at a time: their coefficients stay in the first-level cache.
constexpr int kMostBlocks = 48;
// Bytes of entropy-coded data that so many blocks can take: each step of a block moves on in it, so
// that there are at most 64 a block; and what the last refill reads beyond.
constexpr size_t kMostChunkBytes = size_t{kMostBlocks} * 64 * kMostStepBits / 8 + 24;

// Where coefficient k - 1 of the zigzag lies in a block, and at which of its bytes; beyond the
// last, the place after them. At 0, where entries that do nothing write theirs, the first.
struct Places {
    static constexpr uint8_t kZigzag[64] = {
        0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
        41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
        30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
    };
    uint8_t at[256] = {}, byte[256] = {};
    constexpr Places() {
        for (int k = 1; k < 256; ++k) {
            at[k] = k <= 64 ? kZigzag[k - 1] : 64;
            byte[k] = static_cast<uint8_t>(2 * at[k]);
        }
    }
};
inline constexpr Places kPlaces;

template <typename E>
struct CodeTable {
    E entries[kLookups];
    Code code;
};

// The next bits of data without stuffing: `count` of them, from the highest on, in `bits`; the
// following at `next`.
struct BitState {
    const uint8_t* next = nullptr;
    uint64_t bits = 0;
    uint32_t count = 0;
};

// What the entries of a block are looked up in.
template <typename E>
struct Tables {
    const CodeTable<E>* dc = nullptr;
    const CodeTable<E>* ac = nullptr;
};

// A block that is decoded or skipped.
template <typename E>
struct Block;

template <>
struct alignas(32) Block<DoubleEntry> {
    // In natural order; the first is the difference to the block before of its component. After
    // them is a place that is scratch.
    int16_t coefficients[64 + 1];
    // kEndAdvance and, in zigzag order, the position after the last coefficient (kFilled for all
    // places).
    int32_t result;
    Tables<DoubleEntry> tables;
};

template <>
struct Block<Entry> {
    int32_t result;  // the sum of the DC differences up to this one, from the first of the chunk
    Tables<Entry> tables;
};

// A chunk of blocks that are decoded or skipped, perhaps in several calls.
template <typename E>
struct Chunk {
    BitState bits;  // in and out; kMostChunkBytes from `next` on are readable
    // After the last one are two more, with tables of entries that do nothing.
    Block<E>* blocks = nullptr;
    int count = 0;
    // Where the next symbol goes: to which block, null before the first symbol; from which table;
    // where in the block.
    Block<E>* block = nullptr;
    const CodeTable<E>* table = nullptr;
    uint64_t k = 0;
    int32_t sum = 0;   // of the DC differences so far, where they are skipped
    bool bad = false;  // the data are not what a sound encoder makes

    bool is_done() const { return block >= blocks + count; }
};

// Blocks of one component, side by side in the image, of which a scan sends coefficients `first` to
// `last`, in zigzag order, down to bit `low`.
struct BandTask {
    BitState bits;         // in and out; readable as those of Chunk
    const Entry* entries;  // as `fill_partial` makes them
    const Code* code;
    int first, last, low;  // first is at least 1
    int16_t* coefficients;
    uint64_t* known;  // of each block: bit k is set where coefficient k is not zero
    int count;
    uint32_t end_run;  // in and out: blocks that end before their next coefficient
};

constexpr int kCorner = 10;  // so many coefficients in zigzag order lie in the upper left quarter

// A block of an image whose coefficients are kept: 64 of them in natural order, and how many there
// are in zigzag order up to the last that may not be zero.
struct KeptBlock {
    const int16_t* coefficients;
    int reach;
};

// Blocks of one component, side by side in the image, from coefficients to samples.
struct SamplesTask {
    const Block<DoubleEntry>* blocks;  // as decode_blocks leaves them, but that the first
                                       // coefficient is the DC coefficient
    const uint16_t* order;             // which of them
    const KeptBlock* kept;             // or all of these, where `blocks` is null
    int count;
    const int16_t* quantisers;  // natural order
    uint8_t* out;  // the first sample of the first block; kRowTail writable after the last
    ptrdiff_t stride;
    int size;  // 8, or 4, 2 or 1: samples on each side that a block becomes
};

// What coefficients are divided by, in natural order.
struct Quantisation {
    int16_t quantisers[64];
    // Coefficients come multiplied by 8, and so are these: half of the quantiser in whole numbers,
    // and a half; and 1 / quantiser.
    float half[64], inverse[64];
    // All bits set for the coefficients but the first, and but those of the corner that
    // `KeptBlock::reach` tells from the rest.
    int32_t beyond_mean[64], beyond_corner[64];
};

// Blocks side by side, from samples to quantised coefficients.
struct CoefficientsTask {
    const uint8_t* samples;  // the first of the first block; kRowTail readable after the last
    ptrdiff_t stride;
    int count;
    const Quantisation* by;
    int16_t* coefficients;  // 64 of each block in natural order; of three blocks more writable
    int* reach;             // of each block, as KeptBlock's
};

// What is written for a symbol of a Huffman code and the number that follows: from the lowest bit
// on the length of both (kWrittenLengthBits), then both.
using Written = uint32_t;
constexpr int kWrittenLengthBits = 5;
constexpr int kSmallNumber = 64;
struct WrittenCodes {
    // With zeros for the number.
    Written dc[16];   // by size
    Written ac[256];  // by run and size, as symbols are
    // Whole, of coefficients from -kSmallNumber up to below kSmallNumber: by run and number.
    Written small[16][2 * kSmallNumber];
};

// Entropy-coded data without stuffing. `count` bits, below 8, of the byte at `next` are in `bits`,
// from the highest on.
struct BitOutput {
    uint64_t bits = 0;
    uint32_t count = 0;
    uint8_t* next = nullptr;
};

struct WrittenBlock {
    const int16_t*
        coefficients;  // 64 in natural order, of which those but the first are below 2^10
    int component;
};

struct WriteTask {
    const WrittenBlock* blocks;
    int count;
    const WrittenCodes* const* codes;  // of each component
    int32_t* dc;                       // in and out: of each component, of the block before
    BitOutput out;                     // kMostWrittenBytes are writable for each block, and 8 more
};
// 63 coefficients of 10 bits with codes of 16, and a DC difference of 11 bits with one of 11.
constexpr size_t kMostWrittenBytes = (63 * 26 + 22 + 7) / 8;

// What loops may read and write beyond the last sample or pixel of a row: some of the longest
// vectors. And before the first sample, of which one is read.
constexpr size_t kRowTail = 256;
constexpr size_t kRowLead = 64;

struct JpegKernels {
    // Until the chunk is done; false where it is bad.
    bool (*decode_one)(Chunk<DoubleEntry>&);
    bool (*skip_one)(Chunk<Entry>&);
    // Two chunks at the same time, until one of them is done, or bad: then false, and the other one
    // may go on.
    bool (*decode_two)(Chunk<DoubleEntry>&, Chunk<DoubleEntry>&);
    bool (*skip_two)(Chunk<Entry>&, Chunk<Entry>&);
    bool (*skip_and_decode)(Chunk<Entry>&, Chunk<DoubleEntry>&);
    // The first scan of a band, and one that adds a bit to each coefficient; false where the data
    // are bad.
    bool (*first_of_band)(BandTask&);
    bool (*next_of_band)(BandTask&);
    void (*to_samples)(const SamplesTask&);
    // libjpeg's "fancy" upsampling of a row. Samples at -1 and `width` are the neighbours, or
    // copies of the outermost.
    void (*double_width)(const uint8_t* row, uint8_t* out, int width);
    // The rows: 3/4 of `near` and 1/4 of `far`. `above`: `far` is the row above, which decides how
    // halves are rounded.
    void (*blend_rows)(const uint8_t* near, const uint8_t* far, bool above, uint8_t* out,
                       int width);
    void (*blend_and_double)(const uint8_t* near, const uint8_t* far, uint8_t* out, int width,
                             int16_t* scratch);
    // Rows of samples to a row of 4-byte pixels, the fourth byte 255.
    void (*ycc_to_rgbx)(const uint8_t* const* rows, uint8_t* out, int width);
    void (*rgb_to_rgbx)(const uint8_t* const* rows, uint8_t* out, int width);
    // The other way. 3-byte pixels to three rows of samples; pairs of rows to one of half the
    // width.
    void (*rgb_to_ycc)(const uint8_t* pixels, int width, bool blue_first, uint8_t* const* rows);
    void (*halve)(const uint8_t* upper, const uint8_t* lower, uint8_t* out, int width);
    void (*to_coefficients)(const CoefficientsTask&);
    void (*write_blocks)(WriteTask&);
};

}  // namespace fastload::jpeg
