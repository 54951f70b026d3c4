// uint8 images as the numbers that are delivered: one multiply-add for each, mixed with those of
// another image, or of images that are drawn, cut and mirrored on the way. The same in Triton:
// fastload/render/kernels.py and kernels_drawn.py.
#pragma once

#include "cuda/numbers.cuh"

namespace fastload::device {

constexpr int kConvertThreads = 256;
constexpr int kConvertBlock = kConvertThreads * kFour;  // values of a block of threads

// Writes a number: what a GPU does that runs kernels at all.
struct TrialArguments {
    int32_t* out;
};

FASTLOAD_KERNEL(fastload_trial, TrialArguments, 1) { FASTLOAD_THREADS(t) arguments.out[t] = 1; }

enum Mixing : int32_t { kAlone, kBlends, kCuts };

struct NormaliseArguments {
    const uint8_t* images;       // (rows, channels, height, width), or with channels last
    const float* scale;          // (channels,)
    const float* offset;         // (channels,)
    void* out;                   // of `type`, laid out as the images
    int64_t values;              // channels * height * width
    int32_t rows, plane, width;  // plane: height * width
    int32_t channels, is_planar, type;
    int32_t mixing;  // each with the image before it: all of it, or in a box
    float weight, of_other;
    int32_t left, top, right, bottom;
};

// pixel * scale + offset, rounded once; four values of a thread, in the order of memory.
FASTLOAD_KERNEL(fastload_normalise, NormaliseArguments, kConvertThreads) {
    const auto values = static_cast<uint64_t>(arguments.values);
    const uint64_t blocks = (values + kConvertBlock - 1) / kConvertBlock;
    const auto row = static_cast<uint32_t>(FASTLOAD_BLOCK / blocks);
    FASTLOAD_THREADS(t) {
        const uint64_t place = FASTLOAD_BLOCK % blocks * kConvertBlock + kFour * t;
        if (place < values) {
            const int32_t count =
                values - place < kFour ? static_cast<int32_t>(values - place) : kFour;
            const uint64_t begin = uint64_t{row} * values + place;
            const auto divisor = static_cast<uint64_t>(
                arguments.is_planar != 0 ? arguments.plane : arguments.channels);
            auto channel = static_cast<int32_t>(place / divisor);
            auto pixel = static_cast<int32_t>(place % divisor);
            if (arguments.is_planar == 0) {
                const int32_t swapped = channel;
                channel = pixel;
                pixel = swapped;
            }
            const Four<uint8_t> own = load_four(arguments.images + begin, count);
            Four<uint8_t> others = {};
            if (arguments.mixing != kAlone) {
                const uint32_t before =
                    (row == 0 ? static_cast<uint32_t>(arguments.rows) : row) - 1;
                others = load_four(arguments.images + uint64_t{before} * values + place, count);
            }
            float made[kFour];
            for (int i = 0; i < kFour; ++i) {
                // Past the end of the image the last channel may be behind.
                const int32_t known = least(channel, arguments.channels - 1);
                const float factor = arguments.scale[known], added = arguments.offset[known];
                made[i] = times_plus(static_cast<float>(own.at[i]), factor, added);
                if (arguments.mixing != kAlone) {
                    const float other = times_plus(static_cast<float>(others.at[i]), factor, added);
                    if (arguments.mixing == kBlends) {
                        made[i] = other * arguments.of_other + made[i] * arguments.weight;
                    } else {
                        const int32_t x = pixel % arguments.width, y = pixel / arguments.width;
                        const bool within = x >= arguments.left && x < arguments.right &&
                                            y >= arguments.top && y < arguments.bottom;
                        made[i] = within ? other : made[i];
                    }
                }
                if (arguments.is_planar != 0) {
                    if (++pixel == arguments.plane) pixel = 0, ++channel;
                } else if (++channel == arguments.channels) {
                    channel = 0, ++pixel;
                }
            }
            store_four(arguments.out, begin, made, count, arguments.type);
        }
    }
}

constexpr int kHead = 3;  // numbers in front of an order: the key's low and high words, the epoch

enum Step : int64_t { kDown, kAcross, kCrop };

struct DrawnArguments {
    const uint8_t* pixels;  // (N, height, width, channels)
    const int64_t* order;   // (kHead + samples,): the key's words, the epoch, the indices
    const int64_t* rows;    // (samples,): which row of `pixels` each sample of the order is
    // (step_count, 3): which step, the stream of its draws, and of a mirroring the number that the
    // 53 bits are below.
    const int64_t* steps;
    const float* fill;    // (channels,) whole numbers
    const float* scale;   // (channels,), unless bytes are delivered as they are
    const float* offset;  // (channels,)
    void* out;            // (B, out_height, out_width, channels) of `type`
    int64_t first;        // place of the batch in the order
    int32_t height, width, out_height, out_width, channels, step_count;
    int32_t above, left, count_down, count_across;  // padding, and windows that there are
    int32_t pads, mode, converts, type;
};

// As fastload.draws.philox4x32.
FASTLOAD_DEVICE void philox(uint32_t (&c)[4], uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = uint64_t{c[0]} * 0xd2511f53u, p1 = uint64_t{c[2]} * 0xcd9e8d57u;
        c[0] = static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0;
        c[1] = static_cast<uint32_t>(p1);
        c[2] = static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1;
        c[3] = static_cast<uint32_t>(p0);
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
}

// 53 bits: a uniform number times 2^53, as fastload.draws.Draws.uniform has it.
FASTLOAD_DEVICE int64_t bits_of_draw(uint32_t high, uint32_t low) {
    return static_cast<int64_t>(uint64_t{high >> 5} << 26 | low >> 6);
}

// As fastload.geometry.boxes.pick: floor(uniform * count), the product rounded to float64.
FASTLOAD_DEVICE int32_t pick(int64_t bits, int32_t count) {
    const double uniform = static_cast<double>(bits) * (1.0 / 9007199254740992.0);
    return static_cast<int32_t>(uniform * static_cast<double>(count));
}

// The window of a sample, in coordinates that no mirroring has touched.
struct DrawnWindow {
    int32_t top, left;
    uint32_t is_mirrored_down, is_mirrored_across;
};

FASTLOAD_DEVICE DrawnWindow window_of(const DrawnArguments& arguments, int64_t index) {
    const int64_t* const order = arguments.order;
    DrawnWindow window = {0, 0, 0, 0};
    for (int32_t n = 0; n < arguments.step_count; ++n) {
        const int64_t step = arguments.steps[3 * n], stream = arguments.steps[3 * n + 1];
        uint32_t words[4] = {static_cast<uint32_t>(index),
                             static_cast<uint32_t>(static_cast<uint64_t>(index) >> 32),
                             static_cast<uint32_t>(order[2]), static_cast<uint32_t>(stream) << 16};
        philox(words, static_cast<uint32_t>(order[0]), static_cast<uint32_t>(order[1]));
        const int64_t one = bits_of_draw(words[0], words[1]),
                      other = bits_of_draw(words[2], words[3]);
        if (step == kCrop) {
            const int32_t down = pick(one, arguments.count_down),
                          across = pick(other, arguments.count_across);
            // The window lies `down` rows from the end where the image is upside-down by then.
            window.top = window.is_mirrored_down != 0
                             ? arguments.height + arguments.above - arguments.out_height - down
                             : down - arguments.above;
            window.left = window.is_mirrored_across != 0
                              ? arguments.width + arguments.left - arguments.out_width - across
                              : across - arguments.left;
        } else if (one < arguments.steps[3 * n + 2]) {
            if (step == kDown) {
                window.is_mirrored_down ^= 1;
            } else {
                window.is_mirrored_across ^= 1;
            }
        }
    }
    return window;
}

// Four values of a sample a thread.
FASTLOAD_KERNEL(fastload_drawn, DrawnArguments, kConvertThreads) {
    FASTLOAD_SHARED(DrawnWindow, window);
    const int32_t channels = arguments.channels, width = arguments.out_width;
    const auto values = static_cast<uint32_t>(arguments.out_height * width * channels);
    const uint32_t blocks = (values + kConvertBlock - 1) / kConvertBlock;
    const uint32_t sample = FASTLOAD_BLOCK / blocks;
    const int64_t at = arguments.first + sample;
    FASTLOAD_THREADS(t) {
        if (t == 0) window = window_of(arguments, arguments.order[kHead + at]);
    }
    FASTLOAD_BARRIER();
    FASTLOAD_THREADS(t) {
        const uint32_t place = FASTLOAD_BLOCK % blocks * kConvertBlock + kFour * t;
        if (place < values) {
            const int32_t count =
                values - place < kFour ? static_cast<int32_t>(values - place) : kFour;
            const uint8_t* const source =
                arguments.pixels +
                arguments.rows[at] * (int64_t{arguments.height} * arguments.width * channels);
            float made[kFour] = {};
            for (int32_t i = 0; i < count; ++i) {
                const auto value = static_cast<int32_t>(place) + i;
                const int32_t channel = value % channels, pixel = value / channels;
                int32_t y = pixel / width, x = pixel % width;
                if (window.is_mirrored_down != 0) y = arguments.out_height - 1 - y;
                if (window.is_mirrored_across != 0) x = width - 1 - x;
                y += window.top;
                x += window.left;
                int32_t from_y = y, from_x = x;
                if (arguments.pads != 0) {
                    from_y = folded(y, arguments.height, arguments.mode);
                    from_x = folded(x, arguments.width, arguments.mode);
                }
                made[i] = static_cast<float>(
                    source[(int64_t{from_y} * arguments.width + from_x) * channels + channel]);
                if (arguments.pads != 0 && arguments.mode == kConstant &&
                    (from_y != y || from_x != x))
                    made[i] = arguments.fill[channel];
                if (arguments.converts != 0)
                    made[i] =
                        times_plus(made[i], arguments.scale[channel], arguments.offset[channel]);
            }
            store_four(arguments.out, uint64_t{sample} * values + place, made, count,
                       arguments.type);
        }
    }
}

}  // namespace fastload::device
