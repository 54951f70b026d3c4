// The bindings of crops that are decoded on a GPU: their plan, and the kernels run on the host.
#include <atomic>
#include <mutex>

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "cuda/host.hpp"
#include "device_plan.hpp"
#include "seek_index.hpp"

namespace fastload {

using namespace nb::literals;

namespace {

// `DevicePlan` in Python: a batch whose crops are planned by a pool.
class DevicePlan {
  public:
    DevicePlan(size_t count, uint64_t memory) : batch_(memory), crops_(count) {}

    device::BatchPlan& batch() { return batch_; }
    std::vector<device::PlannedCrop>& crops() { return crops_; }
    void set_ticket(std::unique_ptr<Ticket> ticket) { ticket_ = std::move(ticket); }

    // Waits for the crops, puts them together, and returns the failures of reading. Any thread may
    // call; a second call returns none.
    std::vector<std::tuple<int, int, std::string>> wait() {
        WithoutGil released;
        const std::lock_guard<std::mutex> guard(mutex_);
        std::vector<std::tuple<int, int, std::string>> failures;
        if (finished_) return failures;
        if (!ticket_->job()->wait())
            throw std::runtime_error("this batch was submitted before the process was forked");
        for (Failure& failure : ticket_->job()->take_failures()) {
            failures.emplace_back(failure.row, static_cast<int>(failure.outcome.status),
                                  std::move(failure.outcome.message));
        }
        size_t bytes = 0;
        for (const device::PlannedCrop& crop : crops_) {
            if (crop.left != device::Left::none) continue;
            bytes += crop.plan.bytes.size() + sizeof(device::Crop) + sizeof(device::Task);
            bytes += crop.plan.segments.size() * sizeof(device::Segment);
        }
        batch_.reserve(bytes + bytes / 16);  // and tasks
        for (device::PlannedCrop& crop : crops_) {
            if (crop.left == device::Left::none) batch_.add(crop.plan);
            crop.plan = {};
        }
        batch_.finish();
        finished_ = true;
        return failures;
    }
    // Throws RuntimeError before `wait`. What it returns does not change.
    const device::BatchPlan& finished() const {
        if (!finished_) throw std::runtime_error("wait() comes first");
        return batch_;
    }

  private:
    device::BatchPlan batch_;
    std::vector<device::PlannedCrop> crops_;  // jobs write here
    std::mutex mutex_;                        // of `wait`
    std::atomic<bool> finished_{false};
    std::unique_ptr<Ticket> ticket_;  // ends before the crops
};

std::unique_ptr<DevicePlan> plan_crops(Pool& pool, const Encoded& images,
                                       const Geometries& geometries, std::tuple<int, int> size,
                                       nb::handle index, int64_t max_pixels, bool exif,
                                       uint64_t memory, bool here) {
    require(static_cast<size_t>(images.count) == geometries.count,
            "images and geometries differ in length");
    auto plan = std::make_unique<DevicePlan>(geometries.count, memory);
    PlanTable table;
    table.geometries = geometries.source;
    table.size = {std::get<0>(size), std::get<1>(size)};
    table.limits = {max_pixels};
    table.exif_orientation = exif;
    table.index = nb::cast<SeekIndex*>(index);
    table.most_blocks = plan->batch().most_blocks();
    table.crops = &plan->crops();
    Kept all = images.kept;
    keep(all, geometries.kept);
    all.push_back(nb::borrow(index));
    plan->set_ticket(submit(pool, plan_job(images.open(), table), std::move(all), here));
    return plan;
}

// Of each image: why it is left to the CPU (device::Left).
nb::ndarray<nb::numpy, int32_t, nb::ndim<1>> left(DevicePlan& plan) {
    (void)plan.finished();
    std::vector<int32_t> made;
    for (const device::PlannedCrop& crop : plan.crops())
        made.push_back(static_cast<int>(crop.left));
    return array_of(std::move(made));
}

// Of each image 13 numbers: box, size, window, mirrorings (left-right, top-bottom), bicubic.
nb::ndarray<nb::numpy, int32_t, nb::ndim<1>> geometries_of(DevicePlan& plan) {
    (void)plan.finished();
    std::vector<int32_t> made;
    for (const device::PlannedCrop& crop : plan.crops()) {
        const Geometry& found = crop.geometry;
        made.insert(made.end(), {found.box.top, found.box.left, found.box.height, found.box.width,
                                 found.size.height, found.size.width, found.window.top,
                                 found.window.left, found.window.height, found.window.width,
                                 found.mirror, found.upside_down, found.bicubic});
    }
    return array_of(std::move(made));
}

std::vector<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint64_t, uint64_t>> chunks_of(
    const DevicePlan& plan) {
    std::vector<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint64_t, uint64_t>> made;
    for (const device::Chunk& chunk : plan.finished().chunks())
        made.emplace_back(chunk.first_crop, chunk.crops, chunk.first_task, chunk.tasks,
                          chunk.blocks, chunk.strips);
    return made;
}

nb::tuple run_on_host(const DevicePlan& plan, unsigned threads) {
    require(threads >= 1 && threads <= 64 && (threads & (threads - 1)) == 0,
            "threads: a power of two up to 64 is needed");
    device::HostRun run;
    {
        const device::BatchPlan& batch = plan.finished();
        WithoutGil released;
        run = device::run_on_host(batch, threads);
    }
    return nb::make_tuple(array_of(std::move(run.pixels)), array_of(std::move(run.failures)),
                          array_of(std::move(run.turns)));
}

}  // namespace

void bind_device(nb::module_& m, nb::class_<Pool>& pool) {
    nb::class_<DevicePlan>(m, "DevicePlan")
        .def("wait", &DevicePlan::wait)
        .def_prop_ro("left", &left, nb::rv_policy::automatic)
        .def_prop_ro("geometries", &geometries_of, nb::rv_policy::automatic)
        .def_prop_ro(
            "buffer",
            [](nb::handle self) {
                const auto& buffer = nb::cast<DevicePlan&>(self).finished().buffer();
                return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(buffer.data(),
                                                                          {buffer.size()}, self);
            },
            nb::rv_policy::automatic)
        .def_prop_ro("tables",
                     [](const DevicePlan& self) {
                         const device::BatchPlan& batch = self.finished();
                         return nb::make_tuple(
                             nb::make_tuple(batch.crops_at(), sizeof(device::Crop)),
                             nb::make_tuple(batch.segments_at(), sizeof(device::Segment)),
                             nb::make_tuple(batch.tasks_at(), sizeof(device::Task)));
                     })
        .def_prop_ro("chunks", &chunks_of)
        .def_prop_ro("pixel_bytes",
                     [](const DevicePlan& self) { return self.finished().pixel_bytes(); })
        .def_prop_ro("segments",
                     [](const DevicePlan& self) { return self.finished().segments().size(); })
        .def("run_on_host", &run_on_host, "threads"_a = 1);
    m.def(
        "run_kernel_on_host",
        [](const char* name, nb::bytes arguments, uint64_t blocks) {
            require(arguments.size() == device::kArgumentBytes, "arguments: 80 bytes are needed");
            require(device::run_kernel_on_host(
                        name, reinterpret_cast<const uint8_t*>(arguments.c_str()), blocks),
                    "name: no such kernel");
        },
        "name"_a, "arguments"_a, "blocks"_a);
    pool.def("plan_crops", &plan_crops, "images"_a, "geometries"_a, "size"_a, "index"_a,
             "max_pixels"_a, "exif"_a, "memory"_a, "here"_a);
}

}  // namespace fastload
