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
          low(options.bilinear && options.fades ? -0.5 : 0.0),
          image_(image),
          options_(options),
          inside_(image.channels == 3
                      ? (options.fades ? interpolate<3, true> : interpolate<3, false>)
                      : (options.fades ? interpolate<4, true> : interpolate<4, false>)) {
        for (int c = 0; c < image.channels; ++c) fill_[c] = options.fill[c];
    }

    // Pixels side by side, at several places.
    void make(const WarpPlaces& places, uint8_t* out) const {
        for (int i = 0; i < places.count; ++i, out += image_.channels)
            make(places.u[i], places.v[i], out);
    }

    void make(double u, double v, uint8_t* out) const {
        if (!inside(u, v, low, image_.size)) return write_fill(out, image_.channels, options_.fill);
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
    // Places from here on, to as far beyond the other side, are in the image (`inside`).
    const double low;

  private:
    const Image image_;
    const WarpOptions& options_;
    void (*const inside_)(const uint8_t*, int64_t, const float*, Floats, uint8_t*);
    Floats fill_ = {};
};

// Pixels of a row, side by side.
struct Run {
    int first, end;

    Run and_of(Run other) const {
        const int begin = std::max(first, other.first);
        return {begin, std::max(begin, std::min(end, other.end))};
    }
};

// Where the pixels of a row of an affine map lie along one axis of the image: at
// step * (x + 0.5) + start, in finite numbers. Their roundings ascend or descend as well.
class Along {
  public:
    Along(double step, Run all) : step_(step), inverse_(1.0 / step), all_(all) {}

    // The pixels that lie at `low` or beyond, and before `high`.
    Run within(double start, double low, double high) const {
        const bool up = step_ >= 0.0;
        const int first = find(start, up ? low : high), end = find(start, up ? high : low);
        return {first, std::max(first, end)};
    }

  private:
    // The first pixel at `bound` or beyond if they ascend, the first one before it if they descend.
    int find(double start, double bound) const {
        const auto passed = [&](int x) {
            const double place = step_ * (static_cast<double>(x) + 0.5) + start;
            return step_ >= 0.0 ? place >= bound : place < bound;
        };
        // Nearly there, unless rounding has made all places equal.
        const double guess = (bound - start) * inverse_ - 0.5;
        int x = guess > all_.first ? (guess < all_.end ? static_cast<int>(guess) : all_.end)
                                   : all_.first;
        while (x > all_.first && passed(x - 1)) --x;
        while (x < all_.end && !passed(x)) ++x;
        return x;
    }

    const double step_, inverse_;
    const Run all_;
};

// The rows of a warp, one by one: their pixels `shown`.
class RowMaker {
  public:
    RowMaker(const Kernels& kernels, const Image& image, Run shown, const double* m,
             const WarpOptions& options)
        : kernels_(kernels),
          image_(image),
          all_(shown),
          options_(options),
          sampler_(image, options),
          row_{image.pixels, image.stride, image.channels, sampler_.most_x, sampler_.most_y, m, 0.0,
               0.0,          0.0,          options.fill,   options.fades},
          in_vectors_(kernels.warp_inner != nullptr && options.bilinear && image.channels >= 3 &&
                      image.stride * image.size.height <= INT32_MAX),
          affine_(m[6] == 0.0 && m[7] == 0.0 && m[8] == 1.0),
          across_(m[0], shown),
          down_(m[3], shown) {
        for (size_t i = 0; i < sizeof fill_; i += static_cast<size_t>(image.channels))
            write_fill(fill_ + i, image.channels, options.fill);
        if (!in_vectors_ || !affine_ || kernels.warp_columns == nullptr) return;
        row_.u = m[1] * 0.5 + m[2];
        const Run run = columns();
        kernels.warp_columns(row_, run.first, run.end, columns_);
        row_.columns = &columns_;
    }

    void make(int y, uint8_t* out) {
        const double down = y + 0.5, *const m = row_.m;
        row_.u = m[1] * down + m[2];
        row_.v = m[4] * down + m[5];
        row_.w = m[7] * down + m[8];
        const bool runs = affine_ && std::isfinite(m[0]) && std::isfinite(m[3]) &&
                          std::isfinite(row_.u) && std::isfinite(row_.v);
        runs ? make_affine(out) : make_any(out);
    }

  private:
    // The columns whose neighbours all lie in the image.
    Run columns() const { return across_.within(row_.u, 0.5, sampler_.most_x + 1.5); }

    // What is outside, pixels with neighbours outside, those without, and the same on the other
    // side.
    void make_affine(uint8_t* out) const {
        const double low = sampler_.low;
        const Run shown = across_.within(row_.u, low, image_.size.width - low)
                              .and_of(down_.within(row_.v, low, image_.size.height - low));
        fill(all_.first, shown.first, out);
        int x = shown.first;
        if (in_vectors_) {
            const Run inner = columns().and_of(down_.within(row_.v, 0.5, sampler_.most_y + 1.5));
            if (inner.first < inner.end) {
                one_by_one(x, inner.first, out);
                x = inner.first +
                    kernels_.warp_inner(row_, inner.first, inner.end, at(out, inner.first));
            }
        }
        one_by_one(x, shown.end, out);
        fill(shown.end, all_.end, out);
    }

    void make_any(uint8_t* out) const {
        // The pixel at which vectors are tried next.
        int next = in_vectors_ && !affine_ ? all_.first : all_.end;
        for (int x = all_.first; x < all_.end;) {
            if (x == next) {
                x += kernels_.warp_inner(row_, x, all_.end, at(out, x));
                next = x + kRetryAfter;
            }
            const int end = std::min(next, all_.end);
            one_by_one(x, end, out);
            x = end;
        }
    }

    void one_by_one(int x, int end, uint8_t* out) const {
        WarpPlaces places;
        for (; x < end; x += places.count) {
            places.count = std::min(end - x, static_cast<int>(WarpPlaces::kMost));
            kernels_.warp_places(row_, x, places);
            sampler_.make(places, at(out, x));
        }
    }

    void fill(int x, int end, uint8_t* out) const {
        uint8_t* to = at(out, x);
        for (size_t left = static_cast<size_t>(end - x) * static_cast<size_t>(image_.channels);
             left > 0;) {
            const size_t some = std::min(left, sizeof fill_);
            std::memcpy(to, fill_, some);
            to += some;
            left -= some;
        }
    }

    uint8_t* at(uint8_t* out, int x) const {
        return out + int64_t{x - all_.first} * image_.channels;
    }

    const Kernels& kernels_;
    const Image& image_;
    const Run all_;
    const WarpOptions& options_;
    const PixelSampler sampler_;
    WarpRow row_;
    const bool in_vectors_, affine_;
    const Along across_, down_;
    uint8_t fill_[192];  // whole pixels of 1 to 4 channels
    WarpColumns columns_;
};

// Whether a map changes nothing but how much of the image is shown; then this is copied. (Of
// bilinear, too: with one weight of 1 and three of 0, sums are within a rounding of their pixel.)
bool copy_unmoved(const Image& image, uint8_t* out, const Box& shown, const double* m) {
    static constexpr double kUnmoved[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
    if (!std::equal(m, m + 9, kUnmoved) || shown.top + shown.height > image.size.height ||
        shown.left + shown.width > image.size.width)
        return false;
    const size_t line = static_cast<size_t>(shown.width) * static_cast<size_t>(image.channels);
    for (int y = 0; y < shown.height; ++y, out += line)
        std::memcpy(out, image.at(shown.top + y, shown.left), line);
    return true;
}

// Warps that take the nearest pixel, of kChannels channels.
template <int kChannels>
class NearestPixels {
  public:
    NearestPixels(const Kernels& kernels, const Image& image, uint8_t* out, const Box& shown,
                  const double* m, const WarpOptions& options)
        : kernels_(kernels), image_(image), out_(out), shown_(shown), m_(m) {
        write_fill(fill_, kChannels, options.fill);
    }

    void make() const {
        // Each column shows one column of the image, and each row one row: all numbers are those
        // of `make_any`, as what is multiplied by 0 is finite.
        const bool level =
            m_[1] == 0.0 && m_[3] == 0.0 && m_[6] == 0.0 && m_[7] == 0.0 && m_[8] == 1.0;
        level ? make_level() : make_any();
    }

  private:
    void make_any() const {
        WarpRow row = {};
        row.stride = image_.stride;
        row.channels = kChannels;
        row.m = m_;
        WarpPlaces places;
        int32_t at[WarpPlaces::kMost];
        uint8_t* out = out_;
        const int right = shown_.left + shown_.width;
        for (int y = 0; y < shown_.height; ++y) {
            const double down = (shown_.top + y) + 0.5;
            row.u = m_[1] * down + m_[2];
            row.v = m_[4] * down + m_[5];
            row.w = m_[7] * down + m_[8];
            for (int x = shown_.left; x < right; x += places.count) {
                places.count = std::min(right - x, static_cast<int>(WarpPlaces::kMost));
                kernels_.warp_places(row, x, places);
                kernels_.warp_offsets(places, row, image_.size, at);
                for (int i = 0; i < places.count; ++i, out += kChannels)
                    std::memcpy(out, at[i] < 0 ? fill_ : image_.pixels + at[i], kChannels);
            }
        }
    }

    void make_level() const {
        constexpr int kAtOnce = 1024;
        int32_t at[kAtOnce];
        for (int left = 0; left < shown_.width; left += kAtOnce) {
            const int count = std::min(shown_.width - left, kAtOnce);
            // Places ascend or descend with the columns, as do their roundings: those in the image
            // lie side by side.
            int first = count, end = 0;
            for (int i = 0; i < count; ++i) {
                const double u =
                    m_[0] * (static_cast<double>(shown_.left + left + i) + 0.5) + m_[2];
                if (!inside(u, 0.0, 0.0, image_.size)) continue;
                at[i] = static_cast<int32_t>(u);
                first = std::min(first, i);
                end = i + 1;
            }
            make_columns(left, count, at, first, end);
        }
    }

    // `count` columns, the first of which is the one of this number that is shown. Of them those
    // from `first` to `end` show columns `at` of the image, and the others the fill.
    void make_columns(int number, int count, const int32_t* at, int first, int end) const {
        const int64_t stride = int64_t{shown_.width} * kChannels;
        uint8_t* out = out_ + int64_t{number} * kChannels;
        int above = -1;  // which row of the image the one above shows; -1: none
        for (int y = 0; y < shown_.height; ++y, out += stride) {
            const double v = m_[4] * ((shown_.top + y) + 0.5) + m_[5];
            const bool in_image = end > 0 && inside(0.0, v, 0.0, image_.size);
            const int row = in_image ? static_cast<int>(v) : -1;
            if (in_image && row == above) {
                std::memcpy(out, out - stride, static_cast<size_t>(count) * kChannels);
                continue;
            }
            above = row;
            fill(out, 0, in_image ? first : count);
            if (!in_image) continue;
            const uint8_t* const from = image_.at(row, 0);
            for (int i = first; i < end; ++i)
                std::memcpy(out + i * kChannels, from + int64_t{at[i]} * kChannels, kChannels);
            fill(out, end, count);
        }
    }

    void fill(uint8_t* out, int first, int end) const {
        for (int i = first; i < end; ++i) std::memcpy(out + i * kChannels, fill_, kChannels);
    }

    const Kernels& kernels_;
    const Image image_;
    uint8_t* const out_;
    const Box shown_;
    const double* const m_;
    uint8_t fill_[kChannels];
};

void warp_image(const Kernels& kernels, const Image& image, uint8_t* out, const Box& shown,
                const double m[9], const WarpOptions& options) {
    const int channels = image.channels;
    if (copy_unmoved(image, out, shown, m)) return;
    if (!options.bilinear && (channels == 1 || channels == 3) &&
        image.stride * image.size.height <= INT32_MAX) {
        channels == 1 ? NearestPixels<1>(kernels, image, out, shown, m, options).make()
                      : NearestPixels<3>(kernels, image, out, shown, m, options).make();
        return;
    }
    RowMaker rows(kernels, image, {shown.left, shown.left + shown.width}, m, options);
    const int64_t stride = int64_t{shown.width} * channels;
    for (int y = 0; y < shown.height; ++y, out += stride) rows.make(shown.top + y, out);
}

}  // namespace

void remap(const uint8_t* in, Size in_size, uint8_t* out, Size out_size, int channels,
           const double* x, const double* y, const WarpOptions& options) {
    const PixelSampler sampler(packed(in, in_size, channels), options);
    const int64_t count = int64_t{out_size.height} * out_size.width;
    for (int64_t i = 0; i < count; ++i, out += channels) sampler.make(x[i], y[i], out);
}

void warp(const Kernels& kernels, const uint8_t* in, Size in_size, uint8_t* out, const Box& shown,
          int channels, const double inverse[9], const WarpOptions& options) {
    warp_image(kernels, packed(in, in_size, channels), out, shown, inverse, options);
}

Box warped_part(Size in_size, const Box& shown, const double m[9]) {
    // A rectangle is convex, and so is what a projective map makes of it where no w is 0: the
    // centres of the outermost pixels are the bounds.
    constexpr double kMost = 1 << 30;
    double low[2] = {kMost, kMost}, high[2] = {-kMost, -kMost};  // of v, u
    for (int corner = 0; corner < 4; ++corner) {
        const double x = shown.left + (corner & 1 ? shown.width - 0.5 : 0.5),
                     y = shown.top + (corner & 2 ? shown.height - 0.5 : 0.5);
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
               uint8_t* out, const Box& shown, int channels, const double inverse[9],
               const WarpOptions& options) {
    const int64_t stride = int64_t{part.width} * channels;
    // As a number: there need not be any memory where the first pixel would be.
    const auto first = reinterpret_cast<uintptr_t>(pixels) -
                       static_cast<uintptr_t>(stride * part.top + int64_t{part.left} * channels);
    const Image image = {reinterpret_cast<const uint8_t*>(first), in_size, channels, stride};
    warp_image(kernels, image, out, shown, inverse, options);
}

}  // namespace fastload
