// Random numbers as a pure function of a counter: fastload/draws.py in C++, number for number.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

struct Counter {
    const int64_t* indices;  // of the samples in the source
    const int64_t* repeats;  // how often each came before in this epoch; null for never
    std::size_t count;
    uint64_t seed;
    uint32_t epoch;
    uint32_t stream;
};

// out[i * per_sample + j]: number j of sample i, in [0, 1) with 53 bits.
void draw_uniforms(const Counter& counter, std::size_t per_sample, double* out);

// out[i]: 64 random bits of sample i.
void draw_integers(const Counter& counter, uint64_t* out);

}  // namespace fastload
