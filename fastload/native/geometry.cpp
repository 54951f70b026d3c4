#include "geometry.hpp"

#include <cstdlib>

namespace fastload {
namespace {

// Larger grids cannot come from a JPEG (65,535 pixels a side) by any sane recipe, and keep the arithmetic in int.
constexpr int kLargestSide = 1 << 20;

std::string text(const Box& box) {
    return std::to_string(box.height) + "x" + std::to_string(box.width) + " at (" + std::to_string(box.top) + ", " +
           std::to_string(box.left) + ")";
}

}  // namespace

Outcome check_geometry(const Geometry& geometry, Size image) {
    const Box& box = geometry.box;
    if (box.height < 1 || box.width < 1 || box.top < 0 || box.left < 0 || box.top > image.height - box.height ||
        box.left > image.width - box.width) {
        return {Status::bad_geometry, "the box " + text(box) + " does not lie inside the image of " +
                                          std::to_string(image.height) + "x" + std::to_string(image.width) + " pixels"};
    }
    const Size& size = geometry.size;
    if (size.height < 1 || size.width < 1 || size.height > kLargestSide || size.width > kLargestSide) {
        return {Status::bad_geometry,
                "cannot resize to " + std::to_string(size.height) + "x" + std::to_string(size.width) + " pixels"};
    }
    const Box& window = geometry.window;
    if (std::abs(static_cast<int64_t>(window.top)) > kLargestSide ||
        std::abs(static_cast<int64_t>(window.left)) > kLargestSide) {
        return {Status::bad_geometry, "the window " + text(window) + " is too far from the image"};
    }
    return {};
}

}  // namespace fastload
