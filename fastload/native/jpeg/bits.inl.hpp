// Taking bits and symbols from data without stuffing. In a namespace of each file that includes it,
// as the loops are compiled once per instruction set.
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

// The state with nothing beyond the bits that count: what was loaded there may have been
// overwritten since.
inline BitState begin(BitState state) {
    state.bits &= ~(~uint64_t{0} >> state.count);
    return state;
}

// At least 56 bits. Those of `bits` beyond `count` are the same as those loaded once more. Of
// `count`, only the low six bits mean something: `drop` subtracts whole entries.
inline void refill(BitState& state) {
    state.count &= 63;
    state.bits |= load_big_endian(state.next) >> state.count;
    state.next += (63 - state.count) >> 3;
    state.count |= 56;
}

template <typename E>
inline void drop(BitState& state, E entry) {
#if defined(__BMI2__)
    // It takes the low six bits by itself, which compilers forget.
    __asm__("shlx %q[entry], %[bits], %[bits]" : [bits] "+r"(state.bits) : [entry] "r"(entry));
#else
    state.bits <<= entry & 63;
#endif
    state.count -= static_cast<uint32_t>(entry);
}

// The next `count` bits, 0 to 32 of them, of which there must be so many in `state`.
inline uint32_t take(BitState& state, int count) {
    const auto value = static_cast<uint32_t>(state.bits >> 32 >> (32 - count));
    drop(state, static_cast<Entry>(count));
    return value;
}

// What `size` bits at the top of `bits` stand for; 1 to 16 of them. As `extend`, but never a
// branch.
inline int32_t value_at(uint64_t bits, uint32_t size) {
    const auto value = static_cast<int32_t>(bits >> (64 - size));
    const auto below = static_cast<int32_t>(static_cast<int64_t>(~bits) >> 63);
    return value + (below & (1 - (1 << size)));
}

// The one symbol at the top of `bits`, in full, where `looked_up` is its entry; 0 if there is none,
// or its coefficient is larger than any encoder's.
inline Entry symbol_at(const Code& code, uint64_t bits, Entry looked_up) {
    auto length = static_cast<int>(looked_up & kLengthMask);
    auto symbol = static_cast<int>(looked_up >> 16);
    if ((looked_up & kLong) == 0 || length == 0) {
        const auto top = static_cast<uint32_t>(bits >> 48);
        length = 1;
        if ((looked_up & kLong) != 0) {  // no code that fits into the lookup
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

// The symbol at the top of `state`, with its value where it has one; 0 where the data are bad. The
// end of blocks is as `fill_partial` has it.
inline Entry next_symbol(BitState& state, const Entry* entries, const Code& code) {
    refill(state);
    Entry found = entries[state.bits >> (64 - kLookupBits)];
    if (__builtin_expect((found & kLong) != 0, 0)) {
        found = symbol_at(code, state.bits, found);
        if ((found & kEnd) != 0 && !code.dc) {
            // Its run says how many blocks end, and `symbol_at` has dropped it.
            const auto length = static_cast<int>(found & kLengthMask);
            const auto top = static_cast<int32_t>(state.bits >> 48 >> (16 - length));
            found = entry(length,
                          kEndAdvance + (code.symbols[(code.offset[length] + top) & 255] >> 4), 0);
        }
    }
    drop(state, found);
    return found;
}

inline int32_t value_of(Entry found) { return static_cast<int32_t>(found) >> 16; }

// Blocks that end here, this one included.
inline uint32_t ending(BitState& state, Entry found) {
    const int bits = static_cast<int>(advance_of(found)) - kEndAdvance;
    return (1u << bits) + take(state, bits);
}

}  // namespace
}  // namespace fastload::jpeg
