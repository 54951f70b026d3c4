// Entropy decoding of a chunk of blocks. Included once per instruction set: BMI2 shortens the chain from one symbol to
// the next.
//
// One loop over symbols, not over blocks and in them over symbols: where a block ends is as good as random, and each
// wrong guess of a branch would cost as much as three symbols. So that the table for the next symbol, the position in
// the block and the block itself are all chosen by arithmetic. What is left as branches is rare.
#pragma once

#include <cstring>

#include "jpeg/kernels.hpp"

namespace fastload::jpeg {
namespace {

inline uint64_t load_big_endian(const uint8_t* from) {
    uint64_t value;
    std::memcpy(&value, from, 8);
    return __builtin_bswap64(value);
}

// The state with nothing beyond the bits that count: what was loaded there may have been overwritten since.
inline BitState begin(BitState state) {
    state.bits &= ~(~uint64_t{0} >> state.count);
    return state;
}

// At least 56 bits. Those of `bits` beyond `count` are the same as those loaded once more.
inline void refill(BitState& state) {
    state.bits |= load_big_endian(state.next) >> state.count;
    state.next += (63 - state.count) >> 3;
    state.count |= 56;
}

// `end` where the entry is the last of its block, else `more`; never a branch, which compilers like to make of it.
inline const CodeTable* choose(Entry entry, const CodeTable* more, const CodeTable* end) {
#if defined(__x86_64__)
    __asm__("testb %b[flag], %b[entry]\n\tcmovne %[end], %[more]"
            : [more] "+r"(more)
            : [entry] "q"(entry), [end] "rm"(end), [flag] "i"(kEnd)
            : "cc");
    return more;
#else
    return entry & kEnd ? end : more;
#endif
}

// A chunk's place in its blocks.
struct Place {
    const BlockTables* tables;  // of this block
    const CodeTable* table;     // of the next symbol
    const CodeTable* ac;        // of this block
    const CodeTable* next_dc;   // of the next block
    uint32_t k = 0;             // in this block

    explicit Place(const BlockTables* first)
        : tables(first), table(first->dc), ac(first->ac), next_dc(first[1].dc) {}

    void move(Entry entry) {
        table = choose(entry, ac, next_dc);
        k &= (k >> 7) - 1;  // 0 behind an end
        tables += (entry & kEnd) / kEnd;
        ac = tables->ac;
        next_dc = tables[1].dc;
    }
};

inline void drop(BitState& state, Entry entry) {
    state.bits <<= entry & kLengthMask;
    state.count -= static_cast<int>(entry & kLengthMask);
}

bool decode_blocks(BlocksTask& task) {
    BitState state = begin(task.bits);
    Place place(task.tables);
    const BlockTables* const stop = task.tables + task.blocks;
    int16_t* coefficients = task.coefficients;
    uint8_t* reach = task.reach;
    auto step = [&]() __attribute__((always_inline)) -> bool {
        Entry entry = place.table->entries[state.bits >> (64 - kLookupBits)];
        if (__builtin_expect(entry & kLong, 0)) {
            entry = place.table->resolve(state.bits);
            if (entry == 0) return false;
        }
        drop(state, entry);
        place.k += entry >> 8 & 255;
        coefficients[kPlaces.at[place.k]] = static_cast<int16_t>(entry >> 16);
        if (__builtin_expect(place.k & kFilled, 0)) {
            // Exactly full; a run of zeros may be said to go on behind the block, a coefficient not.
            if (place.k != kFilled && entry >> 16 != 0) return false;
            entry |= kEnd;
            place.k = kFilled | kEndAdvance;
        }
        *reach = static_cast<uint8_t>(place.k);
        coefficients += (entry & kEnd) >> 1;
        reach += (entry & kEnd) / kEnd;
        place.move(entry);
        return true;
    };
    while (place.tables != stop) {
        refill(state);
        if (!step() || !step()) return false;
    }
    task.bits = state;
    return true;
}

bool skip_blocks(BlocksTask& task) {
    BitState state = begin(task.bits);
    Place place(task.tables);
    const BlockTables* const stop = task.tables + task.blocks;
    int32_t* sums = task.sums;
    int32_t sum = 0;
    auto step = [&]() __attribute__((always_inline)) -> bool {
        const CodeTable& table = *place.table;
        Entry entry = table.entries[state.bits >> (64 - kLookupBits)];
        // Long, or the block is full before the last of the entry's symbols: then the symbols one by one.
        if (__builtin_expect((entry & kLong) || ((place.k + (entry >> 8 & 255)) & kFilled), 0)) {
            entry = table.resolve(state.bits);
            if (entry == 0) return false;
            const uint32_t k = place.k + (entry >> 8 & 255);
            if (k & kFilled) {
                if (k != kFilled && entry >> 16 != 0) return false;
                entry = (entry & 0xffff00ff) | kEnd | kEndAdvance << 8;
            }
            if (!table.dc) entry &= 0xffff;
        }
        drop(state, entry);
        place.k += entry >> 8 & 255;
        sum += static_cast<int32_t>(entry) >> 16;
        *sums = sum;
        sums += (entry & kEnd) / kEnd;
        place.move(entry);
        return true;
    };
    while (place.tables != stop) {
        refill(state);
        if (!step() || !step()) return false;
    }
    task.bits = state;
    return true;
}

}  // namespace
}  // namespace fastload::jpeg
