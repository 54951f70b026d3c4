// Moves bounding boxes through the geometry of their image, and converts them to centre and size.
// The results equal those of numpy in fastload/geometry/points.py and fastload/loader/collate.py
// bit for bit; so boxes.cpp is compiled without contraction into fused multiply-adds. Nothing here
// throws.
#pragma once

#include <cstdint>

namespace fastload {

// The arrays are borrowed. Boxes are left, top, right, bottom [pixels], and may be any numbers.
struct BoxTable {
    const double* maps = nullptr;    // (count, step_count, 12), as in MaskTable
    const int32_t* steps = nullptr;  // (step_count,): a MapStep each (masks.hpp)
    int64_t step_count = 0;
    int64_t count = 0;        // of maps
    int64_t each = 0;         // boxes of a map
    double* boxes = nullptr;  // (count, each, 4), changed in place
    bool* kept = nullptr;  // (count, each): set to false for boxes that a "drop" drops, else true
};

// Applies the steps of each map to its boxes.
void move_boxes(const BoxTable& table);

// Boxes of images [pixels], for detectors that take centres and sizes. The arrays are borrowed.
struct CentreTable {
    const float* boxes = nullptr;      // (T, 4): left, top, right, bottom
    const int64_t* offsets = nullptr;  // (images + 1,): ascending offsets of images in the boxes
    const int64_t* heights = nullptr;  // (images,), or (1,) with `one_size`
    const int64_t* widths = nullptr;   // the same
    const int64_t* labels = nullptr;   // (T,), or null
    int64_t images = 0;
    bool one_size = false;  // all images have one size
    // (T, 4): centre x, y, width, height as fractions of the image; with labels (T, 6): before
    // these the number of the image in the batch and the label.
    float* out = nullptr;
};

// Writes table.out.
void centre_boxes(const CentreTable& table);

}  // namespace fastload
