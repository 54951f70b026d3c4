#include <algorithm>
#include <cstring>
#include <utility>

#include "colour_loops.hpp"
#include "jobs.hpp"

namespace fastload {
namespace {

// A thread claims so many rows at a time that their outputs have about this many bytes: of tiny
// images many, so that threads rarely wait for each other's access to the counter.
constexpr int64_t kGrainBytes = 64 << 10;
// Rows of an image that are expanded to 4-byte pixels at a time.
constexpr int kRowsAtOnce = 8;

// Images of up to this size are prefetched while others are copied: they lie anywhere in memory,
// and waiting for the first byte takes longer than reading the rest. They are fetched to the
// second-level cache kFarAhead rows before their turn, to the first-level cache one row before.
constexpr int64_t kFetchedAheadBytes = 16 << 10;
constexpr int kFarAhead = 3;
constexpr int64_t kCacheLine = 64;

// Whether a row of a view has colour operations. `pointwise` becomes false if one of them is not.
bool has_steps(const View& view, int row, bool* pointwise = nullptr) {
    if (view.colour.kinds == nullptr) return false;
    const int32_t* kinds = view.colour.kinds + int64_t{view.colour.steps} * row;
    bool found = false;
    for (int step = 0; step < view.colour.steps; ++step) {
        if (kinds[step] < 0) continue;
        found = true;
        if (pointwise != nullptr && !is_pointwise(static_cast<ColourKind>(kinds[step])))
            *pointwise = false;
    }
    return found;
}

// Rows that a thread claims at a time.
int grain(const View& view) {
    return static_cast<int>(
        std::clamp<int64_t>(kGrainBytes / std::max<int64_t>(view.bytes(), 1), 1, 64));
}

// Writes `pixels` pixels of one colour.
void fill_pixels(uint8_t* out, size_t pixels, int channels, const uint8_t* fill) {
    const auto bytes = static_cast<size_t>(channels);
    if (std::all_of(fill, fill + channels, [&](uint8_t value) { return value == fill[0]; })) {
        std::memset(out, fill[0], pixels * bytes);
        return;
    }
    for (size_t i = 0; i < pixels; ++i, out += bytes) std::memcpy(out, fill, bytes);
}

// Copies a row in reverse order.
void mirror_pixels(const Kernels& kernels, const uint8_t* row, int pixels, int channels,
                   uint8_t* out) {
    if (channels == 3) {
        kernels.mirror(row, out, pixels);
    } else if (channels == 1) {
        std::reverse_copy(row, row + pixels, out);
    } else {
        for (int x = 0; x < pixels; ++x) {
            std::memcpy(out + x * channels, row + (pixels - 1 - x) * channels,
                        static_cast<size_t>(channels));
        }
    }
}

// Pixels of 1 or 3 channels to 4 bytes.
void expand(const uint8_t* row, int pixels, int channels, uint8_t* out) {
    for (int x = 0; x < pixels; ++x, row += channels, out += 4) {
        out[0] = row[0];
        out[1] = channels == 3 ? row[1] : row[0];
        out[2] = channels == 3 ? row[2] : row[0];
        out[3] = 0;
    }
}

// A row is a sample.
class GatherJob final : public Job {
  public:
    GatherJob(const PixelRows& images, View view)
        : Job(images.count, grain(view)),
          images_(images),
          view_(std::move(view)),
          channels_(view_.channels) {}

  private:
    struct Image {
        const uint8_t* pixels;
        Size size;
        int64_t bytes;
    };

    Image image(int row) const {
        const int64_t index = images_.rows[row];
        const Size size = images_.sizes
                              ? Size{images_.sizes[2 * index], images_.sizes[2 * index + 1]}
                              : images_.size;
        const int64_t bytes = int64_t{size.height} * size.width * channels_;
        return {images_.base + (images_.offsets ? images_.offsets[index] : index * bytes), size,
                bytes};
    }

    // Prefetches the image of a row. Inlined: GCC 12 treats a function that only prefetches as one
    // without effect, and leaves out the calls.
    template <int kLocality>
    [[gnu::always_inline]] inline void fetch(int row) const {
        if (row >= images_.count) return;
        const Image next = image(row);
        if (next.bytes > kFetchedAheadBytes) return;
        for (int64_t at = 0; at < next.bytes; at += kCacheLine)
            __builtin_prefetch(next.pixels + at, 0, kLocality);
    }

    Outcome run(Worker& worker, int row) override {
        fetch<2>(row + kFarAhead);
        fetch<3>(row + 1);
        Image from = image(row);
        Geometry geometry;
        if (Outcome found = resolve(view_.geometries, row, from.size, view_.size, geometry);
            !found.ok())
            return found;
        if (has_steps(view_, row)) recolour(worker, row, from, geometry);
        if (geometry.size.height == geometry.box.height &&
            geometry.size.width == geometry.box.width) {
            copy(worker, from, geometry, view_.at(row));
        } else {
            resample(worker, from, geometry, view_.at(row));
        }
        return {};
    }

    void blank(int row) noexcept override {
        std::memset(view_.at(row), 0, static_cast<size_t>(view_.bytes()));
    }

    void recolour(Worker& worker, int row, Image& image, Geometry& geometry) const;
    void copy(Worker& worker, const Image& image, const Geometry& geometry, uint8_t* out) const;
    void resample(Worker& worker, const Image& image, const Geometry& geometry, uint8_t* out) const;

    const PixelRows images_;
    const View view_;
    const int channels_;
};

// Copies the part of the image that the colour operations work on to `worker.canvas`, and applies
// them there. `image` and the box become those of the copy.
void GatherJob::recolour(Worker& worker, int row, Image& image, Geometry& geometry) const {
    const Box part = recoloured_part(view_, row, geometry.box, image.size);
    const auto line = static_cast<size_t>(part.width) * static_cast<size_t>(channels_);
    const size_t bytes = line * static_cast<size_t>(part.height);
    uint8_t* const pixels = grow(worker.canvas, bytes);
    for (int y = 0; y < part.height; ++y) {
        const int64_t at = int64_t{part.top + y} * image.size.width + part.left;
        std::memcpy(pixels + line * static_cast<size_t>(y), image.pixels + at * channels_, line);
    }
    const Size size = {part.height, part.width};
    recolour_part(worker, view_, row, size, pixels);
    image = {pixels, size, static_cast<int64_t>(bytes)};
    geometry.box.top -= part.top;
    geometry.box.left -= part.left;
}

// Crops, pads and mirrors without resampling.
void GatherJob::copy(Worker& worker, const Image& image, const Geometry& geometry,
                     uint8_t* out) const {
    const int channels = channels_;
    const Box& box = geometry.box;
    const Box& window = geometry.window;
    const Padding padding = view_.resample.padding;
    const size_t out_stride = static_cast<size_t>(window.width) * static_cast<size_t>(channels);
    const size_t in_stride = static_cast<size_t>(image.size.width) * static_cast<size_t>(channels);

    // The columns of the window that show the box: in the output [lead, lead + count), in the box
    // from `start` on.
    const int start = std::clamp(window.left, 0, box.width);
    const int count = std::max(std::min(window.left + window.width, box.width) - start, 0);
    int lead = std::clamp(-window.left, 0, window.width);
    if (geometry.mirror) lead = window.width - lead - count;

    // Constant padding: the whole window is filled first.
    const bool within =
        count == window.width && window.top >= 0 && window.top + window.height <= box.height;
    const bool constant = padding == Padding::constant;
    if (constant && !within) {
        const auto pixels = static_cast<size_t>(window.height) * static_cast<size_t>(window.width);
        fill_pixels(out, pixels, channels, view_.resample.fill);
    }

    for (int y = 0; y < window.height; ++y, out += out_stride) {
        const int position = window.top + (geometry.upside_down ? window.height - 1 - y : y);
        const int row = padded_position(position, box.height, padding);
        if (row < 0) continue;
        const uint8_t* from = image.pixels + in_stride * static_cast<size_t>(box.top + row) +
                              static_cast<size_t>(box.left) * static_cast<size_t>(channels);
        uint8_t* middle = out + lead * channels;
        if (geometry.mirror) {
            mirror_pixels(worker.kernels, from + start * channels, count, channels, middle);
        } else {
            std::memcpy(middle, from + start * channels,
                        static_cast<size_t>(count) * static_cast<size_t>(channels));
        }
        if (constant || count == window.width) continue;
        for (int x = 0; x < window.width; ++x) {
            if (x == lead) x += count;
            if (x >= window.width) break;
            const int column = padded_position(
                window.left + (geometry.mirror ? window.width - 1 - x : x), box.width, padding);
            std::memcpy(out + x * channels, from + column * channels,
                        static_cast<size_t>(channels));
        }
    }
}

void GatherJob::resample(Worker& worker, const Image& image, const Geometry& geometry,
                         uint8_t* out) const {
    Resampler& resampler = worker.resampler();
    ResampleOptions options = view_.resample;
    if (channels_ == 1) options.fill[1] = options.fill[2] = options.fill[0];
    resampler.begin(geometry, options);
    feed(worker, resampler, image.pixels, image.size, resampler.needed(), channels_);
    if (channels_ == 3) {
        resampler.finish(out);
    } else {
        const size_t pixels =
            static_cast<size_t>(view_.size.height) * static_cast<size_t>(view_.size.width);
        uint8_t* colour = grow(worker.scratch, 3 * pixels);
        resampler.finish(colour);
        for (size_t i = 0; i < pixels; ++i) out[i] = colour[3 * i];
    }
}

}  // namespace

Box recoloured_part(const View& view, int row, const Box& needed, Size image) {
    bool pointwise = true;
    if (!has_steps(view, row, &pointwise)) return {};
    return pointwise ? needed : Box{0, 0, image.height, image.width};
}

void recolour_part(Worker& worker, const View& view, int row, Size part, uint8_t* pixels) {
    if (!has_steps(view, row)) return;
    recolour_image(*colour_loops(view.fused).front(), view.colour, row, part, view.channels, pixels,
                   {worker.scratch, worker.floats});
}

void feed(Worker& worker, Resampler& resampler, const uint8_t* first, Size part, Box needed,
          int channels) {
    const size_t stride = static_cast<size_t>(needed.width) * 4 + kRowSlack;
    grow(worker.scratch, stride * kRowsAtOnce);
    for (int done = 0; done < needed.height;) {
        const int rows = std::min(kRowsAtOnce, needed.height - done);
        const uint8_t* targets[kRowsAtOnce];
        for (int y = 0; y < rows; ++y) {
            uint8_t* target = worker.scratch.data() + stride * static_cast<size_t>(y);
            const int64_t at = int64_t{needed.top + done + y} * part.width + needed.left;
            expand(first + at * channels, needed.width, channels, target);
            targets[y] = target;
        }
        resampler.take(targets, rows);
        done += rows;
    }
}

std::shared_ptr<Job> gather_job(const PixelRows& images, View view) {
    return std::make_shared<GatherJob>(images, std::move(view));
}

}  // namespace fastload
