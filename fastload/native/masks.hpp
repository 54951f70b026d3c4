// Draws the masks of objects, from polygons and run lengths, as they are in an image after its
// geometry.
#pragma once

#include <cstdint>
#include <memory>

#include "pool.hpp"

namespace fastload {

// The steps of a map from source images to outputs; fastload/geometry/points.py (PointStep,
// PointMap.table) describes them and the 12 numbers of each.
enum class MapStep : int32_t { move = 1, warp = 2, grid = 3, back = 4, drop = 5, within = 6 };
constexpr int kStepNumbers = 12;

// Objects to draw. The arrays are borrowed: they must live until the job is done. Offsets ascend
// from 0 to the length of what they index. `shapes` and `maps` may hold any numbers: if they make
// no sense, that image fails.
struct MaskTable {
    const double* shapes = nullptr;    // the numbers of all T objects (fastload/sources/masks.py)
    const int64_t* objects = nullptr;  // (T + 1,): offsets of objects in `shapes`
    const int64_t* images = nullptr;   // (count + 1,): offsets of images in the objects
    const double* maps = nullptr;      // (count, step_count, 12)
    const int32_t* steps = nullptr;    // (step_count,): a MapStep each
    int step_count = 0;
    int count = 0;           // of images
    uint8_t* out = nullptr;  // (T, size.height, size.width): 1 inside of the object, else 0
    Size size;               // of the output images
};

// A job whose rows are images with all their objects. The masks of an image that fails are 0.
// Corners of polygons are moved by the map, then polygons are drawn as pycocotools draws them
// (rleFrPoly of cocoapi's maskApi.c). Run lengths are a mask of the source image: each output pixel
// shows one pixel of it, the nearest at each step. Nothing is drawn in padding.
std::shared_ptr<Job> mask_job(const MaskTable& table);

}  // namespace fastload
