// Normal noise on decoded images, bit for bit as fastload/render/noise.py has torch make it.
#pragma once

#include <cstdint>
#include <memory>

#include "colour.hpp"
#include "pool.hpp"

namespace fastload {

// Of each image; the arrays are borrowed.
struct NoiseTable {
    const uint64_t* keys = nullptr;
    const float* scales = nullptr;  // what normal numbers are multiplied by,
    const float* shifts = nullptr;  // and what is added to them then
    const bool* rows = nullptr;     // which images, or nullptr for all
    bool clips = true;              // sums are cut to a byte; else they wrap around
    bool shared = false;            // one number a pixel for all of its channels
};

// Of any number of channels. Numbers as `normals` of the loops gives them: of a pixel if shared,
// else of a value, as they lie in memory.
std::shared_ptr<Job> noise_job(const ColourImages& images, const NoiseTable& table);

// (count, each) normal numbers of these keys.
std::shared_ptr<Job> normals_job(const uint64_t* keys, int count, int64_t each, float* out);

}  // namespace fastload
