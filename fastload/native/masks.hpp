// Masks of objects, drawn from polygons and run lengths as they are in an image after its geometry.
#pragma once

#include <cstdint>
#include <memory>

#include "pool.hpp"

namespace fastload {

// What a sample goes through, in order; fastload/geometry/points.py has the numbers of each.
enum class MapStep : int32_t { move = 1, warp = 2, grid = 3, back = 4, sieve = 5, within = 6 };
constexpr int kStepNumbers = 12;

// The arrays are borrowed; the offsets were checked to rise from 0 to their ends. The shapes may
// hold any numbers: what is none is that image's failure.
struct MaskTable {
    const double* shapes = nullptr;    // of all objects (fastload/sources/masks.py)
    const int64_t* objects = nullptr;  // where the numbers of each of the T objects begin; the end
    const int64_t* images = nullptr;   // where the objects of each image begin; the end
    const double* maps = nullptr;      // (images, steps, 12)
    const int32_t* steps = nullptr;    // the MapStep of each
    int step_count = 0;
    int count = 0;           // images
    uint8_t* out = nullptr;  // (T, height, width): 1 in the object, 0 beside it
    Size size;
};

// A row is an image with all its objects. Polygons are drawn as pycocotools draws them (rleFrPoly
// of cocoapi's maskApi.c), after their corners were moved; of run lengths each output pixel takes
// the pixel that the geometry gives it, the nearest at each step. Nothing is drawn in padding.
std::shared_ptr<Job> mask_job(const MaskTable& table);

}  // namespace fastload
