// Fuzz target: operations that make a pixel of those around it. The bytes choose one to three
// images of 1 to 65,500 pixels a side (fewer rows where they would be too large to be quick), grey
// or coloured; weighted sums, with weights that are infinite and not numbers among them, medians,
// or CLAHE; and their settings.
//
// Images lie in heap memory at any offset, and end with it; tables lie in heap memory of exactly
// their size. What must hold, besides that memory is in order: every instruction set that runs here
// makes the pixels of the plain path below; a job of the pool makes the same, and of CLAHE, which
// has one path, the same again; and the bytes before the images stay as they are.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "choices.hpp"
#include "clahe.hpp"
#include "colour_loops.hpp"
#include "pool.hpp"

namespace {

using namespace fastload;

// Of an image, and values times neighbours, so that an input takes some milliseconds at the most.
constexpr int64_t kMostPixels = 1 << 12, kMostWork = 1 << 17;

enum Mode { kConvolve, kMedian, kClahe, kModes };

struct Input {
    explicit Input(Choices& choices) {
        const int bits = choices.byte();
        channels = bits & 1 ? 3 : 1;
        mode = bits / 2 % kModes;
        count = 1 + bits / 8 % 3;
        offset = static_cast<size_t>(choices.byte() % 65);
        size = choices.size(kMostPixels);
        const int64_t values = int64_t{channels} * size.height * size.width;
        const auto work = [&](int side) { return values * count * side * side <= kMostWork; };
        int most = mode == kMedian ? kMostMedian : 2 * std::min(size.height, size.width) - 1;
        while (most > 1 && !work(most)) most -= 2;
        for (int row = 0; row < count; ++row) {
            sides.push_back(1 + 2 * (choices.byte() % (most / 2 + 1)));
            limits.push_back(choices.byte() % 9 ? std::ldexp(choices.uniform(), choices.byte() % 20)
                                                : 0.0);
            rows[row] = choices.byte() % 4 != 0;
        }
        side = sides[0];
        for (int i = 0; mode == kConvolve && i < count * side * side; ++i) {
            const int how = choices.byte();
            const auto uniform = static_cast<float>(choices.uniform());
            kernels.push_back(how < 8     ? std::ldexp(uniform - 0.5f, 200)
                              : how < 12  ? NAN
                              : how < 100 ? 0.0f
                                          : 2.0f * uniform - 1.0f);
        }
        down = 1 + choices.byte() * choices.byte() / 256;
        across = 1 + choices.byte();
        pixels = noise(static_cast<size_t>(count * values), choices.byte());
    }

    int channels, mode, count, side, down, across;
    size_t offset;  // of the images in their memory
    Size size;
    std::vector<int32_t> sides;
    std::vector<double> limits;
    std::vector<float> kernels;
    bool rows[3];
    Pixels pixels;
};

uint8_t cut(float x) {
    return static_cast<uint8_t>(std::isnan(x) ? 0 : std::clamp(x, 0.0f, 255.0f));
}

// An image a value at a time.
Pixels plain(const Input& input, int row, bool fused) {
    const int height = input.size.height, width = input.size.width, channels = input.channels;
    const size_t bytes = input.pixels.size() / static_cast<size_t>(input.count);
    const uint8_t* const from = input.pixels.data() + bytes * static_cast<size_t>(row);
    Pixels made(from, from + bytes);
    const auto at = [&](int y, int x, int c) {
        return from[(static_cast<size_t>(y) * width + x) * channels + c];
    };
    const auto mirrored = [](int place, int length) {
        return place < 0 ? -place : place < length ? place : 2 * (length - 1) - place;
    };
    const bool sums = input.mode == kConvolve;
    const int side = sums ? input.side : input.sides[row], half = side / 2;
    if (sums ? !input.rows[row] : side == 1) return made;
    for (size_t i = 0; i < bytes; ++i) {
        const int c = static_cast<int>(i) % channels, x = static_cast<int>(i) / channels % width,
                  y = static_cast<int>(i) / channels / width;
        float total = 0.0f;
        std::vector<uint8_t> near;
        for (int tap = 0; tap < side * side; ++tap) {
            const int down = y + tap / side - half, right = x + tap % side - half;
            if (sums) {
                const float weight = input.kernels[(row * side * side) + tap],
                            value = static_cast<float>(
                                at(mirrored(down, height), mirrored(right, width), c));
                if (weight == 0.0f) continue;
                total = fused ? std::fma(value, weight, total) : value * weight + total;
            } else {
                near.push_back(
                    at(std::clamp(down, 0, height - 1), std::clamp(right, 0, width - 1), c));
            }
        }
        if (sums) {
            made[i] = cut(std::nearbyint(total));
        } else {
            const auto middle = near.begin() + static_cast<ptrdiff_t>(near.size() / 2);
            std::nth_element(near.begin(), middle, near.end());
            made[i] = *middle;
        }
    }
    return made;
}

void check_loops(const Input& input, const FilterTable& table) {
    const size_t bytes = input.pixels.size() / static_cast<size_t>(input.count);
    for (const bool fused : {false, true}) {
        Pixels wanted;
        for (int row = 0; row < input.count; ++row) {
            const Pixels one = plain(input, row, fused);
            wanted.insert(wanted.end(), one.begin(), one.end());
        }
        for (const ColourLoops* loops : colour_loops(fused)) {
            const Pixels made = in_place(input.pixels, input.offset, [&](uint8_t* pixels) {
                for (int row = 0; row < input.count; ++row, pixels += bytes) {
                    std::vector<uint8_t> scratch;
                    std::vector<float> floats;
                    if (input.mode == kMedian) {
                        if (input.sides[row] > 1)
                            median_image(*loops, input.sides[row], input.size, input.channels,
                                         pixels, {scratch, floats});
                    } else if (input.rows[row]) {
                        convolve_image(*loops, table, row, input.size, input.channels, pixels,
                                       {scratch, floats});
                    }
                }
            });
            require(made == wanted, "an instruction set differs from the plain path");
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t length) {
    Choices choices(data, length);
    const Input input(choices);
    const auto kernels = exactly(input.kernels.data(), input.kernels.size());
    const auto sides = exactly(input.sides.data(), input.sides.size());
    const auto limits = exactly(input.limits.data(), input.limits.size());
    const auto rows = exactly(input.rows, static_cast<size_t>(input.count));
    const FilterTable filter = {kernels.get(), rows.get(), input.side};
    if (input.mode != kClahe) check_loops(input, filter);
    const auto equalize = [&](const ColourLoops& loops, uint8_t* pixels) {
        const size_t bytes = input.pixels.size() / static_cast<size_t>(input.count);
        for (int row = 0; row < input.count; ++row, pixels += bytes) {
            std::vector<uint8_t> scratch;
            if (input.limits[row] > 0.0)
                equalize_tiles(loops, pixels, input.size, input.channels, input.limits[row],
                               input.down, input.across, scratch);
        }
    };
    static Pool pool(1, "auto");
    const bool fused = can_fuse_colour();
    const Pixels made = in_place(input.pixels, input.offset, [&](uint8_t* pixels) {
        const ColourImages images = {pixels, input.count, input.size, input.channels};
        const auto job = input.mode == kConvolve ? convolve_job(images, filter, fused)
                         : input.mode == kMedian
                             ? median_job(images, {sides.get()})
                             : clahe_job(images, {limits.get(), input.down, input.across});
        pool.run(*job);
        job->wait();
        require(job->take_failures().empty(), "a sound table failed");
    });
    Pixels wanted;
    if (input.mode == kClahe) {
        const auto by = [&](const ColourLoops& loops) {
            return in_place(input.pixels, input.offset,
                            [&](uint8_t* pixels) { equalize(loops, pixels); });
        };
        wanted = by(kSeparateColour);
        for (const ColourLoops* loops : colour_loops(true))
            require(by(*loops) == wanted, "an instruction set differs from the plain path");
    } else {
        for (int row = 0; row < input.count; ++row) {
            const Pixels one = plain(input, row, fused);
            wanted.insert(wanted.end(), one.begin(), one.end());
        }
    }
    require(made == wanted, "a job differs from the plain path");
    return 0;
}
