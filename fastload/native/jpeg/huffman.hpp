// The lookup tables of a Huffman code.
#pragma once

#include <memory>

#include "jpeg/kernels.hpp"

namespace fastload::jpeg {

// The code of a slot: `codes` are 16 counts of codes by length, then the symbols. False if they are
// no prefix code that libjpeg would take.
bool make_code(const uint8_t* codes, bool dc, Code& code);

// For scans that send coefficients in parts: for each lookup one symbol, or kLong. An entry's
// advance is the run of zeros and one more; of the end of a block, or of 2^n of them, it is
// kEndAdvance + n, and its length is the code's.
void fill_partial(const Code& code, Entry* entries);

// The tables of one slot, and what they were made from: files by the same encoder settings share
// theirs.
class CodeTables {
  public:
    // `codes`: 16 counts and the symbols. False if they are no prefix code that libjpeg would take.
    bool make(const uint8_t* codes, bool dc);

    // For coefficients; made when first asked for, as the next.
    const CodeTable<DoubleEntry>& full();
    // For skipping: as many symbols at once as the lookup holds, without AC coefficients.
    const CodeTable<Entry>& skipping();
    // The same for blocks of which only the DC coefficient is of interest, among others that are
    // decoded.
    const CodeTable<DoubleEntry>& passing();

  private:
    template <typename E>
    struct Slot {
        std::unique_ptr<CodeTable<E>> table;
        bool made = false;
    };
    template <typename E, typename Function>
    const CodeTable<E>& get(Slot<E>& slot, Function fill);

    Slot<DoubleEntry> full_, passing_;
    Slot<Entry> skipping_;
    Code code_;
    uint8_t source_[16 + 256];
    bool made_ = false;
};

}  // namespace fastload::jpeg
