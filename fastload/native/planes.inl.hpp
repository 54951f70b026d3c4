// Images whose channels are planes, and packed pixels made into them and of them. Included as
// colour.inl.hpp is.
#pragma once

#include <cstring>

#include "image.hpp"

namespace fastload {
namespace {

// The input and output of a step: planar images of one or three channels. Given by value: bytes
// that are written could be any object's that is given by reference, and loops would not be made of
// vectors.
struct Planes {
    const uint8_t* from;
    uint8_t* to;
    Size size;
    int channels;

    // Pixels.
    size_t plane() const {
        return static_cast<size_t>(size.height) * static_cast<size_t>(size.width);
    }
    size_t values() const { return plane() * static_cast<size_t>(channels); }
};

// Packed pixels to planes.
void to_planes(const uint8_t* pixels, size_t plane, int channels, uint8_t* out) {
    if (channels == 1) {
        std::memcpy(out, pixels, plane);
        return;
    }
    for (size_t i = 0; i < plane; ++i) {
        out[i] = pixels[3 * i];
        out[plane + i] = pixels[3 * i + 1];
        out[2 * plane + i] = pixels[3 * i + 2];
    }
}

// Planes to packed pixels.
void to_pixels(const uint8_t* planes, size_t plane, int channels, uint8_t* out) {
    if (channels == 1) {
        std::memcpy(out, planes, plane);
        return;
    }
    for (size_t i = 0; i < plane; ++i) {
        out[3 * i] = planes[i];
        out[3 * i + 1] = planes[plane + i];
        out[3 * i + 2] = planes[2 * plane + i];
    }
}

}  // namespace
}  // namespace fastload
