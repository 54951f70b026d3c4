// The colour operations for one instruction set. CMake compiles this file once for each, with its
// flags; FASTLOAD_COLOUR is the name of the variable, FASTLOAD_COLOUR_FUSED is defined where
// products and sums are rounded together.
#include "clahe.inl.hpp"
#include "colour.inl.hpp"
#include "neighbours.inl.hpp"
#include "noise.inl.hpp"

#include "floats.inl.hpp"

namespace fastload {

const ColourLoops FASTLOAD_COLOUR = {recolour,    blur,          convolve,  median,   to_lab,
                                     from_lab,    mix_tables,    add_noise, convert,  normals,
                                     box_normals, change_floats, turn_mask, turn_mask};

}  // namespace fastload
