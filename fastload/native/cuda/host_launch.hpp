// A launch on the host: one block after the other.
#pragma once

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "cuda/host.hpp"

namespace fastload::device {

// `threads`: of the host, that share a block of `block_threads`.
template <typename Memory, typename Arguments>
void launch_on_host(void (*kernel)(const HostBlock&, const Arguments&), uint64_t blocks,
                    int block_threads, const Arguments& arguments, unsigned threads) {
    const auto memory = std::make_unique<Memory>();
    Meeting meet(threads);
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
}

// The memory of a block that shares none.
struct Nothing {};

// A kernel as a launch on a device would run it.
struct HostKernel {
    const char* name;
    size_t argument_bytes;
    void (*run)(const void* arguments, uint64_t blocks, unsigned threads);
};

// Those of host_images.cpp; null if there is none of this name.
const HostKernel* image_kernel(const char* name);

}  // namespace fastload::device
