// The kernels that make batches of decoded images, on the host.
#include <cstring>

#include "cuda/blur.cuh"
#include "cuda/colour.cuh"
#include "cuda/convert.cuh"
#include "cuda/host_launch.hpp"
#include "cuda/render.cuh"

namespace fastload::device {
namespace {

template <typename Arguments, void (*kKernel)(const HostBlock&, const Arguments&), int kThreads,
          typename Memory = Nothing>
constexpr HostKernel kernel(const char* name) {
    return {name, sizeof(Arguments), [](const void* from, uint64_t blocks, unsigned threads) {
                Arguments arguments;
                std::memcpy(static_cast<void*>(&arguments), from, sizeof arguments);
                launch_on_host<Memory>(kKernel, blocks, kThreads, arguments, threads);
            }};
}

#define FASTLOAD_RENDER(kind) \
    kernel<RenderArguments, fastload_##kind, kRenderThreads>("fastload_" #kind)

constexpr HostKernel kKernels[] = {
    kernel<TrialArguments, fastload_trial, 1>("fastload_trial"),
    FASTLOAD_RENDER(weigh),
    FASTLOAD_RENDER(render_nearest_1),
    FASTLOAD_RENDER(render_nearest_3),
    FASTLOAD_RENDER(render_interpolated_1),
    FASTLOAD_RENDER(render_interpolated_3),
    FASTLOAD_RENDER(render_antialiased_1),
    FASTLOAD_RENDER(render_antialiased_3),
    kernel<NormaliseArguments, fastload_normalise, kConvertThreads>("fastload_normalise"),
    kernel<DrawnArguments, fastload_drawn, kConvertThreads, DrawnWindow>("fastload_drawn"),
    kernel<ColourArguments, fastload_recolour_1, kColourThreads, ColourMemory>(
        "fastload_recolour_1"),
    kernel<ColourArguments, fastload_recolour_3, kColourThreads, ColourMemory>(
        "fastload_recolour_3"),
    kernel<BlurArguments, fastload_blur_down, kBlurThreads>("fastload_blur_down"),
    kernel<BlurArguments, fastload_blur_across, kBlurThreads>("fastload_blur_across"),
    kernel<AddArguments, fastload_add_weighted, kBlurThreads>("fastload_add_weighted"),
};

}  // namespace

const HostKernel* image_kernel(const char* name) {
    for (const HostKernel& found : kKernels)
        if (std::strcmp(found.name, name) == 0) return &found;
    return nullptr;
}

}  // namespace fastload::device
