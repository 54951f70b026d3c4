#include "decode_job.hpp"

#include <algorithm>
#include <cstring>

#include "orientation.hpp"

namespace fastload {
namespace {

// Enough for the header of nearly every file, metadata included.
constexpr int64_t kHeaderBytes = 64 << 10;

// By how many powers of two both sides of the box can be halved, and be no smaller than what is made of it.
int largest_reduction(const Geometry& geometry) {
    int shift = 3;
    while (shift > 0 && (geometry.box.height >> shift < geometry.size.height ||
                         geometry.box.width >> shift < geometry.size.width)) {
        --shift;
    }
    return shift;
}

int reduced_side(int side, int shift) { return (side + (1 << shift) - 1) >> shift; }

Box joined(const Box& a, const Box& b) {
    const int top = std::min(a.top, b.top), left = std::min(a.left, b.left);
    return {top, left, std::max(a.top + a.height, b.top + b.height) - top,
            std::max(a.left + a.width, b.left + b.width) - left};
}

// Gives each view its part of the rows of a box that holds what all of them need.
class Distributor final : public RowSink {
  public:
    Distributor(Worker& worker, size_t views) : worker_(worker), views_(views), box_(worker.resampler().needed()) {
        for (size_t view = 1; view < views; ++view) box_ = joined(box_, worker.resampler(view).needed());
        y_ = box_.top;
    }

    const Box& needed() const { return box_; }

    void take(const uint8_t* const* rows, int count) override {
        for (size_t view = 0; view < views_; ++view) {
            Resampler& resampler = worker_.resampler(view);
            const Box& part = resampler.needed();
            const int from = std::max(part.top, y_), to = std::min(part.top + part.height, y_ + count);
            const ptrdiff_t indent = ptrdiff_t{4} * (part.left - box_.left);
            for (int y = from; y < to;) {
                const uint8_t* visible[kAtOnce];
                const int chunk = std::min(to - y, kAtOnce);
                for (int i = 0; i < chunk; ++i) visible[i] = rows[y + i - y_] + indent;
                resampler.take(visible, chunk);
                y += chunk;
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

// The geometry of each view for row `row` of an image of this size, into the worker's.
Outcome resolve_views(Worker& worker, const std::vector<View>& views, int row, Size image) {
    worker.geometries.resize(views.size());
    for (size_t i = 0; i < views.size(); ++i) {
        const View& view = views[i];
        Geometry& geometry = worker.geometries[i];
        geometry = Geometry();
        Outcome resolved = view.geometries->resolve(row, image, geometry);
        if (resolved.ok()) resolved = check_geometry(geometry, image);
        const Size out = view.out.size_of(row);
        if (resolved.ok() && (geometry.window.height != out.height || geometry.window.width != out.width)) {
            resolved = {Status::bad_geometry, "the window and the output differ in size"};
        }
        if (!resolved.ok()) return resolved;
    }
    return {};
}

// Decodes `needed`, in pixels of the upright image, of an image of size `stored` into a sink.
Outcome read_upright(Worker& worker, const Box& needed, Size stored, int orientation, bool whole, RowSink& sink) {
    if (orientation == 1) return worker.decoder.read(needed, whole, sink);
    const Box box = stored_box(needed, stored, orientation);
    Uprighter uprighter({box.height, box.width}, orientation, worker.scratch);
    Outcome outcome = worker.decoder.read(box, whole, uprighter);
    if (outcome.ok()) uprighter.give(sink);
    return outcome;
}

}  // namespace

Outcome decode_image(Worker& worker, const uint8_t* data, size_t size, const std::vector<View>& views, int row,
                     const DecodeOptions& options) {
    ImageDecoder& decoder = worker.decoder;
    if (Outcome opened = decoder.open(data, size, options.limits); !opened.ok()) return opened;
    const int orientation = options.exif_orientation ? decoder.header().orientation : 1;
    Size stored = decoder.header().size;
    if (Outcome resolved = resolve_views(worker, views, row, upright_size(stored, orientation)); !resolved.ok()) {
        decoder.close();
        return resolved;
    }
    int shift = options.draft ? 3 : 0;
    for (const Geometry& geometry : worker.geometries) shift = std::min(shift, largest_reduction(geometry));
    if (shift > 0 && !decoder.reduce(shift)) shift = 0;
    const Size lead = upright_lead(stored, orientation, shift);
    for (size_t i = 0; i < views.size(); ++i) {
        worker.resampler(i).begin(worker.geometries[i], views[i].resample, shift, lead);
    }
    stored = {reduced_side(stored.height, shift), reduced_side(stored.width, shift)};
    Outcome outcome;
    if (views.size() == 1) {
        Resampler& resampler = worker.resampler();
        outcome = read_upright(worker, resampler.needed(), stored, orientation, options.whole, resampler);
    } else {
        Distributor distributor(worker, views.size());
        outcome = read_upright(worker, distributor.needed(), stored, orientation, options.whole, distributor);
    }
    if (!outcome.ok()) return outcome;
    for (size_t i = 0; i < views.size(); ++i) worker.resampler(i).finish(views[i].out.at(row));
    return {};
}

DecodeJob::DecodeJob(std::unique_ptr<EncodedSource> images, std::vector<View> views, const DecodeOptions& options)
    : Job(images->count(), 1), images_(std::move(images)), views_(std::move(views)), options_(options) {}

Outcome DecodeJob::run(Worker& worker, int row) {
    Bytes bytes;
    if (Outcome read = images_->get(row, worker.bytes, bytes, INT64_MAX); !read.ok()) return read;
    Outcome outcome = decode_image(worker, bytes.data, bytes.size, views_, row, options_);
    worker.decoder.close();  // the bytes may go
    return outcome;
}

void DecodeJob::blank(int row) noexcept {
    for (const View& view : views_) std::memset(view.out.at(row), 0, static_cast<size_t>(view.out.bytes(row)));
}

HeaderJob::HeaderJob(std::unique_ptr<EncodedSource> images, const DecodeLimits& limits, int32_t* out)
    : Job(images->count(), 4), images_(std::move(images)), limits_(limits), out_(out) {}

Outcome HeaderJob::run(Worker& worker, int row) {
    Bytes bytes;
    if (Outcome read = images_->get(row, worker.bytes, bytes, kHeaderBytes); !read.ok()) return read;
    Outcome outcome = worker.decoder.open(bytes.data, bytes.size, limits_);
    if (outcome.status == Status::damaged && bytes.size == static_cast<size_t>(kHeaderBytes)) {
        if (Outcome read = images_->get(row, worker.bytes, bytes, INT64_MAX); !read.ok()) return read;
        outcome = worker.decoder.open(bytes.data, bytes.size, limits_);
    }
    if (!outcome.ok()) return outcome;
    const ImageHeader header = worker.decoder.header();
    worker.decoder.close();
    const int32_t values[kColumns] = {header.size.height, header.size.width, header.components,
                                      header.orientation, header.progressive ? 1 : 0};
    std::copy(values, values + kColumns, out_ + kColumns * static_cast<int64_t>(row));
    return {};
}

void HeaderJob::blank(int row) noexcept { std::fill_n(out_ + kColumns * static_cast<int64_t>(row), kColumns, 0); }

}  // namespace fastload
