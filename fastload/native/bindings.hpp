// What the files of the bindings share: types of Python arrays, what keeps Python objects alive
// while C++ uses them, and a job as Python sees it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "colour.hpp"
#include "device_plan.hpp"
#include "jobs.hpp"
#include "pool.hpp"

namespace fastload {

namespace nb = nanobind;

template <typename T, int kDimensions>
using Array = nb::ndarray<T, nb::ndim<kDimensions>, nb::c_contig, nb::device::cpu>;
template <typename T, int kDimensions>
using Input = Array<const T, kDimensions>;
template <typename T, int kDimensions>
using Optional = std::optional<Input<T, kDimensions>>;

// The elements of an optional array; null without one.
template <typename Found>
auto data_of(const std::optional<Found>& array) {
    return array ? array->data() : nullptr;
}

// Throws ValueError (in Python) unless the condition holds.
inline void require(bool condition, const char* message) {
    if (!condition) throw nb::value_error(message);
}

// A row of pixels of at most 4 bytes is then shorter than 2^31 bytes: offsets in it are ints.
constexpr size_t kLongestSide = INT32_MAX / 4;

// The size of images in an array. Throws ValueError for longer sides than kLongestSide.
inline Size size_in(size_t height, size_t width) {
    require(height <= kLongestSide && width <= kLongestSide,
            "images of at most 536,870,911 pixels a side are needed");
    return {static_cast<int>(height), static_cast<int>(width)};
}

// Releases the GIL while the object lives, so that other Python threads run.
//
// Before Python 3.14, a daemon thread that asks for the GIL while the interpreter ends is made to
// exit by unwinding its stack. Unwinding through a destructor, or through C++ that catches all
// exceptions, aborts the process. So such a thread waits here for the end of the process instead.
class WithoutGil {
  public:
    WithoutGil() : state_(PyEval_SaveThread()) {}
    WithoutGil(const WithoutGil&) = delete;
    WithoutGil& operator=(const WithoutGil&) = delete;
    ~WithoutGil() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
        }
    }

  private:
    PyThreadState* state_;
};

// Python objects that stay alive as long as this: the arrays that C++ borrows.
using Kept = std::vector<nb::object>;

inline void keep(Kept& all, const Kept& more) { all.insert(all.end(), more.begin(), more.end()); }
template <typename T>
void keep(Kept& all, const T& array) {
    all.push_back(nb::cast(array));
}
// Of arrays, optional arrays, and other Kept.
template <typename... Parts>
Kept kept(const Parts&... parts) {
    Kept all;
    (keep(all, parts), ...);
    return all;
}

// `Encoded` in Python: compressed images. `open` makes the source for one job.
struct Encoded {
    int count = 0;
    std::function<std::unique_ptr<EncodedSource>()> open;
    Kept kept;
};

// `Geometries` in Python: a geometry source, which several jobs may use, and the arrays it borrows.
struct Geometries {
    GeometrySource source;
    size_t count = 0;
    Kept kept;
};

// A vector as an array of Python's, which keeps it.
template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> array_of(std::vector<T> values) {
    auto* held = new std::vector<T>(std::move(values));
    nb::capsule owner(held,
                      [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
    return nb::ndarray<nb::numpy, T, nb::ndim<1>>(held->data(), {held->size()}, owner);
}

// A submitted job, and the arrays that it reads and writes. Its end waits for the rows in work.
class Ticket {
  public:
    Ticket(std::shared_ptr<Job> job, Kept kept) : job_(std::move(job)), kept_(std::move(kept)) {}
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

    ~Ticket() {
        // The rows in work use the arrays.
        WithoutGil released;
        job_->cancel();
        job_->wait();
    }

    // (row, status, message) of each row that failed, once all are done. Throws RuntimeError in a
    // forked child of the process that submitted the job.
    std::vector<std::tuple<int, int, std::string>> wait() {
        bool finished;
        {
            WithoutGil released;
            finished = job_->wait();
        }
        if (!finished)
            throw std::runtime_error("this batch was submitted before the process was forked");
        std::vector<std::tuple<int, int, std::string>> failures;
        for (Failure& failure : job_->take_failures()) {
            failures.emplace_back(failure.row, static_cast<int>(failure.outcome.status),
                                  std::move(failure.outcome.message));
        }
        return failures;
    }

    const std::shared_ptr<Job>& job() const { return job_; }

  private:
    std::shared_ptr<Job> job_;
    Kept kept_;
};

// `DevicePlan` in Python: the crops of one batch that a job plans for a GPU.
class DevicePlan {
  public:
    // `resident`: None, or ResidentImages, with the number there of each image.
    DevicePlan(size_t count, size_t share, uint64_t memory, nb::object resident,
               const std::vector<size_t>& numbers);

    const device::Plans& plans() const { return plans_; }
    // For the one job that fills it. Throws ValueError if there was one, or it has other images.
    device::Plans* fill(size_t count, SeekIndex& index);
    void set_job(std::shared_ptr<Job> job, nb::object index) {
        job_ = std::move(job);
        kept_ = std::move(index);
    }
    // Throws RuntimeError unless the job is done.
    void check_done() const;
    // Puts the crops together, once; by one thread.
    void finish();
    // Throws RuntimeError before `finish`.
    const device::BatchPlan& finished() const;
    // Removes the points of these images from the index; those that are resident are so no more.
    void drop(const std::vector<size_t>& images);

  private:
    device::Plans plans_;  // the job writes here
    device::BatchPlan batch_;
    std::shared_ptr<Job> job_;
    SeekIndex* index_ = nullptr;
    ResidentImages* resident_ = nullptr;
    nb::object kept_, kept_resident_;  // the index, and `resident_`
    bool finished_ = false;
};

// Submits a job; with `here`, runs it in the calling thread before this returns.
inline std::unique_ptr<Ticket> submit(Pool& pool, std::shared_ptr<Job> job, Kept kept, bool here) {
    auto ticket = std::make_unique<Ticket>(job, std::move(kept));
    WithoutGil released;
    here ? pool.run(*job) : pool.submit(std::move(job));
    return ticket;
}

// A table of colour operations for `count` rows, with kinds (count, S) and numbers (count, S, 6),
// which are borrowed. Throws ValueError if they do not fit.
ColourTable colour_table(const Input<int32_t, 2>& kinds, const Input<float, 3>& numbers,
                         size_t count);
// Adds the methods for colour operations, blur, noise and recompression.
void bind_colour(nb::class_<Pool>& pool);
// Adds what fetches objects from stores.
void bind_fetch(nb::module_& m);
// Adds the functions for boxes, and the method that draws masks.
void bind_objects(nb::module_& m, nb::class_<Pool>& pool);
// Adds the plans of crops for a GPU, and the kernels on the host.
void bind_device(nb::module_& m);

}  // namespace fastload
