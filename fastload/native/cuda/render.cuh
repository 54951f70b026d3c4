// Crops, resizes, padding and mirroring of uint8 images: fastload/render/device.py says what of,
// and kernels.py has the same in Triton.
#pragma once

#include "cuda/numbers.cuh"

namespace fastload::device {

constexpr int kRenderThreads = 256;
constexpr int kTableColumns = 14;

struct RenderArguments {
    // All pixels of all images, (P, channels).
    const uint8_t* pixels;
    // (rows, kTableColumns): box (top, left, height, width), size, start of the window, mirrorings
    // (across, down), first pixel of the image, its width, and at least as many input positions as
    // any output position is made of (down, across).
    const int64_t* table;
    // Of an antialiased resize, written by fastload_weigh: (rows, height + width), the first input
    // position of each row, then of each column; (rows, most, height + width), the weights from
    // there on.
    int32_t* firsts;
    float* weights;
    const float* fill;  // (channels,) whole numbers
    uint8_t* out;       // (rows, height, width, channels)
    int32_t rows, height, width, most, channels;
    int32_t how;    // of the nearest pixel: Nearest
    int32_t cubic;  // whether the filter is, and its parameter
    float a;
    int32_t pads, mode;  // Padding
};

// The pixel at the position; the nearest one as torch's "nearest" and "nearest-exact" choose it.
enum Nearest : int32_t { kGather, kNearest, kNearestExact };

// A row of the table.
struct Entry {
    int32_t top, left, box[2], size[2], window[2], flip_across, flip_down;
    int64_t start, image_width;
    int32_t taps[2];

    FASTLOAD_DEVICE explicit Entry(const int64_t* from)
        : top(static_cast<int32_t>(from[0])),
          left(static_cast<int32_t>(from[1])),
          box{static_cast<int32_t>(from[2]), static_cast<int32_t>(from[3])},
          size{static_cast<int32_t>(from[4]), static_cast<int32_t>(from[5])},
          window{static_cast<int32_t>(from[6]), static_cast<int32_t>(from[7])},
          flip_across(static_cast<int32_t>(from[8])),
          flip_down(static_cast<int32_t>(from[9])),
          start(from[10]),
          image_width(from[11]),
          taps{static_cast<int32_t>(from[12]), static_cast<int32_t>(from[13])} {}
};

FASTLOAD_DEVICE float filter_at(float x, bool cubic, float a) {
    x = x < 0.0f ? -x : x;
    if (!cubic) return most(1.0f - x, 0.0f);
    if (x < 1.0f) return ((a + 2.0f) * x - (a + 3.0f)) * x * x + 1.0f;
    return x < 2.0f ? (((x - 5.0f) * x + 8.0f) * x - 4.0f) * a : 0.0f;
}

// Of an antialiased filter: what an output position is made of.
struct Reach {
    int32_t low, high;  // the first input position, and the one after the last
    float centre, widened;

    FASTLOAD_DEVICE Reach(int32_t position, int32_t length, int32_t size, bool cubic) {
        const float scale = static_cast<float>(length) / static_cast<float>(size);
        centre = (static_cast<float>(position) + 0.5f) * scale;
        widened = most(scale, 1.0f);
        const float reach = widened * (cubic ? 2.0f : 1.0f);
        low = most(static_cast<int32_t>(centre - reach + 0.5f), 0);
        high = least(static_cast<int32_t>(centre + reach + 0.5f), length);
    }
    // Before the weights of a position are normalised; 0 outside of its taps.
    FASTLOAD_DEVICE float weight(int32_t tap, bool cubic, float a) const {
        if (tap < low || tap >= high) return 0.0f;
        const float distance = (static_cast<float>(tap) + 0.5f - centre) / widened;
        return in_bits(filter_at(distance, cubic, a), 16384.0f);
    }
};

// Where a position lies in the input, of a filter that is not widened.
FASTLOAD_DEVICE float place_in(int32_t position, int32_t length, int32_t size, bool cubic) {
    const float scale = static_cast<float>(length) / static_cast<float>(size);
    const float where = (static_cast<float>(position) + 0.5f) * scale - 0.5f;
    return cubic ? where : most(where, 0.0f);
}

// What an antialiased resize needs, once for each row and column of the output.
FASTLOAD_KERNEL(fastload_weigh, RenderArguments, kRenderThreads) {
    const int32_t height = arguments.height, sides = height + arguments.width;
    const uint32_t blocks = static_cast<uint32_t>(sides + kRenderThreads - 1) / kRenderThreads;
    const uint32_t row = FASTLOAD_BLOCK / blocks;
    FASTLOAD_THREADS(t) {
        const auto place = static_cast<int32_t>(FASTLOAD_BLOCK % blocks * kRenderThreads + t);
        if (place < sides) {
            const int64_t* const entry = arguments.table + uint64_t{kTableColumns} * row;
            const bool cubic = arguments.cubic != 0;
            const int axis = place >= height ? 1 : 0;
            const int32_t position = axis == 1 ? place - height : place;
            const int32_t side = axis == 1 ? arguments.width : height;
            const auto length = static_cast<int32_t>(entry[2 + axis]),
                       size = static_cast<int32_t>(entry[4 + axis]),
                       begin = static_cast<int32_t>(entry[6 + axis]),
                       flip = static_cast<int32_t>(entry[9 - axis]);
            int32_t shown = begin + position + flip * (side - 1 - 2 * position);
            if (arguments.pads != 0) shown = folded(shown, size, arguments.mode);
            const Reach reach(shown, length, size, cubic);
            const auto taps = static_cast<int32_t>(entry[12] > entry[13] ? entry[12] : entry[13]);
            float total = 0.0f;
            for (int32_t tap = 0; tap < taps; ++tap)
                total += reach.weight(reach.low + tap, cubic, arguments.a);
            const auto all = static_cast<uint64_t>(sides);
            arguments.firsts[row * all + static_cast<uint64_t>(place)] = reach.low;
            float* const to = arguments.weights +
                              row * all * static_cast<uint64_t>(arguments.most) +
                              static_cast<uint64_t>(place);
            for (int32_t tap = 0; tap < taps; ++tap) {
                const float weight = reach.weight(reach.low + tap, cubic, arguments.a);
                to[static_cast<uint64_t>(tap) * all] = in_bits(weight / total, 32768.0f);
            }
        }
    }
}

enum class How { nearest, interpolated, antialiased };

// One pixel of the output: kTogether of its values, 3 or 1, which share where they lie and their
// weights.
template <How kHow, int kTogether>
FASTLOAD_DEVICE void render_pixel(const RenderArguments& arguments, uint32_t block, uint32_t t) {
    const int32_t height = arguments.height, width = arguments.width;
    const int64_t channels = arguments.channels;
    const auto plane = static_cast<uint32_t>(height) * static_cast<uint32_t>(width);
    const uint32_t groups = static_cast<uint32_t>(arguments.channels) / kTogether;
    const uint32_t blocks = (plane + kRenderThreads - 1) / kRenderThreads;
    const uint32_t channel = block % groups * kTogether, row = block / groups / blocks;
    const uint32_t place = block / groups % blocks * kRenderThreads + t;
    if (place >= plane) return;
    const auto y = static_cast<int32_t>(place / static_cast<uint32_t>(width)),
               x = static_cast<int32_t>(place % static_cast<uint32_t>(width));
    const Entry entry(arguments.table + uint64_t{kTableColumns} * row);
    const int32_t shown_y = entry.window[0] + y + entry.flip_down * (height - 1 - 2 * y),
                  shown_x = entry.window[1] + x + entry.flip_across * (width - 1 - 2 * x);
    int32_t grid_y = shown_y, grid_x = shown_x;
    if (arguments.pads != 0) {
        grid_y = folded(shown_y, entry.size[0], arguments.mode);
        grid_x = folded(shown_x, entry.size[1], arguments.mode);
    }
    const int64_t first = entry.start + entry.top * entry.image_width + entry.left;
    const uint8_t* const source = arguments.pixels + first * channels + channel;
    float value[kTogether] = {};
    if (arguments.pads != 0 && arguments.mode == kConstant &&
        (grid_y != shown_y || grid_x != shown_x)) {
        for (int i = 0; i < kTogether; ++i) value[i] = arguments.fill[channel + i];
    } else if constexpr (kHow == How::antialiased) {
        const auto sides = static_cast<uint64_t>(height + width);
        const auto column = static_cast<uint64_t>(height + x);
        const int32_t low_y = arguments.firsts[row * sides + static_cast<uint64_t>(y)],
                      low_x = arguments.firsts[row * sides + column];
        const float* const of_row =
            arguments.weights + row * sides * static_cast<uint64_t>(arguments.most);
        for (int32_t down = 0; down < entry.taps[0]; ++down) {
            const int32_t line = least(low_y + down, entry.box[0] - 1);
            const uint8_t* const source_line = source + line * entry.image_width * channels;
            float sum[kTogether] = {};
            for (int32_t across = 0; across < entry.taps[1]; ++across) {
                const uint8_t* const from =
                    source_line + least(low_x + across, entry.box[1] - 1) * channels;
                const float weight = of_row[static_cast<uint64_t>(across) * sides + column];
                for (int i = 0; i < kTogether; ++i) sum[i] += weight * static_cast<float>(from[i]);
            }
            const float weight =
                of_row[static_cast<uint64_t>(down) * sides + static_cast<uint64_t>(y)];
            for (int i = 0; i < kTogether; ++i) value[i] += weight * whole_pixel(sum[i]);
        }
        for (int i = 0; i < kTogether; ++i) value[i] = whole_pixel(value[i]);
    } else if constexpr (kHow == How::interpolated) {
        const bool cubic = arguments.cubic != 0;
        const float where_y = place_in(grid_y, entry.box[0], entry.size[0], cubic),
                    where_x = place_in(grid_x, entry.box[1], entry.size[1], cubic);
        const float below_y = floor_of(where_y), below_x = floor_of(where_x);
        for (int32_t down = 0; down < entry.taps[0]; ++down) {
            const int32_t offset_y = down + 1 - entry.taps[0] / 2;
            const int32_t line =
                least(most(static_cast<int32_t>(below_y) + offset_y, 0), entry.box[0] - 1);
            const uint8_t* const source_line = source + line * entry.image_width * channels;
            float sum[kTogether] = {};
            for (int32_t across = 0; across < entry.taps[1]; ++across) {
                const int32_t offset_x = across + 1 - entry.taps[1] / 2;
                const int32_t column =
                    least(most(static_cast<int32_t>(below_x) + offset_x, 0), entry.box[1] - 1);
                const float distance = below_x + static_cast<float>(offset_x) - where_x;
                const float weight = in_bits(filter_at(distance, cubic, arguments.a), 32768.0f);
                const uint8_t* const from = source_line + column * channels;
                for (int i = 0; i < kTogether; ++i) sum[i] += weight * static_cast<float>(from[i]);
            }
            const float distance = below_y + static_cast<float>(offset_y) - where_y;
            const float weight = in_bits(filter_at(distance, cubic, arguments.a), 32768.0f);
            for (int i = 0; i < kTogether; ++i) value[i] += weight * whole_pixel(sum[i]);
        }
        for (int i = 0; i < kTogether; ++i) value[i] = whole_pixel(value[i]);
    } else {
        int32_t at[2] = {grid_y, grid_x};
        if (arguments.how != kGather) {
            const float shift = arguments.how == kNearestExact ? 0.5f : 0.0f;
            for (int axis = 0; axis < 2; ++axis) {
                const float scale =
                    static_cast<float>(entry.box[axis]) / static_cast<float>(entry.size[axis]);
                at[axis] =
                    least(static_cast<int32_t>((static_cast<float>(at[axis]) + shift) * scale),
                          entry.box[axis] - 1);
            }
        }
        const uint8_t* const from = source + (at[0] * entry.image_width + at[1]) * channels;
        for (int i = 0; i < kTogether; ++i) value[i] = static_cast<float>(from[i]);
    }
    uint8_t* const to =
        arguments.out + (uint64_t{row} * plane + place) * arguments.channels + channel;
    for (int i = 0; i < kTogether; ++i) to[i] = static_cast<uint8_t>(value[i]);
}

#define FASTLOAD_RENDER(name, how, together)                                                \
    FASTLOAD_KERNEL(fastload_render_##name, RenderArguments, kRenderThreads) {              \
        FASTLOAD_THREADS(t) render_pixel<How::how, together>(arguments, FASTLOAD_BLOCK, t); \
    }

FASTLOAD_RENDER(nearest_1, nearest, 1)
FASTLOAD_RENDER(nearest_3, nearest, 3)
FASTLOAD_RENDER(interpolated_1, interpolated, 1)
FASTLOAD_RENDER(interpolated_3, interpolated, 3)
FASTLOAD_RENDER(antialiased_1, antialiased, 1)
FASTLOAD_RENDER(antialiased_3, antialiased, 3)

#undef FASTLOAD_RENDER

}  // namespace fastload::device
