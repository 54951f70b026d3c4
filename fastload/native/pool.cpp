#include "pool.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#ifndef _WIN32
#include <pthread.h>
#include <signal.h>
#endif

namespace fastload {

namespace {

std::atomic<uint64_t> forks{0};
#ifdef _WIN32  // no process forks, and none has signals

struct NoSignals {};

#else

const int watched =
    ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });

// While it lives this thread, and those that it starts, get no signals: they are for Python's main
// thread.
class NoSignals {
  public:
    NoSignals() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    NoSignals(const NoSignals&) = delete;
    NoSignals& operator=(const NoSignals&) = delete;
    ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_;
};

#endif

}  // namespace

uint64_t current_process() { return forks.load(std::memory_order_relaxed); }

struct Job::Results {
    std::mutex mutex;
    std::condition_variable finished;
    std::vector<Failure> failures;
    bool incomplete = false;  // a failure was lost, as there was no memory for it
};

Job::Job(int count, int grain)
    : count_(count),
      grain_(grain > 0 ? grain : 1),
      remaining_(count),
      results_(std::make_unique<Results>()) {}

Job::~Job() {
    // In a forked child the mutex may be locked for ever, and cannot be destroyed.
    if (owner_ != current_process()) (void)results_.release();
}

bool Job::run_some(Worker& worker) noexcept {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= count_) return false;
    const int stop = static_cast<int>(std::min<int64_t>(begin + grain_, count_));
    for (int row = static_cast<int>(begin); row < stop; ++row)
        settle(worker, row, attempt([&] { return run(worker, row); }));
    complete(stop - static_cast<int>(begin));
    return true;
}

bool Job::claim(int least, int& row) noexcept {
    int64_t next = next_.load(std::memory_order_relaxed);
    do {
        if (count_ - next < least) return false;
    } while (!next_.compare_exchange_weak(next, next + 1, std::memory_order_relaxed));
    row = static_cast<int>(next);
    return true;
}

void Job::end(Worker& worker, int row, Outcome outcome) noexcept {
    settle(worker, row, std::move(outcome));
    complete(1);
}

void Job::settle(Worker& worker, int row, Outcome outcome) noexcept {
    worker.trim();
    if (outcome.ok()) return;
    blank(row);
    report(row, std::move(outcome));
}

void Job::cancel() noexcept {
    if (owner_ != current_process()) return;
    const int64_t begin = next_.exchange(count_, std::memory_order_relaxed);
    if (begin >= count_) return;
    for (int row = static_cast<int>(begin); row < count_; ++row) {
        blank(row);
        report(row, {Status::cancelled, "cancelled"});
    }
    complete(count_ - static_cast<int>(begin));
}

bool Job::wait() {
    if (owner_ != current_process()) return false;
    std::unique_lock<std::mutex> lock(results_->mutex);
    results_->finished.wait(lock, [this] { return done(); });
    return true;
}

std::vector<Failure> Job::take_failures() {
    if (owner_ != current_process()) return {};
    std::lock_guard<std::mutex> lock(results_->mutex);
    if (results_->incomplete) throw std::bad_alloc();
    std::vector<Failure>& failures = results_->failures;
    std::sort(failures.begin(), failures.end(),
              [](const Failure& a, const Failure& b) { return a.row < b.row; });
    return std::exchange(failures, {});
}

void Job::report(int row, Outcome outcome) noexcept {
    std::lock_guard<std::mutex> lock(results_->mutex);
    try {
        results_->failures.push_back({row, std::move(outcome)});
    } catch (const std::bad_alloc&) {
        results_->incomplete = true;
    }
}

void Job::complete(int rows) noexcept {
    // Under the lock, so that a waiter cannot destroy the job between the count and the
    // notification.
    std::lock_guard<std::mutex> lock(results_->mutex);
    if (remaining_.fetch_sub(rows, std::memory_order_acq_rel) == rows)
        results_->finished.notify_all();
}

struct Pool::ThreadGroup {
    std::mutex mutex;
    std::condition_variable work;
    std::deque<std::shared_ptr<Job>> queue;
    std::vector<std::unique_ptr<Worker>> workers;
    std::vector<std::thread> threads;
    bool stop = false;

    void serve(Worker& worker) noexcept {
        for (;;) {
            std::shared_ptr<Job> job;
            {
                std::unique_lock<std::mutex> lock(mutex);
                work.wait(lock, [this] { return stop || !queue.empty(); });
                if (stop) return;
                job = queue.front();
            }
            while (job->run_some(worker)) {
            }
            std::lock_guard<std::mutex> lock(mutex);
            if (!queue.empty() && queue.front() == job) queue.pop_front();
        }
    }

    // Starts `count` threads, or as many as the system allows; throws the system's error if it
    // allows none. Workers are made here, where an exception can be caught, and not in their
    // threads.
    void start(int count, Pool& pool) {
        threads.reserve(static_cast<size_t>(count));
        workers.reserve(static_cast<size_t>(count));
        std::exception_ptr error;
        try {
            [[maybe_unused]] const NoSignals none;
            for (int i = 0; i < count; ++i) {
                workers.push_back(pool.make_worker(count));
                threads.emplace_back([this, worker = workers.back().get()] { serve(*worker); });
            }
        } catch (...) {
            error = std::current_exception();
        }
        if (threads.empty()) std::rethrow_exception(error);
    }

    void finish() {
        {
            std::lock_guard<std::mutex> lock(mutex);
            stop = true;
            for (const auto& job : queue) job->cancel();
            queue.clear();
        }
        work.notify_all();
        for (std::thread& thread : threads) thread.join();
    }
};

// The state of a pool in one process.
struct Pool::ProcessState {
    const uint64_t owner = current_process();
    std::mutex mutex;                    // protects the members below
    std::unique_ptr<ThreadGroup> group;  // null until the first `submit`
    // For `Pool::run`: workers that no thread uses now.
    std::vector<std::unique_ptr<Worker>> idle;
};

Pool::Pool(int threads, const char* simd, bool always_libjpeg)
    : threads_(threads),
      kernels_(find_kernels(simd)),
      always_libjpeg_(always_libjpeg),
      state_(nullptr) {
    if (threads < 1)
        throw std::invalid_argument("threads must be at least 1, got " + std::to_string(threads));
    if (kernels_ == nullptr) {
        throw std::invalid_argument("simd=\"" + std::string(simd) +
                                    "\" is unknown or not available on this processor");
    }
    state_ = new ProcessState;
}

Pool::~Pool() {
    ProcessState* const mine = state_.load();
    if (mine->owner != current_process()) return;  // the parent's: left as it is, as in `state`
    close();
    delete mine;
}

std::unique_ptr<Worker> Pool::make_worker(int threads) {
    auto made = std::make_unique<Worker>(*kernels_, decoded_);
    made->twin = std::make_unique<Worker>(*kernels_, decoded_);
    made->threads = threads;
    made->decoder.use_libjpeg(always_libjpeg_);
    made->twin->decoder.use_libjpeg(always_libjpeg_);
    return made;
}

void Pool::run(Job& job) {
    ProcessState& here = state();
    std::unique_ptr<Worker> worker;
    {
        std::lock_guard<std::mutex> guard(here.mutex);
        if (!here.idle.empty()) {
            worker = std::move(here.idle.back());
            here.idle.pop_back();
        }
    }
    if (!worker) worker = make_worker(1);
    while (job.run_some(*worker)) {
    }
    std::lock_guard<std::mutex> guard(here.mutex);
    here.idle.push_back(std::move(worker));
}

void Pool::submit(std::shared_ptr<Job> job) {
    if (job->done()) return;  // of no rows
    ProcessState& here = state();
    std::lock_guard<std::mutex> guard(here.mutex);
    if (!here.group) {
        auto group = std::make_unique<ThreadGroup>();
        group->start(threads_, *this);
        here.group = std::move(group);
    }
    ThreadGroup& group = *here.group;
    {
        std::lock_guard<std::mutex> lock(group.mutex);
        group.queue.push_back(std::move(job));
    }
    group.work.notify_all();
}

void Pool::close() {
    ProcessState& here = state();
    std::lock_guard<std::mutex> guard(here.mutex);
    here.idle.clear();
    if (!here.group) return;
    here.group->finish();
    here.group.reset();
}

Pool::ProcessState& Pool::state() {
    ProcessState* found = state_.load();
    if (found->owner == current_process()) return *found;
    // The first use in a forked child. Several threads may be here: one of them replaces the state
    // of the parent, which is never freed, as its locks may be held.
    auto made = std::make_unique<ProcessState>();
    if (state_.compare_exchange_strong(found, made.get())) return *made.release();
    return *found;
}

}  // namespace fastload
