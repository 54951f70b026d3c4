// Tables that turn the next 11 bits of entropy-coded data into what they stand for.
#pragma once

#include <cstdint>
#include <memory>

#include "jpeg/frame.hpp"

namespace fastload::jpeg {

constexpr int kLookupBits = 11;  // more of them leave the first-level cache, and take longer to build
constexpr int kLookups = 1 << kLookupBits;

// An entry says, from its lowest bit on: how many bits to drop (6 bits), whether it is not the whole story (`kLong`),
// whether the block ends with it (`kEnd`), how far to go on in the block (8 bits), and a coefficient (16, signed).
// The coefficient is part of the entry: nothing is computed from the bits behind the code.
using Entry = uint32_t;
constexpr Entry kLengthMask = 63;
constexpr Entry kLong = 64;  // the code, or code and coefficient, are longer than the lookup; see `resolve`
constexpr Entry kEnd = 128;
// What an end adds to the position in a block, so that positions up to 63 then are 128 to 191: bit 6 is set in a
// position after a step exactly if the block was filled, or overfull.
constexpr int kEndAdvance = 128;
constexpr int kFilled = 64;

constexpr Entry entry(int length, int advance, int value, Entry flags = 0) {
    return static_cast<Entry>(length) | flags | static_cast<Entry>(advance) << 8 | static_cast<Entry>(value) << 16;
}

// Bits that one step may drop: a code of 16 and a DC difference of 11. Two steps fit into what a refill leaves.
constexpr int kMostStepBits = 27;

struct CodeTable {
    Entry entries[kLookups];
    bool dc = false;
    // For codes of each length: the first 16-bit number, left-aligned, above all of them; and the index in `symbols`
    // of a code, less its value.
    uint32_t limit[17];
    int32_t offset[17];
    uint8_t symbols[256];

    // The one symbol at the top of `bits`, in full; 0 if there is none, or its coefficient is larger than any encoder's.
    Entry resolve(uint64_t bits) const;
};

// The tables of one slot, and what they were made from: files by the same encoder settings share theirs.
class CodeTables {
  public:
    CodeTables();

    // `codes`: 16 counts and the symbols. False if they are no prefix code that libjpeg would take.
    bool make(const uint8_t* codes, bool dc);
    // The entries for skipping AC coefficients: as many symbols at once as the lookup holds, without coefficients.
    void make_skipping();

    const CodeTable& full() const { return *full_; }
    const CodeTable& skipping() const { return *skipping_; }

  private:
    std::unique_ptr<CodeTable> full_, skipping_;
    uint8_t source_[16 + 256];
    bool made_ = false, made_skipping_ = false;
};

}  // namespace fastload::jpeg
