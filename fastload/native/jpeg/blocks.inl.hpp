// Entropy decoding of a chunk of blocks. Included once per instruction set: BMI2 shortens the chain
// of operations from one symbol to the next.
//
// There is one loop over the symbols of a chunk, not a loop over blocks with a loop over symbols
// inside. The end of a block cannot be predicted, and a mispredicted branch takes as long as three
// symbols. So the table for the next symbol, the position in the block and the block are chosen by
// conditional moves. The branches that are left are rarely taken.
#pragma once

#include <cstring>
#include <type_traits>

#include "jpeg/bits.inl.hpp"
#include "jpeg/kernels.hpp"
#include "simd.hpp"

namespace fastload::jpeg {
namespace {

// A place in the blocks of a chunk. It stays in registers, of which there are just enough for two
// chunks at a time.
template <typename E>
struct Place {
    Block<E>* block;
    const CodeTable<E>* table;  // of the next symbol
    uint64_t k;                 // in this block

    // Goes on after `entry`, which leads to `position` in the block. In assembler, as compilers
    // make a branch of the second form.
    void move(E entry, uint64_t position) {
        k = position;
        table = block->tables.ac;
#if defined(__x86_64__)
        __asm__(
            "testl %[flag], %k[entry]\n\tcmovneq %[dc], %[table]\n\tcmovneq %[next], "
            "%[block]\n\tcmovneq %[zero], %[k]"
            : [table] "+r"(table), [block] "+r"(block), [k] "+r"(k)
            : [entry] "r"(entry), [dc] "m"(block[1].tables.dc), [next] "r"(block + 1),
              [zero] "rm"(uint64_t{0}), [flag] "i"(kEnd)
            : "cc");
#else
        const bool end = (entry & kEnd) != 0;
        table = end ? block[1].tables.dc : table;
        block = end ? block + 1 : block;
        k = end ? 0 : k;
#endif
    }
};

// The entry of the next symbol alone, at place `k` of a block, if a lookup does not contain it, or
// goes beyond the end of the block. Only a run of 16 zeros may go beyond, and a coefficient at the
// last place ends the block. 0 if the data are bad.
inline Entry resolve(const Code& code, uint64_t k, uint64_t bits, Entry looked_up) {
    const Entry single = symbol_at(code, bits, looked_up);
    const uint32_t position = static_cast<uint32_t>(k) + advance_of(single);
    if ((position & kFilled) == 0) return single;
    if (position != kFilled && single >> 16 != 0) return 0;
    // The same as an end of block, but with the advance that leads to the position of a full block,
    // and with the last coefficient.
    const int advance = kEndAdvance + (position == kFilled ? kFilled - static_cast<int>(k) : 0);
    return entry(static_cast<int>(single & kLengthMask), advance, static_cast<int>(single >> 16));
}

constexpr int kBlockBytes = 64 * sizeof(int16_t);

// The part of a chunk that is in registers.
template <typename E>
struct Cursor {
    BitState bits;
    Place<E> place;

    explicit Cursor(const Chunk<E>& chunk)
        : bits(chunk.bits), place{chunk.block, chunk.table, chunk.k} {}
    void keep(Chunk<E>& chunk) const {
        chunk.bits = bits;
        chunk.block = place.block;
        chunk.table = place.table;
        chunk.k = place.k;
    }
};

// The same for chunks that are skipped, with the sum of the DC differences.
struct SkippingCursor : Cursor<Entry> {
    int32_t sum;

    explicit SkippingCursor(const Chunk<Entry>& chunk) : Cursor(chunk), sum(chunk.sum) {}
    void keep(Chunk<Entry>& chunk) const {
        Cursor::keep(chunk);
        chunk.sum = sum;
    }
};

template <typename E>
using CursorOf = std::conditional_t<std::is_same_v<E, Entry>, SkippingCursor, Cursor<E>>;

// At which byte of a block each coefficient lies. A copy on the stack, which is addressed without a
// register of its own.
struct PlaceBytes {
    uint8_t at[256];
    PlaceBytes() { std::memcpy(at, kPlaces.byte, sizeof at); }
};

// One lookup. False, with nothing changed, if the lookup does not contain the next symbol.
inline __attribute__((always_inline)) bool step(Cursor<DoubleEntry>& cursor,
                                                const PlaceBytes& places) {
    Place<DoubleEntry>& place = cursor.place;
    const DoubleEntry entry = place.table->entries[cursor.bits.bits >> (64 - kLookupBits)];
    const uint64_t k = place.k + advance_of(entry), first = place.k + (entry >> 56);
    if (__builtin_expect((k & kFilled) != 0, 0)) return false;
    const uint64_t one = (entry >> 16) + (cursor.bits.bits >> (entry >> 48 & 63));
    drop(cursor.bits, entry);
    auto* const bytes = reinterpret_cast<uint8_t*>(place.block->coefficients);
    // The second coefficient is written first: if there is none, it is overwritten by the first
    // one. The lower 16 of the 32 bits are written.
    const auto lower = static_cast<uint32_t>(one), two = static_cast<uint32_t>(entry >> 32);
    std::memcpy(bytes + places.at[k], &two, 2);
    std::memcpy(bytes + places.at[first], &lower, 2);
    place.block->result = static_cast<int32_t>(k);
    place.move(entry, k);
    return true;
}

// The same for a chunk that is skipped.
inline __attribute__((always_inline)) bool step(SkippingCursor& cursor, const PlaceBytes&) {
    Place<Entry>& place = cursor.place;
    const Entry entry = place.table->entries[cursor.bits.bits >> (64 - kLookupBits)];
    const uint64_t k = place.k + advance_of(entry);
    if (__builtin_expect((k & kFilled) != 0, 0)) return false;
    drop(cursor.bits, entry);
    cursor.sum += static_cast<int32_t>(entry) >> 16;
    place.block->result = cursor.sum;
    place.move(entry, k);
    return true;
}

// Takes a symbol that a lookup does not contain (after one lookup in 64). False if the data are
// bad. Not inline, as the loops need all registers.
__attribute__((noinline)) bool settle(Chunk<DoubleEntry>& chunk) {
    Cursor cursor(chunk);
    Place<DoubleEntry>& place = cursor.place;
    refill(cursor.bits);
    const DoubleEntry looked_up = place.table->entries[cursor.bits.bits >> (64 - kLookupBits)];
    const Entry single =
        resolve(place.table->code, place.k, cursor.bits.bits, static_cast<Entry>(looked_up));
    chunk.bad = single == 0;
    if (chunk.bad) return false;
    drop(cursor.bits, single);
    const uint64_t k = place.k + advance_of(single);
    const uint64_t last =
        k == (kEndAdvance | kFilled) ? kFilled : k;  // places of an end are the scratch one
    const Entry value = single >> 16;
    auto* const bytes = reinterpret_cast<uint8_t*>(place.block->coefficients);
    std::memcpy(bytes + kPlaces.byte[last], &value, 2);
    place.block->result = static_cast<int32_t>(k);
    place.move(single, k);
    cursor.keep(chunk);
    return true;
}

// The same for a chunk that is skipped.
__attribute__((noinline)) bool settle(Chunk<Entry>& chunk) {
    SkippingCursor cursor(chunk);
    Place<Entry>& place = cursor.place;
    refill(cursor.bits);
    const Entry looked_up = place.table->entries[cursor.bits.bits >> (64 - kLookupBits)];
    const Entry single = resolve(place.table->code, place.k, cursor.bits.bits, looked_up);
    chunk.bad = single == 0;
    if (chunk.bad) return false;
    drop(cursor.bits, single);
    if (place.table->code.dc) cursor.sum += static_cast<int32_t>(single) >> 16;
    place.block->result = cursor.sum;
    place.move(single, place.k + advance_of(single));
    cursor.keep(chunk);
    return true;
}

inline void clear(Block<DoubleEntry>& block) {
    if (block.only_mean) return;
    auto* const bytes = reinterpret_cast<uint8_t*>(block.coefficients);
    for (int at = 0; at < kBlockBytes; at += kVectorBytes) Simd::store(bytes + at, Simd::zero());
}
inline void clear(Block<Entry>&) {}

// Prepares a chunk before its first symbol: its first block, and all coefficients zero.
template <typename E>
inline void begin(Chunk<E>& chunk) {
    if (chunk.block != nullptr) return;
    for (int i = 0; i < chunk.count; ++i) clear(chunk.blocks[i]);
    chunk.bits = begin(chunk.bits);
    chunk.block = chunk.blocks;
    chunk.table = chunk.blocks->tables.dc;
    chunk.k = 0;
}

// Decodes until the chunk is done, or until a symbol needs `settle`; then false.
template <typename E>
inline __attribute__((always_inline)) bool advance(Chunk<E>& chunk, const PlaceBytes& places) {
    CursorOf<E> cursor(chunk);
    const Block<E>* const stop = chunk.blocks + chunk.count;
    bool settled = true;
    while (settled && cursor.place.block < stop) {
        refill(cursor.bits);
        for (int i = 0; settled && i < kSteps; ++i) settled = step(cursor, places);
    }
    cursor.keep(chunk);
    return settled;
}

// The same for two chunks, until one of them is done. Returns which of them needs `settle`, 1 or 2;
// else 0. Not inline: as a part of its callers it was up to 4% slower, by what else was in them.
template <typename E, typename F>
__attribute__((noinline)) int advance(Chunk<E>& a, Chunk<F>& b, const PlaceBytes& places) {
    CursorOf<E> first(a);
    CursorOf<F> second(b);
    const Block<E>* const first_stop = a.blocks + a.count;
    const Block<F>* const second_stop = b.blocks + b.count;
    int stuck = 0;
    while (stuck == 0 && first.place.block < first_stop && second.place.block < second_stop) {
        refill(first.bits);
        refill(second.bits);
        for (int i = 0; i < kSteps; ++i) {
            if (!step(first, places)) {
                stuck = 1;
                break;
            }
            if (!step(second, places)) {
                stuck = 2;
                break;
            }
        }
    }
    first.keep(a);
    second.keep(b);
    return stuck;
}

template <typename E>
bool run_one(Chunk<E>& chunk) {
    const PlaceBytes places;
    begin(chunk);
    while (!advance(chunk, places)) {
        if (!settle(chunk)) return false;
    }
    return true;
}

// Two chunks at a time: while a lookup of one waits for the cache, the other goes on.
template <typename E>
bool run_two(Chunk<E>& a, Chunk<E>& b) {
    const PlaceBytes places;
    begin(a);
    begin(b);
    while (const int stuck = advance(a, b, places)) {
        if (!settle(stuck == 1 ? a : b)) return false;
    }
    return true;
}

bool skip_and_decode(Chunk<Entry>& a, Chunk<DoubleEntry>& b) {
    const PlaceBytes places;
    begin(a);
    begin(b);
    while (const int stuck = advance(a, b, places)) {
        if (!(stuck == 1 ? settle(a) : settle(b))) return false;
    }
    return true;
}

}  // namespace
}  // namespace fastload::jpeg
