#include "frame.hpp"

#include <algorithm>
#include <cstring>

namespace fastload::png {
namespace {

constexpr uint8_t kSignature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
// More columns than any other format here can have, and few enough for some rows of them in memory.
constexpr uint32_t kMostWidth = 1 << 18;

uint32_t u32(const uint8_t* at) { return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3]; }

bool is(const uint8_t* chunk, const char* kind) { return std::memcmp(chunk + 4, kind, 4) == 0; }

// Four letters; a small one in front stands for a chunk that pixels do without.
bool is_kind(const uint8_t* kind) {
    const auto is_letter = [](uint8_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; };
    return std::all_of(kind, kind + 4, is_letter);
}

bool checked(const uint8_t* chunk) {
    const size_t size = u32(chunk);
    return checksum(chunk + 4, size + 4) == u32(chunk + 8 + size);
}

bool allowed(int depth, int colour) {
    switch (colour) {
        case 0:
            return depth == 1 || depth == 2 || depth == 4 || depth == 8 || depth == 16;
        case 3:
            return depth == 1 || depth == 2 || depth == 4 || depth == 8;
        case 2:
        case 4:
        case 6:
            return depth == 8 || depth == 16;
        default:
            return false;
    }
}

}  // namespace

int Frame::components() const {
    static constexpr int kComponents[] = {1, 0, 3, 1, 2, 0, 4};
    return kComponents[static_cast<int>(colour)];
}

int64_t Frame::row_bytes(int columns) const { return (int64_t{columns} * components() * depth + 7) / 8; }

int64_t Frame::raw_bytes() const {
    if (!interlaced) return (row_bytes(width) + 1) * height;
    int64_t sum = 0;
    for (const Pass& pass : kPasses) {
        if (pass.columns(width) > 0) sum += (row_bytes(pass.columns(width)) + 1) * pass.rows(height);
    }
    return sum;
}

bool parse(const uint8_t* data, size_t size, Frame& frame) {
    frame = {};
    frame.start = data;
    const uint8_t* const end = data + size;
    // The signature and the first chunk.
    if (size < 8 + 25 || std::memcmp(data, kSignature, 8) != 0) return false;
    const uint8_t* chunk = data + 8;
    if (u32(chunk) != 13 || !is(chunk, "IHDR")) return false;
    const uint8_t* fields = chunk + 8;
    const uint32_t width = u32(fields), height = u32(fields + 4);
    if (width == 0 || width > kMostWidth || height == 0 || height > INT32_MAX) return false;
    if (!allowed(fields[8], fields[9]) || fields[10] != 0 || fields[11] != 0 || fields[12] > 1) return false;
    frame.width = static_cast<int>(width);
    frame.height = static_cast<int>(height);
    frame.depth = fields[8];
    frame.colour = static_cast<Colour>(fields[9]);
    frame.interlaced = fields[12] == 1;

    int64_t compressed = 0;
    bool behind = false;  // the data
    for (chunk += 25;; chunk += 12 + u32(chunk)) {
        // `chunk` is never beyond `end`: so much was there when the one before was looked at.
        if (end - chunk < 12 || u32(chunk) > static_cast<size_t>(end - chunk) - 12) return false;
        const size_t length = u32(chunk);
        if (is(chunk, "IDAT")) {
            if (behind) return false;
            if (frame.data.count++ == 0) frame.data.next = chunk;
            compressed += static_cast<int64_t>(length);
            continue;
        }
        behind = frame.data.count > 0;
        if (is(chunk, "IEND")) break;
        if (!is_kind(chunk + 4)) return false;
        if (is(chunk, "PLTE")) {
            if (frame.palette != nullptr || behind || length == 0 || length > 768 || length % 3 != 0) return false;
            frame.palette = chunk + 8;
            frame.colours = static_cast<int>(length / 3);
        } else if (is(chunk, "eXIf") && frame.exif == nullptr) {
            frame.exif = chunk + 8;
            frame.exif_size = length;
        } else if ((chunk[4] & 0x20) == 0) {
            return false;  // a chunk that nobody may pass over
        }
    }
    if (frame.data.count == 0 || (frame.colour == Colour::palette && frame.palette == nullptr)) return false;
    // Data that take more room than the pixels are made to keep the decoder busy. The same is in fastload/decode/png.py.
    const int64_t raw = frame.raw_bytes();
    if (compressed > 2 * raw + (64 << 10)) return false;
    // Distances that reach beyond the window which the stream announces are damage to zlib, but not to ISA-L.
    const uint8_t* first = frame.data.next;
    if (u32(first) < 2) return false;
    const int window = first[8] >> 4;
    return window == 7 || (window < 7 && raw <= int64_t{256} << window);
}

bool sound(const Frame& frame) {
    if (!checked(frame.start + 8) || (frame.palette != nullptr && !checked(frame.palette - 8))) return false;
    Pieces pieces = frame.data;
    const uint8_t* data;
    size_t size;
    while (pieces.take(&data, &size)) {
        if (!checked(data - 8)) return false;
    }
    return true;
}

}  // namespace fastload::png
