// Entropy decoding of the AC scans of progressive files: a band of coefficients of one component.
// Included once per instruction set: BMI2 finds the n-th set bit of a number in one instruction.
#pragma once

#if defined(__BMI2__)
#include <immintrin.h>
#endif

#include "jpeg/bits.inl.hpp"
#include "jpeg/kernels.hpp"

namespace fastload::jpeg {
namespace {

// A mask of bits k to `last`.
inline uint64_t bits_from(int k, int last) {
    return ~uint64_t{0} << k & ~uint64_t{0} >> (63 - last);
}

// The n-th set bit of `bits` alone, counted from 0 and from the lowest; 0 if there are no more than
// n.
inline uint64_t nth_bit(uint64_t bits, int n) {
#if defined(__BMI2__)
    return _pdep_u64(uint64_t{1} << n, bits);
#else
    for (; n > 0; --n) bits &= bits - 1;
    return bits & -bits;
#endif
}

// Selects set bits of `which`. The lowest `count` bits of `bits`, where `count` (at least 1) is how
// many bits `which` has, say which ones: the highest of them for the lowest bit of `which`, and so
// on.
inline uint64_t chosen(uint64_t which, uint64_t bits) {
    const int count = __builtin_popcountll(which);
#if defined(__BMI2__)
    // Reverses the order of the bits.
    uint64_t x = __builtin_bswap64(bits << (64 - count));
    x = (x >> 4 & 0x0f0f0f0f0f0f0f0fu) | (x & 0x0f0f0f0f0f0f0f0fu) << 4;
    x = (x >> 2 & 0x3333333333333333u) | (x & 0x3333333333333333u) << 2;
    x = (x >> 1 & 0x5555555555555555u) | (x & 0x5555555555555555u) << 1;
    return _pdep_u64(x, which);
#else
    uint64_t found = 0;
    for (int shift = count - 1; which != 0; which &= which - 1, --shift)
        found |= (which & -which) & -(bits >> shift & 1);
    return found;
#endif
}

// The next `count` bits, up to 63 of them.
inline uint64_t take_many(BitState& state, int count) {
    uint64_t high = 0;
    if (count > 32) {
        refill(state);
        high = uint64_t{take(state, 32)} << (count - 32);
        count -= 32;
    }
    refill(state);
    return high | take(state, count);
}

bool first_of_band(BandTask& task) {
    BitState state = task.bits;
    const Entry* const entries = task.entries;
    int16_t* block = task.coefficients;
    for (int i = 0; i < task.count; ++i, block += 64) {
        if (task.end_run > 0) {
            const auto skipped =
                static_cast<int>(task.end_run < static_cast<uint32_t>(task.count - i)
                                     ? task.end_run
                                     : static_cast<uint32_t>(task.count - i));
            task.end_run -= static_cast<uint32_t>(skipped);
            i += skipped - 1;
            block += 64 * (skipped - 1);
            continue;
        }
        uint64_t known = 0;
        for (int k = task.first; k <= task.last; ++k) {
            const Entry found = next_symbol(state, entries, *task.code);
            if (found == 0) return false;
            if ((found & kEnd) != 0) {
                task.end_run = ending(state, found) - 1;
                break;
            }
            k += static_cast<int>(advance_of(found)) - 1;
            const int32_t value = value_of(found);
            if (k > task.last) return false;
            if (value == 0) continue;  // 16 zeros
            block[kPlaces.at[k + 1]] = static_cast<int16_t>(value * (1 << task.low));
            known |= uint64_t{1} << k;
        }
        task.known[i] |= known;
    }
    task.bits = state;
    return true;
}

// Moves the coefficients `which` of a block away from zero by 2^low. None of them has this bit yet:
// they are multiples of 2^(low + 1), as `Scans::check` made sure.
inline void correct(int16_t* block, uint64_t which, int low) {
    const int bit = 1 << low;
    for (; which != 0; which &= which - 1) {
        int16_t& coefficient = block[kPlaces.at[__builtin_ctzll(which) + 1]];
        const int value = coefficient, sign = value >> 15;
        coefficient = static_cast<int16_t>(value + ((bit ^ sign) - sign));
    }
}

// A scan that adds bit `low` to the band. Symbols send new coefficients, 1 or -1 times 2^low;
// between them stands one correction bit for each coefficient passed that is already known to be
// not zero. The correction bits of a block are collected, and applied at its end.
bool next_of_band(BandTask& task) {
    // How many of 56 bits are left after a symbol, which has at most 16 bits of code and 10 of
    // value.
    constexpr int kAtOnce = 56 - 16 - kMostAcBits;
    BitState state = task.bits;
    const Entry* const entries = task.entries;
    int16_t* block = task.coefficients;
    uint32_t end_run = task.end_run;
    for (int i = 0; i < task.count; ++i, block += 64) {
        const uint64_t all = bits_from(task.first, task.last), before = task.known[i] & all;
        uint64_t corrections = 0, known = 0;
        uint64_t left = all;  // coefficients of the band that were not passed yet
        while (end_run == 0 && left != 0) {
            const Entry found = next_symbol(state, entries, *task.code);
            if (found == 0) return false;
            if ((found & kEnd) != 0) {
                end_run = ending(state, found);
                break;
            }
            // The place of the new coefficient: the zero after the run; 0 if the run goes on to the
            // end of the band.
            const uint64_t at = nth_bit(left & ~before, static_cast<int>(advance_of(found)) - 1);
            const uint64_t passed = left & (at - 1);  // all where `at` is 0
            const int count = __builtin_popcountll(before & passed);
            corrections = corrections << count |
                          (count <= kAtOnce ? take(state, count) : take_many(state, count));
            left &= ~(passed | at);
            const int32_t value = value_of(found);
            if (value == 0) continue;  // 16 zeros
            if (at == 0 || value < -1 || value > 1) return false;
            block[kPlaces.at[__builtin_ctzll(at) + 1]] =
                static_cast<int16_t>(value * (1 << task.low));
            known |= at;
        }
        if (end_run > 0) {
            const int count = __builtin_popcountll(before & left);
            corrections = corrections << count | take_many(state, count);
            --end_run;
        }
        if (before != 0) correct(block, chosen(before, corrections), task.low);
        task.known[i] |= known;
    }
    task.end_run = end_run;
    task.bits = state;
    return true;
}

}  // namespace
}  // namespace fastload::jpeg
