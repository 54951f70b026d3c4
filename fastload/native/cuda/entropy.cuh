// Entropy decoding: a thread decodes a segment, the coefficients of the blocks that lie in the
// rectangle go to memory.
//
// There is one flat loop, a symbol a turn, whatever block a thread is in: with a loop over
// coefficients in a loop over blocks the threads of a warp would wait for each other at each
// block's end, and take twice as many turns. A block of threads is for one image, as nearly each
// photograph has Huffman tables of its own; they are made here, from the counts and symbols of the
// file.
#pragma once

#include "cuda/batch.cuh"

namespace fastload::device {

// The next 11 bits are the index of an entry: from its lowest bit on the length of the code (5
// bits), how many places to go on in the block (7), and how many bits of a number follow (4). 0:
// the code is longer, or there is none.
constexpr int kLookupBits = 11, kLookups = 1 << kLookupBits;
constexpr uint32_t kEndAdvance = 64;
// The largest sizes of DC differences and AC coefficients of 8-bit images [bits].
constexpr uint32_t kMostDcBits = 11, kMostAcBits = 10;

// Where coefficient k in zigzag order lies in a block that is stored column by column.
FASTLOAD_CONSTANT uint8_t kOrder[64] = {
    0,  8,  1,  2,  9,  16, 24, 17, 10, 3,  4,  11, 18, 25, 32, 40, 33, 26, 19, 12, 5,  6,
    13, 20, 27, 34, 41, 48, 56, 49, 42, 35, 28, 21, 14, 7,  15, 22, 29, 36, 43, 50, 57, 58,
    51, 44, 37, 30, 23, 31, 38, 45, 52, 59, 60, 53, 46, 39, 47, 54, 61, 62, 55, 63,
};

struct SegmentMemory {
    uint16_t entries[kMostTables][kLookups];
    // Of each code and length: the smallest 16-bit number, left-aligned, that is above all codes of
    // this length; and the index in `symbols` of a code of this length, less the code.
    uint32_t limit[kMostTables][17];
    int32_t offset[kMostTables][17];
    uint8_t symbols[kMostTables][256];
    uint8_t order[64];
    // The blocks of a MCU.
    struct Place {
        uint32_t component;
        uint32_t dc_code, ac_code;
        uint32_t first;              // block, of the first MCU of the rectangle
        uint32_t in_row, in_column;  // blocks from one MCU to the next, down and across
    } places[kMostBlocksInMcu];
};

FASTLOAD_DEVICE uint32_t count_blocks(const Crop& crop) {
    uint32_t count = 0;
    for (int i = 0; i < crop.components; ++i) count += crop.plane[i].h * crop.plane[i].v;
    return count;
}

// The limits of a code. `code`: as in the file.
FASTLOAD_DEVICE void read_code(const uint8_t* code, uint32_t* limit, int32_t* offset) {
    int32_t next = 0, index = 0;
    for (int length = 1; length <= 16; ++length, next <<= 1) {
        offset[length] = index - next;
        next += code[length - 1];
        index += code[length - 1];
        limit[length] = static_cast<uint32_t>(next) << (16 - length);
    }
}

// Where the blocks of a MCU go.
FASTLOAD_DEVICE void read_places(const Crop& crop, SegmentMemory::Place* places) {
    for (uint32_t i = 0, next = 0; i < crop.components; ++i) {
        const Plane& plane = crop.plane[i];
        for (uint32_t k = 0; k < plane.h * plane.v; ++k) {
            places[next++] = {i,
                              plane.dc_code,
                              plane.ac_code,
                              plane.first_block + k / plane.h * plane.width + k % plane.h,
                              plane.v * plane.width,
                              plane.h};
        }
    }
}

// The entry of a symbol with a code of this length; 0 where the number after it would be too long.
FASTLOAD_DEVICE uint32_t entry_of(uint32_t symbol, bool is_dc, uint32_t length) {
    const uint32_t size = is_dc ? symbol : symbol & 15;
    if (size > (is_dc ? kMostDcBits : kMostAcBits)) return 0;
    const bool ends = !is_dc && size == 0 && symbol != 0xf0;
    const uint32_t advance = is_dc ? 1 : ends ? kEndAdvance : (symbol >> 4) + 1;
    return length | advance << 5 | size << 12;
}

// The entry of the code, of `from` to `to` bits, that `top`, the next 16 bits, begins with. 0:
// none.
FASTLOAD_DEVICE uint32_t find_entry(const SegmentMemory& memory, uint32_t code, bool is_dc,
                                    uint32_t top, int from, int to) {
    int length = from;
    for (int k = from; k <= to; ++k) length += top >= memory.limit[code][k] ? 1 : 0;
    if (length > to) return 0;
    const int32_t at = memory.offset[code][length] + static_cast<int32_t>(top >> (16 - length));
    return entry_of(memory.symbols[code][at & 255], is_dc, static_cast<uint32_t>(length));
}

// The number that the highest `size` bits (0 to 15) stand for (EXTEND of ITU-T T.81, F.2.2.1).
FASTLOAD_DEVICE int32_t number_of(uint32_t bits, uint32_t size) {
    // Shifted twice, as a shift by 32 is not defined.
    const auto value = static_cast<int32_t>(bits >> 1 >> (31 - size));
    const int32_t below = static_cast<int32_t>(bits) < 0 ? 0 : (1 << size) - 1;
    return value - below;
}

// Where a block of a MCU goes; null outside of the rectangle, which has `columns` MCUs in a row.
FASTLOAD_DEVICE int16_t* block_at(int16_t* coefficients, const SegmentMemory::Place& place,
                                  uint32_t row, int32_t column, int32_t columns) {
    if (column < 0 || column >= columns) return nullptr;
    const uint32_t block =
        place.first + row * place.in_row + static_cast<uint32_t>(column) * place.in_column;
    return coefficients + uint64_t{64} * block;
}

// Data or codes of a crop.
FASTLOAD_DEVICE const uint8_t* bytes_of(const ChunkArguments& arguments, const Crop& crop,
                                        uint64_t at) {
    return crop.is_resident != 0 ? reinterpret_cast<const uint8_t*>(at) : arguments.batch + at;
}

FASTLOAD_DEVICE void decode_segment(const ChunkArguments& arguments, const Crop& crop,
                                    const SegmentMemory& memory, uint32_t number, uint32_t blocks,
                                    uint32_t* failure) {
    const Segment& segment = arguments.segments[number];
    const uint32_t end_most = segment.end_most;
    const auto* words = reinterpret_cast<const uint32_t*>(bytes_of(arguments, crop, crop.data));
    uint32_t at = segment.begin;
    words += at >> 5;
    // The word of the next bit, and the two after it; the last one is on its way.
    uint32_t high = reversed_bytes(words[0]), low = reversed_bytes(words[1]);
    uint32_t later = words[2];
    words += 3;
    int32_t dc[kComponents] = {segment.dc[0], segment.dc[1], segment.dc[2]};
    uint32_t mcus = segment.mcus, in_mcu = 0;
    // In registers: compilers load them again after each store.
    const uint32_t row = segment.row;
    const int32_t columns = crop.columns;
    int32_t column = segment.column;
    SegmentMemory::Place place = memory.places[0];
    int16_t* out = block_at(arguments.coefficients, place, row, column, columns);
    uint32_t k = 0;  // in zigzag order: the next coefficient
    bool good = true;
    while (mcus != 0) {
        FASTLOAD_COUNT_TURN(number);
        const uint32_t bits = bits_from(high, low, at & 31);
        const bool is_dc = k == 0;
        const uint32_t code = is_dc ? place.dc_code : place.ac_code;
        uint32_t entry = memory.entries[code][bits >> (32 - kLookupBits)];
        if (entry == 0) entry = find_entry(memory, code, is_dc, bits >> 16, kLookupBits + 1, 16);
        const uint32_t length = entry & 31, size = entry >> 12;
        // Code and number have at most 27 bits.
        int32_t value = number_of(bits << length, size);
        if (is_dc) {
            // Modulo 2^32.
            const auto sum =
                static_cast<int32_t>(static_cast<uint32_t>(value) +
                                     static_cast<uint32_t>(place.component == 0   ? dc[0]
                                                           : place.component == 1 ? dc[1]
                                                                                  : dc[2]));
            if (place.component == 0) dc[0] = sum;
            if (place.component == 1) dc[1] = sum;
            if (place.component == 2) dc[2] = sum;
            value = sum;
        }
        const uint32_t before = at;
        at += length + size;
        k += entry >> 5 & 127;
        // No code; or more bits than there are; or a coefficient beyond the last one.
        good = entry != 0 && at <= end_most && (size == 0 || k <= 64);
        if (!good) break;
        if ((size != 0 || is_dc) && out != nullptr)
            out[memory.order[(k - 1) & 63]] = static_cast<int16_t>(value);
        if (((at ^ before) & ~31u) != 0) {  // at most 27 bits further: the next word
            high = low;
            low = reversed_bytes(later);
            later = *words++;
        }
        if (k >= 64) {
            k = 0;
            if (++in_mcu == blocks) {
                in_mcu = 0;
                --mcus;
                ++column;
            }
            place = memory.places[in_mcu];
            out = block_at(arguments.coefficients, place, row, column, columns);
        }
    }
    good = good && at >= segment.end_least;
    for (int i = 0; i < kComponents; ++i) {
        const bool is_same = static_cast<int16_t>(dc[i]) == segment.end_dc[i];
        good = good && (segment.has_end_dc == 0 || i >= crop.components || is_same);
    }
    if (!good) set_flag(failure);
}

FASTLOAD_KERNEL(fastload_decode_segments, ChunkArguments, kSegmentThreads) {
    FASTLOAD_SHARED(SegmentMemory, memory);
    const Task& task = arguments.tasks[FASTLOAD_BLOCK];
    const Crop& crop = arguments.crops[task.crop];
    const uint8_t* const codes = bytes_of(arguments, crop, crop.codes);
    const uint32_t count = uint32_t{crop.dc_codes} + crop.ac_codes;
    FASTLOAD_THREADS(t) {
        if (t < count) read_code(codes + t * kCodeBytes, memory.limit[t], memory.offset[t]);
        if (t == kMostTables) read_places(crop, memory.places);
        for (uint32_t i = t; i < 64; i += kSegmentThreads) memory.order[i] = kOrder[i];
        for (uint32_t i = t; i < 256 * count; i += kSegmentThreads)
            memory.symbols[i / 256][i % 256] = codes[i / 256 * kCodeBytes + 16 + i % 256];
    }
    FASTLOAD_BARRIER();
    FASTLOAD_THREADS(t) {
        for (uint32_t i = t; i < kLookups * count; i += kSegmentThreads) {
            const uint32_t code = i / kLookups, top = i % kLookups << (16 - kLookupBits);
            memory.entries[code][i % kLookups] = static_cast<uint16_t>(
                find_entry(memory, code, code < crop.dc_codes, top, 1, kLookupBits));
        }
    }
    FASTLOAD_BARRIER();
    FASTLOAD_THREADS(t) {
        if (t < task.count) {
            decode_segment(arguments, crop, memory, task.first_segment + t, count_blocks(crop),
                           arguments.failures + task.crop);
        }
    }
}

}  // namespace fastload::device
