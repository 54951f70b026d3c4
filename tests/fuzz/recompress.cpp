// Fuzz target: images as they are after a JPEG, and the JPEGs. The bytes choose one to three images
// of 1 to 65,500 pixels a side (fewer rows where they would be too large to be quick), grey or
// coloured, the order of their channels, and a quality for each.
//
// Images lie in heap memory at any offset, and end with it. What must hold, besides that memory is
// in order: every instruction set that runs here, and a job of the pool, makes the pixels of
// libjpeg-turbo, which encodes and decodes, and of coloured ones its file, byte for byte; and the
// bytes before the images stay as they are.
#include <algorithm>
#include <cstdint>
#include <cstdio>  // <jpeglib.h> needs it first
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <jpeglib.h>

#include "choices.hpp"
#include "colour.hpp"
#include "encode.hpp"
#include "kernels.hpp"
#include "pool.hpp"
#include "recompress.hpp"

namespace {

using namespace fastload;

constexpr int64_t kMostPixels = 1 << 14;

void swap_ends(Pixels& pixels) {
    for (size_t i = 0; i + 2 < pixels.size(); i += 3) std::swap(pixels[i], pixels[i + 2]);
}

// By libjpeg-turbo, with its defaults. It ends the process where anything is wrong. `written`: the
// file.
Pixels by_libjpeg(Pixels pixels, Size size, int channels, int quality, bool blue_first,
                  std::vector<uint8_t>& written) {
    if (blue_first && channels == 3) swap_ends(pixels);
    const auto bytes = static_cast<size_t>(channels) * static_cast<size_t>(size.width);
    jpeg_error_mgr error;
    jpeg_compress_struct out;
    out.err = jpeg_std_error(&error);
    jpeg_create_compress(&out);
    unsigned char* file = nullptr;
    unsigned long length = 0;
    jpeg_mem_dest(&out, &file, &length);
    out.image_width = static_cast<JDIMENSION>(size.width);
    out.image_height = static_cast<JDIMENSION>(size.height);
    out.input_components = channels;
    out.in_color_space = channels == 3 ? JCS_RGB : JCS_GRAYSCALE;
    jpeg_set_defaults(&out);
    jpeg_set_quality(&out, quality, TRUE);
    jpeg_start_compress(&out, TRUE);
    for (int y = 0; y < size.height; ++y) {
        JSAMPROW row = pixels.data() + static_cast<size_t>(y) * bytes;
        jpeg_write_scanlines(&out, &row, 1);
    }
    jpeg_finish_compress(&out);
    jpeg_destroy_compress(&out);
    written.assign(file, file + length);

    jpeg_decompress_struct in;
    in.err = &error;
    jpeg_create_decompress(&in);
    jpeg_mem_src(&in, file, length);
    jpeg_read_header(&in, TRUE);
    jpeg_start_decompress(&in);
    for (int y = 0; y < size.height; ++y) {
        JSAMPROW row = pixels.data() + static_cast<size_t>(y) * bytes;
        jpeg_read_scanlines(&in, &row, 1);
    }
    jpeg_finish_decompress(&in);
    jpeg_destroy_decompress(&in);
    std::free(file);
    if (blue_first && channels == 3) swap_ends(pixels);
    return pixels;
}

// Noise, which is most of what `noise` gives, has no small coefficients: also squares of one colour
// and slopes.
void soften(Pixels& pixels, Size size, int channels, int how) {
    const int side = 1 + how / 4;
    for (int y = 0; y < size.height; ++y) {
        for (int x = 0; x < size.width; ++x) {
            for (int c = 0; c < channels; ++c) {
                const auto at = [&](int row, int column) {
                    return (static_cast<size_t>(row) * static_cast<size_t>(size.width) +
                            static_cast<size_t>(column)) *
                               static_cast<size_t>(channels) +
                           static_cast<size_t>(c);
                };
                uint8_t& value = pixels[at(y, x)];
                if (how % 4 == 1) value = pixels[at(y / side * side, x / side * side)];
                if (how % 4 == 2) value = static_cast<uint8_t>(x * side + y * (c + 1) + value % 4);
            }
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Choices choices(data, size);
    const int bits = choices.byte();
    const int channels = (bits & 1) != 0 ? 3 : 1, count = 1 + bits / 2 % 3;
    const bool blue_first = (bits & 128) != 0;
    const auto offset = static_cast<size_t>(choices.byte() % 65);
    const Size shape = choices.size(kMostPixels / count);
    const size_t values = static_cast<size_t>(channels) * static_cast<size_t>(shape.height) *
                          static_cast<size_t>(shape.width);
    std::vector<int32_t> qualities;
    Pixels before, plain;
    std::vector<std::vector<uint8_t>> files(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
        qualities.push_back(choices.byte() % 101);
        Pixels image = noise(values, choices.byte());
        soften(image, shape, channels, choices.byte());
        before.insert(before.end(), image.begin(), image.end());
        if (qualities.back() > 0) {
            image = by_libjpeg(std::move(image), shape, channels, qualities.back(), blue_first,
                               files[static_cast<size_t>(i)]);
        }
        plain.insert(plain.end(), image.begin(), image.end());
    }
    for (const char* name : {"plain", "sse4.1", "avx2", "avx512", "neon"}) {
        const Kernels* kernels = find_kernels(name);
        if (kernels == nullptr) continue;
        // New each time, so that a sanitizer sees what is beyond the memory of this image.
        Recompressor recompressor(*kernels);
        const Pixels made = in_place(before, offset, [&](uint8_t* pixels) {
            for (int row = 0; row < count; ++row, pixels += values) {
                if (qualities[row] > 0)
                    recompressor.run(pixels, shape, channels, qualities[row], blue_first);
            }
        });
        require(made == plain, "an instruction set differs from libjpeg-turbo");
        if (channels != 3 || blue_first) continue;
        JpegEncoder encoder(*kernels);
        for (int row = 0; row < count; ++row) {
            if (qualities[row] == 0) continue;
            const auto image = exactly(before.data() + static_cast<size_t>(row) * values, values);
            require(encoder.run(image.get(), shape, qualities[row]) == files[row],
                    "the file of an instruction set differs from libjpeg-turbo's");
        }
    }
    static Pool pool(1, "auto");
    const auto kept = exactly(qualities.data(), qualities.size());
    const Pixels made = in_place(before, offset, [&](uint8_t* pixels) {
        const auto job = recompress_job({pixels, count, shape, channels}, {kept.get(), blue_first});
        pool.run(*job);
        job->wait();
        require(job->take_failures().empty(), "a sound image failed");
    });
    require(made == plain, "a job differs from libjpeg-turbo");
    return 0;
}
