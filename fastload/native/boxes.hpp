// Boxes as they are in an image after its geometry: the arithmetic of fastload/geometry/points.py,
// bit for bit, and compiled without fused multiply-adds for it.
#pragma once

#include <cstdint>

#include "masks.hpp"

namespace fastload {

// The arrays are borrowed. Boxes are left, top, right, bottom; any numbers.
struct BoxTable {
    const double* maps = nullptr;    // (count, steps, 12)
    const int32_t* steps = nullptr;  // the MapStep of each
    int64_t step_count = 0;
    int64_t count = 0;
    int64_t each = 0;         // boxes of a map
    double* boxes = nullptr;  // (count, each, 4), in place
    bool* kept = nullptr;     // (count, each): whether no "sieve" drops them
};

void move_boxes(const BoxTable& table);

// Boxes of images in pixels, as trainers of detectors take them (fastload/loader/collate.py). The
// arrays are borrowed; the offsets were checked.
struct CentreTable {
    const float* boxes = nullptr;      // (T, 4) left, top, right, bottom
    const int64_t* offsets = nullptr;  // where those of each image begin; the end
    const int64_t* heights = nullptr;  // of each image, or one of all
    const int64_t* widths = nullptr;
    const int64_t* labels = nullptr;  // (T,), or null
    int64_t images = 0;
    bool one_size = false;
    // (T, 4) centre, width, height in fractions of the image; with labels (T, 6), before these the
    // number of the image and the label.
    float* out = nullptr;
};

void centre_boxes(const CentreTable& table);

}  // namespace fastload
