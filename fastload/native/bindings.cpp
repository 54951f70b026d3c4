// The Python bindings of the native core: functions that take arrays and return jobs.
// fastload/native/ _core.pyi has the Python signatures. fastload/native/pool.py checks what users
// give, with messages for them. Here only that is checked which could lead to access outside of the
// arrays, or to wrong data.
#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings.hpp"
#include "checksum.hpp"
#include "draws.hpp"
#include "jobs.hpp"
#include "listing.hpp"
#include "seek_index.hpp"
#include "store_checksums.hpp"
#include "tier.hpp"
#include "warp.hpp"

using namespace nanobind::literals;

namespace fastload {
namespace {

// The bytes of an object with a buffer of them, which `all` keeps. (To take it as an array would be
// ten times slower, which counts for each of many images.)
Bytes bytes_of_buffer(nb::handle buffer, Kept& all) {
    static constexpr uint8_t nothing = 0;  // an address for no bytes
    const auto view = nb::steal(PyMemoryView_FromObject(buffer.ptr()));
    if (!view.is_valid()) nb::raise_python_error();
    Py_buffer found;
    if (PyObject_GetBuffer(view.ptr(), &found, PyBUF_SIMPLE) != 0) nb::raise_python_error();
    const Bytes bytes = {found.len > 0 ? static_cast<const uint8_t*>(found.buf) : &nothing,
                         static_cast<size_t>(found.len)};
    PyBuffer_Release(&found);  // the view holds it
    all.push_back(view);
    return bytes;
}

Encoded encoded_buffers(const std::vector<nb::object>& buffers) {
    std::vector<Bytes> rows;
    Kept all;
    for (const auto& buffer : buffers) rows.push_back(bytes_of_buffer(buffer, all));
    return {static_cast<int>(rows.size()), [rows] { return open_buffers(rows); }, std::move(all)};
}

Encoded encoded_files(const nb::bytes& root, Input<uint8_t, 1> blob, Input<int64_t, 1> ends,
                      Input<int64_t, 1> rows, Optional<int64_t, 1> offsets,
                      Optional<int64_t, 1> lengths) {
    for (size_t i = 0; i < rows.size(); ++i) {
        const int64_t row = rows.data()[i];
        require(row >= 0 && row < static_cast<int64_t>(ends.size()),
                "rows: beyond the number of paths");
        const int64_t begin = row > 0 ? ends.data()[row - 1] : 0;
        require(begin >= 0 && begin <= ends.data()[row] &&
                    ends.data()[row] <= static_cast<int64_t>(blob.size()),
                "ends: not ascending positions in blob");
    }
    require(offsets.has_value() == lengths.has_value(), "offsets, lengths: give both or neither");
    require(!offsets || (offsets->size() == rows.size() && lengths->size() == rows.size()),
            "offsets, lengths: one a row");
    const PathRows paths = {{root.c_str(), root.size()},
                            blob.data(),
                            ends.data(),
                            rows.data(),
                            data_of(offsets),
                            data_of(lengths),
                            static_cast<int>(rows.size())};
    return {paths.count, [paths] { return open_files(paths); },
            kept(blob, ends, rows, offsets, lengths)};
}

std::vector<std::string> strings_of(const std::vector<nb::bytes>& values) {
    std::vector<std::string> found;
    for (const nb::bytes& value : values) found.emplace_back(value.c_str(), value.size());
    return found;
}

// As `list_folders`: (images, ends, counts, folders, others), the last two as lists of (number of
// the folder, name); None where Python must look.
nb::object list_names(const nb::bytes& root, const std::vector<nb::bytes>& folders,
                      const std::vector<nb::bytes>& endings, const std::vector<nb::bytes>& suffixes,
                      const std::vector<nb::bytes>& never, int threads) {
    const std::string where(root.c_str(), root.size());
    const std::vector<std::string> below = strings_of(folders);
    const ImageNames names = {strings_of(endings), strings_of(suffixes), strings_of(never)};
    Listing found;
    {
        WithoutGil released;
        found = list_folders(where, below, names, threads);
    }
    if (found.odd) return nb::none();
    const auto named = [](const auto& pairs) {
        nb::list all;
        for (const auto& [number, name] : pairs)
            all.append(nb::make_tuple(number, nb::bytes(name.data(), name.size())));
        return all;
    };
    return nb::make_tuple(nb::bytes(found.images.data(), found.images.size()),
                          array_of(std::move(found.ends)), array_of(std::move(found.counts)),
                          named(found.folders), named(found.others));
}

// As `folder_stamps`: (4 * N,).
nb::ndarray<nb::numpy, int64_t, nb::ndim<1>> stamp_folders(const nb::bytes& root,
                                                           const std::vector<nb::bytes>& folders,
                                                           int threads) {
    const std::string where(root.c_str(), root.size());
    const std::vector<std::string> below = strings_of(folders);
    std::vector<int64_t> stamps;
    {
        WithoutGil released;
        stamps = folder_stamps(where, below, threads);
    }
    return array_of(std::move(stamps));
}

#ifdef FASTLOAD_PNG

Encoded encoded_tier(const nb::bytes& folder, Input<uint8_t, 2> digests,
                     const std::vector<nb::object>& memory) {
    require(digests.shape(1) == static_cast<size_t>(kDigestBytes), "digests (B, 16) are needed");
    require(memory.size() == digests.shape(0), "memory: one a digest");
    TierRows rows = {
        {folder.c_str(), folder.size()}, digests.data(), {}, static_cast<int>(memory.size())};
    Kept all = kept(digests);
    for (const auto& one : memory)  // null: it is in the tier
        rows.memory.push_back(one.is_none() ? Bytes{} : bytes_of_buffer(one, all));
    return {rows.count, [rows] { return open_tier(rows); }, std::move(all)};
}

// Writes to `out` which ranges have a file.
void look_in_tier(const nb::bytes& folder, Input<uint8_t, 2> digests, Array<bool, 1> out) {
    require(digests.shape(1) == static_cast<size_t>(kDigestBytes), "digests (B, 16) are needed");
    require(out.size() == digests.shape(0), "out (B,) is needed");
    const std::string path(folder.c_str(), folder.size());
    WithoutGil released;
    const TierFolder where(path);
    for (size_t row = 0; row < out.size(); ++row)
        out.data()[row] =
            is_in_tier(where, digests.data() + kDigestBytes * static_cast<int64_t>(row));
}

// As `lock_range`, of each digest.
void lock_in_tier(int file, Input<uint8_t, 2> digests, Array<bool, 1> out) {
    require(digests.shape(1) == static_cast<size_t>(kDigestBytes), "digests (B, 16) are needed");
    require(out.size() == digests.shape(0), "out (B,) is needed");
    WithoutGil released;
    for (size_t row = 0; row < out.size(); ++row)
        out.data()[row] =
            lock_range(file, digests.data() + kDigestBytes * static_cast<int64_t>(row));
}

// As `write_tier`, and what it took past the cache: (error number, bytes, seconds).
std::tuple<int, int64_t, double> write_to_tier(const nb::bytes& folder, Input<uint8_t, 2> digests,
                                               const std::vector<nb::object>& data,
                                               const std::string& beside, bool past_cache) {
    require(digests.shape(1) == static_cast<size_t>(kDigestBytes), "digests (B, 16) are needed");
    require(data.size() == digests.shape(0), "data: one a digest");
    std::vector<Bytes> rows;
    Kept all;
    for (const auto& one : data) rows.push_back(bytes_of_buffer(one, all));
    const std::string where(folder.c_str(), folder.size());
    WithoutGil released;
    DiskTime time;
    const int code = write_tier(where, digests.data(), rows, beside, past_cache ? &time : nullptr);
    return {code, time.bytes, time.seconds};
}

#endif

using Pair = std::tuple<int, int>;
using Range = std::tuple<double, double>;

Size size_of(const Pair& size) { return {std::get<0>(size), std::get<1>(size)}; }

// The number of samples. Throws ValueError if these arrays contradict each other.
size_t count_of(const Input<bool, 2>& flip, const Optional<bool, 1>& bicubic = {}) {
    require(flip.shape(1) == 2, "flip (B, 2) is needed");
    require(!bicubic || bicubic->size() == flip.shape(0), "bicubic and flip differ in length");
    return flip.shape(0);
}

Geometries given(Input<int32_t, 2> box, Input<int32_t, 2> size, Input<int32_t, 2> window,
                 Input<bool, 2> flip, Optional<bool, 1> bicubic, Optional<bool, 2> flip_first) {
    const size_t count = count_of(flip, bicubic);
    require(!flip_first || (flip_first->shape(0) == count && flip_first->shape(1) == 2),
            "flip_first (B, 2) is needed");
    require(box.shape(1) == 4 && size.shape(1) == 2 && window.shape(1) == 4,
            "box (B, 4), size (B, 2), window (B, 4) are needed");
    require(box.shape(0) == count && size.shape(0) == count && window.shape(0) == count,
            "box, size, window and flip differ in length");
    return {given_geometry(box.data(), size.data(), window.data(), flip.data(), data_of(bicubic),
                           data_of(flip_first)),
            count, kept(box, size, window, flip, bicubic, flip_first)};
}

Geometries drawn_crops(Input<double, 2> uniforms, Input<bool, 2> flip, Pair size, Range scale,
                       Range ratio, Range log_ratio, Optional<bool, 1> bicubic) {
    const size_t count = count_of(flip, bicubic);
    require(uniforms.shape(0) == count && uniforms.shape(1) == kResizedCropUniforms,
            "uniforms (B, 22) are needed");
    const RandomResizedCropPlan plan = {
        size_of(size),      std::get<0>(scale),     std::get<1>(scale),    std::get<0>(ratio),
        std::get<1>(ratio), std::get<0>(log_ratio), std::get<1>(log_ratio)};
    return {random_resized_crops(uniforms.data(), flip.data(), plan, data_of(bicubic)), count,
            kept(uniforms, flip, bicubic)};
}

Geometries resized(Input<bool, 2> flip, std::optional<Pair> size, int shorter, int longest,
                   std::optional<Pair> crop) {
    require(size || shorter > 0 || longest > 0, "size, shorter or longest is needed");
    const ResizePlan plan = {size ? size_of(*size) : Size{}, shorter, longest,
                             crop ? size_of(*crop) : Size{}};
    return {resized_images(flip.data(), plan), count_of(flip), kept(flip)};
}

Geometries padded(Input<double, 2> uniforms, Input<bool, 2> flip, Pair size, Pair before,
                  Pair after) {
    const size_t count = count_of(flip);
    require(uniforms.shape(0) == count && uniforms.shape(1) == kPaddedCropUniforms,
            "uniforms (B, 2) are needed");
    const PaddedCropPlan plan = {size_of(size), size_of(before), size_of(after)};
    return {padded_crops(uniforms.data(), flip.data(), plan), count, kept(uniforms, flip)};
}

Geometries whole(Input<bool, 2> flip) {
    return {whole_images(flip.data()), count_of(flip), kept(flip)};
}

// Writes box, size, window and flips of each sample, 12 numbers, for images of these (height,
// width); zeros where the plan cannot be applied to the image.
void resolve_all(const Geometries& geometries, Input<int64_t, 2> sizes, Array<int32_t, 2> out) {
    require(sizes.shape(0) == geometries.count && sizes.shape(1) == 2, "sizes (B, 2) are needed");
    require(out.shape(0) == geometries.count && out.shape(1) == 12, "out (B, 12) is needed");
    WithoutGil released;
    for (size_t i = 0; i < geometries.count; ++i) {
        const int64_t height = sizes.data()[2 * i], width = sizes.data()[2 * i + 1];
        const bool fits = height >= 1 && width >= 1 && height <= INT32_MAX && width <= INT32_MAX;
        const Size image = {static_cast<int>(height), static_cast<int>(width)};
        Geometry g;
        if (!fits || !geometries.source(static_cast<int>(i), image, g).ok()) g = Geometry();
        const int32_t values[12] = {g.box.top,       g.box.left,     g.box.height, g.box.width,
                                    g.size.height,   g.size.width,   g.window.top, g.window.left,
                                    g.window.height, g.window.width, g.mirror,     g.upside_down};
        std::copy(values, values + 12, out.data() + 12 * i);
    }
}

ResampleOptions resample_options(int filter, bool antialias, int padding,
                                 const std::array<uint8_t, 4>& fill) {
    require(filter >= 0 && filter <= static_cast<int>(Filter::lanczos), "filter: unknown");
    require(padding >= 0 && padding <= static_cast<int>(Padding::symmetric), "padding: unknown");
    return {static_cast<Filter>(filter),
            antialias,
            static_cast<Padding>(padding),
            {fill[0], fill[1], fill[2], fill[3]}};
}

// `View` in Python: a view of each image of a batch, and the arrays that it reads and writes.
struct BatchView {
    View view;
    size_t count = 0;
    Kept kept;
};

// `Warps` in Python: a warp of each image of a batch, and the arrays that it reads.
struct Warps {
    WarpTable table;
    size_t count = 0;
    Kept kept;
};

Warps warps(Input<double, 3> inverse, Input<int32_t, 2> sizes, bool bilinear, bool fades,
            bool mixes, const std::array<float, 3>& fill) {
    const size_t count = inverse.shape(0);
    require(inverse.shape(1) == 3 && inverse.shape(2) == 3 && sizes.shape(0) == count &&
                sizes.shape(1) == 2,
            "inverse (B, 3, 3), sizes (B, 2) are needed");
    for (float value : fill) require(value >= 0 && value <= 255, "fill: 0 to 255 is needed");
    WarpTable table = {inverse.data(), sizes.data(), {bilinear, fades, mixes, {}}};
    std::copy(fill.begin(), fill.end(), table.options.fill);
    return {table, count, kept(inverse, sizes)};
}

// `kinds`, `numbers`: colour operations on the whole images before their geometry. `later`:
// Geometries, a second geometry of the images that `geometries` makes; `warped`: Warps, before
// that. `sizes`: (B, 2), as of View.
BatchView batch_view(const Geometries& geometries, Array<uint8_t, 4> out,
                     const ResampleOptions& resample, Optional<int32_t, 2> kinds,
                     Optional<float, 3> numbers, bool fused, std::optional<nb::handle> later,
                     const std::optional<ResampleOptions>& later_resample,
                     Optional<int32_t, 2> sizes, std::optional<nb::handle> warped) {
    require(geometries.count == out.shape(0), "geometry and out differ in length");
    const Size size = size_in(out.shape(1), out.shape(2));
    View view = {geometries.source, resample, out.data(), size, static_cast<int>(out.shape(3))};
    require(kinds.has_value() == numbers.has_value(), "kinds, numbers: give both or neither");
    if (kinds) {
        require(view.channels == 1 || view.channels == 3, "colour: 1 or 3 channels are needed");
        require(!fused || can_fuse_colour(), "fused: this processor cannot");
        view.colour = colour_table(*kinds, *numbers, out.shape(0));
        view.fused = fused;
    }
    if (sizes) {
        require(sizes->shape(0) == out.shape(0) && sizes->shape(1) == 2, "sizes (B, 2) are needed");
        for (size_t i = 0; i < sizes->shape(0); ++i) {
            const int32_t height = sizes->data()[2 * i], width = sizes->data()[2 * i + 1];
            require(height >= 1 && height <= size.height && width >= 1 && width <= size.width,
                    "sizes: an output reaches outside of its place");
        }
        view.sizes = sizes->data();
    }
    Kept all = kept(geometries.kept, out, kinds, numbers, sizes);
    if (later && !later->is_none()) {
        const auto& then = nb::cast<const Geometries&>(*later);
        require(then.count == geometries.count && later_resample.has_value(),
                "later, later_resampling: as many rows, and both, are needed");
        view.later = then.source;
        view.later_resample = *later_resample;
        keep(all, then.kept);
    }
    if (warped && !warped->is_none()) {
        const auto& given = nb::cast<const Warps&>(*warped);
        require(view.later && given.count == geometries.count,
                "warped: something later, and as many rows, are needed");
        view.warp = given.table;
        keep(all, given.kept);
    }
    return {std::move(view), geometries.count, std::move(all)};
}

// The images of a column, and their views.
using EncodedColumn = std::tuple<const Encoded*, std::vector<BatchView>>;

// A column of `count` images. Adds to `all` what it borrows.
ImageColumn image_column(const EncodedColumn& column, int count, Kept& all) {
    const auto& [images, views] = column;
    require(!views.empty(), "views: at least one is needed");
    require(images->count == count, "columns differ in length");
    ImageColumn made;
    keep(all, images->kept);
    for (const BatchView& one : views) {
        const int channels = one.view.channels;
        const auto nearest = [](const ResampleOptions& resample) {
            return resample.filter == Filter::nearest || resample.filter == Filter::nearest_exact;
        };
        require(channels == 3 || channels == 1, "out (B, h, w, 3) or (B, h, w, 1) is needed");
        require(channels == views.front().view.channels, "views of a column differ in channels");
        require(channels == 3 || (nearest(one.view.resample) && !one.view.warp.options.bilinear &&
                                  (!one.view.later || nearest(one.view.later_resample))),
                "out of one channel: only \"nearest\" and \"nearest-exact\"");
        require(static_cast<size_t>(count) == one.count, "images and views differ in length");
        made.views.push_back(one.view);
        keep(all, one.kept);
    }
    made.images = images->open();
    return made;
}

std::unique_ptr<Ticket> decode(Pool& pool, const std::vector<EncodedColumn>& columns,
                               int64_t max_pixels, bool exif, bool whole, bool draft, bool here,
                               std::optional<nb::handle> index, const nb::sequence& given) {
    require(!columns.empty(), "columns: at least one is needed");
    std::vector<ImageColumn> made;
    Kept all;
    for (const EncodedColumn& column : columns)
        made.push_back(image_column(column, std::get<0>(columns.front())->count, all));
    SeekIndex* seek = nullptr;
    if (index && !index->is_none()) {
        seek = nb::cast<SeekIndex*>(*index);
        all.push_back(nb::borrow(*index));
    }
    DecodeOptions options = {{max_pixels}, exif, whole, draft, seek};
    std::vector<nb::object> plans;
    for (const nb::handle plan : given) plans.push_back(nb::borrow(plan));
    const std::vector<View>& views = made.front().views;
    if (!plans.empty()) {
        require(seek != nullptr && !draft, "plans: they need an index, and no `draft`");
        require(made.size() == 1 && plans.size() == views.size(),
                "plans: one for each view of one column is needed");
    }
    for (size_t i = 0; i < plans.size(); ++i) {
        require(views[i].channels == 3 && !views[i].later && views[i].colour.kinds == nullptr,
                "plans: views in colour, without operations, are needed");
        const auto count = static_cast<size_t>(std::get<0>(columns.front())->count);
        options.plans.push_back(nb::cast<DevicePlan*>(plans[i])->fill(count, *seek));
        all.push_back(plans[i]);
    }
    auto job = decode_job(std::move(made), options);
    for (const nb::handle plan : plans)
        nb::cast<DevicePlan*>(plan)->set_job(job, nb::borrow(*index));
    return submit(pool, std::move(job), std::move(all), here);
}

std::unique_ptr<Ticket> read_headers(Pool& pool, const Encoded& images, Array<int32_t, 2> out,
                                     int64_t max_pixels, bool here) {
    require(out.shape(0) == static_cast<size_t>(images.count) && out.shape(1) == kHeaderColumns,
            "out (B, 6) is needed");
    return submit(pool, header_job(images.open(), {max_pixels}, out.data()), kept(images.kept, out),
                  here);
}

// Encodes in the calling thread. Throws MemoryError.
nb::bytes encode_jpeg(Pool& pool, Input<uint8_t, 3> image, int quality) {
    const Size size = {static_cast<int>(std::min<size_t>(image.shape(0), INT32_MAX)),
                       static_cast<int>(std::min<size_t>(image.shape(1), INT32_MAX))};
    require(image.shape(2) == 3 && size.height > 0 && size.width > 0 &&
                std::max(size.height, size.width) <= JpegEncoder::kLongestSide,
            "an image (h, w, 3) of 1 to 65,500 pixels a side is needed");
    require(quality >= 1 && quality <= 100, "quality: 1 to 100 is needed");
    std::vector<uint8_t> file;
    {
        WithoutGil released;
        const auto job = encode_job(image.data(), size, quality, file);
        pool.run(*job);
        if (!job->take_failures().empty()) throw std::bad_alloc();
    }
    return nb::bytes(file.data(), file.size());
}

// `array`: (N, h, w, C) images; with offsets (N,) and sizes (N, 2), the bytes of images of many
// sizes.
std::unique_ptr<Ticket> gather(Pool& pool,
                               nb::ndarray<const uint8_t, nb::c_contig, nb::device::cpu> array,
                               Optional<int64_t, 1> offsets, Optional<int32_t, 2> sizes,
                               Input<int64_t, 1> rows, const BatchView& into, bool here) {
    const int channels = into.view.channels;
    require(channels >= 1 && channels <= 4, "out: one to four channels are needed");
    require(rows.size() == into.count, "rows and out differ in length");
    require(!into.view.later && into.view.sizes == nullptr,
            "later, sizes: only of compressed images");
    require(offsets.has_value() == sizes.has_value(), "offsets, sizes: give both or neither");
    PixelRows images = {array.data(),   rows.data(), data_of(offsets),
                        data_of(sizes), {},          static_cast<int>(rows.size())};
    if (offsets) {
        require(sizes->shape(1) == 2 && sizes->shape(0) == offsets->size(),
                "offsets (N,), sizes (N, 2) are needed");
    } else {
        require(array.ndim() == 4 && array.shape(3) == static_cast<size_t>(channels),
                "array and out differ in channels");
        images.size = size_in(array.shape(1), array.shape(2));
    }
    const auto count = static_cast<int64_t>(offsets ? offsets->size() : array.shape(0));
    const auto total = static_cast<int64_t>(array.size());
    for (size_t i = 0; i < rows.size(); ++i) {
        const int64_t row = images.rows[i];
        require(row >= 0 && row < count, "rows: beyond the number of images");
        if (!offsets) continue;
        const int64_t height = images.sizes[2 * row], width = images.sizes[2 * row + 1],
                      offset = images.offsets[row];
        (void)size_in(static_cast<size_t>(height), static_cast<size_t>(width));
        require(height > 0 && width > 0 && offset >= 0 && offset <= total &&
                    height * width <= (total - offset) / channels,
                "offsets, sizes: an image reaches outside of the array");
    }
    return submit(pool, gather_job(images, into.view), kept(array, offsets, sizes, rows, into.kept),
                  here);
}

// `Canvases` in Python: a CanvasTable of P pictures with T members, and the arrays it borrows.
struct Canvases {
    CanvasTable table;
    size_t members = 0, pictures = 0;
    Kept kept;
};

CanvasLayer canvas_layer(Pair size, bool fades, bool mixes, const std::array<float, 3>& fill) {
    CanvasLayer layer = {size_of(size), {true, fades, mixes, {}}};
    require(layer.size.height > 0 && layer.size.width > 0, "canvas: empty");
    std::copy(fill.begin(), fill.end(), layer.warp.fill);
    return layer;
}

Canvases canvases(const CanvasLayer& first, const CanvasLayer& second, Input<int32_t, 2> windows,
                  Input<int32_t, 2> corners, Input<int32_t, 2> seen, Input<double, 3> inverse,
                  Input<bool, 2> flips) {
    const size_t members = windows.shape(0), pictures = seen.shape(0);
    require(windows.shape(1) == 4 && corners.shape(0) == members && corners.shape(1) == 2,
            "windows (T, 4), corners (T, 2) are needed");
    require(seen.shape(1) == 4 && inverse.shape(0) == pictures && inverse.shape(1) == 3 &&
                inverse.shape(2) == 3 && flips.shape(0) == pictures && flips.shape(1) == 2,
            "seen (P, 4), inverse (P, 3, 3), flips (P, 2) are needed");
    const CanvasTable table = {{first, second}, windows.data(), corners.data(),
                               seen.data(),     inverse.data(), flips.data()};
    return {table, members, pictures, kept(windows, corners, seen, inverse, flips)};
}

// B samples of P = B * layers pictures of T members: see JoinTable. `on`: Canvases or None.
std::unique_ptr<Ticket> join(Pool& pool, const Encoded& images, const Geometries& members,
                             const ResampleOptions& resample, Input<int64_t, 1> offsets,
                             std::optional<nb::handle> on, Optional<float, 2> weights,
                             Optional<int32_t, 2> rectangles, Optional<bool, 3> masks,
                             Array<uint8_t, 4> out, int64_t max_pixels, bool exif, bool whole,
                             std::optional<nb::handle> index) {
    const size_t count = members.count, samples = out.shape(0);
    require(count == static_cast<size_t>(images.count), "images and geometries differ in length");
    const int layers = weights || rectangles || masks ? 2 : 1;
    const size_t pictures = samples * static_cast<size_t>(layers);
    require(!weights || (weights->shape(0) == samples && weights->shape(1) == 2),
            "weights (B, 2) are needed");
    require(!rectangles || (rectangles->shape(0) == samples && rectangles->shape(1) == 4),
            "rectangles (B, 4) are needed");
    require(!masks || (masks->shape(0) == samples && masks->shape(1) == out.shape(1) &&
                       masks->shape(2) == out.shape(2)),
            "masks (B, height, width) are needed");
    require(offsets.size() == pictures + 1, "offsets (P + 1,) are needed");
    require(out.shape(3) == 3, "out: three channels are needed");
    JoinTable table;
    table.members = members.source;
    table.offsets = offsets.data();
    table.weights = data_of(weights);
    table.rectangles = data_of(rectangles);
    table.masks = data_of(masks);
    table.count = static_cast<int>(samples);
    table.layers = layers;
    table.resample = resample;
    table.out = out.data();
    table.size = size_in(out.shape(1), out.shape(2));
    DecodeOptions options;
    options.limits = {max_pixels};
    options.exif_orientation = exif;
    options.whole = whole;
    Kept all = kept(images.kept, members.kept, offsets, weights, rectangles, masks, out);
    if (on && !on->is_none()) {
        const auto& canvas = nb::cast<const Canvases&>(*on);
        require(canvas.members == count && canvas.pictures == pictures,
                "canvases: of all members and pictures are needed");
        table.canvas = canvas.table;
        keep(all, canvas.kept);
    }
    if (index && !index->is_none()) {
        options.index = nb::cast<SeekIndex*>(*index);
        all.push_back(nb::borrow(*index));
    }
    return submit(pool, join_job(images.open(), table, options), std::move(all), false);
}

// A getter for one of the counts of a pool.
auto count_getter(std::atomic<int64_t> DecoderCounts::* which) {
    return [which](const Pool& pool) { return (pool.decoded().*which).load(); };
}

// How many images were decoded: JPEGs by our own decoder ("own") or by libjpeg-turbo, by the
// reason; PNGs; WebPs.
std::map<std::string, int64_t> decoded(const Pool& pool) {
    static constexpr const char* kNames[jpeg::kReasons] = {"own",    "coding",  "components",
                                                           "layout", "unusual", "forced"};
    std::map<std::string, int64_t> result = {{"png", pool.decoded().png},
                                             {"webp", pool.decoded().webp}};
    for (int i = 0; i < jpeg::kReasons; ++i) result[kNames[i]] = pool.decoded().of[i];
    return result;
}

#ifdef FASTLOAD_PNG
// Decodes to `out`, (H, W, C). Returns "" or the reason why it could not.
std::string png16(Input<uint8_t, 1> data, Array<uint16_t, 3> out, const char* simd) {
    const Kernels* const kernels = find_kernels(simd);
    require(kernels != nullptr, "simd: unknown, or not on this processor");
    require(out.shape(2) <= 4, "out (H, W, 1) or (H, W, 3) is needed");
    const Size size = size_in(out.shape(0), out.shape(1));
    WithoutGil released;
    return read_png16(*kernels, data.data(), data.size(), size, static_cast<int>(out.shape(2)),
                      out.data())
        .message;
}
#endif

WarpOptions warp_options(const Input<uint8_t, 3>& in, const Array<uint8_t, 3>& out, bool bilinear,
                         bool fades, bool mixes, const Input<float, 1>& fill) {
    const size_t channels = out.shape(2);
    require(channels >= 1 && channels <= 4 && in.shape(2) == channels && fill.size() == channels,
            "in, out, fill: as many channels, one to four, are needed");
    require(in.size() > 0, "in: pixels are needed");
    WarpOptions options = {bilinear, fades, mixes, {}};
    std::copy(fill.data(), fill.data() + channels, options.fill);
    for (float value : options.fill)
        require(value >= 0 && value <= 255, "fill: 0 to 255 is needed");
    return options;
}

void warp_image(Input<uint8_t, 3> in, Array<uint8_t, 3> out, Input<double, 2> inverse,
                bool bilinear, bool fades, bool mixes, Input<float, 1> fill, const char* simd) {
    const Kernels* const kernels = find_kernels(simd);
    require(kernels != nullptr, "simd: unknown, or not on this processor");
    require(inverse.shape(0) == 3 && inverse.shape(1) == 3, "inverse (3, 3) is needed");
    const WarpOptions options = warp_options(in, out, bilinear, fades, mixes, fill);
    const Size in_size = size_in(in.shape(0), in.shape(1)),
               out_size = size_in(out.shape(0), out.shape(1));
    const int channels = static_cast<int>(out.shape(2));
    WithoutGil released;
    warp(*kernels, in.data(), in_size, out.data(), box_of(out_size), channels, inverse.data(),
         options);
}

void remap_image(Input<uint8_t, 3> in, Array<uint8_t, 3> out, Input<double, 2> x,
                 Input<double, 2> y, bool bilinear, bool fades, bool mixes, Input<float, 1> fill) {
    const WarpOptions options = warp_options(in, out, bilinear, fades, mixes, fill);
    for (const auto& places : {x, y})
        require(places.shape(0) == out.shape(0) && places.shape(1) == out.shape(1),
                "x, y (height, width) of the output are needed");
    const Size in_size = size_in(in.shape(0), in.shape(1)),
               out_size = size_in(out.shape(0), out.shape(1));
    const int channels = static_cast<int>(out.shape(2));
    WithoutGil released;
    remap(in.data(), in_size, out.data(), out_size, channels, x.data(), y.data(), options);
}

// `out` must have one row for each sample.
template <typename Out>
Counter counter_of(const Input<int64_t, 1>& indices, const Optional<int64_t, 1>& repeats,
                   uint64_t seed, uint32_t epoch, uint32_t stream, const Out& out) {
    require(!repeats || repeats->size() == indices.size(), "repeats must be as long as indices");
    require(out.shape(0) == indices.size(), "out must be as long as indices");
    return {indices.data(), data_of(repeats), indices.size(), seed, epoch, stream};
}

void uniforms(Input<int64_t, 1> indices, Optional<int64_t, 1> repeats, uint64_t seed,
              uint32_t epoch, uint32_t stream, Array<double, 2> out) {
    draw_uniforms(counter_of(indices, repeats, seed, epoch, stream, out), out.shape(1), out.data());
}

void integers(Input<int64_t, 1> indices, Optional<int64_t, 1> repeats, uint64_t seed,
              uint32_t epoch, uint32_t stream, Array<uint64_t, 1> out, const char* simd) {
    const Kernels* const kernels = find_kernels(simd);
    require(kernels != nullptr, "simd: unknown, or not on this processor");
    const Counter counter = counter_of(indices, repeats, seed, epoch, stream, out);
    WithoutGil released;
    (kernels->integers ? kernels->integers : draw_integers)(counter, out.data());
}

}  // namespace
}  // namespace fastload

NB_MODULE(_core, m) {
    using namespace fastload;

    // Daemon threads and forked children may hold objects when the process ends; that is no leak.
    nb::set_leak_warnings(false);
    // Here, so that the import fails if the library is missing, and not the first batch.
    LibJpegDecoder::load();
    m.def("formats", &Decoder::formats);
    m.def("can_fuse_colour", &can_fuse_colour);
    m.def("uniforms", &uniforms, "indices"_a, "repeats"_a.none(), "seed"_a, "epoch"_a, "stream"_a,
          "out"_a);
    m.def("integers", &integers, "indices"_a, "repeats"_a.none(), "seed"_a, "epoch"_a, "stream"_a,
          "out"_a, "simd"_a = "auto");

    m.def(
        "crc32c",
        [](Input<uint8_t, 1> data, bool plain) {
            WithoutGil released;
            return crc32c(data.data(), data.size(), plain);
        },
        "data"_a, "plain"_a = false);
    m.def(
        "crc64nvme",
        [](Input<uint8_t, 1> data, bool plain) {
            WithoutGil released;
            return crc64nvme(data.data(), data.size(), plain);
        },
        "data"_a, "plain"_a = false);
#ifdef FASTLOAD_PNG
    m.def(
        "crc32",
        [](Input<uint8_t, 1> data, uint32_t value) {
            WithoutGil released;
            return crc32(data.data(), data.size(), value);
        },
        "data"_a, "value"_a = 0);
    m.def("read_png16", &png16, "data"_a, "out"_a, "simd"_a = "auto");
    m.def("write_to_tier", &write_to_tier, "folder"_a, "digests"_a, "data"_a, "beside"_a,
          "past_cache"_a = false);
    m.def("look_in_tier", &look_in_tier, "folder"_a, "digests"_a, "out"_a);
    m.def("lock_in_tier", &lock_in_tier, "file"_a, "digests"_a, "out"_a);
#endif
    m.def("list_folders", &list_names, "root"_a, "folders"_a, "endings"_a, "suffixes"_a, "never"_a,
          "threads"_a);
    m.def("folder_stamps", &stamp_folders, "root"_a, "folders"_a, "threads"_a);
    m.def("warp", &warp_image, "image"_a, "out"_a, "inverse"_a, "bilinear"_a, "fades"_a, "mixes"_a,
          "fill"_a, "simd"_a = "auto");
    m.def("remap", &remap_image, "image"_a, "out"_a, "x"_a, "y"_a, "bilinear"_a, "fades"_a,
          "mixes"_a, "fill"_a);

    nb::class_<Encoded>(m, "Encoded")
        .def_static("buffers", &encoded_buffers, "buffers"_a)
#ifdef FASTLOAD_PNG
        .def_static("tier", &encoded_tier, "folder"_a, "digests"_a, "memory"_a)
#endif
        .def_static("files", &encoded_files, "root"_a, "blob"_a, "ends"_a, "rows"_a,
                    "offsets"_a.none(), "lengths"_a.none())
        .def("__len__", [](const Encoded& self) { return self.count; });

    nb::class_<Geometries>(m, "Geometries")
        .def_static("given", &given, "box"_a, "size"_a, "window"_a, "flip"_a,
                    "bicubic"_a.none() = nb::none(), "flip_first"_a.none() = nb::none())
        .def_static("drawn_crops", &drawn_crops, "uniforms"_a, "flip"_a, "size"_a, "scale"_a,
                    "ratio"_a, "log_ratio"_a, "bicubic"_a.none() = nb::none())
        .def_static("padded_crops", &padded, "uniforms"_a, "flip"_a, "size"_a, "before"_a,
                    "after"_a)
        .def_static("whole", &whole, "flip"_a)
        .def_static("resized", &resized, "flip"_a, "size"_a.none(), "shorter"_a, "longest"_a,
                    "crop"_a.none())
        .def("resolve", &resolve_all, "sizes"_a, "out"_a)
        .def("__len__", [](const Geometries& self) { return self.count; });

    nb::class_<ResampleOptions>(m, "Resampling")
        .def(nb::new_(&resample_options), "filter"_a, "antialias"_a, "padding"_a, "fill"_a);

    nb::class_<Warps>(m, "Warps")
        .def(nb::new_(&warps), "inverse"_a, "sizes"_a, "bilinear"_a, "fades"_a, "mixes"_a,
             "fill"_a);

    nb::class_<BatchView>(m, "View").def(
        nb::new_(&batch_view), "geometries"_a, "out"_a, "resampling"_a,
        "kinds"_a.none() = nb::none(), "numbers"_a.none() = nb::none(), "fused"_a = false,
        "later"_a.none() = nb::none(), "later_resampling"_a.none() = nb::none(),
        "sizes"_a.none() = nb::none(), "warped"_a.none() = nb::none());

    nb::class_<CanvasLayer>(m, "CanvasLayer")
        .def(nb::new_(&canvas_layer), "size"_a, "fades"_a, "mixes"_a, "fill"_a);

    nb::class_<Canvases>(m, "Canvases")
        .def(nb::new_(&canvases), "first"_a, "second"_a, "windows"_a, "corners"_a, "seen"_a,
             "inverse"_a, "flips"_a);

    nb::class_<Ticket>(m, "Ticket")
        .def("wait", &Ticket::wait)
        .def("done", [](const Ticket& self) { return self.job()->done(); })
        .def(
            "cancel", [](const Ticket& self) { self.job()->cancel(); },
            nb::call_guard<WithoutGil>());

    nb::class_<SeekIndex>(m, "SeekIndex")
        .def(
            "__init__",
            [](SeekIndex* self, nb::bytes path, uint64_t images, uint64_t limit, bool only_cheap,
               int every) {
                try {
                    new (self)
                        SeekIndex({path.c_str(), path.size()}, images, limit, only_cheap, every);
                } catch (const std::system_error& error) {
                    errno = error.code().value();
                    PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
                    throw nb::python_error();
                }
            },
            "path"_a, "images"_a, "limit"_a, "only_cheap"_a = false, "every"_a = kPointDistance)
        .def("flush", &SeekIndex::flush, nb::call_guard<WithoutGil>())
        .def_prop_ro("is_writable", &SeekIndex::is_writable)
        .def("contents", [](const SeekIndex& self) {
            const SeekIndex::Contents found = self.contents();
            return std::make_tuple(found.records, found.bytes, found.slots, found.limit);
        });

    nb::class_<Pool> pool(m, "Pool");
    pool.def(nb::init<int, const char*, bool>(), "threads"_a, "simd"_a, "always_libjpeg"_a = false)
        .def_prop_ro("decoded", &decoded)
        .def_prop_ro("reduced", count_getter(&DecoderCounts::reduced))
        .def_prop_ro("indexed", count_getter(&DecoderCounts::indexed))
        .def_prop_ro("narrowed", count_getter(&DecoderCounts::narrowed))
        .def_prop_ro("noted", count_getter(&DecoderCounts::noted))
        .def_prop_ro("threads", &Pool::threads)
        .def_prop_ro("simd", &Pool::simd)
        .def("close", &Pool::close, nb::call_guard<WithoutGil>())
        .def("decode", &decode, "columns"_a, "max_pixels"_a, "exif"_a, "whole"_a, "draft"_a,
             "here"_a, "index"_a.none() = nb::none(), "plans"_a = nb::tuple())
        .def("encode_jpeg", &encode_jpeg, "pixels"_a, "quality"_a)
        .def("read_headers", &read_headers, "images"_a, "out"_a, "max_pixels"_a, "here"_a)
        .def("gather", &gather, "array"_a, "offsets"_a.none(), "sizes"_a.none(), "rows"_a, "view"_a,
             "here"_a)
        .def("join", &join, "images"_a, "members"_a, "resampling"_a, "offsets"_a, "on"_a.none(),
             "weights"_a.none(), "rectangles"_a.none(), "masks"_a.none(), "out"_a, "max_pixels"_a,
             "exif"_a, "whole"_a, "index"_a.none());
    bind_colour(pool);
    bind_objects(m, pool);
#ifdef FASTLOAD_FETCH
    bind_fetch(m);
#endif
    bind_device(m);
}
