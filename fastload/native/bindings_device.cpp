// The bindings of crops that are decoded on a GPU: their plan, and the kernels run on the host.
#include <array>

#include <nanobind/stl/array.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "cuda/host.hpp"
#include "device_plan.hpp"
#include "resident_images.hpp"
#include "seek_index.hpp"

namespace fastload {

using namespace nb::literals;

DevicePlan::DevicePlan(size_t count, size_t share, uint64_t memory, nb::object resident,
                       const std::vector<size_t>& numbers)
    : plans_(count, share, memory), batch_(memory), kept_resident_(std::move(resident)) {
    if (kept_resident_.is_none()) return;
    resident_ = nb::cast<ResidentImages*>(kept_resident_);
    require(numbers.size() == count, "numbers: one for each image is needed");
    for (const size_t number : numbers)
        require(number < resident_->count(), "numbers: beyond those that may be resident");
    plans_.resident = resident_;
    plans_.numbers = numbers;
}

device::Plans* DevicePlan::fill(size_t count, SeekIndex& index) {
    require(index_ == nullptr, "plan: it was filled before");
    require(count == plans_.images.size(), "plan: of another number of images");
    index_ = &index;
    return &plans_;
}

void DevicePlan::check_done() const {
    if (job_ == nullptr || !job_->done()) throw std::runtime_error("the batch is not decoded yet");
}

void DevicePlan::finish() {
    check_done();
    const WithoutGil released;
    if (finished_) return;
    size_t bytes = 0;
    for (const device::Plans::Image& image : plans_.images)
        if (image.left == device::Left::none) bytes += image.plan.bytes_in_batch();
    batch_.reserve(bytes + bytes / 16);  // and tasks
    for (size_t row = 0; row < plans_.images.size(); ++row) {
        device::Plans::Image& image = plans_.images[row];
        if (image.left == device::Left::none) batch_.add(image.plan, static_cast<uint32_t>(row));
        image.plan = {};
    }
    batch_.finish();
    finished_ = true;
}

const device::BatchPlan& DevicePlan::finished() const {
    if (!finished_) throw std::runtime_error("finish() comes first");
    return batch_;
}

void DevicePlan::drop(const std::vector<size_t>& images) {
    check_done();
    for (const size_t image : images) {
        require(image < plans_.images.size(), "images: beyond their number");
        const device::Plans::Image& one = plans_.images[image];
        if (one.size != 0) index_->drop(one.hash, one.size);
        if (resident_ != nullptr) resident_->drop(plans_.numbers[image]);
    }
}

namespace {

// Of each image: why it is left to the CPU (device::Left).
nb::ndarray<nb::numpy, int32_t, nb::ndim<1>> left(const DevicePlan& plan) {
    plan.check_done();
    std::vector<int32_t> made;
    for (const device::Plans::Image& image : plan.plans().images)
        made.push_back(static_cast<int>(image.left));
    return array_of(std::move(made));
}

// Of each crop its box in the image: top, left, height, width.
nb::ndarray<nb::numpy, int32_t, nb::ndim<1>> boxes_of(const DevicePlan& plan) {
    const device::BatchPlan& batch = plan.finished();
    std::vector<int32_t> made;
    for (size_t i = 0; i < batch.crops(); ++i) {
        const device::Crop& crop = batch.crop(i);
        made.insert(made.end(), {crop.top, crop.left, crop.height, crop.width});
    }
    return array_of(std::move(made));
}

using ChunkNumbers = std::array<uint64_t, 8>;

std::vector<ChunkNumbers> chunks_of(const DevicePlan& plan) {
    std::vector<ChunkNumbers> made;
    for (const device::Chunk& chunk : plan.finished().chunks())
        made.push_back({chunk.first_crop, chunk.crops, chunk.first_task, chunk.tasks, chunk.blocks,
                        chunk.strips, chunk.first_pixel, chunk.pixels});
    return made;
}

using Prepared = std::tuple<
    nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>, nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>,
    nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>, nb::ndarray<nb::numpy, int32_t, nb::ndim<1>>>;

// Prepares images `first` and those after it. Returns what is to be copied to the device; of each
// image where its part ends, the bytes of its headers, and why it is left.
Prepared prepare(ResidentImages& resident, size_t first,
                 const std::vector<Input<uint8_t, 1>>& files, const SeekIndex& index,
                 int64_t max_pixels, bool exif) {
    require(first <= resident.count() && files.size() <= resident.count() - first,
            "files: beyond those that may be resident");
    std::vector<uint8_t> bytes;
    std::vector<int64_t> ends, headers;
    std::vector<int32_t> left;
    {
        const WithoutGil released;
        for (size_t i = 0; i < files.size(); ++i) {
            size_t scan = 0;
            left.push_back(
                static_cast<int32_t>(resident.prepare(first + i, files[i].data(), files[i].shape(0),
                                                      index, {max_pixels}, exif, bytes, scan)));
            ends.push_back(static_cast<int64_t>(bytes.size()));
            headers.push_back(static_cast<int64_t>(scan));
        }
    }
    return {array_of(std::move(bytes)), array_of(std::move(ends)), array_of(std::move(headers)),
            array_of(std::move(left))};
}

}  // namespace

void bind_device(nb::module_& m) {
    nb::class_<ResidentImages>(m, "ResidentImages")
        .def(nb::init<size_t>(), "count"_a)
        .def("prepare", &prepare, "first"_a, "files"_a, "index"_a, "max_pixels"_a, "exif"_a)
        .def(
            "place",
            [](ResidentImages& resident, size_t number, uint64_t address) {
                require(number < resident.count(), "number: beyond those that may be resident");
                resident.place(number, address);
            },
            "number"_a, "address"_a)
        .def(
            "resident",
            [](const ResidentImages& resident, const Input<int64_t, 1>& numbers) {
                std::vector<uint8_t> made;
                for (size_t i = 0; i < numbers.shape(0); ++i) {
                    const auto number = static_cast<uint64_t>(numbers.data()[i]);
                    require(number < resident.count(),
                            "numbers: beyond those that may be resident");
                    made.push_back(resident.is_resident(number) ? 1 : 0);
                }
                return array_of(std::move(made));
            },
            "numbers"_a)
        .def_prop_ro("nbytes", &ResidentImages::nbytes);
    nb::class_<DevicePlan>(m, "DevicePlan")
        .def(nb::init<size_t, size_t, uint64_t, nb::object, const std::vector<size_t>&>(),
             "images"_a, "share"_a, "memory"_a, "resident"_a = nb::none(),
             "numbers"_a = std::vector<size_t>())
        .def("finish", &DevicePlan::finish)
        .def("drop", &DevicePlan::drop, "images"_a)
        .def_prop_ro("left", &left, nb::rv_policy::automatic)
        .def_prop_ro("boxes", &boxes_of, nb::rv_policy::automatic)
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
                             nb::make_tuple(batch.tasks_at(), sizeof(device::Task)),
                             nb::make_tuple(batch.resizes_at(), sizeof(device::Resize)));
                     })
        .def_prop_ro("chunks", &chunks_of)
        .def_prop_ro("pixel_bytes",
                     [](const DevicePlan& self) { return self.finished().pixel_bytes(); })
        .def_prop_ro("segments",
                     [](const DevicePlan& self) { return self.finished().segments().size(); });
    m.def(
        "kernel_argument_bytes", [](const char* name) { return device::argument_bytes(name); },
        "name"_a);
    m.def(
        "run_kernel_on_host",
        [](const char* name, nb::bytes arguments, uint64_t blocks, unsigned threads) {
            require(device::run_kernel_on_host(name,
                                               reinterpret_cast<const uint8_t*>(arguments.c_str()),
                                               arguments.size(), blocks, threads),
                    "name, arguments: there is no such kernel, or it has others");
        },
        "name"_a, "arguments"_a, "blocks"_a, "threads"_a = 1);
}

}  // namespace fastload
