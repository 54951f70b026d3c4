// The Python face of the native core: arrays in, jobs out. Shapes and ranges are checked in fastload/native/pool.py,
// which knows how to say what is wrong; here only what could reach outside of memory is.
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include "decode_job.hpp"
#include "draws.hpp"
#include "gather_job.hpp"
#include "libjpeg.hpp"
#include "pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace fastload {
namespace {

template <typename T, int kDimensions>
using Array = nb::ndarray<T, nb::ndim<kDimensions>, nb::c_contig, nb::device::cpu>;
template <typename T, int kDimensions>
using Input = Array<const T, kDimensions>;

void require(bool condition, const char* message) {
    if (!condition) throw nb::value_error(message);
}

// Lets other Python threads run while it lives. A daemon thread that wants the GIL back while the interpreter ends is
// told to exit by unwinding its stack (before Python 3.14), which from a destructor, or through C++ that catches what it
// does not know, ends the process with an abort; such a thread stays here instead until the process is gone.
class WithoutGil {
  public:
    WithoutGil() : state_(PyEval_SaveThread()) {}
    WithoutGil(const WithoutGil&) = delete;
    WithoutGil& operator=(const WithoutGil&) = delete;
    ~WithoutGil() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) ::pause();
        }
    }

  private:
    PyThreadState* state_;
};

// Keeps alive what C++ borrows.
using Kept = std::vector<nb::object>;

// A submitted job and the arrays it reads and writes.
class Ticket {
  public:
    Ticket(std::shared_ptr<Job> job, Kept kept) : job_(std::move(job)), kept_(std::move(kept)) {}
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

    ~Ticket() {
        // The arrays must outlive the rows in work.
        WithoutGil released;
        job_->cancel();
        job_->wait();
    }

    std::vector<std::tuple<int, int, std::string>> wait() {
        bool finished;
        {
            WithoutGil released;
            finished = job_->wait();
        }
        if (!finished) throw std::runtime_error("this batch was submitted before the process was forked");
        std::vector<std::tuple<int, int, std::string>> failures;
        for (Failure& failure : job_->take_failures()) {
            failures.emplace_back(failure.row, static_cast<int>(failure.outcome.status),
                                  std::move(failure.outcome.message));
        }
        return failures;
    }

    bool done() const { return job_->done(); }
    void cancel() { job_->cancel(); }

  private:
    std::shared_ptr<Job> job_;
    Kept kept_;
};

// Compressed images as Python gave them; opened once for each job.
struct Encoded {
    std::vector<Bytes> buffers;
    PathRows paths;
    bool in_files = false;
    Kept kept;

    int count() const { return in_files ? paths.count : static_cast<int>(buffers.size()); }
    std::unique_ptr<EncodedSource> open() const {
        if (in_files) return std::make_unique<EncodedFiles>(paths);
        return std::make_unique<EncodedBuffers>(buffers);
    }
};

Encoded encoded_buffers(const std::vector<Input<uint8_t, 1>>& buffers) {
    Encoded encoded;
    for (const auto& buffer : buffers) {
        encoded.buffers.push_back({buffer.data(), buffer.size()});
        encoded.kept.push_back(nb::cast(buffer));
    }
    return encoded;
}

Encoded encoded_files(const nb::bytes& root, Input<uint8_t, 1> blob, Input<int64_t, 1> ends, Input<int64_t, 1> rows,
                      std::optional<Input<int64_t, 1>> offsets, std::optional<Input<int64_t, 1>> lengths) {
    Encoded encoded;
    encoded.in_files = true;
    PathRows& paths = encoded.paths;
    paths.root.assign(root.c_str(), root.size());
    paths.blob = blob.data();
    paths.ends = ends.data();
    paths.rows = rows.data();
    paths.count = static_cast<int>(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
        const int64_t row = rows.data()[i];
        require(row >= 0 && row < static_cast<int64_t>(ends.size()), "rows: beyond the number of paths");
        const int64_t begin = row > 0 ? ends.data()[row - 1] : 0;
        require(begin >= 0 && begin <= ends.data()[row] && ends.data()[row] <= static_cast<int64_t>(blob.size()),
                "ends: not ascending positions in blob");
    }
    require(offsets.has_value() == lengths.has_value(), "offsets, lengths: give both or neither");
    encoded.kept = {nb::cast(blob), nb::cast(ends), nb::cast(rows)};
    if (offsets) {
        require(offsets->size() == rows.size() && lengths->size() == rows.size(), "offsets, lengths: one a row");
        paths.offsets = offsets->data();
        paths.lengths = lengths->data();
        encoded.kept.push_back(nb::cast(*offsets));
        encoded.kept.push_back(nb::cast(*lengths));
    }
    return encoded;
}

// A geometry source that several jobs may read, and the arrays it borrows.
struct Geometries {
    std::shared_ptr<const GeometrySource> source;
    size_t count = 0;
    Kept kept;
};

Geometries given(Input<int32_t, 2> box, Input<int32_t, 2> size, Input<int32_t, 2> window, Input<bool, 2> flip,
                 std::optional<Input<bool, 1>> bicubic) {
    const size_t count = box.shape(0);
    require(box.shape(1) == 4 && size.shape(1) == 2 && window.shape(1) == 4 && flip.shape(1) == 2,
            "box (B, 4), size (B, 2), window (B, 4), flip (B, 2) are needed");
    require(size.shape(0) == count && window.shape(0) == count && flip.shape(0) == count,
            "box, size, window and flip differ in length");
    require(!bicubic || bicubic->size() == count, "bicubic and box differ in length");
    const bool* filters = bicubic ? bicubic->data() : nullptr;
    return {std::make_shared<GivenGeometry>(box.data(), size.data(), window.data(), flip.data(), filters), count,
            {nb::cast(box), nb::cast(size), nb::cast(window), nb::cast(flip), nb::cast(bicubic)}};
}

Size size_of(const std::tuple<int, int>& size) { return {std::get<0>(size), std::get<1>(size)}; }

Geometries drawn_crops(Input<double, 2> uniforms, Input<bool, 2> flip, std::tuple<int, int> size,
                       std::tuple<double, double> scale, std::tuple<double, double> ratio,
                       std::tuple<double, double> log_ratio, std::optional<Input<bool, 1>> bicubic) {
    const size_t count = uniforms.shape(0);
    require(uniforms.shape(1) == RandomResizedCropPlan::kUniforms && flip.shape(0) == count && flip.shape(1) == 2,
            "uniforms (B, 22) and flip (B, 2) are needed");
    require(!bicubic || bicubic->size() == count, "bicubic and uniforms differ in length");
    RandomResizedCropPlan plan;
    plan.size = size_of(size);
    std::tie(plan.scale_low, plan.scale_high) = scale;
    std::tie(plan.ratio_low, plan.ratio_high) = ratio;
    std::tie(plan.log_ratio_low, plan.log_ratio_high) = log_ratio;
    const bool* filters = bicubic ? bicubic->data() : nullptr;
    return {std::make_shared<RandomResizedCrops>(uniforms.data(), flip.data(), plan, filters), count,
            {nb::cast(uniforms), nb::cast(flip), nb::cast(bicubic)}};
}

Geometries resized(Input<bool, 2> flip, std::optional<std::tuple<int, int>> size, int shorter, int longest,
                   std::optional<std::tuple<int, int>> crop) {
    require(flip.shape(1) == 2, "flip (B, 2) is needed");
    require(size.has_value() || shorter > 0 || longest > 0, "size, shorter or longest is needed");
    ResizePlan plan;
    if (size) plan.size = size_of(*size);
    plan.shorter = shorter;
    plan.longest = longest;
    if (crop) plan.crop = size_of(*crop);
    return {std::make_shared<ResizedImages>(flip.data(), plan), flip.shape(0), {nb::cast(flip)}};
}

Geometries padded_crops(Input<double, 2> uniforms, Input<bool, 2> flip, std::tuple<int, int> size,
                        std::tuple<int, int> before, std::tuple<int, int> after) {
    const size_t count = uniforms.shape(0);
    require(uniforms.shape(1) == PaddedCropPlan::kUniforms && flip.shape(0) == count && flip.shape(1) == 2,
            "uniforms (B, 2) and flip (B, 2) are needed");
    const PaddedCropPlan plan = {size_of(size), size_of(before), size_of(after)};
    return {std::make_shared<PaddedCrops>(uniforms.data(), flip.data(), plan), count,
            {nb::cast(uniforms), nb::cast(flip)}};
}

Geometries whole(Input<bool, 2> flip) {
    require(flip.shape(1) == 2, "flip (B, 2) is needed");
    return {std::make_shared<WholeImages>(flip.data()), flip.shape(0), {nb::cast(flip)}};
}

// The geometry of each row for an image of each size, for tests and for callers that want to see it.
void resolve_all(const Geometries& geometries, Input<int64_t, 2> sizes, Array<int32_t, 2> out) {
    require(sizes.shape(0) == geometries.count && sizes.shape(1) == 2, "sizes (B, 2) are needed");
    require(out.shape(0) == geometries.count && out.shape(1) == 12, "out (B, 12) is needed");
    WithoutGil released;
    for (size_t i = 0; i < geometries.count; ++i) {
        const Size image = {static_cast<int>(sizes.data()[2 * i]), static_cast<int>(sizes.data()[2 * i + 1])};
        Geometry g;
        int32_t* to = out.data() + 12 * i;
        if (!geometries.source->resolve(static_cast<int>(i), image, g).ok()) {
            std::fill_n(to, 12, 0);
            continue;
        }
        const int32_t values[12] = {g.box.top,      g.box.left,      g.box.height,    g.box.width,
                                    g.size.height,  g.size.width,    g.window.top,    g.window.left,
                                    g.window.height, g.window.width, g.mirror,        g.upside_down};
        std::copy(values, values + 12, to);
    }
}

ResampleOptions resample_options(int filter, bool antialias, int padding, std::tuple<int, int, int, int> fill) {
    require(filter >= 0 && filter <= static_cast<int>(Filter::bicubic), "filter: unknown");
    require(padding >= 0 && padding <= static_cast<int>(Padding::symmetric), "padding: unknown");
    ResampleOptions options;
    options.interpolation = {static_cast<Filter>(filter), antialias};
    options.padding = static_cast<Padding>(padding);
    options.fill[0] = static_cast<uint8_t>(std::get<0>(fill));
    options.fill[1] = static_cast<uint8_t>(std::get<1>(fill));
    options.fill[2] = static_cast<uint8_t>(std::get<2>(fill));
    options.fill[3] = static_cast<uint8_t>(std::get<3>(fill));
    return options;
}

// With `here` the job is done in the calling thread, before this returns.
std::unique_ptr<Ticket> submit(Pool& pool, std::shared_ptr<Job> job, Kept kept, bool here = false) {
    auto ticket = std::make_unique<Ticket>(job, std::move(kept));
    WithoutGil released;
    if (here) {
        pool.run(*job);
    } else {
        pool.submit(std::move(job));
    }
    return ticket;
}

DecodeOptions decode_options(int64_t max_pixels, bool exif, bool whole, bool draft) {
    DecodeOptions options;
    options.limits.max_pixels = max_pixels;
    options.exif_orientation = exif;
    options.whole = whole;
    options.draft = draft;
    return options;
}

// A view of every image of a batch, and the arrays that it reads and writes.
struct BatchView {
    View view;
    size_t count = 0;
    Kept kept;
};

BatchView batch_view(nb::handle_t<Geometries> geometries, Array<uint8_t, 4> out, const ResampleOptions& resample) {
    const auto& placed = nb::cast<const Geometries&>(geometries);
    require(out.shape(3) == 3, "out (B, h, w, 3) is needed");
    require(placed.count == out.shape(0), "geometry and out differ in length");
    Output output;
    output.base = out.data();
    output.size = {static_cast<int>(out.shape(1)), static_cast<int>(out.shape(2))};
    return {{placed.source, resample, output}, placed.count, {nb::borrow(geometries), nb::cast(out)}};
}

std::unique_ptr<Ticket> decode(Pool& pool, nb::handle_t<Encoded> images, const std::vector<BatchView>& views,
                               int64_t max_pixels, bool exif, bool whole, bool draft, bool here) {
    const auto& encoded = nb::cast<const Encoded&>(images);
    require(!views.empty(), "views: at least one is needed");
    std::vector<View> made;
    Kept kept = {nb::borrow(images)};
    for (const BatchView& one : views) {
        require(static_cast<size_t>(encoded.count()) == one.count, "images and views differ in length");
        made.push_back(one.view);
        kept.insert(kept.end(), one.kept.begin(), one.kept.end());
    }
    auto job = std::make_shared<DecodeJob>(encoded.open(), std::move(made), decode_options(max_pixels, exif, whole, draft));
    return submit(pool, std::move(job), std::move(kept), here);
}

std::unique_ptr<Ticket> decode_flat(Pool& pool, nb::handle_t<Encoded> images, nb::handle_t<Geometries> geometries,
                                    Array<uint8_t, 1> out, Input<int64_t, 1> offsets, Input<int32_t, 2> sizes,
                                    const ResampleOptions& resample, int64_t max_pixels, bool exif, bool whole, bool draft) {
    const auto& encoded = nb::cast<const Encoded&>(images);
    const auto& placed = nb::cast<const Geometries&>(geometries);
    const size_t count = offsets.size();
    require(static_cast<size_t>(encoded.count()) == count && placed.count == count && sizes.shape(0) == count &&
                sizes.shape(1) == 2,
            "images, geometry, offsets (B,) and sizes (B, 2) differ in length");
    const auto total = static_cast<int64_t>(out.size());
    for (size_t i = 0; i < count; ++i) {
        const int64_t height = sizes.data()[2 * i], width = sizes.data()[2 * i + 1], offset = offsets.data()[i];
        require(height > 0 && width > 0 && offset >= 0 && offset <= total && height * width <= (total - offset) / 3,
                "offsets, sizes: an image reaches outside of out");
    }
    Output output;
    output.base = out.data();
    output.offsets = offsets.data();
    output.sizes = sizes.data();
    auto job = std::make_shared<DecodeJob>(encoded.open(), std::vector<View>{{placed.source, resample, output}},
                                           decode_options(max_pixels, exif, whole, draft));
    return submit(pool, std::move(job), {nb::borrow(images), nb::borrow(geometries), nb::cast(out),
                                         nb::cast(offsets), nb::cast(sizes)});
}

std::unique_ptr<Ticket> read_headers(Pool& pool, nb::handle_t<Encoded> images, Array<int32_t, 2> out,
                                     int64_t max_pixels, bool here) {
    const auto& encoded = nb::cast<const Encoded&>(images);
    require(out.shape(0) == static_cast<size_t>(encoded.count()) && out.shape(1) == HeaderJob::kColumns,
            "out (B, 5) is needed");
    DecodeLimits limits;
    limits.max_pixels = max_pixels;
    auto job = std::make_shared<HeaderJob>(encoded.open(), limits, out.data());
    return submit(pool, std::move(job), {nb::borrow(images), nb::cast(out)}, here);
}

void check_pixels(const PixelRows& images, size_t available, size_t images_count) {
    const auto total = static_cast<int64_t>(available);
    for (int i = 0; i < images.count; ++i) {
        const int64_t row = images.rows[i];
        require(row >= 0 && row < static_cast<int64_t>(images_count), "rows: beyond the number of images");
        if (images.sizes == nullptr) continue;
        const int64_t height = images.sizes[2 * row], width = images.sizes[2 * row + 1];
        require(height > 0 && width > 0 && images.offsets[row] >= 0 && images.offsets[row] <= total &&
                    height * width <= (total - images.offsets[row]) / images.channels,
                "offsets, sizes: an image reaches outside of the array");
    }
}

std::unique_ptr<Ticket> gather(Pool& pool, Input<uint8_t, 4> array, Input<int64_t, 1> rows,
                               nb::handle_t<Geometries> geometries, Array<uint8_t, 4> out,
                               const ResampleOptions& resample, bool here) {
    const auto& placed = nb::cast<const Geometries&>(geometries);
    const size_t channels = array.shape(3);
    require(channels >= 1 && channels <= 4 && out.shape(3) == channels, "array and out differ in channels");
    require(rows.size() == out.shape(0) && placed.count == out.shape(0), "rows, geometry and out differ in length");
    PixelRows images;
    images.base = array.data();
    images.rows = rows.data();
    images.size = {static_cast<int>(array.shape(1)), static_cast<int>(array.shape(2))};
    images.channels = static_cast<int>(channels);
    images.count = static_cast<int>(rows.size());
    check_pixels(images, array.size(), array.shape(0));
    const Size size = {static_cast<int>(out.shape(1)), static_cast<int>(out.shape(2))};
    auto job = std::make_shared<GatherJob>(images, placed.source, resample, size, out.data());
    return submit(pool, std::move(job), {nb::cast(array), nb::cast(rows), nb::borrow(geometries), nb::cast(out)}, here);
}

std::unique_ptr<Ticket> gather_flat(Pool& pool, Input<uint8_t, 1> array, Input<int64_t, 1> offsets,
                                    Input<int32_t, 2> sizes, Input<int64_t, 1> rows,
                                    nb::handle_t<Geometries> geometries, Array<uint8_t, 4> out,
                                    const ResampleOptions& resample) {
    const auto& placed = nb::cast<const Geometries&>(geometries);
    require(sizes.shape(1) == 2 && sizes.shape(0) == offsets.size(), "offsets (N,) and sizes (N, 2) are needed");
    require(out.shape(3) >= 1 && out.shape(3) <= 4, "out: one to four channels are needed");
    require(rows.size() == out.shape(0) && placed.count == out.shape(0), "rows, geometry and out differ in length");
    PixelRows images;
    images.base = array.data();
    images.rows = rows.data();
    images.offsets = offsets.data();
    images.sizes = sizes.data();
    images.channels = static_cast<int>(out.shape(3));
    images.count = static_cast<int>(rows.size());
    check_pixels(images, array.size(), offsets.size());
    const Size size = {static_cast<int>(out.shape(1)), static_cast<int>(out.shape(2))};
    auto job = std::make_shared<GatherJob>(images, placed.source, resample, size, out.data());
    return submit(pool, std::move(job), {nb::cast(array), nb::cast(offsets), nb::cast(sizes), nb::cast(rows),
                                         nb::borrow(geometries), nb::cast(out)});
}

Counter counter_of(const Input<int64_t, 1>& indices, const std::optional<Input<int64_t, 1>>& repeats, uint64_t seed,
                   uint32_t epoch, uint32_t stream) {
    require(!repeats || repeats->size() == indices.size(), "repeats must be as long as indices");
    return {indices.data(), repeats ? repeats->data() : nullptr, indices.size(), seed, epoch, stream};
}

// Images decoded: JPEGs by our own decoder, or by the reason why libjpeg-turbo was it; those of other formats.
std::map<std::string, int64_t> decoded(const Pool& pool) {
    static constexpr const char* kNames[jpeg::kReasons] = {"own", "progressive", "components", "layout", "unusual", "forced"};
    std::map<std::string, int64_t> result;
    for (int i = 0; i < jpeg::kReasons; ++i) result[kNames[i]] = pool.decoded().of[i].load(std::memory_order_relaxed);
    result["png"] = pool.decoded().png.load(std::memory_order_relaxed);
    result["webp"] = pool.decoded().webp.load(std::memory_order_relaxed);
    return result;
}

void uniforms(Input<int64_t, 1> indices, std::optional<Input<int64_t, 1>> repeats, uint64_t seed, uint32_t epoch,
              uint32_t stream, Array<double, 2> out) {
    require(out.shape(0) == indices.size(), "out must be as long as indices");
    draw_uniforms(counter_of(indices, repeats, seed, epoch, stream), out.shape(1), out.data());
}

void integers(Input<int64_t, 1> indices, std::optional<Input<int64_t, 1>> repeats, uint64_t seed, uint32_t epoch,
              uint32_t stream, Array<uint64_t, 1> out) {
    require(out.size() == indices.size(), "out must be as long as indices");
    const Counter counter = counter_of(indices, repeats, seed, epoch, stream);
    WithoutGil released;
    draw_integers(counter, out.data());
}

}  // namespace
}  // namespace fastload

NB_MODULE(_core, m) {
    using namespace fastload;

    // What a daemon thread or a forked child still holds at its end is no mistake of the bindings.
    nb::set_leak_warnings(false);
    load_libjpeg();  // now, so that a library that is missing makes the import fail and not the first batch
    m.def("formats", &Decoder::formats);
    m.def("uniforms", &uniforms, "indices"_a, "repeats"_a.none(), "seed"_a, "epoch"_a, "stream"_a, "out"_a);
    m.def("integers", &integers, "indices"_a, "repeats"_a.none(), "seed"_a, "epoch"_a, "stream"_a, "out"_a);

    nb::class_<Encoded>(m, "Encoded")
        .def_static("buffers", &encoded_buffers, "buffers"_a)
        .def_static("files", &encoded_files, "root"_a, "blob"_a, "ends"_a, "rows"_a, "offsets"_a.none(),
                    "lengths"_a.none())
        .def("__len__", &Encoded::count);

    nb::class_<Geometries>(m, "Geometries")
        .def_static("given", &given, "box"_a, "size"_a, "window"_a, "flip"_a, "bicubic"_a.none() = nb::none())
        .def_static("drawn_crops", &drawn_crops, "uniforms"_a, "flip"_a, "size"_a, "scale"_a, "ratio"_a,
                    "log_ratio"_a, "bicubic"_a.none() = nb::none())
        .def_static("padded_crops", &padded_crops, "uniforms"_a, "flip"_a, "size"_a, "before"_a, "after"_a)
        .def_static("whole", &whole, "flip"_a)
        .def_static("resized", &resized, "flip"_a, "size"_a.none(), "shorter"_a, "longest"_a, "crop"_a.none())
        .def("resolve", &resolve_all, "sizes"_a, "out"_a)
        .def("__len__", [](const Geometries& self) { return self.count; });

    nb::class_<ResampleOptions>(m, "Resampling")
        .def("__init__",
             [](ResampleOptions* self, int filter, bool antialias, int padding, std::tuple<int, int, int, int> fill) {
                 new (self) ResampleOptions(resample_options(filter, antialias, padding, fill));
             },
             "filter"_a, "antialias"_a, "padding"_a, "fill"_a);

    nb::class_<BatchView>(m, "View")
        .def("__init__",
             [](BatchView* self, nb::handle_t<Geometries> geometries, Array<uint8_t, 4> out,
                const ResampleOptions& resample) { new (self) BatchView(batch_view(geometries, out, resample)); },
             "geometries"_a, "out"_a, "resampling"_a);

    nb::class_<Ticket>(m, "Ticket")
        .def("wait", &Ticket::wait)
        .def("done", &Ticket::done)
        .def("cancel", &Ticket::cancel, nb::call_guard<WithoutGil>());

    nb::class_<Pool>(m, "Pool")
        .def(nb::init<int, const char*, bool>(), "threads"_a, "simd"_a, "always_libjpeg"_a = false)
        .def_prop_ro("decoded", &decoded)
        .def_prop_ro("reduced", [](const Pool& pool) { return pool.decoded().reduced.load(std::memory_order_relaxed); })
        .def_prop_ro("threads", &Pool::threads)
        .def_prop_ro("simd", &Pool::simd)
        .def("close", &Pool::close, nb::call_guard<WithoutGil>())
        .def("decode", &decode, "images"_a, "views"_a, "max_pixels"_a, "exif"_a, "whole"_a, "draft"_a = false,
             "here"_a = false)
        .def("decode_flat", &decode_flat, "images"_a, "geometries"_a, "out"_a, "offsets"_a, "sizes"_a, "resampling"_a,
             "max_pixels"_a, "exif"_a, "whole"_a, "draft"_a = false)
        .def("read_headers", &read_headers, "images"_a, "out"_a, "max_pixels"_a, "here"_a = false)
        .def("gather", &gather, "array"_a, "rows"_a, "geometries"_a, "out"_a, "resampling"_a,
             "here"_a = false)
        .def("gather_flat", &gather_flat, "array"_a, "offsets"_a, "sizes"_a, "rows"_a, "geometries"_a, "out"_a,
             "resampling"_a);
}
