// Tables that turn the next 11 bits of entropy-coded data into what they stand for.
#pragma once

#include <cstdint>
#include <memory>

#include "jpeg/frame.hpp"

namespace fastload::jpeg {

constexpr int kLookupBits = 11;  // more of them leave the first-level cache, and take longer to build
constexpr int kLookups = 1 << kLookupBits;

// An entry says, from its lowest bit on: how many bits to drop (8 bits), how far to go on in the block (8), and a
// coefficient (16, signed), which is part of the entry: nothing is computed from the bits behind the code.
using Entry = uint32_t;
// The same for one symbol or two. The coefficient is the first's; above it are the second's (16 bits, signed), and how far
// the first of them alone goes on (8). With one symbol, there is no second coefficient, and both go on the same.
using DoubleEntry = uint64_t;

constexpr Entry kLengthMask = 255;
// The end of a block goes on so far, and by that is known.
constexpr int kEndAdvance = 128;
constexpr Entry kEnd = kEndAdvance << 8;
// What goes on so far is not the whole story: the code, or code and coefficient, are longer than the lookup. The length is
// the code's, and in place of the coefficient is the symbol, or both are 0.
constexpr int kLongAdvance = 64;
constexpr Entry kLong = kLongAdvance << 8;
// Places in a block are below 64, with an end 128 to 191. So bit 6 is set in a position after a step exactly if the
// block is full, or overfull, or the entry long.
constexpr int kFilled = 64;
static_assert(kLongAdvance == kFilled, "one test for both");

constexpr Entry entry(int length, int advance, int value) {
    return static_cast<Entry>(length) | static_cast<Entry>(advance) << 8 | static_cast<Entry>(value) << 16;
}

constexpr uint32_t advance_of(DoubleEntry entry) { return entry >> 8 & 255; }

constexpr DoubleEntry doubled(Entry single) { return single | DoubleEntry{advance_of(single)} << 48; }

// The most bits that an entry drops which is not long: of decode_blocks and of skip_blocks. So many steps may follow
// one refill, which leaves at least 56 bits.
constexpr int kMostDoubleBits = kLookupBits, kMostRunBits = 18;
constexpr int kStepsDecoding = 56 / kMostDoubleBits, kStepsSkipping = 56 / kMostRunBits;
// A step at the most: a code of 16 and a DC difference of 11.
constexpr int kMostStepBits = 27;

constexpr int kMostDcBits = 11, kMostAcBits = 10;  // of 8-bit images

// The coefficient that `size` bits stand for.
inline int extend(int bits, int size) { return bits >= 1 << size >> 1 ? bits : bits - (1 << size) + 1; }

// What a symbol does, but for its coefficient. 0 if its coefficient is too large.
inline Entry meaning(int symbol, bool dc, int code_length) {
    const int size = dc ? symbol : symbol & 15;
    if (size > (dc ? kMostDcBits : kMostAcBits)) return 0;
    if (!dc && size == 0 && symbol != 0xf0) return entry(code_length, kEndAdvance, 0);
    return entry(code_length + size, dc ? 1 : (symbol >> 4) + 1, 0);
}

// A prefix code, for the symbols that a lookup does not settle.
struct Code {
    bool dc = false;
    // For codes of each length: the first 16-bit number, left-aligned, above all of them; and the index in `symbols`
    // of a code, less its value.
    uint32_t limit[17];
    int32_t offset[17];
    uint8_t symbols[256];

    // The one symbol at the top of `bits`, in full, where `looked_up` is its entry; 0 if there is none, or its coefficient
    // is larger than any encoder's.
    Entry resolve(uint64_t bits, Entry looked_up) const;
};

inline Entry Code::resolve(uint64_t bits, Entry looked_up) const {
    auto length = static_cast<int>(looked_up & kLengthMask);
    auto symbol = static_cast<int>(looked_up >> 16);
    if ((looked_up & kLong) == 0 || length == 0) {
        const auto top = static_cast<uint32_t>(bits >> 48);
        length = (looked_up & kLong) == 0 ? 1 : kLookupBits + 1;
        while (length <= 16 && top >= limit[length]) ++length;
        if (length > 16) return 0;
        symbol = symbols[(offset[length] + static_cast<int32_t>(top >> (16 - length))) & 255];
    }
    const Entry found = meaning(symbol, dc, length);
    const int size = dc ? symbol : symbol & 15;
    if (found == 0 || size == 0) return found;
    const int value = extend(static_cast<int>(bits << length >> (64 - size)), size);
    return found | static_cast<Entry>(value) << 16;
}

template <typename E>
struct CodeTable {
    E entries[kLookups];
    Code code;
};

// The tables of one slot, and what they were made from: files by the same encoder settings share theirs.
class CodeTables {
  public:
    CodeTables();

    // `codes`: 16 counts and the symbols. False if they are no prefix code that libjpeg would take.
    bool make(const uint8_t* codes, bool dc);

    // For coefficients; made when first asked for, as the next.
    const CodeTable<DoubleEntry>& full();
    // For skipping: as many symbols at once as the lookup holds, without AC coefficients.
    const CodeTable<Entry>& skipping();
    // The same for blocks of which only the DC coefficient is of interest, among others that are decoded.
    const CodeTable<DoubleEntry>& passing();

  private:
    std::unique_ptr<CodeTable<DoubleEntry>> full_;
    std::unique_ptr<CodeTable<Entry>> skipping_;
    std::unique_ptr<CodeTable<DoubleEntry>> passing_;
    Code code_;
    uint8_t source_[16 + 256];
    bool made_ = false, made_full_ = false, made_skipping_ = false, made_passing_ = false;
};

}  // namespace fastload::jpeg
