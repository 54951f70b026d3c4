// A block of a kernel on the host, for the kernels of this folder (block.cuh): to try them without
// a GPU, under sanitizers, and to count.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "image.hpp"

namespace fastload::device {

class BatchPlan;

// Where threads of the host wait for each other, again and again. (macOS has no pthread_barrier_t,
// C++17 no std::barrier.)
class Meeting {
  public:
    explicit Meeting(unsigned threads) : threads_(threads) {}

    // Returns when as many threads have called it.
    void wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        if (++there_ == threads_) {
            there_ = 0;
            ++turn_;
            all_.notify_all();
            return;
        }
        const uint64_t turn = turn_;
        all_.wait(lock, [&] { return turn_ != turn; });
    }

  private:
    const unsigned threads_;
    std::mutex mutex_;
    std::condition_variable all_;
    unsigned there_ = 0;
    uint64_t turn_ = 0;
};

// What a kernel on the host knows of its block. `threads` of it are run by 1 / `step` each by
// `step` threads of the host, this one from thread `first` on.
struct HostBlock {
    uint32_t index = 0;    // of the block in its grid
    uint32_t threads = 0;  // of the block
    uint32_t first = 0, step = 1;
    void* shared = nullptr;   // the block's memory
    Meeting* meet = nullptr;  // of the threads of the host; null where there is one

    void barrier() const {
        if (meet != nullptr) meet->wait();
    }
};

// What the kernels make of a batch.
struct HostRun {
    std::vector<uint8_t> pixels;     // BatchPlan::pixel_bytes
    std::vector<uint8_t> resized;    // (rows, out.height, out.width, 3)
    std::vector<uint32_t> failures;  // of each crop; 0: its pixels are right
    std::vector<uint32_t> turns;     // of each segment: how many symbols were read
    bool zeros_again = false;        // whether all coefficients are zero again
};

// Bytes of the arguments of a kernel; 0 if there is none of this name.
size_t argument_bytes(const char* name);

// Runs one kernel, by its name, as a launch on a device would: `arguments` are those of the kernel
// as a device has them (kArgumentBytes: ChunkArguments). `threads`: of the host, as in
// `run_on_host`. False if there is no such kernel, or its arguments are not of this size.
constexpr size_t kArgumentBytes = 104;
bool run_kernel_on_host(const char* name, const uint8_t* arguments, size_t bytes, uint64_t blocks,
                        unsigned threads = 1);

// Runs the kernels of a finished batch, chunk after chunk. `threads`: of the host, that share a
// block (1 or a power of two up to 64). `out`: the size that crops are resized to, as they were
// planned; 0x0: they are not. All memory is of exactly the size that the device has.
HostRun run_on_host(const BatchPlan& plan, unsigned threads = 1, Size out = {});

}  // namespace fastload::device
