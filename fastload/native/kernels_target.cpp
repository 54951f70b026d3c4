// The inner loops for one instruction set: compiled once for each, with its flags, the name of the
// variable FASTLOAD_KERNELS, and the name that users know it by, FASTLOAD_KERNELS_NAME.
#include "jpeg/bands.inl.hpp"
#include "jpeg/blocks.inl.hpp"
#include "jpeg/samples.inl.hpp"
#include "kernels.hpp"
#include "png.inl.hpp"
#include "resample.inl.hpp"
#include "warp.inl.hpp"

namespace fastload {

const Kernels FASTLOAD_KERNELS = {
    FASTLOAD_KERNELS_NAME,         horizontal,      vertical,       pack,      mirror,
    Simd::kDots ? split : nullptr, &jpeg::kKernels, &png::kKernels, kWarpInner};

}  // namespace fastload
