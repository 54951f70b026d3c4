// The inner loops for one instruction set: compiled once for each, with its flags, the name of the
// variable FASTLOAD_KERNELS, and the name that users know it by, FASTLOAD_KERNELS_NAME.
#include "blend.inl.hpp"
#include "draws.inl.hpp"
#include "jpeg/bands.inl.hpp"
#include "jpeg/blocks.inl.hpp"
#include "jpeg/forward.inl.hpp"
#include "jpeg/samples.inl.hpp"
#include "jpeg/write.inl.hpp"
#include "kernels.hpp"
#include "png.inl.hpp"
#include "resample.inl.hpp"
#include "warp.inl.hpp"

namespace fastload {
namespace jpeg {
namespace {

constexpr JpegKernels kKernels = {
    run_one<DoubleEntry>, run_one<Entry>, run_two<DoubleEntry>, run_two<Entry>, skip_and_decode,
    first_of_band,        next_of_band,   to_samples,           double_width,   blend_rows,
    blend_and_double,     ycc_to_rgbx,    rgb_to_rgbx,          rgb_to_ycc,     halve,
    to_coefficients,      write_blocks};

}  // namespace
}  // namespace jpeg

const Kernels FASTLOAD_KERNELS = {FASTLOAD_KERNELS_NAME,
                                  horizontal,
                                  vertical,
                                  pack,
                                  mirror,
                                  Simd::kDots ? split : nullptr,
                                  &jpeg::kKernels,
                                  &png::kKernels,
                                  kWarpInner,
                                  kWarpColumns,
                                  warp_places,
                                  warp_offsets,
                                  blend,
                                  kIntegers};

}  // namespace fastload
