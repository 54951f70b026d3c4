#include "warp.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace fastload {
namespace {

struct Image {
    const uint8_t* pixels;  // where the first one is, or would be if it is not in memory
    Size size;
    int channels;
    int64_t stride;  // bytes from one row to the next

    const uint8_t* at(int y, int x) const { return pixels + (stride * y + int64_t{x} * channels); }
};

Image packed(const uint8_t* pixels, Size size, int channels) {
    return {pixels, size, channels, int64_t{size.width} * channels};
}

// In place of a pixel outside of the image, with a weight of 0.
constexpr uint8_t kNoPixel[4] = {};

// After a vector whose neighbours do not all lie in the image, so many pixels are made one by one.
constexpr int kRetryAfter = 8;

// Whether a place lies in the image, or at most `-low` beside it. False for NaN.
bool inside(double u, double v, double low, Size size) {
    return u >= low && v >= low && u < size.width - low && v < size.height - low;
}

void write_fill(uint8_t* out, int channels, const float* fill) {
    for (int c = 0; c < channels; ++c) out[c] = static_cast<uint8_t>(fill[c]);
}

// Rounded down. The number must fit an int.
int floor_of(double number) {
    const int whole = static_cast<int>(number);
    return whole - (whole > number);
}

// The four pixels around a place in the image, and their bilinear weights.
struct Neighbours {
    int x, y;  // of the upper left one; -1 or more
    float weights[4];

    Neighbours(double u, double v) : x(floor_of(u - 0.5)), y(floor_of(v - 0.5)) {
        const float fx = static_cast<float>((u - 0.5) - x), fy = static_cast<float>((v - 0.5) - y);
        weights[0] = (1.0f - fx) * (1.0f - fy);
        weights[1] = fx * (1.0f - fy);
        weights[2] = (1.0f - fx) * fy;
        weights[3] = fx * fy;
    }
};

using Floats = float __attribute__((vector_size(16)));
using Words = int32_t __attribute__((vector_size(16)));
using Halves = int16_t __attribute__((vector_size(16)));
using Bytes = uint8_t __attribute__((vector_size(16)));

#if defined(__clang__)
#define FASTLOAD_SHUFFLE(Vector, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else  // GCC has that from version 12 on
#define FASTLOAD_SHUFFLE(Vector, a, b, ...) __builtin_shuffle(a, b, Vector{__VA_ARGS__})
#endif

// Four bytes as floats. (Compilers convert a vector of four bytes one by one.)
Floats floats(const uint8_t* pixel) {
    uint32_t four;
    std::memcpy(&four, pixel, sizeof four);
    const Words low = {static_cast<int32_t>(four)};
    const Bytes bytes = reinterpret_cast<Bytes>(low), none = {};
    const auto halves = reinterpret_cast<Halves>(FASTLOAD_SHUFFLE(
        Bytes, bytes, none, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
    const Halves zeros = {};
    const auto wide = FASTLOAD_SHUFFLE(Halves, halves, zeros, 0, 8, 1, 9, 2, 10, 3, 11);
    return __builtin_convertvector(reinterpret_cast<Words>(wide), Floats);
}

// An output pixel of three or four channels, all at once, where all four neighbours lie in the
// image and four bytes can be read at each. `pixel`: the upper left neighbour; `row`: bytes of a
// row. The same results as of the next two functions.
template <int kChannels, bool kFades>
void interpolate(const uint8_t* pixel, int64_t row, const float* weights, Floats fill,
                 uint8_t* out) {
    Floats sum = weights[0] * floats(pixel) + weights[1] * floats(pixel + kChannels);
    sum += weights[2] * floats(pixel + row);
    sum += weights[3] * floats(pixel + row + kChannels);
    const Floats none = {}, most = none + 255.0f;
    Words whole;
    if (kFades) sum = (sum - fill) + fill;
    sum = sum > none ? sum : none;
    sum = sum < most ? sum : most;
    if (kFades) {
        // Adding 1.5 * 2^23 leaves no bits for a fraction: the sum is rounded half to even, and its
        // lowest bits are the rounded number.
        sum += 12582912.0f;
        std::memcpy(&whole, &sum, sizeof whole);
        whole &= 255;
    } else {
        whole = __builtin_convertvector(sum, Words);
    }
    for (int c = 0; c < kChannels; ++c) out[c] = static_cast<uint8_t>(whole[c]);
}

// An output pixel some of whose neighbours may lie outside of the image, where the fill is.
void interpolate_with_fill(const Image& image, const Neighbours& near, const WarpOptions& options,
                           uint8_t* out) {
    const float* const fill = options.fill;
    const int x = near.x, y = near.y;
    const bool columns[2] = {x >= 0, x + 1 < image.size.width},
               rows[2] = {y >= 0, y + 1 < image.size.height};
    const uint8_t* pixels[4];
    float used[4], mask = 0.0f;
    for (int i = 0; i < 4; ++i) {
        const bool in = columns[i & 1] && rows[i >> 1];
        used[i] = in ? near.weights[i] : 0.0f;
        pixels[i] = in ? image.at(y + (i >> 1), x + (i & 1)) : kNoPixel;
        mask += used[i];
    }
    const bool whole = columns[0] && columns[1] && rows[0] && rows[1];
    if (whole) mask = 1.0f;
    for (int c = 0; c < image.channels; ++c) {
        float sum = used[0] * pixels[0][c] + used[1] * pixels[1][c];
        sum += used[2] * pixels[2][c];
        sum += used[3] * pixels[3][c];
        const float value = options.mixes && !whole ? sum + (1.0f - mask) * fill[c]
                                                    : (sum - fill[c]) * mask + fill[c];
        out[c] = static_cast<uint8_t>(std::clamp(std::nearbyint(value), 0.0f, 255.0f));
    }
}

// An output pixel whose neighbours outside of the image are taken from its edge. Fractions are cut
// off, as in Pillow.
void interpolate_with_edge(const Image& image, const Neighbours& near, uint8_t* out) {
    const int x = near.x, y = near.y;
    const float* weights = near.weights;
    const int x0 = std::max(x, 0), x1 = std::min(x + 1, image.size.width - 1), y0 = std::max(y, 0),
              y1 = std::min(y + 1, image.size.height - 1);
    const uint8_t* pixels[4] = {image.at(y0, x0), image.at(y0, x1), image.at(y1, x0),
                                image.at(y1, x1)};
    for (int c = 0; c < image.channels; ++c) {
        float sum = weights[0] * pixels[0][c] + weights[1] * pixels[1][c];
        sum += weights[2] * pixels[2][c];
        sum += weights[3] * pixels[3][c];
        out[c] = static_cast<uint8_t>(std::clamp(sum, 0.0f, 255.0f));
    }
}

// Makes output pixels, one by one, of places in an image.
class PixelSampler {
  public:
    PixelSampler(const Image& image, const WarpOptions& options)
        : most_x(image.size.width - 2),
          most_y(image.size.height - (image.channels == 3 ? 3 : 2)),
          image_(image),
          options_(options),
          low_(options.bilinear && options.fades ? -0.5 : 0.0),
          inside_(image.channels == 3
                      ? (options.fades ? interpolate<3, true> : interpolate<3, false>)
                      : (options.fades ? interpolate<4, true> : interpolate<4, false>)) {
        for (int c = 0; c < image.channels; ++c) fill_[c] = options.fill[c];
    }

    // Pixels side by side, at several places.
    void make(const WarpPlaces& places, uint8_t* out) const {
        if (options_.bilinear) return make_each(places, out);
        switch (image_.channels) {
            case 1: return take_nearest<1>(places, out);
            case 3: return take_nearest<3>(places, out);
            default: return make_each(places, out);
        }
    }

    void make(double u, double v, uint8_t* out) const {
        if (!inside(u, v, low_, image_.size))
            return write_fill(out, image_.channels, options_.fill);
        if (!options_.bilinear) {
            std::memcpy(out, image_.at(static_cast<int>(v), static_cast<int>(u)),
                        static_cast<size_t>(image_.channels));
            return;
        }
        const Neighbours near(u, v);
        if (image_.channels >= 3 && near.x >= 0 && near.y >= 0 && near.x <= most_x &&
            near.y <= most_y) {
            inside_(image_.at(near.y, near.x), image_.stride, near.weights, fill_, out);
        } else if (options_.fades) {
            interpolate_with_fill(image_, near, options_, out);
        } else {
            interpolate_with_edge(image_, near, out);
        }
    }

    // Where the upper left neighbour lies at most if four bytes can be read at each. Of three
    // channels, the fourth byte of the very last pixel lies outside: so the last row is left out.
    const int most_x, most_y;

  private:
    void make_each(const WarpPlaces& places, uint8_t* out) const {
        for (int i = 0; i < places.count; ++i, out += image_.channels)
            make(places.u[i], places.v[i], out);
    }

    // The same as of `make` for one place.
    template <int kChannels>
    void take_nearest(const WarpPlaces& places, uint8_t* out) const {
        uint8_t fill[kChannels];
        write_fill(fill, kChannels, options_.fill);
        for (int i = 0; i < places.count; ++i, out += kChannels) {
            const double u = places.u[i], v = places.v[i];
            const bool shown = inside(u, v, 0.0, image_.size);
            std::memcpy(out, shown ? image_.at(static_cast<int>(v), static_cast<int>(u)) : fill,
                        kChannels);
        }
    }

    const Image image_;
    const WarpOptions& options_;
    const double low_;
    void (*const inside_)(const uint8_t*, int64_t, const float*, Floats, uint8_t*);
    Floats fill_ = {};
};

void warp_image(const Kernels& kernels, const Image& image, uint8_t* out, Size out_size,
                const double m[9], const WarpOptions& options) {
    const int channels = image.channels;
    const PixelSampler sampler(image, options);
    WarpRow row = {image.pixels, image.stride, channels, sampler.most_x, sampler.most_y, m,
                   0.0,          0.0,          0.0,      options.fill,   options.fades};
    const bool in_vectors = kernels.warp_inner != nullptr && options.bilinear && channels >= 3 &&
                            image.stride * image.size.height <= INT32_MAX;
    WarpColumns columns;
    if (in_vectors && kernels.warp_columns != nullptr) {
        row.u = m[1] * 0.5 + m[2];
        kernels.warp_columns(row, out_size.width, columns);
        row.columns = &columns;
    }
    WarpPlaces places;
    for (int y = 0; y < out_size.height; ++y) {
        const double down = y + 0.5;
        row.u = m[1] * down + m[2];
        row.v = m[4] * down + m[5];
        row.w = m[7] * down + m[8];
        // The pixel at which vectors are tried next.
        int next = in_vectors ? columns.first : out_size.width;
        for (int x = 0; x < out_size.width;) {
            if (x == next) {
                const int made = kernels.warp_inner(row, x, out_size.width, out);
                x += made;
                out += int64_t{made} * channels;
                next = x + kRetryAfter;
            }
            places.count =
                std::min({next - x, out_size.width - x, static_cast<int>(WarpPlaces::kMost)});
            kernels.warp_places(row, x, places);
            sampler.make(places, out);
            x += places.count;
            out += int64_t{places.count} * channels;
        }
    }
}

}  // namespace

void remap(const uint8_t* in, Size in_size, uint8_t* out, Size out_size, int channels,
           const double* x, const double* y, const WarpOptions& options) {
    const PixelSampler sampler(packed(in, in_size, channels), options);
    const int64_t count = int64_t{out_size.height} * out_size.width;
    for (int64_t i = 0; i < count; ++i, out += channels) sampler.make(x[i], y[i], out);
}

void warp(const Kernels& kernels, const uint8_t* in, Size in_size, uint8_t* out, Size out_size,
          int channels, const double inverse[9], const WarpOptions& options) {
    warp_image(kernels, packed(in, in_size, channels), out, out_size, inverse, options);
}

Box warped_part(Size in_size, Size out_size, const double m[9]) {
    // A rectangle is convex, and so is what a projective map makes of it where no w is 0: the
    // centres of the outermost pixels are the bounds.
    constexpr double kMost = 1 << 30;
    double low[2] = {kMost, kMost}, high[2] = {-kMost, -kMost};  // of v, u
    for (int corner = 0; corner < 4; ++corner) {
        const double x = corner & 1 ? out_size.width - 0.5 : 0.5,
                     y = corner & 2 ? out_size.height - 0.5 : 0.5;
        const double w = m[6] * x + m[7] * y + m[8];
        const double place[2] = {(m[3] * x + m[4] * y + m[5]) / w,
                                 (m[0] * x + m[1] * y + m[2]) / w};
        if (!(w > 0.0 && std::abs(place[0]) < kMost && std::abs(place[1]) < kMost))
            return {0, 0, in_size.height, in_size.width};
        for (int axis = 0; axis < 2; ++axis) {
            low[axis] = std::min(low[axis], place[axis]);
            high[axis] = std::max(high[axis], place[axis]);
        }
    }
    const int sides[2] = {in_size.height, in_size.width};
    int start[2], extent[2];
    for (int axis = 0; axis < 2; ++axis) {
        // The neighbours of a place begin at most 1.5 pixels before it and end 1.5 after it.
        const double first = std::floor(low[axis] - 1.5), end = std::ceil(high[axis] + 1.5);
        start[axis] = static_cast<int>(std::clamp(first, 0.0, sides[axis] - 1.0));
        extent[axis] =
            static_cast<int>(std::clamp<double>(end, start[axis] + 1.0, sides[axis])) - start[axis];
    }
    return {start[0], start[1], extent[0], extent[1]};
}

void warp_part(const Kernels& kernels, const uint8_t* pixels, const Box& part, Size in_size,
               uint8_t* out, Size out_size, int channels, const double inverse[9],
               const WarpOptions& options) {
    const int64_t stride = int64_t{part.width} * channels;
    // As a number: there need not be any memory where the first pixel would be.
    const auto first = reinterpret_cast<uintptr_t>(pixels) -
                       static_cast<uintptr_t>(stride * part.top + int64_t{part.left} * channels);
    const Image image = {reinterpret_cast<const uint8_t*>(first), in_size, channels, stride};
    warp_image(kernels, image, out, out_size, inverse, options);
}

}  // namespace fastload
