// The native pool under stress: many threads, forks, and memory that runs out.
//
//     stress_pool threads SECONDS
//     stress_pool fork CHILDREN
//     stress_pool memory TIMES
//
// threads: jobs are submitted, run, cancelled and awaited by several threads, and every row is
// checked. fork: the process forks while the first batch is submitted, and each child submits from
// several threads. memory: each allocation fails once, in turn: this must give an exception or a
// failure, never an end of the process or a hang.
//
// Exit status 0 if all was right. For ThreadSanitizer see CMakeLists.txt here.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "decoder.hpp"
#include "pool.hpp"

// The allocation that fails: the n-th from now on, in any thread; negative: none.
static std::atomic<long> countdown{-1};

static void* allocate(std::size_t size) {
    if (countdown.load(std::memory_order_relaxed) >= 0 && countdown.fetch_sub(1) == 0)
        return nullptr;
    return std::malloc(size == 0 ? 1 : size);
}

void* operator new(std::size_t size) {
    if (void* memory = allocate(size)) return memory;
    throw std::bad_alloc();
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using fastload::Job;
using fastload::Outcome;
using fastload::Pool;
using fastload::Status;
using fastload::Worker;

// Writes row + 1 into each row; every seventh fails where that is asked for.
class Numbers final : public Job {
  public:
    Numbers(int rows, int grain, bool failing)
        : Job(rows, grain), values(static_cast<size_t>(rows), -1), failing_(failing) {}

    std::vector<int> values;

  private:
    Outcome run(Worker&, int row) override {
        if (failing_ && row % 7 == 3)
            return {Status::damaged, "a message that is too long to lie in the string itself"};
        values[static_cast<size_t>(row)] = row + 1;
        return {};
    }
    void blank(int row) noexcept override { values[static_cast<size_t>(row)] = 0; }

    bool failing_;
};

// The number of wrong rows of a job that was waited for.
int wrong_rows(Numbers& job) {
    std::vector<bool> failed(job.values.size());
    int wrong = 0;
    for (const fastload::Failure& failure : job.take_failures())
        failed[static_cast<size_t>(failure.row)] = true;
    for (size_t row = 0; row < job.values.size(); ++row) {
        if (job.values[row] != (failed[row] ? 0 : static_cast<int>(row) + 1)) ++wrong;
    }
    return wrong;
}

int run_threads(int seconds) {
    Pool pool(4, "plain");
    std::atomic<long> jobs{0}, rows{0}, wrong{0}, cancelled{0};
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    std::vector<std::thread> clients;
    for (unsigned number = 0; number < 6; ++number) {
        clients.emplace_back([&, number] {
            std::mt19937 random(number);
            while (std::chrono::steady_clock::now() < end) {
                std::vector<std::shared_ptr<Numbers>> flying;
                for (unsigned i = random() % 4 + 1; i > 0; --i) {
                    flying.push_back(
                        std::make_shared<Numbers>(random() % 40, random() % 5, random() % 2));
                    if (random() % 4 == 0) {
                        pool.run(*flying.back());
                    } else {
                        pool.submit(flying.back());
                    }
                }
                for (auto& job : flying) {
                    if (random() % 3 == 0) {
                        job->cancel();
                        ++cancelled;
                    }
                    if (random() % 64 == 0) pool.close();
                    if (random() % 2 == 0) (void)job->done();
                    if (!job->wait()) ++wrong;
                    wrong += wrong_rows(*job);
                    rows += static_cast<long>(job->values.size());
                    ++jobs;
                }
            }
        });
    }
    for (std::thread& client : clients) client.join();
    std::printf("%ld jobs, %ld rows, %ld cancelled, %ld rows wrong\n", jobs.load(), rows.load(),
                cancelled.load(), wrong.load());
    return wrong == 0 ? 0 : 1;
}

// In a child: eight threads submit at once to a pool that the parent was using, and drop a job of
// the parent.
[[noreturn]] void child(Pool& pool, std::shared_ptr<Numbers> parents) {
    ::alarm(10);
    std::atomic<int> wrong{0}, ready{0};
    if (parents->wait()) ++wrong;  // it is not ours, done or not
    parents->cancel();
    (void)parents->take_failures();
    parents.reset();
    std::vector<std::thread> threads;
    for (int number = 0; number < 8; ++number) {
        threads.emplace_back([&] {
            ++ready;
            while (ready < 8) std::this_thread::yield();
            auto job = std::make_shared<Numbers>(20, 1, true),
                 mine = std::make_shared<Numbers>(20, 1, true);
            pool.submit(job);
            pool.run(*mine);
            if (!job->wait() || !mine->done()) ++wrong;
            wrong += wrong_rows(*job) + wrong_rows(*mine);
        });
    }
    for (std::thread& thread : threads) thread.join();
    pool.close();
    ::_exit(wrong == 0 ? 0 : 1);
}

int run_forks(int children) {
    // As the extension does when it is imported: in a child that is forked while another thread
    // opens the library, the threads would wait for that thread.
    fastload::LibJpegDecoder::load();
    int hung = 0, died = 0, wrong = 0;
    for (int number = 0; number < children; ++number) {
        auto pool = std::make_unique<Pool>(8, "plain");
        auto job = std::make_shared<Numbers>(50, 1, true);
        std::atomic<bool> started{false};
        std::thread first([&] {
            started = true;
            pool->submit(job);
            job->wait();
        });
        while (!started) {
        }
        for (volatile int pause = 0; pause < (number % 40) * 500; pause = pause + 1) {
        }
        const pid_t pid = ::fork();
        if (pid == 0) child(*pool, std::move(job));
        int status = 0;
        ::waitpid(pid, &status, 0);
        if (WIFSIGNALED(status)) {
            WTERMSIG(status) == SIGALRM ? ++hung : ++died;
        } else if (WEXITSTATUS(status) != 0) {
            ++wrong;
        }
        first.join();
    }
    std::printf("%d children: %d hung, %d died, %d wrong\n", children, hung, died, wrong);
    return hung + died + wrong == 0 ? 0 : 1;
}

// One batch while the allocation after `after` others fails; whether that one was reached.
bool run_short_of_memory(long after) {
    bool reached = true;
    try {
        auto job = std::make_shared<Numbers>(30, 1, true);
        std::string long_text;
        Pool pool(3, "plain");
        countdown = after;
        try {
            pool.submit(job);
            if (after % 3 == 0) job->cancel();
            job->wait();
            if (wrong_rows(*job) != 0) std::abort();
        } catch (const std::bad_alloc&) {
            job->cancel();
            job->wait();
        }
        reached = countdown < 0;
        countdown = -1;
        // What has failed does not stay so.
        auto next = std::make_shared<Numbers>(30, 1, true);
        pool.submit(next);
        next->wait();
        if (wrong_rows(*next) != 0) std::abort();
    } catch (const std::exception& error) {
        std::printf("allocation %ld: %s\n", after, error.what());
        std::exit(1);
    }
    return reached;
}

int run_memory(int times) {
    long allocations = 0;
    for (int round = 0; round < times; ++round) {
        long after = 0;
        do {
            ::alarm(20);
            allocations = std::max(allocations, after);
        } while (run_short_of_memory(after++));
    }
    std::printf("each of %ld allocations failed, %d times\n", allocations, times);
    return 0;
}

}  // namespace

int main(int count, char** arguments) {
    const std::string mode = count == 3 ? arguments[1] : "";
    const int number = count == 3 ? std::atoi(arguments[2]) : 0;
    if (mode == "threads") return run_threads(number);
    if (mode == "fork") return run_forks(number);
    if (mode == "memory") return run_memory(number);
    std::fprintf(stderr, "usage: stress_pool threads SECONDS | fork CHILDREN | memory TIMES\n");
    return 2;
}
