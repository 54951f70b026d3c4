// The steps of colour for one instruction set: compiled once for each, with its flags and the name
// of the variable FASTLOAD_COLOUR; with FASTLOAD_COLOUR_FUSED where it multiplies and adds in one.
#include "colour.inl.hpp"
#include "noise.inl.hpp"

namespace fastload {

const ColourLoops FASTLOAD_COLOUR = {recolour, blur, add_noise, normals};

}  // namespace fastload
