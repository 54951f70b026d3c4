#include "jpeg/huffman.hpp"

#include <algorithm>
#include <cstring>

namespace fastload::jpeg {
namespace {

constexpr int kMostDcBits = 11, kMostAcBits = 10;  // of 8-bit images

// The coefficient that `size` bits stand for.
int extend(int bits, int size) { return size == 0 || bits >> (size - 1) != 0 ? bits : bits - (1 << size) + 1; }

// What a symbol does, but for its coefficient. 0 if its coefficient is too large.
Entry meaning(int symbol, bool dc, int code_length) {
    const int size = dc ? symbol : symbol & 15;
    if (size > (dc ? kMostDcBits : kMostAcBits)) return 0;
    if (!dc && size == 0 && symbol != 0xf0) return entry(code_length, kEndAdvance, 0, kEnd);
    return entry(code_length + size, dc ? 1 : (symbol >> 4) + 1, 0);
}

}  // namespace

Entry CodeTable::resolve(uint64_t bits) const {
    const auto top = static_cast<uint32_t>(bits >> 48);
    int length = 1;
    while (length <= 16 && top >= limit[length]) ++length;
    if (length > 16) return 0;
    const int symbol = symbols[(offset[length] + static_cast<int32_t>(top >> (16 - length))) & 255];
    const Entry found = meaning(symbol, dc, length);
    const int size = dc ? symbol : symbol & 15;
    if (found == 0 || size == 0) return found;
    const int value = extend(static_cast<int>(bits << length >> (64 - size)), size);
    return found | static_cast<Entry>(value) << 16;
}

CodeTables::CodeTables() : full_(std::make_unique<CodeTable>()), skipping_(std::make_unique<CodeTable>()) {}

bool CodeTables::make(const uint8_t* codes, bool dc) {
    int count = 0;
    for (int i = 0; i < 16; ++i) count += codes[i];
    const auto bytes = static_cast<size_t>(16 + count);
    if (made_ && full_->dc == dc && std::memcmp(source_, codes, bytes) == 0) return true;
    made_ = made_skipping_ = false;
    std::memcpy(source_, codes, bytes);

    CodeTable& table = *full_;
    table.dc = dc;
    std::memset(table.symbols, 0, sizeof table.symbols);
    std::memcpy(table.symbols, codes + 16, static_cast<size_t>(count));
    std::fill(table.entries, table.entries + kLookups, kLong);
    int code = 0, index = 0;
    for (int length = 1; length <= 16; ++length, code <<= 1) {
        table.offset[length] = index - code;
        for (int i = 0; i < codes[length - 1]; ++i, ++code, ++index) {
            const int symbol = table.symbols[index];
            if (dc && symbol > 15) return false;
            if (length > kLookupBits || code >= 1 << length) continue;
            const Entry all = meaning(symbol, dc, length);
            const int used = static_cast<int>(all & kLengthMask), size = dc ? symbol : symbol & 15;
            if (all == 0 || used > kLookupBits) continue;  // stays kLong
            const int spare = kLookupBits - used;
            Entry* to = table.entries + (code << (kLookupBits - length));
            const int values = all & kEnd ? 1 : 1 << size;
            for (int bits = 0; bits < values; ++bits, to += 1 << spare) {
                std::fill(to, to + (1 << spare), all | static_cast<Entry>(extend(bits, size)) << 16);
            }
        }
        // No code is all ones, and so none has overflowed its length.
        if (codes[length - 1] > 0 && code >= 1 << length) return false;
        table.limit[length] = static_cast<uint32_t>(code) << (16 - length);
    }
    return made_ = true;
}

void CodeTables::make_skipping() {
    if (made_skipping_) return;
    CodeTable& table = *skipping_;
    std::memcpy(&table.dc, &full_->dc, sizeof(CodeTable) - offsetof(CodeTable, dc));
    // The first symbol of each lookup alone: its code's length in `codes`, and its entry without a coefficient.
    Entry single[kLookups];
    uint8_t codes[kLookups];
    std::fill(single, single + kLookups, kLong);
    std::fill(codes, codes + kLookups, uint8_t{kLookupBits + 1});
    for (int length = 1; length <= kLookupBits; ++length) {
        const uint32_t stop = table.limit[length] >> (16 - kLookupBits);
        const uint32_t start = length == 1 ? 0 : table.limit[length - 1] >> (16 - kLookupBits);
        for (uint32_t i = start; i < stop; i += 1u << (kLookupBits - length)) {
            const int symbol = table.symbols[(table.offset[length] + static_cast<int32_t>(i >> (kLookupBits - length))) & 255];
            const Entry all = meaning(symbol, false, length);
            if (all == 0) continue;
            const uint32_t next = i + (1u << (kLookupBits - length));
            std::fill(single + i, single + next, all);
            std::fill(codes + i, codes + next, static_cast<uint8_t>(length));
        }
    }
    for (uint32_t i = 0; i < kLookups; ++i) {
        Entry sum = single[i];
        if ((sum & (kLong | kEnd)) == 0) {
            for (;;) {
                const uint32_t used = sum & kLengthMask;
                if (used >= kLookupBits) break;
                const uint32_t rest = i << used & (kLookups - 1);
                const Entry next = single[rest];
                // The code must lie in the lookup, its coefficient need not; and all but an end stays below a block.
                if (codes[rest] > kLookupBits - used || (sum >> 8) + (next >> 8 & 127) > 63) break;
                sum += next;
                if (sum & kEnd) break;
            }
        }
        table.entries[i] = sum;
    }
    made_skipping_ = true;
}

}  // namespace fastload::jpeg
