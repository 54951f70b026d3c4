// The thread pool: jobs (batches) whose rows (samples) are shared out among threads, and what a
// thread keeps between samples.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <vector>

#include "decoder.hpp"
#include "encode.hpp"
#include "recompress.hpp"
#include "resample.hpp"

namespace fastload {

// The decoders, encoders and buffers of one thread, which are kept between samples.
class Worker {
  public:
    Worker(const Kernels& chosen, DecoderCounts& counts)
        : kernels(chosen), decoder(chosen, counts), encoder(chosen), recompressor(chosen) {}

    const Kernels& kernels;
    // For a second row that is worked on at the same time; null: one row after the other.
    std::unique_ptr<Worker> twin;
    int threads = 1;  // how many threads share the rows of a job
    Decoder decoder;
    JpegEncoder encoder;
    Recompressor recompressor;
    // Memory for the image in work, whose contents do not outlive it.
    std::vector<Geometry> geometries;                    // of each view
    std::vector<uint8_t> bytes;                          // the compressed file
    std::vector<uint8_t> scratch;                        // intermediate pixels
    std::vector<float> floats;                           // intermediate pixels in floating point
    std::vector<uint8_t> canvas, tile, picture, warped;  // whole intermediate images

    // The resampler of a view, made at the first use. The reference stays valid.
    Resampler& resampler(size_t view = 0) {
        while (resamplers_.size() <= view) resamplers_.emplace_back(kernels);
        return resamplers_[view];
    }

    // Frees buffers of more than 32 MiB, so that not every thread keeps the memory of an unusually
    // large image.
    void trim() {
        constexpr size_t kMost = size_t{32} << 20;
        for (std::vector<uint8_t>* buffer : {&bytes, &scratch, &canvas, &tile, &picture, &warped})
            release_large(*buffer, kMost);
        release_large(floats, kMost);
        encoder.trim(kMost);
        recompressor.trim(kMost);
    }

  private:
    std::deque<Resampler> resamplers_;
};

// A number that changes in each forked child. What was made under another number belongs to a
// parent process: its threads do not exist here, and its locks may have been held at the fork, so
// that they can be neither taken nor destroyed. (Not the process id: the system uses ids again.)
uint64_t current_process();

// A row that has no pixels, and why.
struct Failure {
    int row = 0;
    Outcome outcome;
};

// A batch: `count` rows, which threads claim `grain` at a time, in ascending order. Every submitted
// job ends: any error in a row, running out of memory included, is the failure of that row. Any
// thread may call the public methods.
class Job {
  public:
    Job(int count, int grain);
    virtual ~Job();
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

    // Rows that were not started fail with `cancelled`. Does nothing in a process that was forked
    // since the job was made.
    void cancel() noexcept;
    // Blocks until each row was run or cancelled, and returns true. Returns false at once in a
    // process that was forked since the job was made: its threads are the parent's.
    bool wait();
    // Whether `wait` would return at once.
    bool done() const { return remaining_.load(std::memory_order_acquire) == 0; }
    // The failures in ascending order of rows, after `wait`; a second call returns none. None in a
    // process that was forked since. Throws std::bad_alloc if there was no memory to record one.
    std::vector<Failure> take_failures();

    // Claims and runs the next `grain` rows; false if none are left. Called by the pool's threads.
    virtual bool run_some(Worker& worker) noexcept;

  protected:
    // Makes a row. May throw: the exception is then the row's failure.
    virtual Outcome run(Worker& worker, int row) = 0;
    // Sets the output of a row that failed or was cancelled to zeros.
    virtual void blank(int row) noexcept = 0;

    // For jobs that override `run_some`. Claims the next row; false if fewer than `least` are left.
    bool claim(int least, int& row) noexcept;
    // Runs a part of the work on a row. An exception becomes the row's failure.
    template <typename Part>
    static Outcome attempt(Part part) noexcept {
        // Messages of up to 15 characters need no memory, of which there may be none.
        try {
            try {
                return part();
            } catch (const std::bad_alloc&) {
                return {Status::unreadable, "out of memory"};
            } catch (const std::exception& error) {
                return {Status::damaged, error.what()};
            }
        } catch (...) {
            return {Status::unreadable, "out of memory"};
        }
    }
    // Ends a row that was claimed.
    void end(Worker& worker, int row, Outcome outcome) noexcept;

  private:
    struct Results;
    void settle(Worker& worker, int row, Outcome outcome) noexcept;
    void report(int row, Outcome outcome) noexcept;
    void complete(int rows) noexcept;

    const int count_;
    const int grain_;
    std::atomic<int64_t> next_{0};
    std::atomic<int> remaining_;
    std::unique_ptr<Results> results_;
    const uint64_t owner_ = current_process();
};

// A pool of threads, which start with the first `submit`, and in a forked child with its first one.
// Any thread may call.
class Pool {
  public:
    // `simd`: the name of the kernels ("auto", "plain", ...). With `always_libjpeg`, libjpeg-turbo
    // decodes all JPEGs. Throws std::invalid_argument if threads < 1, or if this processor cannot
    // run the kernels.
    Pool(int threads, const char* simd, bool always_libjpeg = false);
    // As `close`.
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    // Queues a job after those before it. Throws std::system_error or std::bad_alloc if the system
    // has not even one thread; the job was then not taken.
    void submit(std::shared_ptr<Job> job);
    // Runs a job in the calling thread, before this returns, whatever is queued. Throws
    // std::bad_alloc if there is no memory for a Worker.
    void run(Job& job);
    // Cancels all jobs, waits for the rows in work, and joins the threads. A later `submit` starts
    // new ones.
    void close();

    int threads() const { return threads_; }
    const char* simd() const { return kernels_->name; }
    // What was decoded since the pool was made, in this process.
    const DecoderCounts& decoded() const { return decoded_; }

  private:
    struct ThreadGroup;
    struct ProcessState;
    ProcessState& state();
    std::unique_ptr<Worker> make_worker(int threads);

    const int threads_;
    const Kernels* kernels_;
    DecoderCounts decoded_;
    const bool always_libjpeg_;
    // Of this process; in a forked child of the parent, until the child uses the pool.
    std::atomic<ProcessState*> state_;
};

}  // namespace fastload
