// Entropy decoding of a chunk of blocks. Included once per instruction set: BMI2 shortens the chain
// from one symbol to the next.
//
// One loop over symbols, not over blocks and in them over symbols: where a block ends is as good as
// random, and each wrong guess of a branch would cost as much as three symbols. So that the table
// for the next symbol, the position in the block and the block itself are all chosen by arithmetic.
// What is left as branches is rare.
#pragma once

#include <cstring>
#include <type_traits>

#include "jpeg/bits.inl.hpp"
#include "jpeg/kernels.hpp"
#include "simd.hpp"

namespace fastload::jpeg {
namespace {

// A chunk's place in its blocks: what stays in registers, of which there are just enough for two
// chunks at a time.
template <typename E>
struct Place {
    Block<E>* block;
    const CodeTable<E>* table;  // of the next symbol
    uint64_t k;                 // in this block

    // After `entry`, after which the place in the block is `position`. Never a branch, which
    // compilers like to make of it.
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

// The next symbol alone at place `k` of a block, where a lookup does not settle it, or goes on
// after the end of the block. Only a run of zeros may do that, and what fills a block ends it. 0
// where the data are bad.
inline Entry resolve(const Code& code, uint64_t k, uint64_t bits, Entry looked_up) {
    const Entry single = symbol_at(code, bits, looked_up);
    const uint32_t position = static_cast<uint32_t>(k) + advance_of(single);
    if ((position & kFilled) == 0) return single;
    if (position != kFilled && single >> 16 != 0) return 0;
    // As if by an end, but to the position that tells a full block; the last coefficient stays.
    const int advance = kEndAdvance + (position == kFilled ? kFilled - static_cast<int>(k) : 0);
    return entry(static_cast<int>(single & kLengthMask), advance, static_cast<int>(single >> 16));
}

constexpr int kBlockBytes = 64 * sizeof(int16_t);

// What of a chunk is in registers.
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

// Where blocks are skipped, also the sum of the DC differences.
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

// At which byte of a block each coefficient lies: on the stack, where it takes no register.
struct PlaceBytes {
    uint8_t at[256];
    PlaceBytes() { std::memcpy(at, kPlaces.byte, sizeof at); }
};

// One lookup. False, with nothing done, where that does not settle the next symbol.
inline __attribute__((always_inline)) bool step(Cursor<DoubleEntry>& cursor,
                                                const PlaceBytes& places) {
    Place<DoubleEntry>& place = cursor.place;
    const DoubleEntry entry = place.table->entries[cursor.bits.bits >> (64 - kLookupBits)];
    const uint64_t k = place.k + advance_of(entry), first = place.k + (entry >> 56);
    if (__builtin_expect((k & kFilled) != 0, 0)) return false;
    const uint64_t one = (entry >> 16) + (cursor.bits.bits >> (entry >> 48 & 63));
    drop(cursor.bits, entry);
    auto* const bytes = reinterpret_cast<uint8_t*>(place.block->coefficients);
    // The second first: where there is none, its place is the first one's. Of 32 bits the lower
    // half.
    const auto lower = static_cast<uint32_t>(one), two = static_cast<uint32_t>(entry >> 32);
    std::memcpy(bytes + places.at[k], &two, 2);
    std::memcpy(bytes + places.at[first], &lower, 2);
    place.block->result = static_cast<int32_t>(k);
    place.move(entry, k);
    return true;
}

// The same where blocks are skipped.
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

// The symbol that a lookup does not settle: one lookup in 64. False where the data are bad. Not
// inline: the others need the registers.
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
        k == (kEndAdvance | kFilled) ? kFilled : k;  // of an end, nothing is there
    const Entry value = single >> 16;
    auto* const bytes = reinterpret_cast<uint8_t*>(place.block->coefficients);
    std::memcpy(bytes + kPlaces.byte[last], &value, 2);
    place.block->result = static_cast<int32_t>(k);
    place.move(single, k);
    cursor.keep(chunk);
    return true;
}

// The same where blocks are skipped.
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
    auto* const bytes = reinterpret_cast<uint8_t*>(block.coefficients);
    for (int at = 0; at < kBlockBytes; at += kVectorBytes) Simd::store(bytes + at, Simd::zero());
}
inline void clear(Block<Entry>&) {}

// At the first block of a chunk.
template <typename E>
inline void begin(Chunk<E>& chunk) {
    if (chunk.block != nullptr) return;
    for (int i = 0; i < chunk.count; ++i) clear(chunk.blocks[i]);
    chunk.bits = begin(chunk.bits);
    chunk.block = chunk.blocks;
    chunk.table = chunk.blocks->tables.dc;
    chunk.k = 0;
}

// Until the chunk is done, or a symbol needs `settle`: then false.
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

// The same of two, until one is done. Gives the chunk that needs `settle`, or null.
template <typename E, typename F>
inline __attribute__((always_inline)) void* advance(Chunk<E>& a, Chunk<F>& b,
                                                    const PlaceBytes& places) {
    CursorOf<E> first(a);
    CursorOf<F> second(b);
    const Block<E>* const first_stop = a.blocks + a.count;
    const Block<F>* const second_stop = b.blocks + b.count;
    void* stuck = nullptr;
    while (stuck == nullptr && first.place.block < first_stop && second.place.block < second_stop) {
        refill(first.bits);
        refill(second.bits);
        for (int i = 0; i < kSteps; ++i) {
            if (!step(first, places)) {
                stuck = &a;
                break;
            }
            if (!step(second, places)) {
                stuck = &b;
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

// Two chunks whose data are apart: the lookups of the one wait while the other's are made.
template <typename E>
bool run_two(Chunk<E>& a, Chunk<E>& b) {
    const PlaceBytes places;
    begin(a);
    begin(b);
    while (void* stuck = advance(a, b, places)) {
        if (!settle(*static_cast<Chunk<E>*>(stuck))) return false;
    }
    return true;
}

bool skip_and_decode(Chunk<Entry>& a, Chunk<DoubleEntry>& b) {
    const PlaceBytes places;
    begin(a);
    begin(b);
    while (void* stuck = advance(a, b, places)) {
        if (!(stuck == &a ? settle(a) : settle(b))) return false;
    }
    return true;
}

}  // namespace
}  // namespace fastload::jpeg
