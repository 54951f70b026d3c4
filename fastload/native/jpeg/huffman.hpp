// Huffman codes of JPEGs, and the lookup tables made from them (the entries are described in
// jpeg/kernels.hpp).
#pragma once

#include <memory>

#include "jpeg/kernels.hpp"

namespace fastload::jpeg {

// Reads a code. `codes`: 16 counts of codes by length (their sum is at most 256), then the symbols.
// False if it is no prefix code, or one that libjpeg refuses.
bool make_code(const uint8_t* codes, bool dc, Code& code);

// Makes kLookups entries for progressive scans: one symbol a lookup, or kLong. The advance of an
// entry is its run of zeros plus 1. An entry that ends 2^n blocks or more (EOBn) has the advance
// kEndAdvance + n, and the length of its code alone.
void fill_partial(const Code& code, Entry* entries);

// The lookup tables of the blocks of a component, by its DC and its AC code. They are kept between
// files and made again only for other codes: files with the same encoder settings often have the
// same ones. Each kind of table is made when it is first asked for.
class BlockTables {
  public:
    // Sets the codes, as `make_code`.
    bool make(const uint8_t* dc, const uint8_t* ac);

    // For decoding all coefficients: one symbol or two a lookup.
    Tables<DoubleEntry> full();
    // For stepping over blocks: up to three symbols a lookup, without their AC coefficients.
    Tables<Entry> skipping();
    // The same as DoubleEntry: for blocks of which only the DC coefficient is needed, in a chunk
    // with blocks that are decoded.
    Tables<DoubleEntry> passing();

  private:
    template <typename E>
    struct Slot {
        std::unique_ptr<CodeTable<E>> dc, ac;
        bool made = false;
    };
    template <typename E, typename Function>
    Tables<E> get(Slot<E>& slot, Function fill);

    // What may follow a first symbol where blocks are stepped over, for `skipping` and `passing`.
    const Entry (&stepping())[kLookups];

    Slot<DoubleEntry> full_, passing_;
    Slot<Entry> skipping_;
    Code dc_, ac_;
    uint8_t dc_source_[16 + 256], ac_source_[16 + 256];  // what the codes were made of
    bool made_ = false;                                  // whether the codes are valid
    Entry stepping_[kLookups];
    bool stepped_ = false;  // whether `stepping_` is made
};

}  // namespace fastload::jpeg
