// A pool of threads that runs batches, several in flight, and the batches themselves.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include <sys/types.h>

#include "status.hpp"

namespace fastload {

class Worker;

struct Failure {
    int row = 0;
    Outcome outcome;
};

// The samples of one batch. Workers claim `grain` rows at a time; `wait` blocks until each row was run or cancelled.
class Job {
  public:
    Job(int count, int grain) : count_(count), grain_(grain > 0 ? grain : 1), remaining_(count) {}
    virtual ~Job() = default;
    Job(const Job&) = delete;
    Job& operator=(const Job&) = delete;

    // Rows not yet begun will not be. Does nothing in a process forked since the job was made.
    void cancel();
    // In a process forked since the job was made, returns at once whether it was done: its threads are not there.
    bool wait();
    bool done() const { return remaining_.load(std::memory_order_acquire) == 0; }
    // In order of rows; only after `wait`.
    std::vector<Failure> take_failures();

    // Runs the next rows; false if none are left. Called by the pool's threads.
    bool run_some(Worker& worker);

  protected:
    virtual Outcome run(Worker& worker, int row) = 0;
    // Called for a row that failed or was cancelled.
    virtual void blank(int row) = 0;
    int count() const { return count_; }

  private:
    void report(int row, Outcome outcome);
    void complete(int rows);

    const int count_;
    const int grain_;
    std::atomic<int64_t> next_{0};
    std::atomic<int> remaining_;
    std::mutex mutex_;
    std::condition_variable finished_;
    std::vector<Failure> failures_;
    const pid_t owner_ = current_process();

    static pid_t current_process();
};

// Starts its threads at the first `submit`, and again at the first one after a fork.
class Pool {
  public:
    // `simd` names the kernels ("auto", "plain", ...); throws std::invalid_argument for what cannot run here.
    Pool(int threads, const char* simd);
    // Cancels what was submitted and waits for the rows in work.
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    void submit(std::shared_ptr<Job> job);
    // Joins the threads; a later `submit` starts new ones.
    void close();

    int threads() const { return threads_; }
    const char* simd() const;

  private:
    struct Crew;
    void leave_to_parent();

    const int threads_;
    const struct Kernels* kernels_;
    std::mutex mutex_;  // of `crew_`
    std::unique_ptr<Crew> crew_;
    pid_t owner_ = 0;
};

}  // namespace fastload
