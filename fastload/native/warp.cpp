#include "warp.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace fastload {
namespace {

struct Image {
    const uint8_t* pixels;
    Size size;
    int channels;

    const uint8_t* at(int y, int x) const {
        return pixels + (int64_t{y} * size.width + x) * channels;
    }
};

// Nothing that is not a number is inside.
bool inside(double u, double v, double low, Size size) {
    return u >= low && v >= low && u < size.width - low && v < size.height - low;
}

void write_fill(uint8_t* out, int channels, const float* fill) {
    for (int c = 0; c < channels; ++c) out[c] = static_cast<uint8_t>(fill[c]);
}

// Four neighbours and their weights, some of them outside of the image, where the fill is.
void fade(const Image& image, double u, double v, const float* fill, uint8_t* out) {
    const double left = std::floor(u - 0.5), top = std::floor(v - 0.5);
    const float fx = static_cast<float>((u - 0.5) - left), fy = static_cast<float>((v - 0.5) - top);
    const int x = static_cast<int>(left), y = static_cast<int>(top);
    const float weights[4] = {(1.0f - fx) * (1.0f - fy), fx * (1.0f - fy), (1.0f - fx) * fy,
                              fx * fy};
    const bool columns[2] = {x >= 0, x + 1 < image.size.width},
               rows[2] = {y >= 0, y + 1 < image.size.height};
    const uint8_t* pixels[4];
    float used[4], mask = 0.0f;
    for (int i = 0; i < 4; ++i) {
        const bool in = columns[i & 1] && rows[i >> 1];
        used[i] = in ? weights[i] : 0.0f;
        pixels[i] = in ? image.at(y + (i >> 1), x + (i & 1)) : image.pixels;
        mask += used[i];
    }
    if (columns[0] && columns[1] && rows[0] && rows[1]) mask = 1.0f;
    for (int c = 0; c < image.channels; ++c) {
        float sum = used[0] * pixels[0][c] + used[1] * pixels[1][c];
        sum += used[2] * pixels[2][c];
        sum += used[3] * pixels[3][c];
        const float value = (sum - fill[c]) * mask + fill[c];
        out[c] = static_cast<uint8_t>(std::clamp(std::nearbyint(value), 0.0f, 255.0f));
    }
}

// Four neighbours, those outside of the image taken from its edge; fractions are cut off.
void hold(const Image& image, double u, double v, uint8_t* out) {
    const double left = std::floor(u - 0.5), top = std::floor(v - 0.5);
    const float fx = static_cast<float>((u - 0.5) - left), fy = static_cast<float>((v - 0.5) - top);
    const int x = static_cast<int>(left), y = static_cast<int>(top);
    const int x0 = std::max(x, 0), x1 = std::min(x + 1, image.size.width - 1), y0 = std::max(y, 0),
              y1 = std::min(y + 1, image.size.height - 1);
    const float weights[4] = {(1.0f - fx) * (1.0f - fy), fx * (1.0f - fy), (1.0f - fx) * fy,
                              fx * fy};
    const uint8_t* pixels[4] = {image.at(y0, x0), image.at(y0, x1), image.at(y1, x0),
                                image.at(y1, x1)};
    for (int c = 0; c < image.channels; ++c) {
        float sum = weights[0] * pixels[0][c] + weights[1] * pixels[1][c];
        sum += weights[2] * pixels[2][c];
        sum += weights[3] * pixels[3][c];
        out[c] = static_cast<uint8_t>(std::clamp(sum, 0.0f, 255.0f));
    }
}

}  // namespace

void warp(const uint8_t* in, Size in_size, uint8_t* out, Size out_size, int channels,
          const double m[9], const WarpOptions& options) {
    const Image image = {in, in_size, channels};
    const bool affine = m[6] == 0.0 && m[7] == 0.0 && m[8] == 1.0;
    const double low = options.bilinear && options.fades ? -0.5 : 0.0;
    for (int y = 0; y < out_size.height; ++y) {
        const double down = y + 0.5;
        const double row_u = m[1] * down + m[2], row_v = m[4] * down + m[5],
                     row_w = m[7] * down + m[8];
        for (int x = 0; x < out_size.width; ++x, out += channels) {
            const double across = x + 0.5;
            double u = m[0] * across + row_u, v = m[3] * across + row_v;
            if (!affine) {
                const double w = m[6] * across + row_w;
                u /= w;
                v /= w;
            }
            if (!inside(u, v, low, in_size)) {
                write_fill(out, channels, options.fill);
            } else if (!options.bilinear) {
                std::memcpy(out, image.at(static_cast<int>(v), static_cast<int>(u)),
                            static_cast<size_t>(channels));
            } else if (options.fades) {
                fade(image, u, v, options.fill, out);
            } else {
                hold(image, u, v, out);
            }
        }
    }
}

}  // namespace fastload
