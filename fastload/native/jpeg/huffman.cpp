#include "jpeg/huffman.hpp"

#include <algorithm>
#include <cstring>

namespace fastload::jpeg {
namespace {

// Calls `use(first lookup, how many, symbol, length of its code)` for the codes that fit into a
// lookup.
template <typename Function>
void for_each_code(const Code& code, Function use) {
    uint32_t start = 0;
    for (int length = 1; length <= kLookupBits; ++length) {
        const uint32_t count = 1u << (kLookupBits - length);
        const uint32_t stop = code.limit[length] >> (16 - kLookupBits);
        for (; start < stop; start += count) {
            const auto value = static_cast<int32_t>(start >> (kLookupBits - length));
            use(start, count, code.symbols[(code.offset[length] + value) & 255], length);
        }
    }
}

// For each lookup its first symbol with its coefficient. Where code and coefficient are longer than
// the lookup, a kLong entry with the length of the code and the symbol; where the code is, kLong.
void fill_singles(const Code& code, Entry* singles) {
    std::fill(singles, singles + kLookups, kLong);
    for_each_code(code, [&](uint32_t from, uint32_t count, int symbol, int length) {
        const Entry all = meaning(symbol, code.dc, length);
        const int used = static_cast<int>(all & kLengthMask), size = used - length;
        if (all == 0 || used > kLookupBits) {
            std::fill_n(singles + from, count, entry(length, kLongAdvance, symbol));
            return;
        }
        const uint32_t each = count >> size;
        for (int bits = 0; bits < 1 << size; ++bits, from += each) {
            const Entry whole = all | static_cast<Entry>(extend(bits, size)) << 16;
            for (uint32_t i = 0; i < each; ++i) singles[from + i] = whole;
        }
    });
}

// What may follow a first symbol: if it leaves n bits of a lookup with this value, the entry at
// 2^n + value.
template <typename E>
using FollowingTable = E[kLookups];

template <typename E, typename Function>
void fill_following(FollowingTable<E>& table, Function follow) {
    table[0] = table[1] = 0;
    for (uint32_t bits = 1; bits < kLookupBits; ++bits) {
        for (uint32_t value = 0; value < 1u << bits; ++value) {
            table[(1u << bits) + value] = follow(bits, value, value << (kLookupBits - bits));
        }
    }
}

// One symbol or two a lookup, with their coefficients.
void fill_doubles(const Code& code, DoubleEntry* doubles) {
    Entry singles[kLookups];
    fill_singles(code, singles);
    for (uint32_t i = 0; i < kLookups; ++i) doubles[i] = doubled(singles[i], i);
    for_each_code(code, [&](uint32_t from, uint32_t count, int symbol, int length) {
        const Entry all = meaning(symbol, code.dc, length);
        const int used = static_cast<int>(all & kLengthMask), size = used - length;
        const int rest = used - kLookupBits;
        // The first bit of the value is its sign: it must be within the lookup.
        if (rest <= 0 || used > kMostEntryBits || length == kLookupBits) return;
        for (uint32_t bits = 0; bits < count; ++bits) {
            const int value = extend(static_cast<int>(bits) << rest, size);
            doubles[from + bits] =
                doubled(all | static_cast<Entry>(value) << 16, from + bits, rest);
        }
    });
    if (code.dc) return;  // after a DC coefficient, another table is needed
    FollowingTable<DoubleEntry> seconds;
    fill_following(seconds, [&](uint32_t bits, uint32_t, uint32_t lookup) {
        const Entry second = singles[lookup];
        const DoubleEntry added = (second & 0xffff) | DoubleEntry{second >> 16} << 32;
        return (second & kLong) == 0 && (second & kLengthMask) <= bits ? added : 0;
    });
    for (uint32_t i = 0; i < kLookups;) {
        const Entry first = singles[i];
        const uint32_t count =
            (first & kLong) != 0 ? 1 : 1u << (kLookupBits - (first & kLengthMask));
        const bool more = count > 1 && (first & kEnd) == 0;
        for (uint32_t rest = 0; more && rest < count; ++rest)
            doubles[i + rest] += seconds[count + rest];
        i += count;
    }
}

// Up to three symbols a lookup, without their AC coefficients. The codes must lie within the
// lookup; the bits of the last coefficient may lie after it.
void fill_runs(const Code& code, Entry* runs) {
    Entry singles[kLookups];  // and from bit 16 on the length of the code
    std::fill(singles, singles + kLookups, kLong | Entry{kLookupBits + 1} << 16);
    std::fill(runs, runs + kLookups, kLong);
    for_each_code(code, [&](uint32_t from, uint32_t count, int symbol, int length) {
        const Entry all = meaning(symbol, false, length);
        if (all == 0 || (all & kLengthMask) > kMostEntryBits) {
            std::fill_n(runs + from, count, entry(length, kLongAdvance, symbol));
        } else {
            std::fill_n(singles + from, count, all | static_cast<Entry>(length) << 16);
        }
    });
    FollowingTable<Entry> one, two;
    fill_following(one, [&](uint32_t bits, uint32_t, uint32_t lookup) {
        const Entry next = singles[lookup];
        return next >> 16 <= bits && kLookupBits - bits + (next & kLengthMask) <= kMostEntryBits
                   ? next & 0xffff
                   : 0;
    });
    fill_following(two, [&](uint32_t bits, uint32_t value, uint32_t) {
        const Entry next = one[(1u << bits) + value];
        const uint32_t used = next & kLengthMask;
        const uint32_t left = (next & kEnd) != 0 || used >= bits ? 1 : 1u << (bits - used);
        return next + one[left + (value & (left - 1))];
    });
    for (uint32_t i = 0; i < kLookups;) {
        const Entry first = singles[i] & 0xffff;
        if ((first & kLong) != 0) {
            ++i;
            continue;
        }
        const uint32_t used = first & kLengthMask;
        const uint32_t count = used >= kLookupBits ? 1 : 1u << (kLookupBits - used);
        const bool more = count > 1 && (first & kEnd) == 0;
        for (uint32_t rest = 0; rest < count; ++rest)
            runs[i + rest] = first + (more ? two[count + rest] : 0);
        i += count;
    }
}

}  // namespace

bool make_code(const uint8_t* codes, bool dc, Code& made) {
    int count = 0;
    for (int i = 0; i < 16; ++i) count += codes[i];
    made.dc = dc;
    std::memset(made.symbols, 0, sizeof made.symbols);
    std::memcpy(made.symbols, codes + 16, static_cast<size_t>(count));
    if (dc &&
        std::any_of(made.symbols, made.symbols + count, [](int symbol) { return symbol > 15; }))
        return false;
    int code = 0, index = 0;
    for (int length = 1; length <= 16; ++length, code <<= 1) {
        made.offset[length] = index - code;
        code += codes[length - 1];
        index += codes[length - 1];
        // No code is all ones.
        if (codes[length - 1] > 0 && code >= 1 << length) return false;
        made.limit[length] = static_cast<uint32_t>(code) << (16 - length);
    }
    return true;
}

void fill_partial(const Code& code, Entry* entries) {
    fill_singles(code, entries);
    if (code.dc) return;
    for_each_code(code, [&](uint32_t from, uint32_t count, int symbol, int length) {
        const bool ends = (symbol & 15) == 0 && symbol != 0xf0;
        if (ends) std::fill_n(entries + from, count, entry(length, kEndAdvance + (symbol >> 4), 0));
    });
}

bool CodeTables::make(const uint8_t* codes, bool dc) {
    int count = 0;
    for (int i = 0; i < 16; ++i) count += codes[i];
    const auto bytes = static_cast<size_t>(16 + count);
    if (made_ && code_.dc == dc && std::memcmp(source_, codes, bytes) == 0) return true;
    full_.made = skipping_.made = passing_.made = false;
    std::memcpy(source_, codes, bytes);
    return made_ = make_code(codes, dc, code_);
}

template <typename E, typename Function>
const CodeTable<E>& CodeTables::get(Slot<E>& slot, Function fill) {
    if (slot.made) return *slot.table;
    if (slot.table == nullptr) slot.table = std::make_unique<CodeTable<E>>();
    slot.table->code = code_;
    fill(slot.table->entries);
    slot.made = true;
    return *slot.table;
}

const CodeTable<DoubleEntry>& CodeTables::full() {
    return get(full_, [&](DoubleEntry* entries) { fill_doubles(code_, entries); });
}

const CodeTable<Entry>& CodeTables::skipping() {
    return get(skipping_, [&](Entry* entries) {
        code_.dc ? fill_singles(code_, entries) : fill_runs(code_, entries);
    });
}

const CodeTable<DoubleEntry>& CodeTables::passing() {
    return get(passing_, [&](DoubleEntry* entries) {
        const CodeTable<Entry>& runs = skipping();
        for (uint32_t i = 0; i < kLookups; ++i) entries[i] = doubled(runs.entries[i], i);
    });
}

}  // namespace fastload::jpeg
