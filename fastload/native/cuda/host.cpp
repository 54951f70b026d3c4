#include "cuda/host.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

#include "cuda/entropy.cuh"
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

using Kernel = void (*)(const HostBlock&, const ChunkArguments&);

// One block after the other.
template <typename Memory>
void launch(Kernel kernel, uint64_t blocks, int block_threads, const ChunkArguments& arguments,
            unsigned threads) {
    const auto memory = std::make_unique<Memory>();
    pthread_barrier_t meet;
    if (threads > 1) pthread_barrier_init(&meet, nullptr, threads);
    auto run = [&](unsigned first) {
        HostBlock block;
        block.threads = static_cast<uint32_t>(block_threads);
        block.first = first;
        block.step = threads;
        block.shared = memory.get();
        block.meet = threads > 1 ? &meet : nullptr;
        for (uint64_t index = 0; index < blocks; ++index) {
            block.index = static_cast<uint32_t>(index);
            // What a block finds in shared memory is arbitrary.
            if (first == 0) std::memset(static_cast<void*>(memory.get()), 0xee, sizeof(Memory));
            block.barrier();
            kernel(block, arguments);
            block.barrier();
        }
    };
    std::vector<std::thread> others;
    for (unsigned i = 1; i < threads; ++i) others.emplace_back(run, i);
    run(0);
    for (std::thread& other : others) other.join();
    if (threads > 1) pthread_barrier_destroy(&meet);
}

struct Nothing {};

bool launch(const std::string& name, uint64_t blocks, const ChunkArguments& arguments,
            unsigned threads) {
    if (name == "fastload_decode_segments") {
        launch<SegmentMemory>(fastload_decode_segments, blocks, kSegmentThreads, arguments,
                              threads);
    } else if (name == "fastload_make_samples") {
        launch<SampleMemory>(fastload_make_samples, blocks, kSampleThreads, arguments, threads);
    } else if (name == "fastload_make_pixels") {
        launch<Nothing>(fastload_make_pixels, blocks, kStrip, arguments, threads);
    } else if (name == "fastload_resize") {
        launch<Nothing>(fastload_resize, blocks, kStrip, arguments, threads);
    } else {
        return false;
    }
    return true;
}

}  // namespace

bool run_kernel_on_host(const char* name, const uint8_t* arguments, uint64_t blocks) {
    // The host counts, too.
    static_assert(offsetof(ChunkArguments, turns) == kArgumentBytes, "the same up to the turns");
    ChunkArguments given;
    std::memcpy(static_cast<void*>(&given), arguments, kArgumentBytes);
    return launch(name, blocks, given, 1);
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
