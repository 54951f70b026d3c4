// Normal noise on decoded images. The results equal those of torch in fastload/render/noise.py bit
// for bit.
#pragma once

#include <cstdint>
#include <memory>

#include "colour.hpp"
#include "pool.hpp"

namespace fastload {

// The noise of each image: value + (normal * scale + shift). The arrays have one element for each
// image and are borrowed until the job is done.
struct NoiseTable {
    const uint64_t* keys = nullptr;  // of the normal numbers
    const float* scales = nullptr;
    const float* shifts = nullptr;
    const bool* rows = nullptr;  // which images to change; null: all
    bool clips = true;           // limit sums to 0 to 255; else keep their lowest 8 bits
    bool shared = false;         // one normal number for all channels of a pixel
};

// A box of normal numbers, which are those of counters: the one in column i of a line of a plane
// has the counter first + plane * plane_step + line * line_step + i. Counters wrap.
struct CounterBox {
    int64_t first, planes, plane_step, lines, line_step, width;
};

// Adds noise to images of any number of channels, in place. Pixel i, or value i if not `shared`,
// gets number i of `ColourLoops::normals`, counted in the order in which they lie in memory.
std::shared_ptr<Job> noise_job(const ColourImages& images, const NoiseTable& table);

// Writes the first `each` normal numbers of `count` keys to `out`, (count, each). `keys` and `out`
// are borrowed until the job is done.
std::shared_ptr<Job> normals_job(const uint64_t* keys, int count, int64_t each, float* out);

// Writes the numbers of `count` boxes, each of its key, one box after the other. All is borrowed
// until the job is done.
std::shared_ptr<Job> box_normals_job(const uint64_t* keys, const CounterBox* boxes, int count,
                                     float* out);

}  // namespace fastload
