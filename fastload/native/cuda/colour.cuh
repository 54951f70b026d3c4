// Colour, shears and turns of uint8 images: all steps of all samples in a few launches, each of
// several blocks an image. In Triton it is one program an image
// (fastload/render/kernels_colour.py).
//
// A pass makes each pixel of an image by one step that reads others, or what all of them come to
// (a mean, a histogram), and any number of steps that make a pixel of that pixel. What the next
// pass has to know of all pixels is counted by the one before it. Counts and sums are of whole
// numbers: the order of the blocks does not matter.
#pragma once

#include "cuda/pixel_colour.cuh"

namespace fastload::device {

constexpr int kColourThreads = 256;
constexpr int kLevels = 256;

struct ColourArguments {
    const uint8_t* images;  // (rows / chains, channels, height * width), of the strides below
    const int32_t* kinds;   // (rows, steps), those of a sample first
    const float* numbers;   // (rows, steps, kStepNumbers): see fastload.render.steps
    // (rows, passes + 1): the first step of each pass, and the end. A pass of no steps is a copy.
    const int32_t* begins;
    const int32_t* counts;  // (rows,): passes of each sample, at least 1
    const float* fill;      // (channels,): what lies outside, if `fills`
    uint8_t* out;           // (rows, channels, height * width): the last pass writes here,
    uint8_t* scratch;       // and those before it in turn
    // (rows, passes, words): zeros before. The sum of the grey image that a pass starts with, in
    // two words, then the counts of the levels of each channel, if any pass needs them.
    uint32_t* statistics;
    int64_t stride_row, stride_channel, stride_pixel;
    int32_t rows, chains;  // rows of `out` that one image is for
    int32_t height, width, channels, steps, passes;
    int32_t pass;  // -1: nothing is made, but what the first pass has to know is counted
    int32_t words, block_pixels, bilinear, fills;
};

// What a pass that begins with a step has to know of all pixels.
enum class Known { nothing, sum, levels };
FASTLOAD_DEVICE Known known_for(int32_t kind) {
    if (kind == kContrast) return Known::sum;
    return kind == kAutocontrast || kind == kEqualize ? Known::levels : Known::nothing;
}

struct ColourMemory {
    uint64_t sum;
    uint32_t levels[3][kLevels];
    uint32_t below[2][3][kLevels];  // sums of the counts, in turn
    int32_t least[3], most[3];      // levels that there are
    float mean;
    uint8_t table[3][kLevels];
};

// An image that a pass reads.
struct Source {
    const uint8_t* first;
    int64_t stride_channel, stride_pixel;
    int32_t height, width;

    FASTLOAD_DEVICE float at(int32_t channel, int32_t pixel) const {
        return static_cast<float>(first[channel * stride_channel + pixel * stride_pixel]);
    }
};

// Blended with the mean of the neighbourhood, in which the pixel itself counts five times.
FASTLOAD_DEVICE float sharpened(const Source& source, int32_t channel, int32_t pixel, float rest) {
    const int32_t width = source.width, y = pixel / width, x = pixel % width;
    const float value = source.at(channel, pixel);
    if (y == 0 || y == source.height - 1 || x == 0 || x == width - 1) return value;
    float total = value * 4.0f;
    for (int32_t down = -1; down < 2; ++down)
        for (int32_t across = -1; across < 2; ++across)
            total += source.at(channel, pixel + down * width + across);
    const float smooth = to_whole(total / 13.0f);
    return cut(times_plus(smooth - value, rest, value));
}

FASTLOAD_DEVICE bool is_inside(const Source& source, float y, float x) {
    return x >= 0.0f && x < static_cast<float>(source.width) && y >= 0.0f &&
           y < static_cast<float>(source.height);
}

// A pixel at a whole position, 0 outside.
FASTLOAD_DEVICE float sample_at(const Source& source, int32_t channel, float y, float x) {
    if (!is_inside(source, y, x)) return 0.0f;
    return source.at(channel, static_cast<int32_t>(y) * source.width + static_cast<int32_t>(x));
}

FASTLOAD_DEVICE float byte_as_it_wraps(float value) {
    return static_cast<float>(static_cast<uint8_t>(static_cast<int32_t>(to_whole(value))));
}

// As torch's grid_sample with zeros outside, of the grid of fastload.recipe.augment. `numbers`: the
// (2, 3) matrix that takes an output position to one of the input.
template <int kChannels>
FASTLOAD_DEVICE void turned_pixel(const ColourArguments& arguments, const Source& source,
                                  int32_t pixel, const float* numbers, float (&value)[3]) {
    const float half_height = static_cast<float>(source.height) * 0.5f,
                half_width = static_cast<float>(source.width) * 0.5f;
    const float y = static_cast<float>(pixel / source.width) - (half_height - 0.5f),
                x = static_cast<float>(pixel % source.width) - (half_width - 0.5f);
    const float at_x = times_plus((numbers[0] * x + numbers[1] * y) + numbers[2] + 1.0f, half_width,
                                  -0.5f),
                at_y = times_plus((numbers[3] * x + numbers[4] * y) + numbers[5] + 1.0f,
                                  half_height, -0.5f);
    if (arguments.bilinear == 0) {
        const float left = to_whole(at_x), top = to_whole(at_y);
        const bool inside = is_inside(source, top, left);
        for (int i = 0; i < kChannels; ++i)
            value[i] = inside || arguments.fills == 0 ? sample_at(source, i, top, left)
                                                      : byte_as_it_wraps(arguments.fill[i]);
        return;
    }
    const float left = floor_of(at_x), top = floor_of(at_y);
    const float of_right = at_x - left, of_bottom = at_y - top;
    const float of_left = 1.0f - of_right, of_top = 1.0f - of_bottom;
    const float weights[4] = {of_top * of_left, of_top * of_right, of_bottom * of_left,
                              of_bottom * of_right};
    for (int i = 0; i < kChannels; ++i) {
        float made = 0.0f, inside = 0.0f;
        for (int corner = 0; corner < 4; ++corner) {
            const float down = top + static_cast<float>(corner / 2),
                        across = left + static_cast<float>(corner % 2);
            const float near = sample_at(source, i, down, across);
            const float there = is_inside(source, down, across) ? 1.0f : 0.0f;
            made = corner == 0 ? near * weights[0] : times_plus(near, weights[corner], made);
            inside = corner == 0 ? there * weights[0] : times_plus(there, weights[corner], inside);
        }
        if (arguments.fills != 0) made = (made - arguments.fill[i]) * inside + arguments.fill[i];
        value[i] = byte_as_it_wraps(made);
    }
}

// A pixel at a whole position, that of the border beyond it.
FASTLOAD_DEVICE float near_at(const Source& source, int32_t channel, float y, float x) {
    const int32_t row = least(most(static_cast<int32_t>(y), 0), source.height - 1),
                  column = least(most(static_cast<int32_t>(x), 0), source.width - 1);
    return source.at(channel, row * source.width + column);
}

FASTLOAD_DEVICE float between_two(float a, float b, float part) { return a + (b - a) * part; }

FASTLOAD_DEVICE float between_four(float a, float b, float c, float d, float part) {
    const float square = (2.0f * (a - b) + c) - d, cube = ((b - a) - c) + d;
    return b + part * ((c - a) + part * (square + part * cube));
}

template <bool kCubic>
FASTLOAD_DEVICE float line_at(const Source& source, int32_t channel, float y, float left,
                              float part) {
    const float one = near_at(source, channel, y, left),
                two = near_at(source, channel, y, left + 1.0f);
    if (!kCubic) return between_two(one, two, part);
    const float before = near_at(source, channel, y, left - 1.0f),
                after = near_at(source, channel, y, left + 2.0f);
    return between_four(before, one, two, after, part);
}

// As fastload.recipe.pillow_augment.moved.
template <bool kCubic, int kChannels>
FASTLOAD_DEVICE void moved_pixel(const ColourArguments& arguments, const Source& source,
                                 int32_t pixel, const float* numbers, float (&value)[3]) {
    const float y = static_cast<float>(pixel / source.width) + 0.5f,
                x = static_cast<float>(pixel % source.width) + 0.5f;
    const float at_x = (numbers[0] * x + numbers[1] * y) + numbers[2],
                at_y = (numbers[3] * x + numbers[4] * y) + numbers[5];
    if (!is_inside(source, at_y, at_x)) {
        for (int i = 0; i < kChannels; ++i)
            value[i] = arguments.fills != 0 ? cut(arguments.fill[i]) : 0.0f;
        return;
    }
    const float from_x = at_x - 0.5f, from_y = at_y - 0.5f;
    const float left = floor_of(from_x), top = floor_of(from_y);
    const float right = from_x - left, down = from_y - top;
    for (int i = 0; i < kChannels; ++i) {
        const float one = line_at<kCubic>(source, i, top, left, right),
                    two = line_at<kCubic>(source, i, top + 1.0f, left, right);
        float made;
        if (kCubic) {
            const float before = line_at<kCubic>(source, i, top - 1.0f, left, right),
                        after = line_at<kCubic>(source, i, top + 2.0f, left, right);
            made = between_four(before, one, two, after, down);
        } else {
            made = between_two(one, two, down);
        }
        value[i] = cut(made);
    }
}

// A number in 65,536ths, cut to whole ones. What is none, or 2^19 or more, is far to the left.
FASTLOAD_DEVICE int64_t in_65536ths(float number) {
    const float whole = floor_of(number * 65536.0f), most = 34359738368.0f;
    return whole > -most && whole < most ? static_cast<int64_t>(whole) : -(int64_t{1} << 35);
}

// As fastload.recipe.pillow_augment.moved_nearest.
template <int kChannels>
FASTLOAD_DEVICE void moved_to_nearest(const ColourArguments& arguments, const Source& source,
                                      int32_t pixel, const float* numbers, float (&value)[3]) {
    const int32_t y = pixel / source.width, x = pixel % source.width;
    int64_t at[2];
    for (int axis = 0; axis < 2; ++axis) {
        const float* const of = numbers + 3 * axis;
        at[axis] = (in_65536ths(of[0]) * x + in_65536ths(of[1]) * y + in_65536ths(of[2])) >> 16;
    }
    const bool inside = at[0] >= 0 && at[0] < source.width && at[1] >= 0 && at[1] < source.height;
    const auto place = static_cast<int32_t>(inside ? at[1] * source.width + at[0] : 0);
    for (int i = 0; i < kChannels; ++i)
        value[i] = inside                 ? source.at(i, place)
                   : arguments.fills != 0 ? cut(arguments.fill[i])
                                          : 0.0f;
}

// What the first step of a pass makes of a pixel, or the pixel, where that step needs no other.
template <int kChannels>
FASTLOAD_DEVICE void first_step(const ColourArguments& arguments, const ColourMemory& memory,
                                const Source& source, int32_t kind, int32_t pixel,
                                const float* numbers, float (&value)[3]) {
    switch (kind) {
        case kAffine: turned_pixel<kChannels>(arguments, source, pixel, numbers, value); return;
        case kMoveBilinear:
            moved_pixel<false, kChannels>(arguments, source, pixel, numbers, value);
            return;
        case kMoveBicubic:
            moved_pixel<true, kChannels>(arguments, source, pixel, numbers, value);
            return;
        case kMoveNearest:
            moved_to_nearest<kChannels>(arguments, source, pixel, numbers, value);
            return;
        default: break;
    }
    for (int i = 0; i < kChannels; ++i) {
        if (kind == kSharpness) {
            value[i] = sharpened(source, i, pixel, numbers[0]);
            continue;
        }
        value[i] = source.at(i, pixel);
        if (kind == kEqualize) {
            value[i] = static_cast<float>(memory.table[i][static_cast<int32_t>(value[i])]);
        } else if (kind == kAutocontrast && memory.most[i] != memory.least[i]) {
            const auto low = static_cast<float>(memory.least[i]);
            value[i] =
                cut((value[i] - low) / ((static_cast<float>(memory.most[i]) - low) * kOf255));
        }
    }
}

// The pass of a row that a block works on.
struct Pass {
    uint32_t row;
    int32_t own;         // passes of the row
    int32_t first, end;  // its steps
    int32_t kind;        // of the first; -1 if there is none
    Known known, next;   // for this pass, and the one after it
    Source source;
    uint8_t* target;
    uint32_t *statistics, *next_statistics;

    FASTLOAD_DEVICE Pass(const ColourArguments& arguments, uint32_t of_row) : row(of_row) {
        const int32_t pass = arguments.pass;
        const int32_t* const begins =
            arguments.begins + uint64_t{row} * static_cast<uint64_t>(arguments.passes + 1);
        const int32_t* const kinds =
            arguments.kinds + uint64_t{row} * static_cast<uint64_t>(arguments.steps);
        own = arguments.counts[row];
        first = pass < 0 ? 0 : begins[pass];
        end = pass < 0 ? 0 : begins[pass + 1];
        kind = first < end ? kinds[first] : -1;
        known = known_for(kind);
        const bool has_next = pass + 1 < own && begins[pass + 1] < begins[pass + 2];
        next = has_next ? known_for(kinds[begins[pass + 1]]) : Known::nothing;
        const int64_t base = row * arguments.stride_row;
        target = ((own - pass) % 2 == 1 ? arguments.out : arguments.scratch) + base;
        source.first = pass > 0 ? ((own - pass) % 2 == 1 ? arguments.scratch : arguments.out) + base
                                : arguments.images + row / static_cast<uint32_t>(arguments.chains) *
                                                         arguments.stride_row;
        source.stride_channel = arguments.stride_channel;
        source.stride_pixel = arguments.stride_pixel;
        source.height = arguments.height;
        source.width = arguments.width;
        const auto words = static_cast<uint64_t>(arguments.words);
        next_statistics =
            arguments.statistics + (uint64_t{row} * static_cast<uint64_t>(arguments.passes) +
                                    static_cast<uint64_t>(pass + 1)) *
                                       words;
        statistics = next_statistics - words;
    }
};

// Pillow's ImageOps.equalize. `below`: how many pixels are below each level, and at it.
FASTLOAD_DEVICE uint8_t equalized(const uint32_t* levels, const uint32_t* below, uint32_t level,
                                  uint32_t plane, int32_t last) {
    const uint32_t step = (plane - levels[last]) / 255;
    if (step == 0) return static_cast<uint8_t>(level);
    const uint32_t made = (below[level] - levels[level] + step / 2) / step;
    return static_cast<uint8_t>(made < 255 ? made : 255);
}

// What a block has to know of all pixels of its image before it begins.
template <int kChannels>
FASTLOAD_DEVICE void prepare(FASTLOAD_WITHIN ColourMemory& memory, const Pass& pass,
                             uint32_t plane) {
    const bool has_levels = pass.known == Known::levels;
    const uint32_t* const levels = pass.statistics + 2;
    FASTLOAD_THREADS(t) {
        for (int i = 0; i < kChannels; ++i) {
            memory.levels[i][t] = 0;
            if (has_levels) memory.below[0][i][t] = levels[static_cast<uint32_t>(i) * kLevels + t];
        }
        if (t < 3) {
            memory.least[t] = kLevels - 1;
            memory.most[t] = 0;
        }
        if (t == 0) {
            memory.sum = 0;
            memory.mean = 0.0f;
            if (pass.known == Known::sum) {
                const auto sum = *reinterpret_cast<const uint64_t*>(pass.statistics);
                memory.mean = static_cast<float>(static_cast<double>(static_cast<int64_t>(sum)) /
                                                 static_cast<double>(plane));
            }
        }
    }
    FASTLOAD_BARRIER();
    if (!has_levels) return;
    for (uint32_t distance = 1, from = 0; distance < kLevels; distance *= 2, from ^= 1u) {
        FASTLOAD_THREADS(t) {
            for (int i = 0; i < kChannels; ++i) {
                uint32_t sum = memory.below[from][i][t];
                if (distance == 1 && sum > 0) {
                    keep_least(&memory.least[i], static_cast<int32_t>(t));
                    keep_most(&memory.most[i], static_cast<int32_t>(t));
                }
                if (t >= distance) sum += memory.below[from][i][t - distance];
                memory.below[from ^ 1u][i][t] = sum;
            }
        }
        FASTLOAD_BARRIER();
    }
    if (pass.kind != kEqualize) return;
    FASTLOAD_THREADS(t) {  // eight rounds: the sums are in the first half again
        for (int i = 0; i < kChannels; ++i)
            memory.table[i][t] =
                equalized(levels + i * kLevels, memory.below[0][i], t, plane, memory.most[i]);
    }
    FASTLOAD_BARRIER();
}

// A block of pixels of one image, one pass.
template <int kChannels>
FASTLOAD_DEVICE void recolour(FASTLOAD_WITHIN const ColourArguments& arguments,
                              ColourMemory& memory) {
    const uint32_t plane =
        static_cast<uint32_t>(arguments.height) * static_cast<uint32_t>(arguments.width);
    const auto block_pixels = static_cast<uint32_t>(arguments.block_pixels);
    const uint32_t blocks = (plane + block_pixels - 1) / block_pixels;
    const Pass pass(arguments, FASTLOAD_BLOCK / blocks);
    if (arguments.pass >= pass.own || (arguments.pass < 0 && pass.next == Known::nothing)) return;
    prepare<kChannels>(FASTLOAD_HERE memory, pass, plane);
    const uint32_t begin = FASTLOAD_BLOCK % blocks * block_pixels,
                   end = plane - begin < block_pixels ? plane : begin + block_pixels;
    const uint64_t step = uint64_t{pass.row} * static_cast<uint64_t>(arguments.steps);
    const int32_t* const kinds = arguments.kinds + step;
    const float* const numbers = arguments.numbers + step * kStepNumbers;
    FASTLOAD_THREADS(t) {
        uint32_t sum = 0;
        for (uint32_t place = begin + t; place < end; place += kColourThreads) {
            const auto pixel = static_cast<int32_t>(place);
            float value[3];
            first_step<kChannels>(arguments, memory, pass.source, pass.kind, pixel,
                                  numbers + pass.first * kStepNumbers, value);
            if (kChannels == 1) value[1] = value[2] = value[0];
            for (int32_t i = pass.first; i < pass.end; ++i)
                recolour_pixel<kChannels>(kinds[i], value, memory.mean, pixel, arguments.width,
                                          numbers + i * kStepNumbers);
            uint8_t made[3];
            for (int i = 0; i < 3; ++i)
                made[i] = static_cast<uint8_t>(static_cast<int32_t>(value[i]));
            if (arguments.pass >= 0) {
                for (int i = 0; i < kChannels; ++i)
                    pass.target[i * arguments.stride_channel + pixel * arguments.stride_pixel] =
                        made[i];
            }
            if (pass.next == Known::levels) {
                for (int i = 0; i < kChannels; ++i) add_to(&memory.levels[i][made[i]], 1u);
            } else if (pass.next == Known::sum) {
                sum += static_cast<uint32_t>(kChannels == 3 ? grey_of(made[0], made[1], made[2])
                                                            : static_cast<float>(made[0]));
            }
        }
        if (pass.next == Known::sum) add_to(&memory.sum, uint64_t{sum});
    }
    if (pass.next == Known::nothing) return;
    FASTLOAD_BARRIER();
    FASTLOAD_THREADS(t) {
        if (pass.next == Known::levels) {
            for (int i = 0; i < kChannels; ++i) {
                const uint32_t count = memory.levels[i][t];
                if (count > 0)
                    add_to(&pass.next_statistics[2 + static_cast<uint32_t>(i) * kLevels + t],
                           count);
            }
        } else if (t == 0) {
            add_to(reinterpret_cast<uint64_t*>(pass.next_statistics), memory.sum);
        }
    }
}

FASTLOAD_KERNEL(fastload_recolour_1, ColourArguments, kColourThreads) {
    FASTLOAD_SHARED(ColourMemory, memory);
    recolour<1>(FASTLOAD_HERE arguments, memory);
}

FASTLOAD_KERNEL(fastload_recolour_3, ColourArguments, kColourThreads) {
    FASTLOAD_SHARED(ColourMemory, memory);
    recolour<3>(FASTLOAD_HERE arguments, memory);
}

}  // namespace fastload::device
