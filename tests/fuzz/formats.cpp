// Fuzz target: the PNG and WebP decoders. The first eight bytes choose box and options, the rest is
// the file. A changed PNG would be refused for its checksums. So for most inputs the checksums are
// corrected first; for half of these the contents of the data chunks are taken as rows, and
// compressed. What must hold, apart from no finding of the sanitizers:
//
// - the portable inner loops and the best ones give the same pixels;
// - a box has the pixels of the whole image;
// - if the core reads a PNG to its end, libpng reads it too, to the same pixels, mask numbers or
//   16 bits; the same for a WebP and libwebp's simple interface. PNGs are left out whose Huffman
//   codes leave some bit patterns without a meaning: ISA-L reads them if none of these occurs, zlib
//   refuses them (docs/png-core.md).
#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <png.h>
#include <webp/decode.h>
#include <zlib.h>

#include "choices.hpp"
#include "decoder.hpp"
#include "kernels.hpp"

namespace {

using namespace fastload;

constexpr size_t kChoices = 8;

// The rows it is given as RGB, in heap memory of exactly their size. What is after a row may be
// read, so it is.
class Collector final : public RowSink {
  public:
    explicit Collector(int width) : width_(width) {}

    void take(const uint8_t* const* rows, int count) override {
        for (int y = 0; y < count; ++y) {
            for (int x = 0; x < width_; ++x)
                pixels.insert(pixels.end(), rows[y] + 4 * x, rows[y] + 4 * x + 3);
            for (int i = 0; i < kRowSlack; ++i) after = after + rows[y][4 * width_ + i];
        }
    }
    void restart() override { pixels.clear(); }

    Pixels pixels;
    volatile uint8_t after = 0;

  private:
    int width_;
};

// False where the reader refuses.
bool read(Decoder& decoder, const Pixels& file, const DecodeLimits& limits, const uint8_t* choices,
          bool whole, bool numbers, Box& box, Pixels& pixels) {
    if (!decoder.open(file.data(), file.size(), limits).ok()) return false;
    if (numbers && !decoder.keep_numbers()) return false;
    const Size size = decoder.header().size;
    if (choices != nullptr) {
        box.top = choices[0] * size.height / 256;
        box.left = choices[1] * size.width / 256;
        box.height = 1 + choices[2] * (size.height - box.top - 1) / 255;
        box.width = 1 + choices[3] * (size.width - box.left - 1) / 255;
    } else {
        box = {0, 0, size.height, size.width};
    }
    Collector collector(box.width);
    const Outcome outcome = decoder.read(box, whole, collector);
    decoder.close();
    pixels = collector.pixels;
    require(!outcome.ok() || pixels.size() == size_t{3} * static_cast<size_t>(box.height) *
                                                  static_cast<size_t>(box.width),
            "another number of pixels than the box has");
    return outcome.ok();
}

struct Source {
    const uint8_t* next;
    size_t left;
};

void give(png_structp png, png_bytep out, size_t size) {
    auto* source = static_cast<Source*>(png_get_io_ptr(png));
    if (size > source->left) png_error(png, "cut off");
    std::memcpy(out, source->next, size);
    source->next += size;
    source->left -= size;
}

void fail(png_structp png, png_const_charp) {
    longjmp(*static_cast<std::jmp_buf*>(png_get_error_ptr(png)), 1);
}
void ignore(png_structp, png_const_charp) {}

// All of a PNG by libpng, to RGB, or its numbers three times; false where it refuses. `rows` is the
// caller's: it is changed after setjmp.
bool read_libpng(const Pixels& file, bool numbers, Pixels& pixels, std::vector<png_bytep>& rows) {
    std::jmp_buf escape;
    Source source = {file.data(), file.size()};
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &escape, fail, ignore);
    png_infop info = png_create_info_struct(png);
    const bool good = setjmp(escape) == 0;
    if (good) {
        png_set_read_fn(png, &source, give);
        static const png_byte kNone[] = {0};
        png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, kNone, -1);  // metadata
        png_read_info(png, info);
        numbers ? png_set_packing(png) : png_set_expand(png);
        if (numbers && png_get_color_type(png, info) == PNG_COLOR_TYPE_GRAY)
            png_set_expand_gray_1_2_4_to_8(png);
        png_set_strip_16(png);
        png_set_strip_alpha(png);
        if (!numbers && !(png_get_color_type(png, info) & PNG_COLOR_MASK_COLOR))
            png_set_gray_to_rgb(png);
        png_set_interlace_handling(png);
        png_read_update_info(png, info);
        const size_t height = png_get_image_height(png, info), stride = png_get_rowbytes(png, info);
        pixels.assign(height * stride, 0);
        for (size_t y = 0; y < height; ++y) rows.push_back(pixels.data() + y * stride);
        png_read_image(png, rows.data());
    }
    png_destroy_read_struct(&png, &info, nullptr);
    return good;
}

// All of a PNG of 16 bits, as its bytes are; false where libpng refuses. `rows`: as above.
bool read_libpng16(const Pixels& file, Pixels& bytes, std::vector<png_bytep>& rows) {
    std::jmp_buf escape;
    Source source = {file.data(), file.size()};
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &escape, fail, ignore);
    png_infop info = png_create_info_struct(png);
    const bool good = setjmp(escape) == 0;
    if (good) {
        png_set_read_fn(png, &source, give);
        static const png_byte kNone[] = {0};
        png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, kNone, -1);  // metadata
        png_read_info(png, info);
        const size_t height = png_get_image_height(png, info), stride = png_get_rowbytes(png, info);
        bytes.assign(height * stride, 0);
        for (size_t y = 0; y < height; ++y) rows.push_back(bytes.data() + y * stride);
        png_read_image(png, rows.data());
    }
    png_destroy_read_struct(&png, &info, nullptr);
    return good;
}

// Whether zlib refuses the data of a PNG because the lengths of a Huffman code do not use all bit
// patterns.
bool has_incomplete_code(const Pixels& file) {
    z_stream stream = {};
    std::vector<uint8_t> out(1 << 16);
    if (inflateInit(&stream) != Z_OK) return false;
    int result = Z_OK;
    for (size_t at = 8; at + 12 <= file.size() && result == Z_OK;) {
        const size_t size = size_t{file[at]} << 24 | size_t{file[at + 1]} << 16 |
                            size_t{file[at + 2]} << 8 | file[at + 3];
        if (size > file.size() - at - 12) break;
        if (std::memcmp(file.data() + at + 4, "IDAT", 4) == 0) {
            stream.next_in = const_cast<Bytef*>(file.data() + at + 8);
            stream.avail_in = static_cast<uInt>(size);
            do {
                stream.next_out = out.data();
                stream.avail_out = static_cast<uInt>(out.size());
                result = inflate(&stream, Z_NO_FLUSH);
            } while (result == Z_OK && stream.avail_out == 0);
            if (result == Z_BUF_ERROR) result = Z_OK;  // it wants the next chunk
        }
        at += 12 + size;
    }
    const char* const why = stream.msg == nullptr ? "" : stream.msg;
    const bool found = std::strcmp(why, "invalid distances set") == 0 ||
                       std::strcmp(why, "invalid literal/lengths set") == 0 ||
                       std::strcmp(why, "invalid code lengths set") == 0;
    inflateEnd(&stream);
    return found;
}

bool is_png(const Pixels& file) {
    return file.size() > 8 && std::memcmp(file.data(), "\x89PNG", 4) == 0;
}

// A PNG of 16 bits, grey or RGB, whose `whole` image the core has read: all its bits are those that
// libpng gives, by either of the inner loops. Others are refused.
void check_deep(const Pixels& file, const Box& whole) {
    if (!is_png(file)) return;
    const int colour = file[25], channels = colour == 2 ? 3 : 1;
    const bool deep = file[24] == 16 && (colour == 0 || colour == 2);
    const Size size = {whole.height, whole.width};
    const size_t count = static_cast<size_t>(whole.height) * static_cast<size_t>(whole.width) *
                         static_cast<size_t>(channels);
    std::vector<uint16_t> ours(count), portable(count);
    const Kernels& best = *find_kernels("auto");
    const bool good = read_png16(best, file.data(), file.size(), size, channels, ours.data()).ok();
    require(good == deep, "16 bits: read where there are none, or not read");
    if (!good) return;
    require(
        read_png16(kPlainKernels, file.data(), file.size(), size, channels, portable.data()).ok() &&
            ours == portable,
        "16 bits: the inner loops differ");
    Pixels bytes;
    std::vector<png_bytep> rows;
    if (!read_libpng16(file, bytes, rows)) return;  // which the caller says
    require(bytes.size() == 2 * count, "16 bits: another number of them");
    for (size_t i = 0; i < count; ++i)
        require(ours[i] == (bytes[2 * i] << 8 | bytes[2 * i + 1]), "16 bits: they differ");
}

bool read_libwebp(const Pixels& file, Pixels& pixels) {
    int width, height;
    uint8_t* found = WebPDecodeRGB(file.data(), file.size(), &width, &height);
    if (found == nullptr) return false;
    pixels.assign(found,
                  found + size_t{3} * static_cast<size_t>(width) * static_cast<size_t>(height));
    WebPFree(found);
    return true;
}

// The chunks with the right checksums; with `compress`, with the compressed contents of the data
// chunks.
Pixels mended(const Pixels& file, bool compress) {
    const auto u32 = [&](size_t at) {
        return size_t{file[at]} << 24 | size_t{file[at + 1]} << 16 | size_t{file[at + 2]} << 8 |
               file[at + 3];
    };
    Pixels result(file.begin(), file.begin() + 8);
    size_t at = 8;
    for (; at + 12 <= file.size() && u32(at) <= file.size() - at - 12; at += 12 + u32(at)) {
        Pixels body(file.begin() + static_cast<ptrdiff_t>(at + 8),
                    file.begin() + static_cast<ptrdiff_t>(at + 8 + u32(at)));
        if (compress && std::memcmp(file.data() + at + 4, "IDAT", 4) == 0) {
            uLongf size = compressBound(static_cast<uLong>(body.size()));
            Pixels packed(size);
            (void)compress2(packed.data(), &size, body.data(), static_cast<uLong>(body.size()), 1);
            packed.resize(size);
            body = packed;
        }
        put_u32(result, static_cast<uint32_t>(body.size()));
        const size_t start = result.size();
        result.insert(result.end(), file.begin() + static_cast<ptrdiff_t>(at + 4),
                      file.begin() + static_cast<ptrdiff_t>(at + 8));
        result.insert(result.end(), body.begin(), body.end());
        put_u32(result, static_cast<uint32_t>(crc32(0, result.data() + start,
                                                    static_cast<uInt>(result.size() - start))));
    }
    result.insert(result.end(), file.begin() + static_cast<ptrdiff_t>(at), file.end());
    return result;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    // One of each, kept like a thread's: what one input leaves behind must not hurt the next.
    static DecoderCounts counts;
    static Decoder plain(kPlainKernels, counts), best(*find_kernels("auto"), counts);
    if (size < kChoices) return 0;
    Pixels file(data + kChoices, data + size);
    if (is_png(file) && data[5] < 250) file = mended(file, data[5] % 2 == 1);
    if (!is_png(file) && (file.size() < 12 || std::memcmp(file.data(), "RIFF", 4) != 0)) return 0;
    DecodeLimits limits;
    limits.max_pixels = 1 << 14;
    const bool whole = (data[4] & 1) != 0, numbers = (data[4] & 6) == 6;

    Box box, other;
    Pixels ours, portable, all, theirs;
    const bool good = read(best, file, limits, data, whole, numbers, box, ours);
    require(read(plain, file, limits, data, whole, numbers, other, portable) == good &&
                (!good || portable == ours),
            "the inner loops differ");
    Box full;
    if (!read(best, file, limits, nullptr, true, numbers, full, all)) {
        require(!(good && whole), "a box was read to the end of an image that cannot be read");
        return 0;
    }
    require(good, "an image can be read, but not a box of it");
    for (int y = 0; y < box.height; ++y) {
        const auto stored = static_cast<size_t>(3 * (full.width * (box.top + y) + box.left));
        const auto row = static_cast<size_t>(3 * box.width);
        require(std::equal(ours.begin() + static_cast<ptrdiff_t>(row * static_cast<size_t>(y)),
                           ours.begin() + static_cast<ptrdiff_t>(row * static_cast<size_t>(y + 1)),
                           all.begin() + static_cast<ptrdiff_t>(stored)),
                "a box differs from the whole image");
    }
    check_deep(file, full);
    std::vector<png_bytep> rows;
    const bool reference =
        is_png(file) ? read_libpng(file, numbers, theirs, rows) : read_libwebp(file, theirs);
    if (!reference && is_png(file) && has_incomplete_code(file)) return 0;
    require(reference, "the reference does not read what the core reads");
    if (numbers) {
        Pixels each;
        for (uint8_t number : theirs) each.insert(each.end(), 3, number);
        theirs = each;
    }
    require(theirs == all, "the pixels differ from the reference's");
    return 0;
}
