// Colour operations on decoded images. The results equal those of torch's CPU kernels bit for bit,
// as fastload/recipe/colour.py and augment.py call them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "image.hpp"
#include "pool.hpp"

namespace fastload {

// The operations, in the order of KINDS in fastload/render/steps.py, which describes them and their
// numbers.
enum class ColourKind : int32_t {
    brightness,
    contrast,
    saturation,
    hue,
    posterize,
    solarize,
    sharpness,
    autocontrast,
    equalize,
    affine,
    grey,
    permute,
    hsv,
    gamma,
    linear,
    solarize_add,
    move_bilinear,
    move_bicubic,
    move_nearest,
    cut_out,
};
constexpr int kColourKinds = 20;
constexpr int kColourNumbers = 6;  // parameters of a step; an operation uses the first ones

// Images that are changed in place. The memory is borrowed until the job is done.
struct ColourImages {
    uint8_t* pixels = nullptr;  // (count, size.height, size.width, channels)
    int count = 0;
    Size size;         // at least 1 x 1
    int channels = 3;  // 1 or 3 for all but noise

    // Of one image.
    int64_t bytes() const { return int64_t{channels} * size.height * size.width; }
};

// A job that changes such images; a row is an image.
class ColourJob : public Job {
  public:
    explicit ColourJob(const ColourImages& images)
        : Job(images.count, static_cast<int>(std::clamp<int64_t>(
                                kGrainBytes / std::max<int64_t>(images.bytes(), 1), 1, 64))),
          images_(images) {}

  protected:
    uint8_t* at(int row) const { return images_.pixels + images_.bytes() * row; }
    // A failed image is not cleared: it may be changed in part, and the caller learns of the
    // failure.
    void blank(int) noexcept override {}

    const ColourImages images_;

  private:
    // A thread claims so many images at a time that they have about this many bytes.
    static constexpr int64_t kGrainBytes = 64 << 10;
};

// What is done to each image: `chains` sequences of `steps` steps. With several chains (AugMix) the
// result is the weighted sum of the image and of what each chain makes of it. Arrays are borrowed.
struct ColourTable {
    const int32_t* kinds = nullptr;  // (count * chains, steps): a ColourKind each; below 0: no step
    const float* numbers = nullptr;  // (count * chains, steps, kColourNumbers)
    // (count, 1 + chains): the weight of the image, then of each chain; null: one chain, no sum.
    const float* weights = nullptr;
    int steps = 0;
    int chains = 1;
    // Of `affine` steps: bilinear or nearest; of all that move pixels, whether what lies outside of
    // the image has the colour `fill` (0 to 255), else it is 0.
    bool bilinear = false;
    bool fills = false;
    float fill[3] = {0.0f, 0.0f, 0.0f};
};

// A separable blur: the weights of the neighbours of a pixel along each axis. The image is mirrored
// at its borders. The numbers of taps are odd, and half of them less than the side of the image.
// Arrays are borrowed.
struct BlurTable {
    const float* down = nullptr;    // (down_taps, count)
    const float* across = nullptr;  // (across_taps, count)
    const bool* rows = nullptr;     // (count,): which images to blur; null: all
    int down_taps = 1;
    int across_taps = 1;
};

// Weighted sums of the pixels around each, in a square. The image is mirrored at its borders. The
// side is odd, and half of it less than those of the image. Arrays are borrowed.
struct FilterTable {
    const float* kernels = nullptr;  // (count, side, side)
    const bool* rows = nullptr;      // (count,): which images; null: all
    int side = 1;
};

// Medians of the pixels around each, in a square: its side, odd; 1: the image is not changed. The
// border of the image is repeated.
struct MedianTable {
    const int32_t* sides = nullptr;  // (count,)
};
constexpr int kMostMedian = 15;  // the pixels of a square are counted in a byte

// Contrast-limited adaptive histogram equalisation (clahe.hpp).
struct ClaheTable {
    const double* limits = nullptr;  // (count,): 0: the image is not changed
    int down = 8, across = 8;        // tiles
};

// JPEG compression as an augmentation: images become what decoding their JPEG gives.
struct RecompressTable {
    const int32_t* qualities = nullptr;  // (count,): 1 to 100; 0: the image is not changed
    bool blue_first = false;             // the three channels are blue, green, red
};

// Pixels to numbers: each value is multiplied by the number of its channel, and another is added.
// Where sums of products are rounded once, these are.
struct ConvertTable {
    float scale[3] = {1.0f, 1.0f, 1.0f};
    float offset[3] = {0.0f, 0.0f, 0.0f};
};

// Images of three channels whose rows may lie apart. Borrowed.
struct ConvertImages {
    const uint8_t* pixels = nullptr;
    int count = 0;
    Size size;
    int64_t image_step = 0, row_step = 0;  // bytes from an image, or a row, to the next
    float* out = nullptr;                  // (count, size.height, size.width, 3)
};

// Whether the result of a step for a pixel depends on that pixel alone.
inline bool is_pointwise(ColourKind kind) {
    switch (kind) {
        case ColourKind::brightness:
        case ColourKind::saturation:
        case ColourKind::hue:
        case ColourKind::posterize:
        case ColourKind::solarize:
        case ColourKind::grey:
        case ColourKind::permute:
        case ColourKind::hsv:
        case ColourKind::gamma:
        case ColourKind::linear:
        case ColourKind::solarize_add: return true;
        default: return false;
    }
}

// Whether this processor has fused multiply-add (one rounding for a product and a sum).
bool can_fuse_colour();

// Jobs that apply a table to images. `fused`: products and sums are rounded once, as torch does on
// such processors; needs `can_fuse_colour`. Kinds must be below kColourKinds.
std::shared_ptr<Job> colour_job(const ColourImages& images, const ColourTable& table, bool fused);
std::shared_ptr<Job> blur_job(const ColourImages& images, const BlurTable& table, bool fused);
std::shared_ptr<Job> convolve_job(const ColourImages& images, const FilterTable& table, bool fused);
std::shared_ptr<Job> median_job(const ColourImages& images, const MedianTable& table);
std::shared_ptr<Job> clahe_job(const ColourImages& images, const ClaheTable& table);
std::shared_ptr<Job> convert_job(const ConvertImages& images, const ConvertTable& table,
                                 bool fused);
std::shared_ptr<Job> recompress_job(const ColourImages& images, const RecompressTable& table);

}  // namespace fastload
