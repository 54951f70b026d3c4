// Fuzz target: images under projective maps. The bytes choose an image of 1 to 65,500 pixels a side
// (fewer rows where it would be too large to be quick), an output, and a matrix of numbers of any
// kind, infinite and not numbers among them.
//
// Image and output lie in heap memory of exactly the size that they have. What must hold, besides
// that memory is in order: all instruction sets make the same pixels; what takes the nearest pixel
// makes pixels of the image, or the fill; a map that moves nothing changes nothing; the places that
// a map has, one by one, make its pixels, and so does the part of the image that is read; and a
// part of the output has the pixels that it has in all of it, of the part of the image that it
// reads.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <vector>

#include "choices.hpp"
#include "warp.hpp"

namespace {

using namespace fastload;

constexpr int64_t kMostPixels = 1 << 15;  // of an image, so that an input takes a millisecond

double number(Choices& choices, double unit) {
    const int kind = choices.byte();
    if (kind >= 16) return unit * (choices.byte() - 128 + choices.byte() / 256.0) / 32.0;
    const uint64_t bits = uint64_t{choices.bits()} << 32 | choices.bits();
    double any;
    std::memcpy(&any, &bits, sizeof any);
    return any;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Choices choices(data, size);
    const int channels = 1 + choices.byte() % 4;
    const Size in_size = choices.size(kMostPixels),
               out_size = {1 + choices.byte() % 64, 1 + choices.byte() % 64};
    const size_t pixels = static_cast<size_t>(in_size.height) * static_cast<size_t>(in_size.width);
    const size_t made = static_cast<size_t>(out_size.height) * static_cast<size_t>(out_size.width);
    const Pixels image = noise(pixels * static_cast<size_t>(channels), choices.byte());
    const auto in = exactly(image.data(), image.size());
    const std::unique_ptr<uint8_t[]> out(new uint8_t[made * static_cast<size_t>(channels)]);
    WarpOptions options = {
        (choices.byte() & 1) != 0, (choices.byte() & 1) != 0, (choices.byte() & 1) != 0, {}};
    for (int c = 0; c < channels; ++c) options.fill[c] = static_cast<float>(choices.byte());
    double inverse[9];
    const double units[9] = {1, 1, in_size.width / 4.0, 1, 1, in_size.height / 4.0, 0.01, 0.01, 1};
    for (int i = 0; i < 9; ++i) inverse[i] = number(choices, units[i]);
    const int kind = choices.byte();
    if (kind & 1) inverse[6] = inverse[7] = 0.0, inverse[8] = 1.0;
    if (kind & 2) inverse[3] = 0.0;  // rows stay rows
    if (kind & 4) inverse[1] = 0.0;  // and columns columns
    const Box all = box_of(out_size);
    warp(kPlainKernels, in.get(), in_size, out.get(), all, channels, inverse, options);
    const size_t bytes = made * static_cast<size_t>(channels);
    for (const char* name : {"sse4.1", "avx2", "avx512", "neon"}) {
        const Kernels* const kernels = find_kernels(name);
        if (kernels == nullptr) continue;
        const std::unique_ptr<uint8_t[]> other(new uint8_t[bytes]);
        warp(*kernels, in.get(), in_size, other.get(), all, channels, inverse, options);
        require(std::equal(out.get(), out.get() + bytes, other.get()), name);
    }
    // No more in memory than is read, for all of the output and for a part of it.
    const int top = choices.byte() % out_size.height, left = choices.byte() % out_size.width;
    const Box some = {top, left, 1 + choices.byte() % (out_size.height - top),
                      1 + choices.byte() % (out_size.width - left)};
    for (const Box& shown : {all, some}) {
        const Box part = warped_part(in_size, shown, inverse);
        require(part.height > 0 && part.width > 0 && part.top >= 0 && part.left >= 0 &&
                    part.top + part.height <= in_size.height &&
                    part.left + part.width <= in_size.width,
                "a part that is none");
        const size_t line = static_cast<size_t>(part.width) * static_cast<size_t>(channels);
        const size_t cut = line * static_cast<size_t>(part.height);
        const std::unique_ptr<uint8_t[]> seen(new uint8_t[cut + kWarpSlack]);
        std::fill_n(seen.get() + cut, kWarpSlack, uint8_t{0x5a});
        for (int y = 0; y < part.height; ++y) {
            const int64_t at = int64_t{part.top + y} * in_size.width + part.left;
            std::memcpy(seen.get() + line * static_cast<size_t>(y), in.get() + at * channels, line);
        }
        const size_t row = static_cast<size_t>(shown.width) * static_cast<size_t>(channels);
        for (const char* name : {"plain", "sse4.1", "avx2", "avx512", "neon"}) {
            const Kernels* const kernels = find_kernels(name);
            if (kernels == nullptr) continue;
            const std::unique_ptr<uint8_t[]> other(
                new uint8_t[row * static_cast<size_t>(shown.height)]);
            warp_part(*kernels, seen.get(), part, in_size, other.get(), shown, channels, inverse,
                      options);
            for (int y = 0; y < shown.height; ++y) {
                const int64_t at = int64_t{shown.top + y} * out_size.width + shown.left;
                const uint8_t* const found = other.get() + row * static_cast<size_t>(y);
                require(std::equal(found, found + row, out.get() + at * channels), "of a part");
            }
        }
    }
    // The places one by one, in memory of exactly their size.
    std::vector<double> across, down;
    for (int y = 0; y < out_size.height; ++y) {
        for (int x = 0; x < out_size.width; ++x) {
            const double* const m = inverse;
            const double j = x + 0.5, i = y + 0.5;
            double u = m[0] * j + (m[1] * i + m[2]), v = m[3] * j + (m[4] * i + m[5]);
            if (m[6] != 0.0 || m[7] != 0.0 || m[8] != 1.0) {
                const double w = m[6] * j + (m[7] * i + m[8]);
                u /= w;
                v /= w;
            }
            across.push_back(u);
            down.push_back(v);
        }
    }
    const auto places_x = exactly(across.data(), made), places_y = exactly(down.data(), made);
    const std::unique_ptr<uint8_t[]> mapped(new uint8_t[bytes]);
    remap(in.get(), in_size, mapped.get(), out_size, channels, places_x.get(), places_y.get(),
          options);
    require(std::equal(out.get(), out.get() + bytes, mapped.get()), "places differ from their map");
    if (!options.bilinear && channels == 1) {
        std::set<uint8_t> values(in.get(), in.get() + pixels);
        values.insert(static_cast<uint8_t>(options.fill[0]));
        for (size_t i = 0; i < made; ++i) require(values.count(out[i]) == 1, "not a pixel");
    }
    const double nothing[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
    const std::unique_ptr<uint8_t[]> same(new uint8_t[image.size()]);
    warp(*find_kernels("auto"), in.get(), in_size, same.get(), box_of(in_size), channels, nothing,
         options);
    require(std::equal(image.begin(), image.end(), same.get()), "moved by nothing");
    return 0;
}
