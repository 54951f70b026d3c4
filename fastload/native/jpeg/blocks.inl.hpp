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
    uint64_t k = 0;             // in this block

    explicit Place(Block<E>* first) : block(first), table(first->tables.dc) {}

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
// where the data are bad. Not inline: one lookup in 20 comes here, and the others need the
// registers.
__attribute__((noinline, cold)) Entry resolve(const Code& code, uint64_t k, uint64_t bits,
                                              Entry looked_up) {
    const Entry single = code.resolve(bits, looked_up);
    const uint32_t position = static_cast<uint32_t>(k) + advance_of(single);
    if ((position & kFilled) == 0) return single;
    if (position != kFilled && single >> 16 != 0) return 0;
    // As if by an end, but to the position that tells a full block; the last coefficient stays.
    const int advance = kEndAdvance + (position == kFilled ? kFilled - static_cast<int>(k) : 0);
    return entry(static_cast<int>(single & kLengthMask), advance, static_cast<int>(single >> 16));
}

// Calls `step`, false where the data are bad, until all blocks before `stop` are done; so many
// times for one refill.
template <int kSteps, typename E, typename Step>
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

// At which byte of a block each coefficient lies: on the stack, where it takes no register.
struct PlaceBytes {
    uint8_t at[256];
    PlaceBytes() { std::memcpy(at, kPlaces.byte, sizeof at); }
};

// One lookup of `decode_blocks`: false where the data are bad.
inline __attribute__((always_inline)) bool decode_step(BitState& state, Place<DoubleEntry>& place,
                                                       const PlaceBytes& places) {
    DoubleEntry entry = place.table->entries[state.bits >> (64 - kLookupBits)];
    uint64_t k = place.k + advance_of(entry);
    uint64_t first = place.k + (entry >> 48);
    if (__builtin_expect((k & kFilled) != 0, 0)) {
        refill(state);
        const Entry single =
            resolve(place.table->code, place.k, state.bits, static_cast<Entry>(entry));
        if (single == 0) return false;
        drop(state, single);
        refill(state);
        entry = doubled(single & ~kLengthMask);
        k = place.k + advance_of(single);
        first = k == (kEndAdvance | kFilled) ? kFilled : k;  // of an end, where nothing lies
    }
    drop(state, entry);
    auto* const bytes = reinterpret_cast<uint8_t*>(place.block->coefficients);
    // The second first: where there is none, its place is the first one's. Of 32 bits the lower
    // half.
    const auto one = static_cast<uint32_t>(entry >> 16), two = static_cast<uint32_t>(entry >> 32);
    std::memcpy(bytes + places.at[k], &two, 2);
    std::memcpy(bytes + places.at[first], &one, 2);
    place.block->result = static_cast<int32_t>(k);
    place.move(entry, k);
    return true;
}

template <int kSteps>
inline __attribute__((always_inline)) bool decode_until(const Block<DoubleEntry>* stop,
                                                        BitState& state, Place<DoubleEntry>& place,
                                                        const PlaceBytes& places) {
    return for_each_step<kSteps>(state, place, stop,
                                 [&](BitState& bits, auto& at) __attribute__((always_inline)) {
                                     return decode_step(bits, at, places);
                                 });
}

// All coefficients zero.
inline void clear(const BlocksTask<DoubleEntry>& task) {
    for (int i = 0; i < task.count; ++i) {
        auto* const bytes = reinterpret_cast<uint8_t*>(task.blocks[i].coefficients);
        for (int at = 0; at < kBlockBytes; at += kVectorBytes)
            Simd::store(bytes + at, Simd::zero());
    }
}

template <int kSteps>
bool decode_steps(BlocksTask<DoubleEntry>& task) {
    const PlaceBytes places;
    clear(task);
    BitState state = begin(task.bits);
    Place<DoubleEntry> place(task.blocks);
    if (!decode_until<kSteps>(task.blocks + task.count, state, place, places)) return false;
    task.bits = state;
    return true;
}

bool decode_blocks(BlocksTask<DoubleEntry>& task) {
    return task.passes ? decode_steps<kStepsSkipping>(task) : decode_steps<kStepsDecoding>(task);
}

// Two chunks whose data are apart: the lookups of the one wait while the other's are made.
template <int kSteps>
bool decode_two_steps(BlocksTask<DoubleEntry>& a, BlocksTask<DoubleEntry>& b) {
    const PlaceBytes places;
    clear(a);
    clear(b);
    BitState first = begin(a.bits), second = begin(b.bits);
    Place<DoubleEntry> first_place(a.blocks), second_place(b.blocks);
    const Block<DoubleEntry>* const first_stop = a.blocks + a.count;
    const Block<DoubleEntry>* const second_stop = b.blocks + b.count;
    while (first_place.block < first_stop && second_place.block < second_stop) {
        refill(first);
        refill(second);
        for (int i = 0; i < kSteps; ++i) {
            if (!decode_step(first, first_place, places)) return false;
            if (!decode_step(second, second_place, places)) return false;
        }
    }
    if (!decode_until<kSteps>(first_stop, first, first_place, places)) return false;
    if (!decode_until<kSteps>(second_stop, second, second_place, places)) return false;
    a.bits = first;
    b.bits = second;
    return true;
}

bool decode_two(BlocksTask<DoubleEntry>& a, BlocksTask<DoubleEntry>& b) {
    return a.passes ? decode_two_steps<kStepsSkipping>(a, b)
                    : decode_two_steps<kStepsDecoding>(a, b);
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
    return for_each_step<kStepsSkipping>(
        state, place, stop, [&](BitState& bits, auto& at) __attribute__((always_inline)) {
            return skip_step(bits, at, sum);
        });
}

bool skip_blocks(BlocksTask<Entry>& task) {
    int32_t sum = 0;
    BitState state = begin(task.bits);
    Place<Entry> place(task.blocks);
    if (!skip_until(task.blocks + task.count, state, place, sum)) return false;
    task.bits = state;
    return true;
}

bool skip_two(BlocksTask<Entry>& a, BlocksTask<Entry>& b) {
    int32_t first_sum = 0, second_sum = 0;
    BitState first = begin(a.bits), second = begin(b.bits);
    Place<Entry> first_place(a.blocks), second_place(b.blocks);
    const Block<Entry>* const first_stop = a.blocks + a.count;
    const Block<Entry>* const second_stop = b.blocks + b.count;
    while (first_place.block < first_stop && second_place.block < second_stop) {
        refill(first);
        refill(second);
        for (int i = 0; i < kStepsSkipping; ++i) {
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
