#include "plan.hpp"

#include <algorithm>
#include <cmath>

namespace fastload {
namespace {

constexpr int kAttempts = 10;
constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2High = 6.93147180369123816490e-01;
constexpr double kLn2Low = 1.90821492927058770002e-10;

// e**x within 2 units in the last place; see fastload/geometry/boxes.py.
double exponential(double x) {
    const double k = std::rint(x * kLog2E);
    const double r = (x - k * kLn2High) - k * kLn2Low;
    double series = 1.0;
    for (int n = 14; n > 0; --n) series = 1.0 + r / n * series;
    return std::ldexp(series, static_cast<int>(k));
}

int pick(double uniform, int64_t count) { return static_cast<int>(std::floor(uniform * static_cast<double>(count))); }

Box central_box(Size image, double low, double high) {
    const double ratio = static_cast<double>(image.width) / image.height;
    int height = image.height, width = image.width;
    // The widest ratios need no guard against overflow: they shrink a side.
    if (ratio < low) height = std::max(static_cast<int>(std::rint(image.width / low)), 1);
    if (ratio > high) width = std::max(static_cast<int>(std::rint(image.height * high)), 1);
    return {(image.height - height) >> 1, (image.width - width) >> 1, height, width};
}

Size resized(Size image, const ResizePlan& plan) {
    if (plan.size.height > 0) return plan.size;
    const int64_t small = std::min(image.height, image.width), large = std::max(image.height, image.width);
    const int64_t bound = plan.longest;
    int64_t new_small, new_large;
    if (plan.shorter == 0) {
        new_small = static_cast<int64_t>(static_cast<double>(bound * small) / static_cast<double>(large));
        new_large = bound;
    } else {
        new_small = plan.shorter;
        new_large = static_cast<int64_t>(static_cast<double>(plan.shorter * large) / static_cast<double>(small));
        if (bound > 0 && new_large > bound) {
            new_small = static_cast<int64_t>(static_cast<double>(bound * new_small) / static_cast<double>(new_large));
            new_large = bound;
        }
    }
    // Sides beyond int are refused by the caller; keep them recognisable.
    const int shorter = static_cast<int>(std::min<int64_t>(new_small, INT32_MAX));
    const int longer = static_cast<int>(std::min<int64_t>(new_large, INT32_MAX));
    return image.width > image.height ? Size{shorter, longer} : Size{longer, shorter};
}

// Start of a central crop along one axis, after padding what is missing (the odd pixel goes after).
int central_start(int extent, int target) {
    const int missing = std::max(target - extent, 0);
    const int before = missing / 2;
    return static_cast<int>(std::rint((extent + missing - target) / 2.0)) - before;
}

}  // namespace

Box random_resized_box(const double* uniforms, Size image, const RandomResizedCropPlan& plan) {
    const double pixels = static_cast<double>(int64_t{image.height} * image.width);
    for (int i = 0; i < kAttempts; ++i) {
        const double area = pixels * (plan.scale_low + uniforms[i] * (plan.scale_high - plan.scale_low));
        const double ratio =
            exponential(plan.log_ratio_low + uniforms[kAttempts + i] * (plan.log_ratio_high - plan.log_ratio_low));
        const double width = std::rint(std::sqrt(area * ratio));
        const double height = std::rint(std::sqrt(area / ratio));
        if (!(width > 0 && width <= image.width && height > 0 && height <= image.height)) continue;
        Box box;
        box.height = static_cast<int>(height);
        box.width = static_cast<int>(width);
        box.top = pick(uniforms[2 * kAttempts], image.height - box.height + 1);
        box.left = pick(uniforms[2 * kAttempts + 1], image.width - box.width + 1);
        return box;
    }
    return central_box(image, plan.ratio_low, plan.ratio_high);
}

Geometry resolve(const double* uniforms, Size image, const RandomResizedCropPlan& plan) {
    Geometry geometry;
    geometry.box = random_resized_box(uniforms, image, plan);
    geometry.size = plan.size;
    geometry.window = {0, 0, plan.size.height, plan.size.width};
    return geometry;
}

Outcome resolve(Size image, const ResizePlan& plan, Geometry& geometry) {
    geometry.box = {0, 0, image.height, image.width};
    geometry.size = resized(image, plan);
    if (geometry.size.height < 1 || geometry.size.width < 1 || geometry.size.height == INT32_MAX ||
        geometry.size.width == INT32_MAX) {
        return {Status::bad_geometry,
                "an image of " + std::to_string(image.height) + "x" + std::to_string(image.width) +
                    " pixels is too long and narrow to be resized as asked: a side of the result would be empty or too "
                    "large; leave it out of the data set, or resize to a (height, width)."};
    }
    geometry.window = {0, 0, geometry.size.height, geometry.size.width};
    if (plan.crop.height > 0) {
        geometry.window = {central_start(geometry.size.height, plan.crop.height),
                           central_start(geometry.size.width, plan.crop.width), plan.crop.height, plan.crop.width};
    }
    return {};
}

Outcome resolve(const double* uniforms, Size image, const PaddedCropPlan& plan, Geometry& geometry) {
    const int64_t down = int64_t{image.height} + plan.before.height + plan.after.height - plan.size.height;
    const int64_t across = int64_t{image.width} + plan.before.width + plan.after.width - plan.size.width;
    if (down < 0 || across < 0) {
        return {Status::bad_geometry, "a crop of " + std::to_string(plan.size.height) + "x" +
                                          std::to_string(plan.size.width) + " is larger than the image of " +
                                          std::to_string(image.height) + "x" + std::to_string(image.width) +
                                          " pixels with its padding"};
    }
    geometry.box = {0, 0, image.height, image.width};
    geometry.size = image;
    geometry.window = {pick(uniforms[0], down + 1) - plan.before.height,
                       pick(uniforms[1], across + 1) - plan.before.width, plan.size.height, plan.size.width};
    return {};
}

}  // namespace fastload
