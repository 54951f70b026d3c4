// Entropy decoding of a chunk of blocks. Included once per instruction set: BMI2 shortens the chain
// from one symbol to the next.
//
// One loop over symbols, not over blocks and in them over symbols: where a block ends is as good as
// random, and each wrong guess of a branch would cost as much as three symbols. So that the table
// for the next symbol, the position in the block and the block itself are all chosen by arithmetic.
// What is left as branches is rare.
#pragma once

#include <cstring>

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

// Calls `step`, false where the data are bad, until all blocks before `stop` are done; kSteps
// times for one refill.
template <typename E, typename Step>
inline __attribute__((always_inline)) bool for_each_step(BitState& state, Place<E>& place,
                                                         const Block<E>* stop, Step step) {
    while (place.block < stop) {
        refill(state);
        for (int i = 0; i < kSteps; ++i) {
            if (!step(state, place)) return false;
        }
    }
    state.count &= 63;
    return true;
}

constexpr int kBlockBytes = 64 * sizeof(int16_t);

// What of a chunk is in registers.
struct Cursor {
    BitState bits;
    Place<DoubleEntry> place;

    explicit Cursor(const Chunk& chunk)
        : bits(chunk.bits), place{chunk.block, chunk.table, chunk.k} {}
    void keep(Chunk& chunk) const {
        chunk.bits = bits;
        chunk.block = place.block;
        chunk.table = place.table;
        chunk.k = place.k;
    }
};

// At which byte of a block each coefficient lies: on the stack, where it takes no register.
struct PlaceBytes {
    uint8_t at[256];
    PlaceBytes() { std::memcpy(at, kPlaces.byte, sizeof at); }
};

// One lookup. False, with nothing done, where that does not settle the next symbol.
inline __attribute__((always_inline)) bool decode_step(Cursor& cursor, const PlaceBytes& places) {
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

// The symbol that a lookup does not settle: one lookup in 64. False where the data are bad. Not
// inline: the others need the registers.
__attribute__((noinline)) bool settle(Chunk& chunk) {
    Cursor cursor(chunk);
    Place<DoubleEntry>& place = cursor.place;
    refill(cursor.bits);
    const DoubleEntry looked_up = place.table->entries[cursor.bits.bits >> (64 - kLookupBits)];
    const Entry single =
        resolve(place.table->code, place.k, cursor.bits.bits, static_cast<Entry>(looked_up));
    if (single == 0) return false;
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

// At the first block of a chunk, with all coefficients zero.
inline void begin(Chunk& chunk) {
    if (chunk.block != nullptr) return;
    for (int i = 0; i < chunk.count; ++i) {
        auto* const bytes = reinterpret_cast<uint8_t*>(chunk.blocks[i].coefficients);
        for (int at = 0; at < kBlockBytes; at += kVectorBytes)
            Simd::store(bytes + at, Simd::zero());
    }
    chunk.bits = begin(chunk.bits);
    chunk.block = chunk.blocks;
    chunk.table = chunk.blocks->tables.dc;
    chunk.k = 0;
}

// Until the chunk is done, or a symbol needs `settle`: then false.
inline __attribute__((always_inline)) bool advance(Chunk& chunk, const PlaceBytes& places) {
    Cursor cursor(chunk);
    const Block<DoubleEntry>* const stop = chunk.blocks + chunk.count;
    bool settled = true;
    while (settled && cursor.place.block < stop) {
        refill(cursor.bits);
        for (int i = 0; settled && i < kSteps; ++i) settled = decode_step(cursor, places);
    }
    cursor.keep(chunk);
    return settled;
}

// The same of two, until one is done. Gives the chunk that needs `settle`, or null.
inline __attribute__((always_inline)) Chunk* advance(Chunk& a, Chunk& b, const PlaceBytes& places) {
    Cursor first(a), second(b);
    const Block<DoubleEntry>* const first_stop = a.blocks + a.count;
    const Block<DoubleEntry>* const second_stop = b.blocks + b.count;
    Chunk* stuck = nullptr;
    while (stuck == nullptr && first.place.block < first_stop && second.place.block < second_stop) {
        refill(first.bits);
        refill(second.bits);
        for (int i = 0; i < kSteps; ++i) {
            if (!decode_step(first, places)) {
                stuck = &a;
                break;
            }
            if (!decode_step(second, places)) {
                stuck = &b;
                break;
            }
        }
    }
    first.keep(a);
    second.keep(b);
    return stuck;
}

bool decode_one(Chunk& chunk) {
    const PlaceBytes places;
    begin(chunk);
    while (!advance(chunk, places)) {
        if (!settle(chunk)) return false;
    }
    return true;
}

// Two chunks whose data are apart: the lookups of the one wait while the other's are made.
bool decode_two(Chunk& a, Chunk& b) {
    const PlaceBytes places;
    begin(a);
    begin(b);
    while (Chunk* stuck = advance(a, b, places)) {
        if (!settle(*stuck)) return false;
    }
    return true;
}

// One lookup of `skip_blocks`: false where the data are bad. `sum`: of the DC differences so far.
inline __attribute__((always_inline)) bool skip_step(BitState& state, Place<Entry>& place,
                                                     int32_t& sum) {
    Entry entry = place.table->entries[state.bits >> (64 - kLookupBits)];
    uint64_t k = place.k + advance_of(entry);
    if (__builtin_expect((k & kFilled) != 0, 0)) {
        refill(state);
        entry = resolve(place.table->code, place.k, state.bits, entry);
        if (entry == 0) return false;
        drop(state, entry);
        refill(state);
        k = place.k + advance_of(entry);
        entry &= place.table->code.dc ? ~kLengthMask : kEnd;
    }
    drop(state, entry);
    sum += static_cast<int32_t>(entry) >> 16;
    place.block->result = sum;
    place.move(entry, k);
    return true;
}

inline __attribute__((always_inline)) bool skip_until(const Block<Entry>* stop, BitState& state,
                                                      Place<Entry>& place, int32_t& sum) {
    return for_each_step(state, place, stop,
                         [&](BitState& bits, auto& at)
                             __attribute__((always_inline)) { return skip_step(bits, at, sum); });
}

bool skip_blocks(BlocksTask<Entry>& task) {
    int32_t sum = 0;
    BitState state = begin(task.bits);
    Place<Entry> place{task.blocks, task.blocks->tables.dc, 0};
    if (!skip_until(task.blocks + task.count, state, place, sum)) return false;
    task.bits = state;
    return true;
}

bool skip_two(BlocksTask<Entry>& a, BlocksTask<Entry>& b) {
    int32_t first_sum = 0, second_sum = 0;
    BitState first = begin(a.bits), second = begin(b.bits);
    Place<Entry> first_place{a.blocks, a.blocks->tables.dc, 0};
    Place<Entry> second_place{b.blocks, b.blocks->tables.dc, 0};
    const Block<Entry>* const first_stop = a.blocks + a.count;
    const Block<Entry>* const second_stop = b.blocks + b.count;
    while (first_place.block < first_stop && second_place.block < second_stop) {
        refill(first);
        refill(second);
        for (int i = 0; i < kSteps; ++i) {
            if (!skip_step(first, first_place, first_sum)) return false;
            if (!skip_step(second, second_place, second_sum)) return false;
        }
    }
    if (!skip_until(first_stop, first, first_place, first_sum)) return false;
    if (!skip_until(second_stop, second, second_place, second_sum)) return false;
    a.bits = first;
    b.bits = second;
    return true;
}

}  // namespace
}  // namespace fastload::jpeg
