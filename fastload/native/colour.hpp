// Steps of colour on decoded images, bit for bit as fastload/recipe/colour.py and augment.py have
// torch do them on a CPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "image.hpp"
#include "pool.hpp"

namespace fastload {

// The same list is KINDS in fastload/render/steps.py.
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
};
constexpr int kColourKinds = 14;
constexpr int kColourNumbers = 6;  // of a step

// (count, size.height, size.width, channels) images, changed in place. The arrays are borrowed.
struct ColourImages {
    uint8_t* pixels = nullptr;
    int count = 0;
    Size size;
    int channels = 3;  // or 1

    int64_t bytes() const { return int64_t{channels} * size.height * size.width; }
};

// What changes such images, a row an image.
class ColourJob : public Job {
  public:
    explicit ColourJob(const ColourImages& images)
        : Job(images.count, static_cast<int>(std::clamp<int64_t>(
                                kGrainBytes / std::max<int64_t>(images.bytes(), 1), 1, 64))),
          images_(images) {}

  protected:
    uint8_t* at(int row) const { return images_.pixels + images_.bytes() * row; }
    // The image stays as it was, or as far as it came: the caller learns of the failure.
    void blank(int) noexcept override {}

    const ColourImages images_;

  private:
    // Rows claimed at a time: about this many bytes.
    static constexpr int64_t kGrainBytes = 64 << 10;
};

// Of each image `chains` rows of `steps` steps; a kind below 0 is none.
struct ColourTable {
    const int32_t* kinds = nullptr;  // (count * chains, steps)
    const float* numbers = nullptr;  // (count * chains, steps, kColourNumbers)
    const float* weights = nullptr;  // (count, 1 + chains) where several chains are mixed
    int steps = 0;
    int chains = 1;
    bool bilinear = false;
    bool fills = false;
    float fill[3] = {0.0f, 0.0f, 0.0f};
};

// Weights of the neighbours of a pixel, mirrored at the borders; half of them is less than the
// image.
struct BlurTable {
    const float* down = nullptr;    // (down_taps, count)
    const float* across = nullptr;  // (across_taps, count)
    const bool* rows = nullptr;     // (count,): which images, or nullptr for all
    int down_taps = 1;
    int across_taps = 1;
};

// The JPEGs that images become for a moment.
struct RecompressTable {
    const int32_t* qualities = nullptr;  // (count,): from 1 to 100, or 0 for an image that stays
    bool blue_first = false;             // the order of three channels
};

// Whether what a step makes of a pixel depends on that pixel alone.
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
        case ColourKind::gamma: return true;
        default: return false;
    }
}

// Whether this processor multiplies and adds in one rounding.
bool can_fuse_colour();

// `fused`: torch does so here; only where `can_fuse_colour`. Sizes are at least 1 pixel, kinds
// below kColourKinds, and the blurred images larger than half of the taps, of which there are odd
// numbers.
std::shared_ptr<Job> colour_job(const ColourImages& images, const ColourTable& table, bool fused);
std::shared_ptr<Job> blur_job(const ColourImages& images, const BlurTable& table, bool fused);
std::shared_ptr<Job> recompress_job(const ColourImages& images, const RecompressTable& table);

}  // namespace fastload
