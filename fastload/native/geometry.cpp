#include "geometry.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace fastload {
namespace {

Outcome bad(std::string why) { return {Status::bad_geometry, std::move(why)}; }

std::string text(const Box& box) {
    return text(Size{box.height, box.width}) + " at (" + std::to_string(box.top) + ", " +
           std::to_string(box.left) + ")";
}

constexpr int kAttempts = 10;  // of RandomResizedCrop to find a box in the image
// ln 2 as the sum of two numbers. The first ends in 21 zero bits, so that its product with a small
// whole number is exact (Cody and Waite).
constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2High = 6.93147180369123816490e-01;
constexpr double kLn2Low = 1.90821492927058770002e-10;

// e^x within 2 units in the last place, with the operations of fastload/geometry/boxes.py.
double exponential(double x) {
    const double k = std::rint(x * kLog2E);
    const double r = (x - k * kLn2High) - k * kLn2Low;
    double series = 1.0;
    for (int n = 14; n > 0; --n) series = 1.0 + r / n * series;
    return std::ldexp(series, static_cast<int>(k));
}

// A whole number below `count`, of a number in [0, 1).
int64_t pick(double uniform, int64_t count) {
    return static_cast<int64_t>(std::floor(uniform * static_cast<double>(count)));
}

// The largest box in the middle of the image whose ratio lies within the bounds.
Box central_box(Size image, double low, double high) {
    const double ratio = static_cast<double>(image.width) / image.height;
    int height = image.height, width = image.width;
    // No overflow: each of these makes a side shorter.
    if (ratio < low) height = std::max(static_cast<int>(std::rint(image.width / low)), 1);
    if (ratio > high) width = std::max(static_cast<int>(std::rint(image.height * high)), 1);
    return {(image.height - height) >> 1, (image.width - width) >> 1, height, width};
}

// The size of a resized image, as torchvision computes it; a side of INT32_MAX where it is longer.
Size resized(Size image, const ResizePlan& plan) {
    if (plan.size.height > 0) return plan.size;
    const int64_t small = std::min(image.height, image.width),
                  large = std::max(image.height, image.width);
    const int64_t bound = plan.longest;
    int64_t new_small, new_large;
    if (plan.shorter == 0) {
        new_small =
            static_cast<int64_t>(static_cast<double>(bound * small) / static_cast<double>(large));
        new_large = bound;
    } else {
        new_small = plan.shorter;
        new_large = static_cast<int64_t>(static_cast<double>(plan.shorter * large) /
                                         static_cast<double>(small));
        if (bound > 0 && new_large > bound) {
            new_small = static_cast<int64_t>(static_cast<double>(bound * new_small) /
                                             static_cast<double>(new_large));
            new_large = bound;
        }
    }
    // The caller refuses a side of INT32_MAX.
    const int shorter = static_cast<int>(std::min<int64_t>(new_small, INT32_MAX));
    const int longer = static_cast<int>(std::min<int64_t>(new_large, INT32_MAX));
    return image.width > image.height ? Size{shorter, longer} : Size{longer, shorter};
}

// Where a central crop starts along one axis. If the image is shorter than the crop, it is padded
// first; of an odd number of pixels the last one goes after the image.
int central_start(int extent, int target) {
    const int missing = std::max(target - extent, 0);
    const int before = missing / 2;
    return static_cast<int>(std::rint((extent + missing - target) / 2.0)) - before;
}

Box random_resized_box(const double* uniforms, Size image, const RandomResizedCropPlan& plan) {
    const double pixels = static_cast<double>(int64_t{image.height} * image.width);
    for (int i = 0; i < kAttempts; ++i) {
        const double area =
            pixels * (plan.scale_low + uniforms[i] * (plan.scale_high - plan.scale_low));
        const double ratio =
            exponential(plan.log_ratio_low +
                        uniforms[kAttempts + i] * (plan.log_ratio_high - plan.log_ratio_low));
        const double width = std::rint(std::sqrt(area * ratio));
        const double height = std::rint(std::sqrt(area / ratio));
        if (!(width > 0 && width <= image.width && height > 0 && height <= image.height)) continue;
        Box box;
        box.height = static_cast<int>(height);
        box.width = static_cast<int>(width);
        box.top = static_cast<int>(pick(uniforms[2 * kAttempts], image.height - box.height + 1));
        box.left = static_cast<int>(pick(uniforms[2 * kAttempts + 1], image.width - box.width + 1));
        return box;
    }
    return central_box(image, plan.ratio_low, plan.ratio_high);
}

bool is_side(int length) { return length >= 1 && length <= kLargestSide; }

Outcome check(const Geometry& geometry, Size image, Size out) {
    const Box& box = geometry.box;
    const Box& window = geometry.window;
    if (box.height < 1 || box.width < 1 || box.top < 0 || box.left < 0 ||
        box.top > image.height - box.height || box.left > image.width - box.width) {
        return bad("the box " + text(box) + " does not lie inside the image of " + text(image) +
                   " pixels");
    }
    if (!is_side(geometry.size.height) || !is_side(geometry.size.width)) {
        return bad("cannot resize to " + text(geometry.size) + " pixels");
    }
    if (std::abs(int64_t{window.top}) > kLargestSide ||
        std::abs(int64_t{window.left}) > kLargestSide) {
        return bad("the window " + text(window) + " is too far from the image");
    }
    if (window.height != out.height || window.width != out.width) {
        return bad("the window and the output differ in size");
    }
    return {};
}

// A source whose flips and filters are in arrays; `place(row, image, geometry)` sets the rest.
template <typename Function>
GeometrySource planned(const bool* flips, const bool* bicubic, Function place) {
    return [=](int row, Size image, Geometry& geometry) -> Outcome {
        geometry.mirror = flips[2 * int64_t{row}];
        geometry.upside_down = flips[2 * int64_t{row} + 1];
        geometry.bicubic = bicubic != nullptr && bicubic[row];
        return place(row, image, geometry);
    };
}

}  // namespace

Outcome resolve(const GeometrySource& source, int row, Size image, Size out, Geometry& geometry) {
    geometry = Geometry();
    if (Outcome resolved = source(row, image, geometry); !resolved.ok()) return resolved;
    return check(geometry, image, out);
}

Outcome resolve(const GeometrySource& source, int row, Size image, Geometry& geometry) {
    constexpr int64_t kMostPixels = int64_t{1} << 28;
    geometry = Geometry();
    if (Outcome resolved = source(row, image, geometry); !resolved.ok()) return resolved;
    const Size window = {geometry.window.height, geometry.window.width};
    if (!is_side(window.height) || !is_side(window.width) ||
        int64_t{window.height} * window.width > kMostPixels) {
        return bad("an intermediate image of " + text(window) + " pixels");
    }
    return check(geometry, image, window);
}

GeometrySource given_geometry(const int32_t* boxes, const int32_t* sizes, const int32_t* windows,
                              const bool* flips, const bool* bicubic, const bool* flips_first) {
    return planned(flips, bicubic, [=](int row, Size, Geometry& geometry) -> Outcome {
        if (flips_first != nullptr) {
            geometry.mirror_first = flips_first[2 * int64_t{row}];
            geometry.upside_down_first = flips_first[2 * int64_t{row} + 1];
        }
        const int32_t* box = boxes + 4 * int64_t{row};
        const int32_t* size = sizes + 2 * int64_t{row};
        const int32_t* window = windows + 4 * int64_t{row};
        geometry.box = {box[0], box[1], box[2], box[3]};
        geometry.size = {size[0], size[1]};
        geometry.window = {window[0], window[1], window[2], window[3]};
        return {};
    });
}

GeometrySource whole_images(const bool* flips) {
    return planned(flips, nullptr, [](int, Size image, Geometry& geometry) -> Outcome {
        geometry.box = geometry.window = {0, 0, image.height, image.width};
        geometry.size = image;
        return {};
    });
}

GeometrySource random_resized_crops(const double* uniforms, const bool* flips,
                                    const RandomResizedCropPlan& plan, const bool* bicubic) {
    return planned(flips, bicubic, [=](int row, Size image, Geometry& geometry) -> Outcome {
        geometry.box =
            random_resized_box(uniforms + kResizedCropUniforms * int64_t{row}, image, plan);
        geometry.size = plan.size;
        geometry.window = {0, 0, plan.size.height, plan.size.width};
        return {};
    });
}

GeometrySource resized_images(const bool* flips, const ResizePlan& plan) {
    return planned(flips, nullptr, [=](int, Size image, Geometry& geometry) -> Outcome {
        const Size size = resized(image, plan), crop = plan.crop;
        if (size.height < 1 || size.width < 1 || size.height == INT32_MAX ||
            size.width == INT32_MAX) {
            return bad("an image of " + text(image) +
                       " pixels is too long and narrow to be resized as asked: a side of the "
                       "result would be empty or too "
                       "large; leave it out of the data set, or resize to a (height, width).");
        }
        geometry.box = {0, 0, image.height, image.width};
        geometry.size = size;
        geometry.window = {0, 0, size.height, size.width};
        if (crop.height > 0) {
            geometry.window = {central_start(size.height, crop.height),
                               central_start(size.width, crop.width), crop.height, crop.width};
        }
        return {};
    });
}

GeometrySource padded_crops(const double* uniforms, const bool* flips, const PaddedCropPlan& plan) {
    return planned(flips, nullptr, [=](int row, Size image, Geometry& geometry) -> Outcome {
        const double* draws = uniforms + kPaddedCropUniforms * int64_t{row};
        const int64_t down =
            int64_t{image.height} + plan.before.height + plan.after.height - plan.size.height;
        const int64_t across =
            int64_t{image.width} + plan.before.width + plan.after.width - plan.size.width;
        if (down < 0 || across < 0) {
            return bad("a crop of " + text(plan.size) + " is larger than the image of " +
                       text(image) + " pixels with its padding");
        }
        geometry.box = {0, 0, image.height, image.width};
        geometry.size = image;
        const int64_t top = pick(draws[0], down + 1) - plan.before.height,
                      left = pick(draws[1], across + 1) - plan.before.width;
        // Farther away than `check` allows, whatever the paddings are.
        constexpr int64_t kTooFar = kLargestSide + 1;
        geometry.window = {static_cast<int>(std::clamp(top, -kTooFar, kTooFar)),
                           static_cast<int>(std::clamp(left, -kTooFar, kTooFar)), plan.size.height,
                           plan.size.width};
        return {};
    });
}

}  // namespace fastload
