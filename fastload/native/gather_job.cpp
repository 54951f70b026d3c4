#include "gather_job.hpp"

#include <algorithm>
#include <cstring>


namespace fastload {
namespace {

// Rows claimed at a time: about this many bytes of output, so that tiny images do not fight over the counter.
constexpr int64_t kGrainBytes = 64 << 10;
// Rows expanded to four bytes a pixel at a time.
constexpr int kChunk = 8;
// Images of up to this size are fetched while others are copied: they lie anywhere in memory, and are read in less time
// than it takes to begin. To the second-level cache so many rows before their turn, to the first one row before.
constexpr int64_t kFetchedAheadBytes = 16 << 10;
constexpr int kFarAhead = 3;
constexpr int64_t kCacheLine = 64;

int grain(Size size, int channels) {
    const int64_t bytes = std::max<int64_t>(int64_t{size.height} * size.width * channels, 1);
    return static_cast<int>(std::clamp<int64_t>(kGrainBytes / bytes, 1, 64));
}

bool is_uniform(const uint8_t* fill, int channels) {
    return std::all_of(fill, fill + channels, [&](uint8_t value) { return value == fill[0]; });
}

void fill_pixels(uint8_t* out, int pixels, int channels, const uint8_t* fill, bool uniform) {
    if (uniform) {
        std::memset(out, fill[0], static_cast<size_t>(pixels) * static_cast<size_t>(channels));
        return;
    }
    for (int x = 0; x < pixels; ++x, out += channels) std::memcpy(out, fill, static_cast<size_t>(channels));
}

void mirror_pixels(const Kernels& kernels, const uint8_t* row, int pixels, int channels, uint8_t* out) {
    if (channels == 3) {
        kernels.mirror(row, out, pixels);
    } else if (channels == 1) {
        std::reverse_copy(row, row + pixels, out);
    } else {
        for (int x = 0; x < pixels; ++x) {
            std::memcpy(out + x * channels, row + (pixels - 1 - x) * channels, static_cast<size_t>(channels));
        }
    }
}

void expand(const uint8_t* row, int pixels, int channels, uint8_t* out) {
    for (int x = 0; x < pixels; ++x, row += channels, out += 4) {
        out[0] = row[0];
        out[1] = channels == 3 ? row[1] : row[0];
        out[2] = channels == 3 ? row[2] : row[0];
        out[3] = 0;
    }
}

}  // namespace

GatherJob::GatherJob(const PixelRows& images, std::shared_ptr<const GeometrySource> geometries,
                     const ResampleOptions& options, Size size, uint8_t* out)
    : Job(images.count, grain(size, images.channels)),
      images_(images),
      geometries_(std::move(geometries)),
      options_(options),
      size_(size),
      out_(out) {}

Size GatherJob::size_of(int64_t index) const {
    return images_.sizes ? Size{images_.sizes[2 * index], images_.sizes[2 * index + 1]} : images_.size;
}

const uint8_t* GatherJob::pixels_of(int64_t index, Size size) const {
    return images_.base + (images_.offsets ? images_.offsets[index] : index * bytes_of(size));
}

int64_t GatherJob::bytes_of(Size size) const { return int64_t{size.height} * size.width * images_.channels; }

// Inlined, for GCC 12 takes a function that only fetches for one without effect, and leaves out the calls.
template <int kLocality>
[[gnu::always_inline]] inline void GatherJob::fetch(int row) const {
    if (row >= images_.count) return;
    const int64_t index = images_.rows[row];
    const Size size = size_of(index);
    const uint8_t* pixels = pixels_of(index, size);
    const int64_t bytes = bytes_of(size);
    if (bytes > kFetchedAheadBytes) return;
    for (int64_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(pixels + at, 0, kLocality);
}

Outcome GatherJob::run(Worker& worker, int row) {
    fetch<2>(row + kFarAhead);
    fetch<3>(row + 1);
    const int64_t index = images_.rows[row];
    const Size size = size_of(index);
    const uint8_t* const pixels = pixels_of(index, size);

    Geometry geometry;
    if (Outcome resolved = geometries_->resolve(row, size, geometry); !resolved.ok()) return resolved;
    if (Outcome checked = check_geometry(geometry, size); !checked.ok()) return checked;
    if (geometry.window.height != size_.height || geometry.window.width != size_.width) {
        return {Status::bad_geometry, "the window and the output differ in size"};
    }

    uint8_t* out = out_ + size_t{1} * static_cast<size_t>(size_.height) * static_cast<size_t>(size_.width) *
                              static_cast<size_t>(images_.channels) * static_cast<size_t>(row);
    const bool copies = geometry.size.height == geometry.box.height && geometry.size.width == geometry.box.width;
    if (copies) {
        copy(worker, pixels, size, geometry, out);
    } else {
        resample(worker, pixels, size, geometry, out);
    }
    return {};
}

void GatherJob::blank(int row) noexcept {
    const size_t bytes = static_cast<size_t>(size_.height) * static_cast<size_t>(size_.width) *
                         static_cast<size_t>(images_.channels);
    std::memset(out_ + bytes * static_cast<size_t>(row), 0, bytes);
}

void GatherJob::copy(Worker& worker, const uint8_t* image, Size size, const Geometry& geometry, uint8_t* out) const {
    const int channels = images_.channels;
    const Box& box = geometry.box;
    const Box& window = geometry.window;
    const Padding padding = options_.padding;
    const size_t out_stride = static_cast<size_t>(window.width) * static_cast<size_t>(channels);
    const size_t in_stride = static_cast<size_t>(size.width) * static_cast<size_t>(channels);
    const bool uniform = is_uniform(options_.fill, channels);

    // Columns of the window that show the box: [lead, lead + count) as written, from `start` of the box on.
    const int start = std::clamp(window.left, 0, box.width);
    const int count = std::max(std::min(window.left + window.width, box.width) - start, 0);
    int lead = std::clamp(-window.left, 0, window.width);
    if (geometry.mirror) lead = window.width - lead - count;

    // Whatever shows nothing of the box, in one go.
    const bool within = count == window.width && window.top >= 0 && window.top + window.height <= box.height;
    const bool constant = padding == Padding::constant;
    if (constant && !within) fill_pixels(out, window.height * window.width, channels, options_.fill, uniform);

    for (int y = 0; y < window.height; ++y, out += out_stride) {
        const int position = window.top + (geometry.upside_down ? window.height - 1 - y : y);
        const bool inside = position >= 0 && position < box.height;
        if (!inside && constant) continue;
        const int row = inside ? position : padded_position(position, box.height, padding);
        const uint8_t* from = image + in_stride * static_cast<size_t>(box.top + row) +
                              static_cast<size_t>(box.left) * static_cast<size_t>(channels);
        uint8_t* middle = out + lead * channels;
        if (geometry.mirror) {
            mirror_pixels(worker.kernels, from + start * channels, count, channels, middle);
        } else {
            std::memcpy(middle, from + start * channels, static_cast<size_t>(count) * static_cast<size_t>(channels));
        }
        if (constant || count == window.width) continue;
        for (int x = 0; x < window.width; ++x) {
            if (x == lead) x += count;
            if (x >= window.width) break;
            const int column = padded_position(window.left + (geometry.mirror ? window.width - 1 - x : x), box.width,
                                               padding);
            std::memcpy(out + x * channels, from + column * channels, static_cast<size_t>(channels));
        }
    }
}

void GatherJob::resample(Worker& worker, const uint8_t* image, Size size, const Geometry& geometry,
                         uint8_t* out) const {
    const int channels = images_.channels;
    Resampler& resampler = worker.resampler();
    ResampleOptions options = options_;
    if (channels == 1) options.fill[1] = options.fill[2] = options.fill[0];
    resampler.begin(geometry, options);
    const Box needed = resampler.needed();

    // Scratch: rows of four bytes a pixel; behind them, for grey images, the result in three.
    const size_t stride = static_cast<size_t>(needed.width) * 4 + kRowSlack;
    const size_t pixels = static_cast<size_t>(size_.height) * static_cast<size_t>(size_.width);
    const size_t bytes = stride * kChunk + (channels == 1 ? pixels * 3 : 0);
    if (worker.scratch.size() < bytes) worker.scratch.resize(bytes);
    for (int done = 0; done < needed.height;) {
        const int rows = std::min(kChunk, needed.height - done);
        const uint8_t* targets[kChunk];
        for (int y = 0; y < rows; ++y) {
            uint8_t* target = worker.scratch.data() + stride * static_cast<size_t>(y);
            const int64_t at = int64_t{needed.top + done + y} * size.width + needed.left;
            expand(image + at * channels, needed.width, channels, target);
            targets[y] = target;
        }
        resampler.take(targets, rows);
        done += rows;
    }
    if (channels == 3) {
        resampler.finish(out);
    } else {
        uint8_t* colour = worker.scratch.data() + stride * kChunk;
        resampler.finish(colour);
        for (size_t i = 0; i < pixels; ++i) out[i] = colour[3 * i];
    }
}

}  // namespace fastload
