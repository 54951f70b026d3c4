// The PNG decoder (W3C, Portable Network Graphics, third edition): chunks, rows and colours. ISA-L
// decompresses the data.
#include <algorithm>
#include <climits>
#include <cstring>
#include <vector>

#include <isa-l/igzip_lib.h>

#include "checksum.hpp"
#include "decoder.hpp"
#include "kernels.hpp"

namespace fastload {
namespace {

// Rows given to the sink at a time: few enough to stay in the first-level cache.
constexpr int kRowsAtOnce = 8;
// Rows of pixels in memory, used in turn: those that wait for the sink, and the row above the next.
constexpr int kKeptRows = 16;
static_assert(kKeptRows >= kRowsAtOnce + 2, "two rows are made at once while others wait");
// Bytes decompressed at a time: they stay in the second-level cache.
constexpr int64_t kInflated = 64 << 10;
// Wider images are left to other decoders: 17 rows of 2^18 pixels take 18 MB.
constexpr uint32_t kMostWidth = 1 << 18;

Outcome refused(const char* why) { return {Status::damaged, why}; }

// A number of four bytes, the highest first.
uint32_t u32(const uint8_t* at) {
    return uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3];
}

// The IDAT chunks, which follow each other. `parse` has checked that all of them lie in the file.
struct DataChunks {
    const uint8_t* next = nullptr;  // the first one that was not taken
    int count = 0;                  // from `next` on

    // The contents of the next chunk that is not empty; false if there is none.
    bool take(const uint8_t** data, size_t* size) {
        while (count > 0) {
            *size = u32(next);
            *data = next + 8;
            next += 12 + *size;
            --count;
            if (*size > 0) return true;
        }
        return false;
    }
};

// Decompresses a zlib stream (RFC 1950) that lies in several chunks.
class Inflater {
  public:
    void begin(DataChunks chunks) {
        chunks_ = chunks;
        isal_inflate_init(&stream_);
        stream_.crc_flag = ISAL_ZLIB;  // header and checksum, too
        damaged_ = false;
    }

    // Writes the next `size` bytes; false if the stream is damaged or ends before.
    bool read(uint8_t* out, size_t size) { return read_some(out, size) == size; }

    // Whether the stream ends here, with the right checksum.
    bool ends() {
        uint8_t more;
        return read_some(&more, 1) == 0 && !damaged_ && is_finished();
    }

  private:
    bool is_finished() const { return stream_.block_state == ISAL_BLOCK_FINISH; }

    // Writes up to `size` bytes, and returns how many: fewer only where the stream ends, and 0 if
    // it is damaged.
    size_t read_some(uint8_t* out, size_t size) {
        size_t done = 0;
        while (done < size && !damaged_) {
            const auto wanted = static_cast<uint32_t>(std::min<size_t>(size - done, INT_MAX));
            stream_.next_out = out + done;
            stream_.avail_out = wanted;
            damaged_ = isal_inflate(&stream_) != ISAL_DECOMP_OK;
            const size_t got = wanted - stream_.avail_out;
            done += got;
            if (got > 0) continue;  // the state may hold more output
            if (is_finished() || stream_.avail_in > 0) break;
            const uint8_t* data;
            size_t bytes;
            if (!chunks_.take(&data, &bytes)) break;
            stream_.next_in = const_cast<uint8_t*>(data);  // ISA-L only reads it
            stream_.avail_in = static_cast<uint32_t>(bytes);
        }
        return damaged_ ? 0 : done;
    }

    inflate_state stream_;
    bool damaged_ = false;
    DataChunks chunks_;
};

enum class Colour : uint8_t { grey = 0, rgb = 2, palette = 3, grey_alpha = 4, rgb_alpha = 6 };

// The chunks that pixels need. Pointers into the file.
struct PngInfo {
    const uint8_t* header = nullptr;  // the IHDR chunk
    int width = 0, height = 0;
    int depth = 0;  // bits a sample
    Colour colour = Colour::grey;
    const uint8_t* palette = nullptr;  // the contents of PLTE: 3 bytes a colour
    int colours = 0;                   // in the palette
    DataChunks data;
    int64_t compressed = 0;  // bytes in all IDAT chunks

    int components() const {
        static constexpr int kComponents[] = {1, 0, 3, 1, 2, 0, 4};
        return kComponents[static_cast<int>(colour)];
    }
    // Bytes of the first columns of a row, without the byte before them that says its filter.
    int64_t row_bytes(int columns) const {
        return (int64_t{columns} * components() * depth + 7) / 8;
    }
    // Bytes of the whole image, decompressed.
    int64_t raw_bytes() const { return (row_bytes(width) + 1) * height; }
};

// A chunk is its length (4 bytes), its name (4), its contents, its checksum (4).
bool is(const uint8_t* chunk, const char* kind) { return std::memcmp(chunk + 4, kind, 4) == 0; }

bool is_letter(uint8_t c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; }

// Whether the standard allows this depth for this type of colour (section 11.2.1).
bool is_allowed(int depth, int colour) {
    static constexpr int kDepths[] = {
        1 | 2 | 4 | 8 | 16, 0, 8 | 16, 1 | 2 | 4 | 8, 8 | 16, 0, 8 | 16};
    return colour <= 6 && (depth & (depth - 1)) == 0 && (depth & kDepths[colour]) != 0;
}

bool parse_header(const uint8_t* chunk, PngInfo& info) {
    if (u32(chunk) != 13 || !is(chunk, "IHDR")) return false;
    const uint8_t* fields = chunk + 8;
    const uint32_t width = u32(fields), height = u32(fields + 4);
    if (width == 0 || width > kMostWidth || height == 0 || height > INT32_MAX) return false;
    if (!is_allowed(fields[8], fields[9]) || fields[10] != 0 || fields[11] != 0 || fields[12] != 0)
        return false;
    info.header = chunk;
    info.width = static_cast<int>(width);
    info.height = static_cast<int>(height);
    info.depth = fields[8];
    info.colour = static_cast<Colour>(fields[9]);
    return true;
}

// Reads the chunks of a file. False for anything that a usual encoder does not write, interlaced
// images among it: other decoders judge such files. Of chunks that pixels do not need, only name
// and length are read.
bool parse(const uint8_t* data, size_t size, PngInfo& info) {
    info = {};
    const uint8_t* const end = data + size;
    if (size < 8 + 25 || std::memcmp(data, "\x89PNG\r\n\x1a\n", 8) != 0 ||
        !parse_header(data + 8, info))
        return false;

    int64_t compressed = 0;
    bool after_data = false;
    for (const uint8_t* chunk = data + 8 + 25;; chunk += 12 + u32(chunk)) {
        // `chunk` is never beyond `end`: this was checked with the length of the one before.
        if (end - chunk < 12 || u32(chunk) > static_cast<size_t>(end - chunk) - 12) return false;
        const size_t length = u32(chunk);
        if (is(chunk, "IDAT")) {
            if (after_data) return false;
            if (info.data.count++ == 0) info.data.next = chunk;
            compressed += static_cast<int64_t>(length);
            continue;
        }
        after_data = info.data.count > 0;
        if (is(chunk, "IEND")) break;
        if (!std::all_of(chunk + 4, chunk + 8, is_letter)) return false;
        if (is(chunk, "PLTE")) {
            if (info.palette != nullptr || after_data || length == 0 || length > 768 ||
                length % 3 != 0)
                return false;
            info.palette = chunk + 8;
            info.colours = static_cast<int>(length / 3);
        } else if ((chunk[4] & 0x20) == 0) {
            return false;  // a critical chunk: no decoder may ignore it
        }
    }
    if (info.data.count == 0 || (info.colour == Colour::palette && info.palette == nullptr))
        return false;
    // Compressed data that are longer than the pixels are made only to keep a decoder busy. The
    // same limit is in fastload/decode/header.py.
    const int64_t raw = info.raw_bytes();
    info.compressed = compressed;
    if (compressed > 2 * raw + (64 << 10)) return false;
    // zlib refuses distances beyond the window that the stream announces, 2^(window + 8) bytes;
    // ISA-L does not. So only streams are taken in which there can be none.
    const uint8_t* first = info.data.next;
    if (u32(first) < 2) return false;
    const int window = first[8] >> 4;
    return window == 7 || (window < 7 && raw <= int64_t{256} << window);
}

// Whether the CRC-32 of the name and contents of a chunk is right.
bool is_sound(const uint8_t* chunk) {
    const size_t size = u32(chunk);
    return crc32(chunk + 4, size + 4) == u32(chunk + 8 + size);
}

// Whether the checksums of the chunks that pixels need are right.
bool is_sound(const PngInfo& info) {
    if (!is_sound(info.header) || (info.palette != nullptr && !is_sound(info.palette - 8)))
        return false;
    // All IDAT chunks, the empty ones included.
    const uint8_t* chunk = info.data.next;
    for (int i = 0; i < info.data.count; ++i, chunk += 12 + u32(chunk)) {
        if (!is_sound(chunk)) return false;
    }
    return true;
}

class PngDecoder final : public ImageDecoder {
  public:
    explicit PngDecoder(const png::FilterKernels& kernels) : kernels_(kernels) {}

    Outcome open(const uint8_t* data, size_t size, const DecodeLimits& limits) override {
        keeps_numbers_ = false;
        if (!parse(data, size, info_)) return refused("a PNG that is cut off, interlaced or odd");
        header_.size = {info_.height, info_.width};
        header_.components = info_.components();
        if (Outcome checked = limits.check(header_.size); !checked.ok()) return checked;
        // Deflate makes at most 258 bytes of two bits (RFC 1951, 3.2.5), so 1032 of one byte: with
        // fewer bytes the file is cut off.
        const bool fits = info_.raw_bytes() <= 1032 * info_.compressed;
        return fits ? Outcome{} : refused("a PNG with too few data for its pixels");
    }

    bool keep_numbers() override {
        keeps_numbers_ = info_.depth <= 8 && info_.components() < 3;
        return keeps_numbers_;
    }

    Outcome read(const Box& box, bool whole, RowSink& sink) override {
        if (!is_sound(info_)) return refused("a PNG with a wrong checksum");
        inflater_.begin(info_.data);
        set_colours();
        const int bottom = box.top + box.height;
        bool good = read_box(box, sink);
        const auto stride = static_cast<size_t>(info_.row_bytes(info_.width)) + 1;
        for (int y = bottom; whole && good && y < info_.height; ++y) {
            good = inflater_.read(raw_.data(), stride) && raw_[0] < png::kFilters;
        }
        // After the last row the stream must end, with the right checksum.
        const bool to_end = whole || bottom == info_.height;
        return good && (!to_end || inflater_.ends()) ? Outcome{}
                                                     : refused("a PNG with damaged data");
    }

    // As `read_png16`, after `open`.
    Outcome read_deep(Size image, int channels, uint16_t* out);

  private:
    // Fills `colours_` for grey and palettes of up to 8 bits.
    void set_colours();
    bool read_box(const Box& box, RowSink& sink);
    bool to_pixels(const uint8_t* row, uint8_t* out, int count) const;

    const png::FilterKernels& kernels_;
    Inflater inflater_;
    PngInfo info_;
    bool keeps_numbers_ = false;  // `keep_numbers`: palette indices and not their colours
    uint32_t colours_[256] = {};  // of grey and palettes: the pixel of each number
    std::vector<uint8_t> raw_;    // decompressed rows: the one before, and those in work
    std::vector<uint8_t> rows_;   // a row of zeros, and the last kKeptRows rows of pixels
};

void PngDecoder::set_colours() {
    if (info_.colour == Colour::palette && keeps_numbers_) {
        for (int i = 0; i < 256; ++i) std::memset(colours_ + i, i, 4);
    } else if (info_.colour == Colour::palette) {
        for (int i = 0; i < info_.colours; ++i) std::memcpy(colours_ + i, info_.palette + 3 * i, 3);
    } else if (info_.components() < 3) {
        const int most = info_.depth < 8 ? (1 << info_.depth) - 1 : 255;
        for (int i = 0; i <= most; ++i) std::memset(colours_ + i, 255 / most * i, 4);
    }
}

// Converts the first `count` pixels of a row out of its filter to 4 bytes each: palettes, grey, and
// 16 bits. False if a number is beyond the end of the palette.
bool PngDecoder::to_pixels(const uint8_t* row, uint8_t* out, int count) const {
    const int depth = info_.depth, components = info_.components(), step = components * depth / 8;
    const int mask = (1 << depth) - 1;
    if (keeps_numbers_ && depth == 8 && components == 1) {
        for (int x = 0; x < count; ++x) {
            const uint8_t pixel[4] = {row[x], row[x], row[x], 0};
            std::memcpy(out + 4 * int64_t{x}, pixel, 4);
        }
        return true;
    }
    int highest = 0;
    for (int x = 0; x < count; ++x, out += 4) {
        if (components >= 3) {  // 16 bits: the upper 8 of each
            const uint8_t* from = row + int64_t{x} * step;
            const uint8_t pixel[4] = {from[0], from[2], from[4], 255};
            std::memcpy(out, pixel, 4);
            continue;
        }
        const int64_t bit = int64_t{x} * depth;
        const int number =
            depth >= 8 ? row[int64_t{x} * step] : row[bit / 8] >> (8 - depth - bit % 8) & mask;
        highest = std::max(highest, number);
        std::memcpy(out, colours_ + number, 4);
    }
    return keeps_numbers_ || info_.colour != Colour::palette || highest < info_.colours;
}

// Reads the rows from the top of the image to the bottom of the box, of each the columns to the
// right edge of the box, and gives those of the box to the sink. False if the data are damaged.
bool PngDecoder::read_box(const Box& box, RowSink& sink) {
    const int columns = box.left + box.width, end = box.top + box.height;
    const auto stride = static_cast<size_t>(info_.row_bytes(info_.width)) + 1;
    const auto used = static_cast<int>(info_.row_bytes(columns));
    // Rows decompressed at a time.
    const int most = static_cast<int>(
        std::clamp<int64_t>(kInflated / static_cast<int64_t>(stride), 2, std::max(end, 2)));
    // Bytes of a pixel: how far to the left a filter looks.
    const int bytes = std::max(info_.components() * info_.depth / 8, 1);
    // Whether pixels are stored as the bytes of their colours.
    const bool direct = info_.depth == 8 && info_.components() >= 3;
    const size_t pixels = size_t{4} * static_cast<size_t>(columns) + kRowSlack;
    const size_t raw = stride * static_cast<size_t>(most + 1) + png::kTail;
    grow(raw_, raw);
    uint8_t* const zeros = grow(rows_, pixels * (kKeptRows + 1));  // above the first row
    const auto target = [&](int y) {
        return zeros + pixels * static_cast<size_t>(1 + y % kKeptRows);
    };
    std::fill_n(zeros, pixels, uint8_t{0});
    std::fill_n(raw_.data(), stride, uint8_t{0});

    const uint8_t* visible[kRowsAtOnce];
    int waiting = 0;
    for (int y = 0; y < end;) {
        const int count = std::min(most, end - y);
        // Each row is the number of its filter and its bytes. The row before them is kept.
        uint8_t* row = raw_.data() + stride;
        if (!inflater_.read(row, stride * static_cast<size_t>(count))) return false;
        for (const int stop = y + count; y < stop;) {
            const auto filter = static_cast<png::Filter>(row[0]);
            if (filter >= png::kFilters) return false;
            int made = 1;
            if (direct) {
                const uint8_t* above = y == 0 ? zeros : target(y - 1);
                if (filter == png::kPaeth && y + 1 < stop && row[stride] == png::kPaeth) {
                    const uint8_t* const both[] = {row + 1, row + stride + 1};
                    uint8_t* const out[] = {target(y), target(y + 1)};
                    kernels_.paeth_pair(bytes, both, above, out, columns);
                    made = 2;
                } else {
                    kernels_.unfilter_pixels(filter, bytes, row + 1, above, target(y), columns);
                }
            } else {
                kernels_.unfilter_bytes(filter, bytes, row + 1, row + 1 - stride, used);
                if (y >= box.top && !to_pixels(row + 1, target(y), columns)) return false;
            }
            for (; made > 0; --made, ++y, row += stride) {
                if (y < box.top) continue;
                visible[waiting++] = target(y) + size_t{4} * static_cast<size_t>(box.left);
                if (waiting < kRowsAtOnce && y + 1 < end) continue;
                sink.take(visible, waiting);
                waiting = 0;
            }
        }
        std::memcpy(raw_.data(), row - stride, stride);
    }
    return true;
}

Outcome PngDecoder::read_deep(Size image, int channels, uint16_t* out) {
    const bool plain = info_.colour == Colour::grey || info_.colour == Colour::rgb;
    if (info_.depth != 16 || !plain || info_.components() != channels ||
        info_.height != image.height || info_.width != image.width)
        return refused("no PNG of 16 bits and of this size");
    if (!is_sound(info_)) return refused("a PNG with a wrong checksum");
    inflater_.begin(info_.data);
    const auto used = static_cast<int>(info_.row_bytes(info_.width));
    const size_t stride = static_cast<size_t>(used) + 1;
    // The row above, of zeros at first, and the row in work; each after the number of its filter.
    uint8_t* const above = grow(raw_, 2 * stride + png::kTail);
    uint8_t* const row = above + stride;
    std::fill_n(above, stride, uint8_t{0});
    for (int y = 0; y < info_.height; ++y, out += used / 2) {
        if (!inflater_.read(row, stride) || row[0] >= png::kFilters)
            return refused("a PNG with damaged data");
        kernels_.unfilter_bytes(static_cast<png::Filter>(row[0]), 2 * channels, row + 1, above + 1,
                                used);
        const uint8_t* const numbers = row + 1;
        for (int i = 0; i < used / 2; ++i)
            out[i] = static_cast<uint16_t>(numbers[2 * i] << 8 | numbers[2 * i + 1]);
        std::memcpy(above, row, stride);
    }
    return inflater_.ends() ? Outcome{} : refused("a PNG with damaged data");
}

}  // namespace

Outcome read_png16(const Kernels& kernels, const uint8_t* data, size_t size, Size image,
                   int channels, uint16_t* out) {
    // On the heap: the state of ISA-L takes 87 kB, and threads may have small stacks.
    const auto decoder = std::make_unique<PngDecoder>(*kernels.png);
    Outcome opened = decoder->open(data, size, {int64_t{image.height} * image.width});
    return opened.ok() ? decoder->read_deep(image, channels, out) : opened;
}

std::unique_ptr<ImageDecoder> make_png_decoder(const Kernels& kernels) {
    return std::make_unique<PngDecoder>(*kernels.png);
}

}  // namespace fastload
