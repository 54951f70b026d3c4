#include "cuda/host.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "cuda/entropy.cuh"
#include "cuda/host_launch.hpp"
#include "cuda/pixels.cuh"
#include "cuda/resize.cuh"
#include "cuda/samples.cuh"
#include "device_plan.hpp"

namespace fastload::device {
namespace {

// Memory without slack, so that a sanitizer sees the first access beyond.
template <typename T>
std::unique_ptr<T[]> copied(const T* from, size_t count) {
    std::unique_ptr<T[]> made(new T[count]);
    if (count > 0) std::memcpy(made.get(), from, count * sizeof(T));
    return made;
}

bool launch(const std::string& name, uint64_t blocks, const ChunkArguments& arguments,
            unsigned threads) {
    if (name == "fastload_decode_segments") {
        launch_on_host<SegmentMemory>(fastload_decode_segments, blocks, kSegmentThreads, arguments,
                                      threads);
    } else if (name == "fastload_make_samples") {
        launch_on_host<SampleMemory>(fastload_make_samples, blocks, kSampleThreads, arguments,
                                     threads);
    } else if (name == "fastload_make_pixels") {
        launch_on_host<Nothing>(fastload_make_pixels, blocks, kStrip, arguments, threads);
    } else if (name == "fastload_resize") {
        launch_on_host<Nothing>(fastload_resize, blocks, kStrip, arguments, threads);
    } else {
        return false;
    }
    return true;
}

}  // namespace

size_t argument_bytes(const char* name) {
    if (const HostKernel* kernel = image_kernel(name)) return kernel->argument_bytes;
    ChunkArguments none{};
    return launch(name, 0, none, 1) ? kArgumentBytes : 0;
}

bool run_kernel_on_host(const char* name, const uint8_t* arguments, size_t bytes, uint64_t blocks,
                        unsigned threads) {
    if (const HostKernel* kernel = image_kernel(name)) {
        if (kernel->argument_bytes != bytes) return false;
        kernel->run(arguments, blocks, threads);
        return true;
    }
    if (bytes != kArgumentBytes) return false;
    // The host counts, too.
    static_assert(offsetof(ChunkArguments, turns) == kArgumentBytes, "the same up to the turns");
    ChunkArguments given;
    std::memcpy(static_cast<void*>(&given), arguments, kArgumentBytes);
    return launch(name, blocks, given, threads);
}

HostRun run_on_host(const BatchPlan& plan, unsigned threads, Size out) {
    HostRun run;
    run.pixels.assign(plan.pixel_bytes(), 0);
    run.failures.assign(plan.crops(), 0);
    run.turns.assign(plan.segments().size(), 0);
    run.zeros_again = true;
    const uint64_t of_out = static_cast<uint64_t>(out.height) * static_cast<uint64_t>(out.width);
    run.resized.assign(3 * of_out * plan.crops(), 0);
    const auto buffer = copied(plan.buffer().data(), plan.buffer().size());
    const auto* const crops = reinterpret_cast<const Crop*>(buffer.get() + plan.crops_at());
    const auto* const tasks = reinterpret_cast<const Task*>(buffer.get() + plan.tasks_at());
    const auto* const resizes = reinterpret_cast<const Resize*>(buffer.get() + plan.resizes_at());
    for (const Chunk& chunk : plan.chunks()) {
        // Each chunk in its own memory, which may be larger than new aligns for.
        const size_t count = 64 * static_cast<size_t>(chunk.blocks);
        const std::unique_ptr<int16_t[]> coefficients(new int16_t[count]());
        const std::unique_ptr<uint8_t[]> samples(new uint8_t[count]());
        ChunkArguments arguments;
        arguments.batch = buffer.get();
        arguments.crops = crops + chunk.first_crop;
        arguments.segments = reinterpret_cast<const Segment*>(buffer.get() + plan.segments_at());
        arguments.tasks = tasks + chunk.first_task;
        arguments.coefficients = coefficients.get();
        arguments.samples = samples.get();
        arguments.pixels = run.pixels.data() + chunk.first_pixel;
        arguments.failures = run.failures.data() + chunk.first_crop;
        arguments.crop_count = chunk.crops;
        arguments.blocks = static_cast<uint32_t>(chunk.blocks);
        arguments.strips = static_cast<uint32_t>(chunk.strips);
        arguments.turns = run.turns.data();
        arguments.resizes = resizes + chunk.first_crop;
        arguments.out = run.resized.data();
        arguments.out_height = static_cast<uint32_t>(out.height);
        arguments.out_width = static_cast<uint32_t>(out.width);
        constexpr uint64_t kAtOnce = kSampleThreads / 8;
        (void)launch("fastload_decode_segments", chunk.tasks, arguments, threads);
        (void)launch("fastload_make_samples", (chunk.blocks + kAtOnce - 1) / kAtOnce, arguments,
                     threads);
        (void)launch("fastload_make_pixels", chunk.strips, arguments, threads);
        const uint64_t strips = (of_out + kStrip - 1) / kStrip;
        (void)launch("fastload_resize", chunk.crops * strips, arguments, threads);
        run.zeros_again =
            run.zeros_again && std::all_of(coefficients.get(), coefficients.get() + count,
                                           [](int16_t value) { return value == 0; });
    }
    return run;
}

}  // namespace fastload::device
