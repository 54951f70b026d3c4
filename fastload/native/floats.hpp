// Changes of images as planes of float32: turns and scalings, noise, blur, brightness, contrast, a
// lower resolution, gamma. The operations are those of fastload/recipe/turned_and_scaled.py and
// intensities.py, which do the same with torch.
#pragma once

#include <cstdint>
#include <memory>

#include "image.hpp"
#include "pool.hpp"

namespace fastload {

// What may be done to the planes of an image, in the order of KINDS in fastload/render/floats.py,
// which says what their numbers are.
enum class FloatKind : int32_t {
    noise,
    blur,
    multiply,
    contrast,
    low_resolution,
    gamma_of_negative,
    gamma,
};
constexpr int kFloatKinds = 7;
constexpr int kBlurTaps = 7;                  // down, and as many across
constexpr int kFloatNumbers = 2 * kBlurTaps;  // parameters of a step; an operation uses the first

// Where images lie and where they go. Borrowed.
struct FloatImages {
    const uint8_t* bytes = nullptr;  // of these two one is not null
    const float* floats = nullptr;
    int count = 0;
    Size size;  // height * width below 2^31
    int channels = 3;
    // From an image, a row, a pixel or a channel to the next [values].
    int64_t image_step = 0, row_step = 0, pixel_step = 0, channel_step = 0;
    float* out = nullptr;  // (count, channels, height, width), or the channels last
    Size out_size;         // at most `size`
    bool channels_last = false;
};

// Turns and scalings about the centre. Of images that are not turned the middle is taken.
struct TurnTable {
    // (count, 2, 2): from a place about the centre, down and right, of what is made, to the place
    // in the image. Null: no image is turned.
    const double* matrices = nullptr;
    const bool* rows = nullptr;  // (count,): which images are turned
};

// What is done to each image, in this order: bytes become floats, the image is turned, its planes
// go through the steps, and it is mirrored. Borrowed.
struct FloatTable {
    // (channels,): what bytes are multiplied by, and what is added then.
    const float* scale = nullptr;
    const float* offset = nullptr;
    TurnTable turn;
    int steps = 0;
    const int32_t* kinds = nullptr;  // (steps,)
    const bool* applies = nullptr;   // (count, steps, channels): whether a plane goes through it
    const float* numbers = nullptr;  // (count, steps, channels, kFloatNumbers)
    const uint64_t* keys = nullptr;  // (count, steps): of noise; all channels share one
    const bool* mirrors = nullptr;   // (count, 2): upside down, left and right; null: none
};

// Masks of classes, turned as images are: a pixel gets the class that has most of it, of two with
// equal shares, rounded to float16, the lower one, and 0 where its place is out of the image.
template <typename T>
struct ClassMasks {
    const T* masks = nullptr;  // (count, size.height, size.width), packed
    int count = 0;
    Size size;
    T* out = nullptr;
    Size out_size;
};

// Memory that one image needs [floats].
size_t floats_needed(const FloatImages& images, const FloatTable& table);

std::shared_ptr<Job> floats_job(const FloatImages& images, const FloatTable& table);
template <typename T>
std::shared_ptr<Job> turn_masks_job(const ClassMasks<T>& masks, const TurnTable& table);

}  // namespace fastload
