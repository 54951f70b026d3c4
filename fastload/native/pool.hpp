// A pool of threads that runs batches, several at a time; the batches themselves; what a thread
// keeps between samples.
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

// What a thread keeps between samples.
class Worker {
  public:
    Worker(const Kernels& chosen, DecoderCounts& counts)
        : kernels(chosen), decoder(chosen, counts), encoder(chosen), recompressor(chosen) {}

    const Kernels& kernels;
    // For a second row at the same time; null: one row after the other.
    std::unique_ptr<Worker> twin;
    int threads = 1;  // that run rows of the same job
    Decoder decoder;
    JpegEncoder encoder;
    Recompressor recompressor;
    std::vector<Geometry> geometries;            // of each view of the image in work
    std::vector<uint8_t> bytes;                  // of the compressed file
    std::vector<uint8_t> scratch;                // pixels in between
    std::vector<float> floats;                   // the same in floating point
    std::vector<uint8_t> canvas, tile, picture;  // of samples of several images

    // One for each view of an image, made as they are needed; they stay where they are.
    Resampler& resampler(size_t view = 0) {
        while (resamplers_.size() <= view) resamplers_.emplace_back(kernels);
        return resamplers_[view];
    }

    // Gives back the memory of an unusually large image, so that one of these does not stay with
    // every thread.
    void trim() {
        constexpr size_t kMost = size_t{32} << 20;
        if (bytes.size() > kMost) std::vector<uint8_t>().swap(bytes);
        if (scratch.size() > kMost) std::vector<uint8_t>().swap(scratch);
        for (std::vector<uint8_t>* pixels : {&canvas, &tile, &picture})
            if (pixels->size() > kMost) std::vector<uint8_t>().swap(*pixels);
        if (floats.size() > kMost / sizeof(float)) std::vector<float>().swap(floats);
        encoder.trim(kMost);
        recompressor.trim(kMost);
    }

  private:
    std::deque<Resampler> resamplers_;
};

// A number that fork() changes: what was made under another one belongs to a process that is not
// this one. Its threads are not here, and its locks are as they were at the fork, perhaps held for
// ever, so that they can be neither taken nor destroyed. (A process id would come round again in
// grandchildren.)
uint64_t current_process();

struct Failure {
    int row = 0;
    Outcome outcome;
};

// The samples of one batch. Workers claim `grain` rows at a time; `wait` blocks until each row was
// run or cancelled. Every job that is submitted ends: what happens in a row, running out of memory
// included, is that row's failure.
class Job {
  public:
    Job(int count, int grain);
    virtual ~Job();
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

    // Rows not yet started are not run. Does nothing in a process forked since the job was made.
    void cancel() noexcept;
    // False, at once, in a process forked since the job was made: it is the parent's.
    bool wait();
    bool done() const { return remaining_.load(std::memory_order_acquire) == 0; }
    // In order of rows; only after `wait`; none in a process forked since. Throws std::bad_alloc if
    // there was no memory.
    std::vector<Failure> take_failures();

    // Runs the next rows; false if none are left. Called by the pool's threads.
    virtual bool run_some(Worker& worker) noexcept;

  protected:
    virtual Outcome run(Worker& worker, int row) = 0;
    // Called for a row that failed or was cancelled.
    virtual void blank(int row) noexcept = 0;

    // For jobs that run rows in another way. The next row; false where fewer than `least` are left.
    bool claim(int least, int& row) noexcept;
    // A row, or a part of it: what it throws is its failure.
    template <typename Part>
    static Outcome attempt(Part part) noexcept {
        // Words that fit in the string itself, as there may be no memory for others.
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
    // A row that was claimed ends.
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

// Starts its threads at the first `submit`, and again at the first one after a fork. Any thread may
// call.
class Pool {
  public:
    // `simd` names the kernels ("auto", "plain", ...); throws std::invalid_argument for what cannot
    // run here. With `always_libjpeg`, our own decoder is left out.
    Pool(int threads, const char* simd, bool always_libjpeg = false);
    // Cancels what was submitted and waits for the rows in work.
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    // Throws std::system_error or std::bad_alloc if the system has no thread for it; the job was
    // then not taken.
    void submit(std::shared_ptr<Job> job);
    // Runs a job in the calling thread, past all others. Throws std::bad_alloc if there is no
    // memory for a Worker.
    void run(Job& job);
    // Cancels what was submitted and joins the threads; a later `submit` starts new ones.
    void close();

    int threads() const { return threads_; }
    const char* simd() const { return kernels_->name; }
    // Since the pool was made; of this process.
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
    std::atomic<ProcessState*>
        state_;  // of this process, or, until it first submits, of the one that it was forked from
};

}  // namespace fastload
