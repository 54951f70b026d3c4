#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "exif.hpp"
#include "jobs.hpp"

namespace fastload {
namespace {

// How many bytes of a file are read for its header: enough for most JPEGs; then for nearly all,
// thumbnails in their metadata included. Of other formats all is read: they are damaged without
// their end.
constexpr int64_t kHeaderBytes[] = {16 << 10, 64 << 10, INT64_MAX};

// How to turn an image upright, by its EXIF orientation (1 to 8). Pixel (y, x) of the upright image
// is stored in row y and column x, or row x and column y if `swapped`; rows or columns are counted
// from the end of the stored image if the members say so.
struct Orientation {
    bool swapped, rows_from_end, columns_from_end;

    explicit Orientation(int number)
        : swapped(number >= 5),
          rows_from_end(number == 3 || number == 4 || number == 6 || number == 7),
          columns_from_end(number == 2 || number == 3 || number == 7 || number == 8) {}

    bool is_upright() const { return !swapped && !rows_from_end && !columns_from_end; }

    Size upright(Size stored) const { return swapped ? Size{stored.width, stored.height} : stored; }

    // A box of the upright image in the stored image, which has the size `image`.
    Box stored(Box box, Size image) const {
        if (swapped) box = {box.left, box.top, box.width, box.height};
        if (rows_from_end) box.top = image.height - box.top - box.height;
        if (columns_from_end) box.left = image.width - box.left - box.width;
        return box;
    }

    // The `lead` of Resampler::begin: how many rows and columns of the upright image were added
    // before its first ones when the image was made 2^shift times smaller. The size of the stored
    // image is rounded up at its end, which may be the beginning of the upright image.
    Size lead(Size stored, int shift) const {
        const int rest = (1 << shift) - 1;
        return upright({rows_from_end ? -stored.height & rest : 0,
                        columns_from_end ? -stored.width & rest : 0});
    }
};

// Collects the rows of a box of the stored image, and then gives the upright rows to another sink.
class UprightCollector final : public RowSink {
  public:
    // `stored`: the size of the box. `pixels`: memory to use.
    UprightCollector(Size stored, Orientation orientation, std::vector<uint8_t>& pixels)
        : stored_(stored), orientation_(orientation), pixels_(pixels) {
        const size_t row =
            size_t{4} * static_cast<size_t>(orientation.upright(stored).width) + kRowSlack;
        const size_t bytes = bytes_per_row() * static_cast<size_t>(stored.height) + row;
        grow(pixels_, bytes);  // the box, and after it one upright row
    }

    void take(const uint8_t* const* rows, int count) override {
        for (int y = 0; y < count; ++y)
            std::memcpy(pixels_.data() + bytes_per_row() * taken_++, rows[y], bytes_per_row());
    }
    void restart() override { taken_ = 0; }

    void give_upright(RowSink& sink) const {
        const Size size = orientation_.upright(stored_);
        uint8_t* row = pixels_.data() + bytes_per_row() * static_cast<size_t>(stored_.height);
        int64_t step = orientation_.columns_from_end ? -1 : 1;  // from a pixel of a row to the next
        if (orientation_.swapped)
            step = int64_t{orientation_.rows_from_end ? -1 : 1} * stored_.width;
        for (int y = 0; y < size.height; ++y) {
            const Box first = orientation_.stored({y, 0, 1, 1}, stored_);
            const uint8_t* from =
                pixels_.data() + 4 * (int64_t{first.top} * stored_.width + first.left);
            for (int x = 0; x < size.width; ++x) std::memcpy(row + 4 * x, from + 4 * step * x, 4);
            sink.take(&row, 1);
        }
    }

  private:
    size_t bytes_per_row() const { return size_t{4} * static_cast<size_t>(stored_.width); }

    Size stored_;
    Orientation orientation_;
    std::vector<uint8_t>& pixels_;
    size_t taken_ = 0;
};

// How often both sides of the box can be halved, at most 3 times, and not be smaller than the size
// that it is resampled to.
int largest_reduction(const Geometry& geometry) {
    int shift = 3;
    while (shift > 0 && (geometry.box.height >> shift < geometry.size.height ||
                         geometry.box.width >> shift < geometry.size.width)) {
        --shift;
    }
    return shift;
}

int reduced_side(int side, int shift) { return (side + (1 << shift) - 1) >> shift; }

// The smallest box that contains both.
Box joined(const Box& a, const Box& b) {
    const int top = std::min(a.top, b.top), left = std::min(a.left, b.left);
    return {top, left, std::max(a.top + a.height, b.top + b.height) - top,
            std::max(a.left + a.width, b.left + b.width) - left};
}

// Gives the rows of one decoding to the resamplers of all views: to each those that it needs.
class Distributor final : public RowSink {
  public:
    Distributor(Worker& worker, size_t views)
        : worker_(worker), views_(views), box_(worker.resampler().needed()) {
        for (size_t view = 1; view < views; ++view)
            box_ = joined(box_, worker.resampler(view).needed());
        y_ = box_.top;
    }

    const Box& needed() const { return box_; }

    void take(const uint8_t* const* rows, int count) override {
        for (size_t view = 0; view < views_; ++view) {
            Resampler& resampler = worker_.resampler(view);
            const Box& part = resampler.needed();
            const int from = std::max(part.top - y_, 0),
                      to = std::min(part.top + part.height - y_, count);
            const ptrdiff_t indent = ptrdiff_t{4} * (part.left - box_.left);
            for (int y = from; y < to;) {
                const uint8_t* visible[kAtOnce];
                const int chunk = std::min(to - y, kAtOnce);
                for (int i = 0; i < chunk; ++i) visible[i] = rows[y++] + indent;
                resampler.take(visible, chunk);
            }
        }
        y_ += count;
    }

    void restart() override {
        y_ = box_.top;
        for (size_t view = 0; view < views_; ++view) worker_.resampler(view).restart();
    }

  private:
    static constexpr int kAtOnce = 16;

    Worker& worker_;
    const size_t views_;
    Box box_;
    int y_ = 0;  // of the next row
};

// Decodes the box `needed` of the upright image, and gives its upright rows to the sink. `stored`:
// the size of the stored image. Uses `worker.scratch`.
Outcome read_upright(Worker& worker, const Box& needed, Size stored, Orientation orientation,
                     bool whole, RowSink& sink) {
    if (orientation.is_upright()) return worker.decoder.read(needed, whole, sink);
    const Box box = orientation.stored(needed, stored);
    UprightCollector collector({box.height, box.width}, orientation, worker.scratch);
    Outcome outcome = worker.decoder.read(box, whole, collector);
    if (outcome.ok()) collector.give_upright(sink);
    return outcome;
}

// Whether a geometry resamples nothing.
bool copies(const Geometry& geometry) {
    return geometry.box.height == geometry.size.height && geometry.box.width == geometry.size.width;
}

// For each position of a window along an axis, the row or column of the box (of length `extent`)
// that a geometry without resampling shows there; -1: padding.
void positions(int start, int length, int extent, bool mirror, Padding padding,
               std::vector<int>& out) {
    out.resize(static_cast<size_t>(length));
    for (int i = 0; i < length; ++i) {
        out[static_cast<size_t>(i)] =
            padded_position(start + (mirror ? length - 1 - i : i), extent, padding);
    }
}

// The first row or column of the box, and the number of them, that `count` positions from `first`
// on show; (0, 1) if they show only padding.
std::pair<int, int> bounds(const std::vector<int>& shown, int first, int count) {
    int low = INT32_MAX, high = -1;
    for (int i = first; i < first + count; ++i) {
        const int position = shown[static_cast<size_t>(i)];
        if (position < 0) continue;
        low = std::min(low, position);
        high = std::max(high, position);
    }
    return high < 0 ? std::pair{0, 1} : std::pair{low, high - low + 1};
}

// Whether a geometry does nothing but cut a part out, or cut it out and mirror it.
bool only_cuts(const Geometry& geometry, bool mirrors = false) {
    const Box& window = geometry.window;
    return copies(geometry) && window.top == 0 && window.left == 0 &&
           window.height == geometry.size.height && window.width == geometry.size.width &&
           geometry.mirror == mirrors && !geometry.upside_down;
}

// Mirrors packed pixels of 1 or 3 channels, row by row. `row`: memory to use.
void mirror_rows(const Kernels& kernels, uint8_t* pixels, Size size, int channels,
                 std::vector<uint8_t>& row) {
    const size_t bytes = static_cast<size_t>(size.width) * static_cast<size_t>(channels);
    uint8_t* const copy = grow(row, bytes);
    for (int y = 0; y < size.height; ++y, pixels += bytes) {
        if (channels == 1) {
            std::reverse(pixels, pixels + bytes);
            continue;
        }
        std::memcpy(copy, pixels, bytes);
        kernels.mirror(copy, pixels, size.width);
    }
}

// The most pixels of what a warp makes, as of another intermediate image (`resolve`).
constexpr int64_t kMostWarped = int64_t{1} << 28;

// A view of an image that is decoded to memory first, as its colours are changed before its
// geometry, or another geometry follows (`View::later`), perhaps after a warp.
class MemoryView {
  public:
    MemoryView(Worker& worker, const View& view, int row, size_t number)
        : worker_(worker),
          view_(view),
          row_(row),
          last_(worker.resampler(2 * number)),
          first_(worker.resampler(2 * number + 1)) {}

    // Plans the view of an image whose upright size is `image`.
    Outcome begin(Size image) {
        if (!view_.later) {
            if (Outcome found =
                    resolve(view_.geometries, row_, image, view_.size_of(row_), geometry_);
                !found.ok())
                return found;
            last_.begin(geometry_, view_.resample, 0, {}, view_.channels);
            needed_ = last_.needed();
        } else {
            if (Outcome found = resolve(view_.geometries, row_, image, geometry_); !found.ok())
                return found;
            const Box& window = geometry_.window;
            const Size between = {window.height, window.width};
            warps_ = view_.warp.has(row_);
            const Size shown = warps_ ? view_.warp.size_of(row_) : between;
            if (shown.height < 1 || shown.width < 1 ||
                int64_t{shown.height} * shown.width > kMostWarped)
                return {Status::bad_geometry, "a warp makes no image, or too large a one"};
            Geometry later;
            if (Outcome found = resolve(view_.later, row_, shown, view_.size_of(row_), later);
                !found.ok())
                return found;
            last_.begin(later, view_.later_resample, 0, {}, view_.channels);
            mirrors_ = only_cuts(geometry_, true);
            direct_ = warps_ && view_.step() == 0 && only_cuts(later);
            shown_ = direct_ ? later.box : box_of(shown);
            const Padding padding = view_.resample.padding;
            if (warps_ && (mirrors_ || only_cuts(geometry_))) {
                const Box read = warped_part(between, shown_, inverse());
                const int left = mirrors_ ? between.width - read.left - read.width : read.left;
                needed_ = {geometry_.box.top + read.top, geometry_.box.left + left, read.height,
                           read.width};
            } else if (!warps_ && copies(geometry_)) {
                positions(window.top, window.height, geometry_.box.height, geometry_.upside_down,
                          padding, rows_);
                positions(window.left, window.width, geometry_.box.width, geometry_.mirror, padding,
                          columns_);
                const Box shown = last_.needed();
                const auto [top, height] = bounds(rows_, shown.top, shown.height);
                const auto [left, width] = bounds(columns_, shown.left, shown.width);
                needed_ = {geometry_.box.top + top, geometry_.box.left + left, height, width};
            } else {
                first_.begin(geometry_, view_.resample, 0, {}, view_.channels);
                needed_ = first_.needed();
            }
        }
        const Box changed = recoloured_part(view_, row_, needed_, image);
        part_ = changed.height > 0 ? joined(needed_, changed) : needed_;
        return {};
    }

    // The part of the upright image that is needed.
    const Box& part() const { return part_; }

    // Makes the output. `pixels`: the packed pixels of `part`, which contains part(); they are
    // changed.
    void finish(uint8_t* pixels, const Box& part) {
        const Size size = {part.height, part.width};
        recolour_part(worker_, view_, row_, size, pixels);
        Box needed = needed_;
        needed.top -= part.top;
        needed.left -= part.left;
        if (!view_.later) {
            feed(worker_, last_, pixels, size, needed, view_.channels);
        } else if (warps_) {
            const Size shown = {shown_.height, shown_.width};
            uint8_t* const out = direct_ ? view_.at(row_) : grow(worker_.warped, bytes_of(shown));
            warp_to(out, pixels, part, needed);
            if (direct_) return;
            feed(worker_, last_, out, shown, last_.needed(), view_.channels);
        } else if (copies(geometry_)) {
            feed_window(pixels, part);
        } else {
            make_first(pixels, size, needed);
            feed(worker_, last_, worker_.picture.data(), between(), last_.needed(), view_.channels);
        }
        last_.finish(view_.at(row_), view_.step());
    }

  private:
    // The size of what the first geometry makes.
    Size between() const { return {geometry_.window.height, geometry_.window.width}; }

    size_t bytes_of(Size size) const {
        return static_cast<size_t>(size.height) * static_cast<size_t>(size.width) *
               static_cast<size_t>(view_.channels);
    }

    const double* inverse() const { return view_.warp.inverse + 9 * int64_t{row_}; }

    // Makes `worker.picture` by the first geometry. The arguments are as of `feed`.
    void make_first(const uint8_t* pixels, Size size, const Box& needed) {
        feed(worker_, first_, pixels, size, needed, view_.channels);
        first_.finish(grow(worker_.picture, bytes_of(between())));
    }

    // Makes what is shown of the warp of what the first geometry makes. `pixels` are those of
    // `part`, and `needed` lies in it.
    void warp_to(uint8_t* out, uint8_t* pixels, const Box& part, const Box& needed) {
        const WarpOptions& options = view_.warp.options;
        if (mirrors_ || only_cuts(geometry_)) {
            Box own = {part.top - geometry_.box.top, part.left - geometry_.box.left, part.height,
                       part.width};
            if (mirrors_) {
                own.left = between().width - own.left - own.width;
                mirror_rows(worker_.kernels, pixels, {part.height, part.width}, view_.channels,
                            worker_.scratch);
            }
            warp_part(worker_.kernels, pixels, own, between(), out, shown_, view_.channels,
                      inverse(), options);
        } else {
            make_first(pixels, {part.height, part.width}, needed);
            warp(worker_.kernels, worker_.picture.data(), between(), out, shown_, view_.channels,
                 inverse(), options);
        }
    }

    // Gives the rows of the first geometry's window to the second resampler, one by one. The window
    // is not copied as a whole, as it may have padding of any size.
    void feed_window(const uint8_t* pixels, const Box& part) {
        const Box shown = last_.needed();
        const auto channels = static_cast<size_t>(view_.channels);
        const size_t stride = size_t{4} * static_cast<size_t>(shown.width) + kRowSlack;
        // A row of padding, and the row in work.
        uint8_t *const filled = grow(worker_.scratch, 2 * stride), *const row = filled + stride;
        const uint8_t* fill = view_.resample.fill;
        for (int x = 0; x < shown.width; ++x) {
            const uint8_t pixel[4] = {fill[0], fill[channels == 3 ? 1 : 0],
                                      fill[channels == 3 ? 2 : 0], 0};
            std::memcpy(filled + 4 * int64_t{x}, pixel, 4);
        }
        std::memcpy(row, filled, stride - kRowSlack);
        int before = -2;  // the row of the box that was given last; -1: padding; -2: none yet
        for (int y = shown.top; y < shown.top + shown.height; ++y) {
            const int from = rows_[static_cast<size_t>(y)];
            if (from == before) {
                last_.repeat(1);
                continue;
            }
            before = from;
            const uint8_t* line = filled;
            if (from >= 0) {
                const int64_t at = int64_t{geometry_.box.top + from - part.top} * part.width +
                                   geometry_.box.left - part.left;
                for (int x = 0; x < shown.width; ++x) {
                    const int column = columns_[static_cast<size_t>(shown.left + x)];
                    if (column < 0) continue;
                    const uint8_t* pixel = pixels + (at + column) * view_.channels;
                    uint8_t* out = row + 4 * int64_t{x};
                    out[0] = pixel[0];
                    out[1] = channels == 3 ? pixel[1] : pixel[0];
                    out[2] = channels == 3 ? pixel[2] : pixel[0];
                }
                line = row;
            }
            last_.take(&line, 1);
        }
    }

    Worker& worker_;
    const View& view_;
    const int row_;
    Resampler &last_, &first_;         // of the last geometry, and of the one before it
    Geometry geometry_;                // the first one
    bool warps_ = false;               // what it makes
    bool mirrors_ = false;             // the first one cuts a part out and mirrors it
    bool direct_ = false;              // to the output: the last geometry only cuts
    Box shown_;                        // the part of the warp that is made
    std::vector<int> rows_, columns_;  // `positions` of its window, if it resamples nothing
    Box needed_;                       // of the image, by the geometry
    Box part_;                         // the same, and what colour operations look at
};

// Decodes what all views need to memory, and makes them there. Uses `worker.canvas`, `tile`,
// `picture` and `warped`.
Outcome read_to_memory(Worker& worker, const std::vector<View>& views, int row, Size stored,
                       Orientation orientation, bool whole) {
    const Size image = orientation.upright(stored);
    std::vector<MemoryView> made;
    Box part;
    for (size_t i = 0; i < views.size(); ++i) {
        made.emplace_back(worker, views[i], row, i);
        if (Outcome found = made.back().begin(image); !found.ok()) return found;
        part = i == 0 ? made[0].part() : joined(part, made[i].part());
    }
    const Size size = {part.height, part.width};
    const int channels = views.front().channels;
    const size_t bytes = static_cast<size_t>(size.height) * static_cast<size_t>(size.width) *
                         static_cast<size_t>(channels);
    Resampler& copier = worker.resampler(2 * views.size());
    uint8_t* const canvas = grow(worker.canvas, bytes + kWarpSlack);
    copier.begin({part, size, box_of(size)}, {}, 0, {}, channels, canvas);
    Outcome outcome = read_upright(worker, part, stored, orientation, whole, copier);
    if (!outcome.ok()) return outcome;
    copier.finish(canvas);
    for (size_t i = 0; i < views.size(); ++i) {
        uint8_t* pixels = worker.canvas.data();
        if (i + 1 < views.size()) {  // the next views need the pixels unchanged
            pixels = grow(worker.tile, bytes + kWarpSlack);
            std::memcpy(pixels, worker.canvas.data(), bytes);
        }
        made[i].finish(pixels, part);
    }
    return {};
}

// A row is an image.
class HeaderJob final : public Job {
  public:
    HeaderJob(std::unique_ptr<EncodedSource> images, const DecodeLimits& limits, int32_t* out)
        : Job(images->count(), 4), images_(std::move(images)), limits_(limits), out_(out) {}

  private:
    Outcome run(Worker& worker, int row) override {
        const Outcome outcome = open(worker, row);
        if (!outcome.ok()) return outcome;
        const ImageHeader& header = worker.decoder.header();
        const int orientation = worker.decoder.orientation();
        worker.decoder.close();
        const int32_t values[kHeaderColumns] = {header.size.height, header.size.width,
                                                header.components,  orientation,
                                                header.progressive, header.odd};
        std::copy(values, values + kHeaderColumns, out_ + kHeaderColumns * int64_t{row});
        return {};
    }

    Outcome open(Worker& worker, int row) {
        Outcome outcome;
        for (const int64_t most : kHeaderBytes) {
            Bytes bytes;
            if (Outcome read = images_->get(row, worker.bytes, bytes, most); !read.ok())
                return read;
            outcome = worker.decoder.open(bytes.data, bytes.size, limits_);
            const bool is_cut = static_cast<int64_t>(bytes.size) == most;
            if (!is_cut || outcome.status != Status::damaged) break;
        }
        return outcome;
    }

    void blank(int row) noexcept override {
        std::fill_n(out_ + kHeaderColumns * int64_t{row}, kHeaderColumns, 0);
    }

    std::unique_ptr<EncodedSource> images_;
    DecodeLimits limits_;
    int32_t* out_;
};

// Makes the views of one image, in two steps: between `begin` and `finish` it may be decoded
// together with another image, of another Worker (Decoder::read_on).
class ImageInWork {
  public:
    // Opens the image and plans its views. The arguments must live until `finish`; `size`: as in
    // `decode_image`.
    Outcome begin(Worker& worker, const Bytes& file, const std::vector<View>& views, int row,
                  const DecodeOptions& options, Size* size) {
        worker_ = &worker;
        views_ = &views;
        row_ = row;
        is_made_ = false;
        Decoder& decoder = worker.decoder;
        decoder.use_index(options.index,
                          options.plans.empty()
                              ? 0
                              : options.plans.front()->images[static_cast<size_t>(row)].hash);
        if (Outcome opened = decoder.open(file.data, file.size, options.limits); !opened.ok())
            return opened;
        if (Outcome checked = decoder.check_length(); !checked.ok()) return checked;
        const int number = options.exif_orientation ? decoder.orientation() : 1;
        if (number == kOrientationUnknown)
            return {Status::damaged, "its orientation is in compressed text"};
        const Orientation orientation(number);
        Size stored = decoder.header().size;
        const Size upright = orientation.upright(stored);
        if (size != nullptr && size->height == 0) *size = upright;
        if (size != nullptr && (size->height != upright.height || size->width != upright.width))
            return {Status::bad_geometry, "the images of a sample differ in size"};
        const bool numbers = views.front().channels == 1;
        if (numbers && !decoder.keep_numbers())
            return {Status::unsupported, "not one number of 8 bits a pixel"};
        if (std::any_of(views.begin(), views.end(), [&](const View& view) {
                return view.later || recoloured_part(view, row, {0, 0, 1, 1}, upright).height > 0;
            })) {
            is_made_ = true;
            return read_to_memory(worker, views, row, stored, orientation, options.whole);
        }
        worker.geometries.resize(views.size());
        int shift = options.draft && !numbers ? 3 : 0;
        for (const View& view : views)
            if (view.colour.kinds != nullptr)
                shift = 0;  // alike for all rows: others may have operations
        for (size_t i = 0; i < views.size(); ++i) {
            Geometry& geometry = worker.geometries[i];
            Outcome found =
                resolve(views[i].geometries, row, upright, views[i].size_of(row), geometry);
            if (!found.ok()) return found;
            shift = std::min(shift, largest_reduction(geometry));
        }
        if (shift > 0 && !decoder.reduce(shift)) shift = 0;
        for (size_t i = 0; i < views.size(); ++i) {
            worker.resampler(i).begin(worker.geometries[i], views[i].resample, shift,
                                      orientation.lead(stored, shift), views[i].channels,
                                      views[i].at(row), views[i].step());
        }
        stored = {reduced_side(stored.height, shift), reduced_side(stored.width, shift)};
        RowSink* sink = &worker.resampler();
        Box needed = worker.resampler().needed();
        if (views.size() > 1) {
            distributor_.emplace(worker, views.size());
            sink = &*distributor_;
            needed = distributor_->needed();
        }
        if (orientation.is_upright()) {
            decoder.begin(needed, options.whole, *sink);
            return {};
        }
        Outcome outcome = read_upright(worker, needed, stored, orientation, options.whole, *sink);
        if (outcome.ok()) finish_views();
        return outcome;
    }

    // Nothing is to be made of this image here.
    void pass() { is_made_ = true; }
    bool is_made() const { return is_made_; }

    // Decodes what is left, and writes the outputs. Only if the outcome of `begin` was ok.
    Outcome finish() {
        if (is_made_) return {};
        Outcome outcome = worker_->decoder.finish();
        if (outcome.ok()) finish_views();
        return outcome;
    }

  private:
    void finish_views() {
        for (size_t i = 0; i < views_->size(); ++i) {
            const View& view = (*views_)[i];
            worker_->resampler(i).finish(view.at(row_), view.step());
        }
        is_made_ = true;
    }

    Worker* worker_ = nullptr;
    const std::vector<View>* views_ = nullptr;
    int row_ = 0;
    bool is_made_ = false;
    std::optional<Distributor> distributor_;
};

// A row is a sample, with one image of each column. Each thread works on two rows at a time: the
// last images of both are decoded together.
class DecodeJob final : public Job {
  public:
    DecodeJob(std::vector<ImageColumn> columns, const DecodeOptions& options)
        : Job(columns.front().images->count(), 1),
          columns_(std::move(columns)),
          options_(options) {}

    bool run_some(Worker& worker) noexcept override {
        if (worker.twin == nullptr) return Job::run_some(worker);
        RowInWork first(worker), second(*worker.twin);
        for (;;) {
            start(first, 1);
            start(second, worker.threads);  // the last rows are left to threads that have none
            if (!first.waits && !second.waits) return false;
            const bool both = first.waits && second.waits;
            if (both) Decoder::read_on(first.worker.decoder, second.worker.decoder);
            for (RowInWork* work : {&first, &second}) {
                if (work->waits && (!both || !work->worker.decoder.has_turn())) finish(*work);
            }
        }
    }

  private:
    struct RowInWork {
        explicit RowInWork(Worker& its_worker) : worker(its_worker) {}
        Worker& worker;
        int row = 0;
        bool waits = false;  // for `finish`, and can be decoded together with another row
        ImageInWork image;
    };

    // Claims rows until one can be decoded together with another one, or fewer than `least` rows
    // are left. Those that cannot are run to their end.
    void start(RowInWork& work, int least) noexcept {
        while (!work.waits && claim(least, work.row)) {
            Outcome outcome = attempt([&] { return begin(work); });
            work.waits = outcome.ok() && !work.image.is_made() && work.worker.decoder.has_turn();
            if (work.waits) return;
            if (outcome.ok()) {
                finish(work);
            } else {
                end(work, std::move(outcome));
            }
        }
    }

    void finish(RowInWork& work) noexcept {
        work.waits = false;
        end(work, attempt([&] { return work.image.finish(); }));
    }

    void end(RowInWork& work, Outcome outcome) noexcept {
        work.worker.decoder.close();  // the bytes may go
        Job::end(work.worker, work.row, std::move(outcome));
    }

    Outcome run(Worker& worker, int row) override {
        RowInWork work(worker);
        work.row = row;
        Outcome outcome = begin(work);
        if (outcome.ok()) outcome = work.image.finish();
        worker.decoder.close();
        return outcome;
    }

    // Makes all images of the row but the last, and starts that one.
    Outcome begin(RowInWork& work) {
        Size size;
        for (const ImageColumn& column : columns_) {
            Worker& worker = work.worker;
            Bytes bytes;
            if (Outcome read = column.images->get(work.row, worker.bytes, bytes); !read.ok())
                return read;
            if (!options_.plans.empty() && plan_image(bytes, column.views, work.row, options_)) {
                work.image.pass();
                return {};
            }
            Outcome outcome =
                work.image.begin(worker, bytes, column.views, work.row, options_, &size);
            if (&column == &columns_.back() || !outcome.ok()) return outcome;
            if (outcome = work.image.finish(); !outcome.ok()) return outcome;
            worker.decoder.close();
        }
        return {};
    }

    void blank(int row) noexcept override {
        for (const ImageColumn& column : columns_) {
            for (const View& view : column.views)
                std::memset(view.at(row), 0, static_cast<size_t>(view.bytes()));
        }
    }

    std::vector<ImageColumn> columns_;
    DecodeOptions options_;
};

}  // namespace

Outcome decode_image(Worker& worker, const Bytes& file, const std::vector<View>& views, int row,
                     const DecodeOptions& options, Size* size) {
    ImageInWork image;
    Outcome outcome = image.begin(worker, file, views, row, options, size);
    return outcome.ok() ? image.finish() : outcome;
}

std::shared_ptr<Job> header_job(std::unique_ptr<EncodedSource> images, const DecodeLimits& limits,
                                int32_t* out) {
    return std::make_shared<HeaderJob>(std::move(images), limits, out);
}

std::shared_ptr<Job> decode_job(std::vector<ImageColumn> columns, const DecodeOptions& options) {
    return std::make_shared<DecodeJob>(std::move(columns), options);
}

}  // namespace fastload
