// The loops of floats.hpp. Included as colour.inl.hpp is, after
// neighbours.inl.hpp and noise.inl.hpp.
#pragma once

#include <algorithm>
#include <cmath>

#include "floats.hpp"

namespace fastload {
namespace {

size_t values_of(Size size) {
    return static_cast<size_t>(size.height) * static_cast<size_t>(size.width);
}

// e^(exponent * log(x)), for x from 0 to 1; 0 below 1e-30. The logarithm is that of
// `log_of_share`, and the power of e the polynomial of Cephes' expf.c: the difference from the
// exact power is below 1e-7 for exponents from 0.5 to 2.
inline float power(float x, float exponent) {
    constexpr uint32_t kRootOfHalf = 0x3f3504f3;
    const float inner = x > 1e-30f ? x : 1.0f;
    const uint32_t from_root = bits_of(inner) - kRootOfHalf;
    const auto whole = static_cast<float>(static_cast<int32_t>(from_root) >> 23);
    const float f = float_of((from_root & 0x7fffff) + kRootOfHalf) - 1.0f;
    const float s = f / (2.0f + f), z = s * s, w = z * z;
    const float even = w * (0.40000972152f + w * 0.24279078841f);
    const float odd = z * (0.66666662693f + w * 0.28498786688f);
    const float half_square = 0.5f * f * f;
    const float rest = s * (half_square + (odd + even)) + whole * 9.0580006145e-06f;
    const float log = ((rest - half_square) + f) + whole * 6.9313812256e-01f;
    float y = exponent * log;
    y = y > -87.0f ? y : -87.0f;
    y = y < 88.0f ? y : 88.0f;
    const float turns = rounded(y * 1.44269504088896341f);
    const float r = (y - turns * 0.693359375f) + turns * 2.12194440e-4f;
    float e = 1.9875691500e-4f;
    e = e * r + 1.3981999507e-3f;
    e = e * r + 8.3334519073e-3f;
    e = e * r + 4.1665795894e-2f;
    e = e * r + 1.6666665459e-1f;
    e = e * r + 5.0000001201e-1f;
    e = e * r * r + r + 1.0f;
    const float scale = float_of(static_cast<uint32_t>(static_cast<int32_t>(turns) + 127) << 23);
    return x > 1e-30f ? e * scale : x * 0.0f;  // NaN stays NaN
}

// Least, most, mean, and the deviation of samples (Bessel), of the values of a plane.
struct Moments {
    float least, most;
    double mean, deviation;
};

Moments moments_of(double sum, double squares, size_t count) {
    const auto n = static_cast<double>(count);
    const double mean = sum / n, spread = squares - sum * mean;
    // Rounding may make the spread of equal values less than 0; NaN stays NaN.
    return {0.0f, 0.0f, mean, std::sqrt((spread < 0.0 ? 0.0 : spread) / (n - 1.0))};
}

Moments moments_of(const float* plane, size_t count) {
    float least = plane[0], most = plane[0];
    double sum = 0.0, squares = 0.0;
#pragma omp simd reduction(+ : sum, squares) reduction(min : least) reduction(max : most)
    for (size_t i = 0; i < count; ++i) {
        const double value = plane[i];
        sum += value;
        squares += value * value;
        least = plane[i] < least ? plane[i] : least;
        most = plane[i] > most ? plane[i] : most;
    }
    Moments found = moments_of(sum, squares, count);
    found.least = least;
    found.most = most;
    return found;
}

void multiply(float* plane, size_t count, float factor) {
    for (size_t i = 0; i < count; ++i) plane[i] *= factor;
}

// Differences from the mean, multiplied; values stay in the range of the plane.
void change_contrast(float* plane, size_t count, float factor) {
    const Moments found = moments_of(plane, count);
    const auto mean = static_cast<float>(found.mean);
    for (size_t i = 0; i < count; ++i) {
        float value = mul_add(plane[i] - mean, factor, mean);
        value = value < found.least ? found.least : value;
        plane[i] = value > found.most ? found.most : value;
    }
}

// The range becomes 0 to 1 and its values powers; then mean and deviation become what they were.
// `sign`: -1 for the negative.
void change_gamma(float* plane, size_t count, float exponent, float sign) {
    constexpr double kLeast = 1e-7;
    const Moments given = moments_of(plane, count);
    const float least = sign > 0.0f ? given.least : -given.most;
    const double extent = static_cast<double>(given.most) - given.least,
                 divisor = std::max(extent, kLeast), mean = (sign * given.mean - least) / divisor,
                 deviation = given.deviation / divisor;
    const auto over = static_cast<float>(1.0 / divisor);
    double sum = 0.0, squares = 0.0;
#pragma omp simd reduction(+ : sum, squares)
    for (size_t i = 0; i < count; ++i) {
        plane[i] = power((sign * plane[i] - least) * over, exponent);
        const double value = plane[i];
        sum += value;
        squares += value * value;
    }
    const Moments now = moments_of(sum, squares, count);
    const double factor = extent * (extent * deviation / std::max(extent * now.deviation, kLeast));
    const auto by = static_cast<float>(sign * factor),
               added = static_cast<float>(sign * (mean * extent + least - now.mean * factor));
    for (size_t k = 0; k < count; ++k) plane[k] = mul_add(plane[k], by, added);
}

// Adds the numbers `first`, `first` + 1, ... of a key.
void add_normals(float* plane, size_t count, uint64_t key, size_t first, float scale) {
    float noise[kNoiseGroup];
    for (size_t done = 0; done < count;) {
        const size_t at = first + done, skipped = at % kNoiseGroup;
        const size_t some = std::min(kNoiseGroup - skipped, count - done);
        normal_group(key, static_cast<uint32_t>(at / kNoiseGroup), noise);
        for (size_t i = 0; i < some; ++i)
            plane[done + i] = mul_add(noise[skipped + i], scale, plane[done + i]);
        done += some;
    }
}

// Down, and then across. `memory`: four rows and kBlurTaps - 1 values.
void blur_plane(float* plane, Size size, const float* numbers, float* memory) {
    constexpr int kReach = kBlurTaps / 2;
    const auto width = static_cast<size_t>(size.width);
    float* const line = memory + kReach * width;
    const auto row_of = [&](int y) { return plane + static_cast<size_t>(y) * width; };
    // The rows before y as they were: the last kReach of them.
    const auto before = [&](int y) { return memory + static_cast<size_t>(y % kReach) * width; };
    for (int y = 0; y < size.height; ++y) {
        const float* rows[kBlurTaps];
        for (int tap = 0; tap < kBlurTaps; ++tap) {
            const int at = mirrored(y + tap - kReach, size.height);
            rows[tap] = at < y ? before(at) : row_of(at);
        }
        float* const sums = line + kReach;
        add_rows<kBlurTaps, false>(rows, numbers, width, sums);
        for (int k = 1; k <= kReach; ++k) {
            sums[-k] = sums[k];
            sums[static_cast<ptrdiff_t>(width) - 1 + k] =
                sums[static_cast<ptrdiff_t>(width) - 1 - k];
        }
        float* const out = row_of(y);
        std::copy_n(out, width, before(y));
        for (int tap = 0; tap < kBlurTaps; ++tap) rows[tap] = line + tap;
        add_rows<kBlurTaps, false>(rows, numbers + kBlurTaps, width, out);
    }
}

// Which two pixels of a side a pixel lies between, where `fewer` are kept of it, the nearest ones:
// in float32, as torch's interpolation computes places.
struct Between {
    int first, second;
    float share;  // of the second
};
inline Between between_fewer(int at, int side, int fewer) {
    const float down = static_cast<float>(fewer) / static_cast<float>(side),
                up = static_cast<float>(side) / static_cast<float>(fewer);
    float place = (static_cast<float>(at) + 0.5f) * down - 0.5f;
    place = place > 0.0f ? place : 0.0f;
    int low = static_cast<int>(place);
    low = low < fewer - 1 ? low : fewer - 1;
    const int high = low + 1 < fewer - 1 ? low + 1 : fewer - 1;
    const int first = static_cast<int>((static_cast<float>(low) + 0.5f) * up),
              second = static_cast<int>((static_cast<float>(high) + 0.5f) * up);
    return {first < side ? first : side - 1, second < side ? second : side - 1,
            place - static_cast<float>(low)};
}

// `memory`: a plane.
void lower_resolution(float* plane, Size size, Size fewer, float* memory) {
    constexpr int kMost = 128;
    const auto width = static_cast<size_t>(size.width);
    std::copy_n(plane, values_of(size), memory);
    int32_t first[kMost], second[kMost];
    float share[kMost];
    for (int column = 0; column < size.width; column += kMost) {
        const int count = std::min(kMost, size.width - column);
        for (int i = 0; i < count; ++i) {
            const Between found = between_fewer(column + i, size.width, fewer.width);
            first[i] = found.first;
            second[i] = found.second;
            share[i] = found.share;
        }
        for (int y = 0; y < size.height; ++y) {
            const Between down = between_fewer(y, size.height, fewer.height);
            const float* const above = memory + static_cast<size_t>(down.first) * width;
            const float* const below = memory + static_cast<size_t>(down.second) * width;
            float* const out = plane + static_cast<size_t>(y) * width + column;
            for (int i = 0; i < count; ++i) {
                const float low =
                    mul_add(down.share, below[first[i]] - above[first[i]], above[first[i]]);
                const float high =
                    mul_add(down.share, below[second[i]] - above[second[i]], above[second[i]]);
                out[i] = mul_add(share[i], high - low, low);
            }
        }
    }
}

// Of some pixels of a row of what is made: the four pixels around their places in the image, and
// the weights of these, 0 for those outside of it.
struct TurnedPlaces {
    static constexpr int kMost = 128;
    float y[kMost], x[kMost];
    int32_t top[kMost], bottom[kMost], left[kMost], right[kMost];  // offsets
    float above[kMost], below[kMost], before[kMost], after[kMost];

    void find(const double* m, Size in, Size out, int row, int column, int count) {
        const double down = row - 0.5 * (out.height - 1), across = column - 0.5 * (out.width - 1);
        const auto first_y =
                       static_cast<float>(m[0] * down + m[1] * across + 0.5 * (in.height - 1)),
                   first_x = static_cast<float>(m[2] * down + m[3] * across + 0.5 * (in.width - 1));
        place(y, top, bottom, above, below, first_y, static_cast<float>(m[1]), in.height, count);
        place(x, left, right, before, after, first_x, static_cast<float>(m[3]), in.width, count);
        for (int i = 0; i < count; ++i) {
            top[i] *= in.width;
            bottom[i] *= in.width;
        }
    }

  private:
    static void place(float* __restrict__ at, int32_t* __restrict__ low, int32_t* __restrict__ high,
                      float* __restrict__ of_low, float* __restrict__ of_high, float first,
                      float step, int side, int count) {
        // Two pixels beyond the border, all four neighbours are outside.
        const float most = static_cast<float>(side) + 1.0f;
        for (int i = 0; i < count; ++i) {
            float found = mul_add(static_cast<float>(i), step, first);
            found = found > -2.0f ? found : -2.0f;
            found = found < most ? found : most;
            const float whole = std::floor(found), share = found - whole;
            const auto pixel = static_cast<int32_t>(whole);
            at[i] = found;
            const int32_t end = side - 1;
            of_low[i] = (1.0f - share) * static_cast<float>((pixel >= 0) & (pixel <= end));
            of_high[i] = share * static_cast<float>((pixel >= -1) & (pixel < end));
            const int32_t from_0 = pixel > 0 ? pixel : 0, next = pixel + 1 > 0 ? pixel + 1 : 0;
            low[i] = from_0 < end ? from_0 : end;
            high[i] = next < end ? next : end;
        }
    }
};

// `channels` planes of size `in`, one after the other, to as many of size `out`.
void turn_planes(const float* from, Size in, float* to, Size out, int channels, const double* m) {
    TurnedPlaces p;
    for (int row = 0; row < out.height; ++row) {
        for (int column = 0; column < out.width; column += TurnedPlaces::kMost) {
            const int count = std::min(TurnedPlaces::kMost, out.width - column);
            p.find(m, in, out, row, column, count);
            for (int channel = 0; channel < channels; ++channel) {
                const float* __restrict__ const plane =
                    from + static_cast<size_t>(channel) * values_of(in);
                float* __restrict__ const made =
                    to + static_cast<size_t>(channel) * values_of(out) +
                    static_cast<size_t>(row) * static_cast<size_t>(out.width) + column;
                for (int i = 0; i < count; ++i) {
                    const float upper = mul_add(plane[p.top[i] + p.right[i]], p.after[i],
                                                plane[p.top[i] + p.left[i]] * p.before[i]);
                    const float lower = mul_add(plane[p.bottom[i] + p.right[i]], p.after[i],
                                                plane[p.bottom[i] + p.left[i]] * p.before[i]);
                    made[i] = mul_add(lower, p.below[i], upper * p.above[i]);
                }
            }
        }
    }
}

// Rounded to the 11 binary places of float16. (Of shares too small for its exponents there is one
// that is larger.)
inline float as_half(float x) {
    const uint32_t bits = bits_of(x);
    return float_of((bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu);
}

template <typename T>
T largest_class(const T* kinds, const float* weights) {
    T best = 0;
    float most = -1.0f;
    for (int k = 0; k < 4; ++k) {
        float share = 0.0f;
        for (int n = 0; n < 4; ++n) share += kinds[n] == kinds[k] ? weights[n] : 0.0f;
        share = as_half(1000.0f * share);
        if (share > most || (share == most && kinds[k] < best)) {
            best = kinds[k];
            most = share;
        }
    }
    return best;
}

template <typename T>
void turn_mask(const T* mask, Size in, T* to, Size out, const double* m) {
    TurnedPlaces p;
    const auto last_y = static_cast<float>(in.height - 1),
               last_x = static_cast<float>(in.width - 1);
    for (int row = 0; row < out.height; ++row) {
        for (int column = 0; column < out.width; column += TurnedPlaces::kMost) {
            const int count = std::min(TurnedPlaces::kMost, out.width - column);
            p.find(m, in, out, row, column, count);
            for (int i = 0; i < count; ++i, ++to) {
                const T kinds[4] = {mask[p.top[i] + p.left[i]], mask[p.top[i] + p.right[i]],
                                    mask[p.bottom[i] + p.left[i]], mask[p.bottom[i] + p.right[i]]};
                const bool inside =
                    p.y[i] >= 0.0f && p.y[i] <= last_y && p.x[i] >= 0.0f && p.x[i] <= last_x;
                T made = kinds[0];
                if (kinds[1] != made || kinds[2] != made || kinds[3] != made) {
                    const float weights[4] = {p.above[i] * p.before[i], p.above[i] * p.after[i],
                                              p.below[i] * p.before[i], p.below[i] * p.after[i]};
                    made = largest_class(kinds, weights);
                }
                *to = inside ? made : T{0};
            }
        }
    }
}

template <typename T>
void convert3(const T* __restrict__ from, size_t width, const FloatTable& table,
              float* __restrict__ red, float* __restrict__ green, float* __restrict__ blue) {
    float s[3], o[3];
    std::copy_n(table.scale, 3, s);
    std::copy_n(table.offset, 3, o);
    for (size_t x = 0; x < width; ++x) {
        red[x] = mul_add(static_cast<float>(from[3 * x]), s[0], o[0]);
        green[x] = mul_add(static_cast<float>(from[3 * x + 1]), s[1], o[1]);
        blue[x] = mul_add(static_cast<float>(from[3 * x + 2]), s[2], o[2]);
    }
}

// A part of an image, as planes of the part's size, one after the other.
template <typename T>
void take_part(const FloatImages& images, const T* pixels, Box part, const FloatTable& table,
               float* out) {
    const size_t width = static_cast<size_t>(part.width),
                 plane = width * static_cast<size_t>(part.height);
    constexpr bool kConverts = sizeof(T) == 1;
    const auto step = images.pixel_step;
    for (int row = 0; row < part.height; ++row, out += width) {
        const T* line = pixels + images.row_step * (part.top + row) + step * part.left;
        if (kConverts && images.channels == 3 && step == 3 && images.channel_step == 1) {
            convert3(line, width, table, out, out + plane, out + 2 * plane);
            continue;
        }
        for (int channel = 0; channel < images.channels; ++channel) {
            float* const to = out + static_cast<size_t>(channel) * plane;
            const T* const from = line + images.channel_step * channel;
            for (size_t x = 0; x < width; ++x) {
                const auto value = static_cast<float>(from[static_cast<int64_t>(x) * step]);
                to[x] =
                    kConverts ? mul_add(value, table.scale[channel], table.offset[channel]) : value;
            }
        }
    }
}

// Mirrors a plane in place. `memory`: two rows.
void mirror_plane(float* plane, Size size, bool down, bool across, float* memory) {
    const auto width = static_cast<size_t>(size.width);
    const auto put = [&](const float* from, float* to) {
        if (!across) {
            std::copy_n(from, width, to);
        } else {
            for (size_t x = 0; x < width; ++x) to[x] = from[width - 1 - x];
        }
    };
    float *const first = memory, *const second = memory + width;
    for (int y = 0; y < (down ? (size.height + 1) / 2 : size.height); ++y) {
        float* const upper = plane + static_cast<size_t>(y) * width;
        float* const lower =
            down ? plane + static_cast<size_t>(size.height - 1 - y) * width : upper;
        std::copy_n(upper, width, first);
        std::copy_n(lower, width, second);
        put(first, lower);
        if (upper != lower) put(second, upper);
    }
}

void step_on_plane(float* plane, Size size, FloatKind kind, const float* numbers, uint64_t key,
                   size_t first, float* memory) {
    const size_t count = values_of(size);
    switch (kind) {
        case FloatKind::noise: return add_normals(plane, count, key, first, numbers[0]);
        case FloatKind::blur: return blur_plane(plane, size, numbers, memory);
        case FloatKind::multiply: return multiply(plane, count, numbers[0]);
        case FloatKind::contrast: return change_contrast(plane, count, numbers[0]);
        case FloatKind::low_resolution:
            return lower_resolution(
                plane, size, {static_cast<int>(numbers[0]), static_cast<int>(numbers[1])}, memory);
        case FloatKind::gamma_of_negative: return change_gamma(plane, count, numbers[0], -1.0f);
        case FloatKind::gamma: return change_gamma(plane, count, numbers[0], 1.0f);
    }
}

// Makes image `row`. `memory`: `floats_needed`.
void change_floats(const FloatImages& images, const FloatTable& table, int row, float* memory) {
    const Size in = images.size, out = images.out_size;
    const auto channels = static_cast<size_t>(images.channels);
    const size_t plane = values_of(out);
    float* const result = images.out + plane * channels * static_cast<size_t>(row);
    float* planes = result;
    if (images.channels_last) {
        planes = memory;
        memory += plane * channels;
    }
    const auto take = [&](Box part, float* to) {
        const int64_t first = images.image_step * row;
        images.bytes != nullptr ? take_part(images, images.bytes + first, part, table, to)
                                : take_part(images, images.floats + first, part, table, to);
    };
    if (table.turn.matrices != nullptr && table.turn.rows[row]) {
        take({0, 0, in.height, in.width}, memory);
        turn_planes(memory, in, planes, out, images.channels,
                    table.turn.matrices + 4 * static_cast<ptrdiff_t>(row));
    } else {
        take({in.height / 2 - out.height / 2, in.width / 2 - out.width / 2, out.height, out.width},
             planes);
    }
    for (size_t channel = 0; channel < channels; ++channel) {
        float* const one = planes + plane * channel;
        for (int step = 0; step < table.steps; ++step) {
            const size_t number = static_cast<size_t>(row) * static_cast<size_t>(table.steps) +
                                  static_cast<size_t>(step);
            const size_t at = number * channels + channel;
            if (!table.applies[at]) continue;
            step_on_plane(one, out, static_cast<FloatKind>(table.kinds[step]),
                          table.numbers + at * kFloatNumbers, table.keys[number], plane * channel,
                          memory);
        }
        const bool* const mirrors =
            table.mirrors == nullptr ? nullptr : table.mirrors + 2 * static_cast<ptrdiff_t>(row);
        if (mirrors != nullptr && (mirrors[0] || mirrors[1]))
            mirror_plane(one, out, mirrors[0], mirrors[1], memory);
        if (images.channels_last)
            for (size_t i = 0; i < plane; ++i) result[i * channels + channel] = one[i];
    }
}

}  // namespace
}  // namespace fastload
