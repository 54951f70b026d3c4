// Entropy encoding of blocks. Included once per instruction set.
//
// One step for each coefficient that is not zero, with a branch only for runs of 16 zeros or more.
// Each step writes eight bytes; the next one overwrites those that are not complete.
#pragma once

#include <cstring>

#include "jpeg/kernels.hpp"
#include "simd.hpp"

namespace fastload::jpeg {
namespace {

// For each row of a block, and each mask of its eight coefficients: a mask of the same ones in
// zigzag order.
struct RowPlaces {
    uint64_t of[8][256] = {};
    constexpr RowPlaces() {
        for (int place = 0; place < 64; ++place) {
            const int row = Places::kZigzag[place] / 8, bit = 1 << Places::kZigzag[place] % 8;
            for (int choice = 0; choice < 256; ++choice)
                if ((choice & bit) != 0) of[row][choice] |= uint64_t{1} << place;
        }
    }
};
constexpr RowPlaces kRowPlaces;

// Bit k is set where coefficient k in zigzag order is not zero.
inline uint64_t nonzero(const int16_t* block) {
    uint64_t found = 0;
    for (int row = 0; row < 8; row += 2 * kLanes) {
        // Each lane holds a row of the first kLanes rows, then one of the second kLanes.
        const V bytes =
            Simd::pack16(Simd::load(block + 8 * row), Simd::load(block + 8 * (row + kLanes)));
        const uint64_t mask = Simd::nonzero8(bytes);
        for (int i = 0; i < kLanes; ++i) {
            found |= kRowPlaces.of[row + i][mask >> 16 * i & 255];
            found |= kRowPlaces.of[row + kLanes + i][mask >> (16 * i + 8) & 255];
        }
    }
    return found;
}

// Of what is written for a symbol [bits].
inline uint32_t length_of(Written symbol) { return symbol & ((1u << kWrittenLengthBits) - 1); }

// Writes `length` bits, 0 to 57. If it is 0, `code` must be 0.
inline void put(BitOutput& out, uint64_t code, uint32_t length) {
    out.count += length;
    out.bits |= code << ((64 - out.count) & 63);
    const uint64_t bytes = __builtin_bswap64(out.bits);
    std::memcpy(out.next, &bytes, 8);
    out.next += out.count >> 3;
    out.bits <<= out.count & ~7u;
    out.count &= 7;
}

// Writes two symbols, each of at most 26 bits. 0 is a symbol of no bits.
inline void put(BitOutput& out, Written first, Written second) {
    const uint64_t code = uint64_t{first >> kWrittenLengthBits} << length_of(second);
    put(out, code | second >> kWrittenLengthBits, length_of(first) + length_of(second));
}

// How many bits a number has. A table: not all of these instruction sets have LZCNT, and counting
// without it takes longer.
struct SizeBits {
    uint8_t of[1 << kMostDcBits] = {};
    constexpr SizeBits() {
        for (int value = 1; value < 1 << kMostDcBits; ++value)
            of[value] = static_cast<uint8_t>(of[value / 2] + 1);
    }
};
constexpr SizeBits kSizeBits;

// What is written for a coefficient: the code of its symbol, `symbol_of(size)`, then its bits.
template <typename Function>
inline Written with_number(int32_t value, Function symbol_of) {
    const int32_t sign = value >> 31;
    const uint32_t size = kSizeBits.of[(value ^ sign) - sign];
    // A negative number is written as the number less 1, without its upper bits.
    const uint32_t bits = static_cast<uint32_t>(value + sign) & ((1u << size) - 1);
    return symbol_of(size) | bits << kWrittenLengthBits;
}

// Goes through the AC coefficients of a block that are not zero, in zigzag order.
struct Coefficients {
    const int16_t* block;
    const WrittenCodes& codes;
    uint64_t left;      // a mask of those that were not taken yet
    uint32_t next = 1;  // the place after the one that was taken last

    // What is written for the next one. `before` must be written first: it is written here, and set
    // to 0, if codes for 16 zeros come between.
    Written take(BitOutput& out, Written& before) {
        auto run = static_cast<uint32_t>(__builtin_ctzll(left >> next));
        next += run;
        const int32_t value = block[Places::kZigzag[next]];
        left &= left - 1;
        ++next;
        if (__builtin_expect(run >= 16, 0)) {
            put(out, before, 0);
            before = 0;
            for (; run >= 16; run -= 16) put(out, codes.ac[0xf0], 0);
        }
        const auto number = static_cast<uint32_t>(value + kSmallNumber);
        if (__builtin_expect(number < 2 * kSmallNumber, 1)) return codes.small[run][number];
        return with_number(value, [&](uint32_t size) { return codes.ac[run << 4 | size]; });
    }
};

void write_blocks(WriteTask& task) {
    BitOutput out = task.out;
    for (const WrittenBlock *at = task.blocks, *stop = at + task.count; at != stop; ++at) {
        const WrittenCodes& codes = *task.codes[at->component];
        int32_t& dc = task.dc[at->component];
        Written first =
            with_number(at->coefficients[0] - dc, [&](uint32_t size) { return codes.dc[size]; });
        dc = at->coefficients[0];
        Coefficients rest{at->coefficients, codes, nonzero(at->coefficients) & ~uint64_t{1}};
        while (rest.left != 0) {
            const Written second = rest.take(out, first);
            put(out, first, second);
            first = 0;
            if (rest.left == 0) break;
            first = rest.take(out, first);
        }
        put(out, first, rest.next < 64 ? codes.ac[0] : 0);
    }
    task.out = out;
}

}  // namespace
}  // namespace fastload::jpeg
