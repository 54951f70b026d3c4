// What is compiled for several instruction sets of the steps of colour.
#pragma once

#include <vector>

#include "colour.hpp"
#include "noise.hpp"

namespace fastload {

// One image, whose channels lie together, in place. The vectors are for values in between.
struct ColourLoops {
    void (*recolour)(const ColourTable& table, int row, Size size, int channels, uint8_t* pixels,
                     std::vector<uint8_t>& scratch, std::vector<float>& floats);
    void (*blur)(const BlurTable& table, int row, int count, Size size, int channels,
                 uint8_t* pixels, std::vector<uint8_t>& scratch, std::vector<float>& floats);
    void (*add_noise)(const NoiseTable& table, int row, Size size, int channels, uint8_t* pixels);
    // The first normal numbers of a key. Here and above the same ones whatever is rounded together.
    void (*normals)(uint64_t key, size_t count, float* out);
};

// Those that run here, the best first: with sums of products rounded together, or one by one.
std::vector<const ColourLoops*> colour_loops(bool fused);

// Sums of products rounded one by one, and together.
extern const ColourLoops kSeparateColour;
extern const ColourLoops kFusedColour;
#if defined(FASTLOAD_X86)
extern const ColourLoops kFusedColour512;
#endif

}  // namespace fastload
