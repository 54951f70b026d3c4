// Takes bits and symbols from data without stuffing. In an anonymous namespace, as the files that
// include it are compiled once per instruction set.
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

// The state with zeros after the `count` bits that are valid. `refill` leaves further bits there,
// which must equal the bytes at `next`; since then the window may have been overwritten.
inline BitState begin(BitState state) {
    state.bits &= ~(~uint64_t{0} >> state.count);
    return state;
}

// Loads bits, so that there are at least 56. Bits of `bits` beyond `count` are already those of the
// bytes that are loaded again. Of `count` only the low six bits are valid: `drop` subtracts whole
// entries.
inline void refill(BitState& state) {
    state.count &= 63;
    state.bits |= load_big_endian(state.next) >> state.count;
    state.next += (63 - state.count) >> 3;
    state.count |= 56;
}

// Removes as many bits as the low six bits of the entry say.
template <typename E>
inline void drop(BitState& state, E entry) {
#if defined(__BMI2__)
    // shlx uses only the low six bits of its count; compilers add an instruction that masks them.
    __asm__("shlx %q[entry], %[bits], %[bits]" : [bits] "+r"(state.bits) : [entry] "r"(entry));
#else
    state.bits <<= entry & 63;
#endif
    state.count -= static_cast<uint32_t>(entry);
}

// Takes the next `count` bits, 0 to 32. There must be as many in `state`.
inline uint32_t take(BitState& state, int count) {
    const auto value = static_cast<uint32_t>(state.bits >> 32 >> (32 - count));
    drop(state, static_cast<Entry>(count));
    return value;
}

// The coefficient that the highest `size` bits of `bits` stand for; `size` is 1 to 16. As `extend`,
// but without a branch.
inline int32_t value_at(uint64_t bits, uint32_t size) {
    const auto value = static_cast<int32_t>(bits >> (64 - size));
    const auto below = static_cast<int32_t>(static_cast<int64_t>(~bits) >> 63);
    return value + (below & (1 - (1 << size)));
}

// The complete entry of the next symbol, with its coefficient, of any length. `bits`: the data,
// from the highest bit on; `looked_up`: what the table has for them. 0 if the bits are no code, or
// the coefficient is larger than 8-bit images have.
inline Entry symbol_at(const Code& code, uint64_t bits, Entry looked_up) {
    auto length = static_cast<int>(looked_up & kLengthMask);
    auto symbol = static_cast<int>(looked_up >> 16);
    if ((looked_up & kLong) == 0 || length == 0) {
        const auto top = static_cast<uint32_t>(bits >> 48);
        length = 1;
        if ((looked_up & kLong) != 0) {  // the code is longer than a lookup
            length = kLookupBits + 1;
        } else {
            for (int k = 1; k <= kLookupBits; ++k) length += top >= code.limit[k] ? 1 : 0;
        }
        for (int k = kLookupBits + 1; k <= 16; ++k) length += top >= code.limit[k] ? 1 : 0;
        if (length > 16) return 0;
        symbol =
            code.symbols[(code.offset[length] + static_cast<int32_t>(top >> (16 - length))) & 255];
    }
    const Entry found = meaning(symbol, code.dc, length);
    const int size = code.dc ? symbol : symbol & 15;
    if (found == 0 || size == 0) return found;
    const int32_t value = value_at(bits << length, static_cast<uint32_t>(size));
    return found | static_cast<Entry>(value) << 16;
}

// Takes the next symbol of a scan, with its value if it has one. `entries`: as `fill_partial` makes
// them, which describes the end of blocks. 0 if the data are bad.
inline Entry next_symbol(BitState& state, const Entry* entries, const Code& code) {
    refill(state);
    Entry found = entries[state.bits >> (64 - kLookupBits)];
    if (__builtin_expect((found & kLong) != 0, 0)) {
        found = symbol_at(code, state.bits, found);
        if ((found & kEnd) != 0 && !code.dc) {
            // The run of the symbol says how many blocks end; `symbol_at` does not return it.
            const auto length = static_cast<int>(found & kLengthMask);
            const auto top = static_cast<int32_t>(state.bits >> 48 >> (16 - length));
            found = entry(length,
                          kEndAdvance + (code.symbols[(code.offset[length] + top) & 255] >> 4), 0);
        }
    }
    drop(state, found);
    return found;
}

// The coefficient of an entry.
inline int32_t value_of(Entry found) { return static_cast<int32_t>(found) >> 16; }

// After an end-of-block entry: takes its further bits. Returns how many blocks end, this one
// included.
inline uint32_t ending(BitState& state, Entry found) {
    const int bits = static_cast<int>(advance_of(found)) - kEndAdvance;
    return (1u << bits) + take(state, bits);
}

}  // namespace
}  // namespace fastload::jpeg
