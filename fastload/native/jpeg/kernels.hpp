// The inner loops of the JPEG decoder and encoder, and the data that they work on. The loops are
// compiled once per instruction set; all variants compute the same. They throw nothing and take no
// memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload::jpeg {

// Lookup tables of Huffman codes: the next 10 bits of entropy-coded data are the index of an entry.
// Tables for more bits do not stay in the first-level cache, and take longer to make.
constexpr int kLookupBits = 10;
constexpr int kLookups = 1 << kLookupBits;

// An entry contains, from its lowest bit on: how many bits to drop (8 bits); the advance, that is,
// how many places to go on in the block (8 bits); and the coefficient (16 bits, signed). The
// coefficient is in the entry, so nothing is computed from the bits after the code.
using Entry = uint32_t;
// An entry of one symbol or two: bits to drop (8 bits), the advance of both symbols together (8),
// the first coefficient (16), the second coefficient (16), a shift (8), the advance of the first
// symbol alone (8). With one symbol the second coefficient is 0, and both advances are equal. The
// lowest bits of the first coefficient may lie after the lookup. So it is stored less the lookup
// (shifted left by the number of those bits), and `bits >> shift`, the lookup with the bits after
// it, is added, modulo 2^16.
using DoubleEntry = uint64_t;

constexpr Entry kLengthMask = 255;
// The advance of an end-of-block symbol.
constexpr int kEndAdvance = 128;
constexpr Entry kEnd = kEndAdvance << 8;
// The advance of an incomplete entry: the code, or code and coefficient, are longer than the
// lookup. If the code fits, the entry has its length, and the symbol in place of the coefficient;
// else both are 0.
constexpr int kLongAdvance = 64;
constexpr Entry kLong = kLongAdvance << 8;
// The position in a block is below 64, and 128 to 191 after an end of block. So after a step its
// bit 6 is set exactly if the block is full, or the step went beyond it, or the entry is
// incomplete.
constexpr int kFilled = 64;
static_assert(kLongAdvance == kFilled, "one test for both");

// Functions here are in an anonymous namespace: each file that includes them is compiled for one
// instruction set, and must not share them with another.
namespace {

constexpr Entry entry(int length, int advance, int value) {
    return static_cast<Entry>(length) | static_cast<Entry>(advance) << 8 |
           static_cast<Entry>(value) << 16;
}

constexpr uint32_t advance_of(DoubleEntry entry) { return entry >> 8 & 255; }

// The DoubleEntry of one symbol. `lookup`: its index in the table; `rest`: how many bits of the
// coefficient lie after the lookup.
constexpr DoubleEntry doubled(Entry single, uint32_t lookup, int rest = 0) {
    const bool is_long = (single & kLong) != 0;
    return (single - (is_long ? 0 : lookup << (16 + rest))) |
           static_cast<DoubleEntry>(64 - kLookupBits - rest) << 48 |
           DoubleEntry{advance_of(single)} << 56;
}

}  // namespace

// The most bits that a complete entry drops; and how many steps may follow one refill, after which
// there are at least 56 bits.
constexpr int kMostEntryBits = 18, kSteps = 56 / kMostEntryBits;
// The most bits that a symbol takes: a code of 16 and a DC difference of 11.
constexpr int kMostStepBits = 27;

// The largest sizes of DC differences and AC coefficients of 8-bit images [bits].
constexpr int kMostDcBits = 11, kMostAcBits = 10;

namespace {

// The coefficient that `size` bits stand for (EXTEND of the standard).
inline int extend(int bits, int size) {
    return bits >= 1 << size >> 1 ? bits : bits - (1 << size) + 1;
}

// The entry of a symbol, without its coefficient. 0 if the coefficient would be too large.
inline Entry meaning(int symbol, bool dc, int code_length) {
    const int size = dc ? symbol : symbol & 15;
    if (size > (dc ? kMostDcBits : kMostAcBits)) return 0;
    if (!dc && size == 0 && symbol != 0xf0) return entry(code_length, kEndAdvance, 0);
    return entry(code_length + size, dc ? 1 : (symbol >> 4) + 1, 0);
}

}  // namespace

// A Huffman code, for the symbols that a lookup does not contain.
struct Code {
    bool dc = false;
    // For each length: the smallest 16-bit number, left-aligned, that is above all codes of this
    // length; and the index in `symbols` of a code of this length, less the code.
    uint32_t limit[17];
    int32_t offset[17];
    uint8_t symbols[256];
};

// Blocks.

// The most blocks in a chunk: their coefficients stay in the first-level cache.
constexpr int kMostBlocks = 48;
// The most bytes of entropy-coded data that a chunk takes, at most 64 symbols a block, and 24 bytes
// that the last refills read beyond.
constexpr size_t kMostChunkBytes = size_t{kMostBlocks} * 64 * kMostStepBits / 8 + 24;

// Where coefficient k - 1 in zigzag order lies in a block in natural order, and at which byte; for
// k > 64 the scratch place after the coefficients. For k = 0, where entries that do nothing write,
// the first place.
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

// A place in data without stuffing: the next `count` bits are the highest of `bits`; the bits after
// these are those of the bytes from `next` on.
struct BitState {
    const uint8_t* next = nullptr;
    uint64_t bits = 0;
    uint32_t count = 0;
};

// The tables of a block.
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
    // In natural order; the first one is the difference to the DC coefficient of the block before
    // of the same component. The last place is scratch.
    int16_t coefficients[64 + 1];
    // kEndAdvance plus the position after the last coefficient in zigzag order (kFilled if all are
    // there).
    int32_t result;
    Tables<DoubleEntry> tables;
    bool only_mean;  // only the first coefficient is set
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
    // After the last one there are two more, whose tables have entries that do nothing.
    Block<E>* blocks = nullptr;
    int count = 0;
    // The next symbol: its block (null before the first symbol), its table, its place in the block.
    Block<E>* block = nullptr;
    const CodeTable<E>* table = nullptr;
    uint64_t k = 0;
    int32_t sum = 0;   // of the DC differences so far, where they are skipped
    bool bad = false;  // the data are not what a sound encoder makes

    bool is_done() const { return block >= blocks + count; }
};

// Blocks of one component, side by side in the image, of which a progressive scan sends
// coefficients `first` to `last`, in zigzag order, down to bit `low`.
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

// The first 10 coefficients in zigzag order lie in the upper left quarter of a block.
constexpr int kCorner = 10;

// A block whose coefficients are complete: 64 in natural order. `reach`: how many there are in
// zigzag order up to the last one that may be nonzero.
struct KeptBlock {
    const int16_t* coefficients;
    int reach;
};

// Inverse DCT of blocks of one component, side by side in the image.
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

// A quantisation table in the form that `to_coefficients` uses, in natural order.
struct Quantisation {
    int16_t quantisers[64];
    // The forward DCT gives 8 times the coefficients. So `half` is 8 * quantiser / 2 + 0.5, and
    // `inverse` is 1 / (8 * quantiser).
    float half[64], inverse[64];
    // -1 for all coefficients but the first one, or but the first kCorner ones in zigzag order; 0
    // for these.
    int32_t beyond_mean[64], beyond_corner[64];
};

// Forward DCT and quantisation of blocks side by side.
struct CoefficientsTask {
    const uint8_t* samples;  // the first of the first block; kRowTail readable after the last
    ptrdiff_t stride;
    int count;
    const Quantisation* by;
    int16_t* coefficients;  // 64 of each block in natural order; of three blocks more writable
    int* reach;             // of each block, as KeptBlock's
};

// The bits that are written for a symbol, its Huffman code and its number together. From the lowest
// bit on: how many bits there are (kWrittenLengthBits bits), then the bits.
using Written = uint32_t;
constexpr int kWrittenLengthBits = 5;
constexpr int kSmallNumber = 64;
struct WrittenCodes {
    // With zeros in place of the number:
    Written dc[16];   // by size
    Written ac[256];  // by run and size, as symbols are
    // Complete, for coefficients from -kSmallNumber to kSmallNumber - 1: by run, and number +
    // kSmallNumber.
    Written small[16][2 * kSmallNumber];
};

// Where entropy-coded data without stuffing are written. The first `count` bits (below 8) of the
// byte at `next` are the highest of `bits`.
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

// Bytes that loops may read and write after the last sample or pixel of a row: four of the longest
// vectors. And bytes before the first sample, of which the last one is read.
constexpr size_t kRowTail = 256;
constexpr size_t kRowLead = 64;

struct JpegKernels {
    // Decode, or skip, until the chunk is done; false if its data are bad.
    bool (*decode_one)(Chunk<DoubleEntry>&);
    bool (*skip_one)(Chunk<Entry>&);
    // The same for two chunks at a time, until one of them is done, or its data are bad: then
    // false, and the other one can go on.
    bool (*decode_two)(Chunk<DoubleEntry>&, Chunk<DoubleEntry>&);
    bool (*skip_two)(Chunk<Entry>&, Chunk<Entry>&);
    bool (*skip_and_decode)(Chunk<Entry>&, Chunk<DoubleEntry>&);
    // Decode blocks of a progressive AC scan: the first one of a band, or one that adds a bit.
    // False if the data are bad.
    bool (*first_of_band)(BandTask&);
    bool (*next_of_band)(BandTask&);
    void (*to_samples)(const SamplesTask&);
    // libjpeg's "fancy" upsampling. Samples at -1 and `width` are the neighbours in the image, or
    // at its edge copies of the outermost samples.
    void (*double_width)(const uint8_t* row, uint8_t* out, int width);
    // 3/4 of row `near` and 1/4 of row `far`. `above`: `far` is the row above `near`; it decides
    // how halves are rounded.
    void (*blend_rows)(const uint8_t* near, const uint8_t* far, bool above, uint8_t* out,
                       int width);
    void (*blend_and_double)(const uint8_t* near, const uint8_t* far, uint8_t* out, int width,
                             int16_t* scratch);
    // Three rows of samples to a row of 4-byte pixels, whose fourth byte is 255.
    void (*ycc_to_rgbx)(const uint8_t* const* rows, uint8_t* out, int width);
    void (*rgb_to_rgbx)(const uint8_t* const* rows, uint8_t* out, int width);
    // For encoding: 3-byte pixels to three rows of samples; two rows to one of half their width.
    void (*rgb_to_ycc)(const uint8_t* pixels, int width, bool blue_first, uint8_t* const* rows);
    void (*halve)(const uint8_t* upper, const uint8_t* lower, uint8_t* out, int width);
    void (*to_coefficients)(const CoefficientsTask&);
    void (*write_blocks)(WriteTask&);
};

}  // namespace fastload::jpeg
