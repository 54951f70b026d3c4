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

// For coefficients: the second symbol of a lookup. `singles`: of the AC code.
void follow_one(const Entry* singles, FollowingTable<DoubleEntry>& table) {
    fill_following(table, [&](uint32_t bits, uint32_t, uint32_t lookup) {
        const Entry next = singles[lookup];
        const DoubleEntry added = (next & 0xffff) | DoubleEntry{next >> 16} << 32;
        return (next & kLong) == 0 && (next & kLengthMask) <= bits ? added : 0;
    });
}

// For stepping over: the second and the third symbol of a lookup, without their coefficients. The
// codes must lie within the lookup; the bits of the last coefficient may lie after it.
void follow_two(const Code& ac, FollowingTable<Entry>& table) {
    Entry singles[kLookups];  // and from bit 16 on the length of the code
    std::fill(singles, singles + kLookups, kLong | Entry{kLookupBits + 1} << 16);
    for_each_code(ac, [&](uint32_t from, uint32_t count, int symbol, int length) {
        const Entry all = meaning(symbol, false, length);
        if (all == 0 || (all & kLengthMask) > kMostEntryBits) return;
        std::fill_n(singles + from, count, all | static_cast<Entry>(length) << 16);
    });
    FollowingTable<Entry> one;
    fill_following(one, [&](uint32_t bits, uint32_t, uint32_t lookup) {
        const Entry next = singles[lookup];
        return next >> 16 <= bits && kLookupBits - bits + (next & kLengthMask) <= kMostEntryBits
                   ? next & 0xffff
                   : 0;
    });
    fill_following(table, [&](uint32_t bits, uint32_t value, uint32_t) {
        const Entry next = one[(1u << bits) + value];
        const uint32_t used = next & kLengthMask;
        const uint32_t left = (next & kEnd) != 0 || used >= bits ? 1 : 1u << (bits - used);
        return next + one[left + (value & (left - 1))];
    });
}

// Adds to each entry what follows its first symbol. `firsts`: these alone.
template <typename E, typename F>
void add_following(const Entry* firsts, const FollowingTable<F>& following, E* entries) {
    for (uint32_t i = 0; i < kLookups;) {
        const Entry first = firsts[i];
        const uint32_t used = first & kLengthMask;
        const uint32_t count =
            (first & kLong) != 0 || used >= kLookupBits ? 1 : 1u << (kLookupBits - used);
        const bool more = count > 1 && (first & kEnd) == 0;
        for (uint32_t rest = 0; more && rest < count; ++rest)
            entries[i + rest] += following[count + rest];
        i += count;
    }
}

// The first symbol of each lookup with its coefficient, and what follows it. `singles`: of the
// code.
template <typename F>
void fill_doubles(const Code& code, const Entry* singles, const FollowingTable<F>& following,
                  DoubleEntry* doubles) {
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
    add_following(singles, following, doubles);
}

// The first AC symbol of each lookup, without its coefficient, whose bits may lie after it, and
// what follows it.
void fill_runs(const Code& code, const FollowingTable<Entry>& following, Entry* runs) {
    std::fill(runs, runs + kLookups, kLong);
    for_each_code(code, [&](uint32_t from, uint32_t count, int symbol, int length) {
        const Entry all = meaning(symbol, false, length);
        const bool fits = all != 0 && (all & kLengthMask) <= kMostEntryBits;
        std::fill_n(runs + from, count, fits ? all : entry(length, kLongAdvance, symbol));
    });
    Entry firsts[kLookups];
    std::copy(runs, runs + kLookups, firsts);
    add_following(firsts, following, runs);
}

// A code as a file has it: 16 counts by length, then the symbols.
size_t bytes_of(const uint8_t* code) {
    size_t bytes = 16;
    for (int i = 0; i < 16; ++i) bytes += code[i];
    return bytes;
}
bool is_same(const uint8_t* code, const uint8_t* kept) {
    return std::memcmp(kept, code, bytes_of(code)) == 0;
}
void keep(const uint8_t* code, uint8_t* kept) { std::memcpy(kept, code, bytes_of(code)); }

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

bool BlockTables::make(const uint8_t* dc, const uint8_t* ac) {
    const bool same = made_ && is_same(dc, dc_source_) && is_same(ac, ac_source_);
    if (same) return true;
    full_.made = skipping_.made = passing_.made = stepped_ = false;
    keep(dc, dc_source_);
    keep(ac, ac_source_);
    return made_ = make_code(dc, true, dc_) && make_code(ac, false, ac_);
}

template <typename E, typename Function>
Tables<E> BlockTables::get(Slot<E>& slot, Function fill) {
    if (!slot.made) {
        if (slot.dc == nullptr) {
            slot.dc = std::make_unique<CodeTable<E>>();
            slot.ac = std::make_unique<CodeTable<E>>();
        }
        slot.dc->code = dc_;
        slot.ac->code = ac_;
        fill(slot.dc->entries, slot.ac->entries);
        slot.made = true;
    }
    return {slot.dc.get(), slot.ac.get()};
}

Tables<DoubleEntry> BlockTables::full() {
    return get(full_, [&](DoubleEntry* dc, DoubleEntry* ac) {
        Entry dc_singles[kLookups], ac_singles[kLookups];
        fill_singles(dc_, dc_singles);
        fill_singles(ac_, ac_singles);
        FollowingTable<DoubleEntry> following;
        follow_one(ac_singles, following);
        fill_doubles(dc_, dc_singles, following, dc);
        fill_doubles(ac_, ac_singles, following, ac);
    });
}

const Entry (&BlockTables::stepping()) [kLookups] {
    if (!stepped_) follow_two(ac_, stepping_);
    stepped_ = true;
    return stepping_;
}

Tables<Entry> BlockTables::skipping() {
    return get(skipping_, [&](Entry* dc, Entry* ac) {
        Entry singles[kLookups];
        fill_singles(dc_, singles);
        std::copy(singles, singles + kLookups, dc);
        add_following(singles, stepping(), dc);
        fill_runs(ac_, stepping(), ac);
    });
}

Tables<DoubleEntry> BlockTables::passing() {
    return get(passing_, [&](DoubleEntry* dc, DoubleEntry* ac) {
        Entry singles[kLookups];
        fill_singles(dc_, singles);
        fill_doubles(dc_, singles, stepping(), dc);
        const Entry* const runs = skipping().ac->entries;
        for (uint32_t i = 0; i < kLookups; ++i) ac[i] = doubled(runs[i], i);
    });
}

}  // namespace fastload::jpeg
