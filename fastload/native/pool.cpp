#include "pool.hpp"

#include <algorithm>
#include <deque>
#include <exception>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "kernels.hpp"
#include "worker.hpp"

namespace fastload {

pid_t Job::current_process() { return ::getpid(); }

bool Job::run_some(Worker& worker) {
    const int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
    if (begin >= count_) return false;
    const int stop = static_cast<int>(std::min<int64_t>(begin + grain_, count_));
    for (int row = static_cast<int>(begin); row < stop; ++row) {
        Outcome outcome;
        try {
            outcome = run(worker, row);
        } catch (const std::bad_alloc&) {
            outcome = {Status::unreadable, "not enough memory"};
        } catch (const std::exception& error) {
            outcome = {Status::damaged, error.what()};
        }
        worker.trim();
        if (!outcome.ok()) {
            blank(row);
            report(row, std::move(outcome));
        }
    }
    complete(stop - static_cast<int>(begin));
    return true;
}

void Job::cancel() {
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
    if (owner_ != current_process()) return done();
    std::unique_lock<std::mutex> lock(mutex_);
    finished_.wait(lock, [this] { return done(); });
    return true;
}

std::vector<Failure> Job::take_failures() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::sort(failures_.begin(), failures_.end(), [](const Failure& a, const Failure& b) { return a.row < b.row; });
    return std::move(failures_);
}

void Job::report(int row, Outcome outcome) {
    std::lock_guard<std::mutex> lock(mutex_);
    failures_.push_back({row, std::move(outcome)});
}

void Job::complete(int rows) {
    // Under the lock, so that a waiter cannot destroy the job between the count and the notification.
    std::lock_guard<std::mutex> lock(mutex_);
    if (remaining_.fetch_sub(rows, std::memory_order_acq_rel) == rows) finished_.notify_all();
}

struct Pool::Crew {
    std::mutex mutex;
    std::condition_variable work;
    std::deque<std::shared_ptr<Job>> queue;
    std::vector<std::thread> threads;
    bool stop = false;

    void serve(const Kernels& kernels) {
        Worker worker(kernels);
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

    // As many threads as the system allows, at least one, else std::system_error.
    void start(int count, const Kernels& kernels) {
        // Signals are for Python's main thread.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            for (int i = 0; i < count; ++i) threads.emplace_back([this, &kernels] { serve(kernels); });
        } catch (const std::system_error&) {
            if (threads.empty()) {
                pthread_sigmask(SIG_SETMASK, &before, nullptr);
                throw;
            }
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
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

Pool::Pool(int threads, const char* simd) : threads_(threads), kernels_(find_kernels(simd)) {
    if (threads < 1) throw std::invalid_argument("threads must be at least 1, got " + std::to_string(threads));
    if (kernels_ == nullptr) {
        throw std::invalid_argument("simd=\"" + std::string(simd) + "\" is unknown or not available on this processor");
    }
}

Pool::~Pool() { close(); }

const char* Pool::simd() const { return kernels_->name; }

void Pool::submit(std::shared_ptr<Job> job) {
    if (job->done()) return;  // of no rows
    if (owner_ != 0 && owner_ != ::getpid()) leave_to_parent();
    std::lock_guard<std::mutex> guard(mutex_);
    if (!crew_) {
        auto crew = std::make_unique<Crew>();
        crew->start(threads_, *kernels_);
        crew_ = std::move(crew);
        owner_ = ::getpid();
    }
    {
        std::lock_guard<std::mutex> lock(crew_->mutex);
        crew_->queue.push_back(std::move(job));
    }
    crew_->work.notify_all();
}

void Pool::close() {
    if (owner_ != 0 && owner_ != ::getpid()) leave_to_parent();
    std::lock_guard<std::mutex> guard(mutex_);
    if (!crew_) return;
    crew_->finish();
    crew_.reset();
}

void Pool::leave_to_parent() {
    // In a forked child: the threads exist in the parent only, and the locks are as they were at the fork, perhaps
    // held for ever. Neither can be destroyed, so the child's copy of them is given up, and the lock made anew.
    (void)crew_.release();
    new (&mutex_) std::mutex;
    owner_ = 0;
}

}  // namespace fastload
