#include "decode_job.hpp"

#include <algorithm>
#include <cstring>

#include "orientation.hpp"

namespace fastload {
namespace {

// Enough for the header of nearly every file, metadata included.
constexpr int64_t kHeaderBytes = 64 << 10;

}  // namespace

Outcome decode_image(Worker& worker, const uint8_t* data, size_t size, const GeometrySource& geometries, int row,
                     const DecodeOptions& options, Size out_size, uint8_t* out) {
    ImageDecoder& decoder = worker.decoder;
    if (Outcome opened = decoder.open(data, size, options.limits); !opened.ok()) return opened;
    const Size stored = decoder.header().size;
    const int orientation = options.exif_orientation ? decoder.header().orientation : 1;
    const Size image = upright_size(stored, orientation);

    Geometry geometry;
    Outcome resolved = geometries.resolve(row, image, geometry);
    if (resolved.ok()) resolved = check_geometry(geometry, image);
    if (resolved.ok() && (geometry.window.height != out_size.height || geometry.window.width != out_size.width)) {
        resolved = {Status::bad_geometry, "the window and the output differ in size"};
    }
    if (!resolved.ok()) {
        decoder.close();
        return resolved;
    }

    worker.resampler.begin(geometry, options.resample);
    const Box& needed = worker.resampler.needed();
    Outcome outcome;
    if (orientation == 1) {
        outcome = decoder.read(needed, options.whole, worker.resampler);
    } else {
        const Box box = stored_box(needed, stored, orientation);
        Uprighter uprighter({box.height, box.width}, orientation, worker.scratch);
        outcome = decoder.read(box, options.whole, uprighter);
        if (outcome.ok()) uprighter.give(worker.resampler);
    }
    if (outcome.ok()) worker.resampler.finish(out);
    return outcome;
}

DecodeJob::DecodeJob(std::unique_ptr<EncodedSource> images, std::shared_ptr<const GeometrySource> geometries,
                     const DecodeOptions& options, const Output& out)
    : Job(images->count(), 1),
      images_(std::move(images)),
      geometries_(std::move(geometries)),
      options_(options),
      out_(out) {}

Outcome DecodeJob::run(Worker& worker, int row) {
    Bytes bytes;
    if (Outcome read = images_->get(row, worker.bytes, bytes, INT64_MAX); !read.ok()) return read;
    Outcome outcome = decode_image(worker, bytes.data, bytes.size, *geometries_, row, options_, out_.size_of(row),
                                   out_.at(row));
    worker.decoder.close();  // the bytes may go
    return outcome;
}

void DecodeJob::blank(int row) noexcept { std::memset(out_.at(row), 0, static_cast<size_t>(out_.bytes(row))); }

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
