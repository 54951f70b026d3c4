#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "jobs.hpp"

namespace fastload {
namespace {

constexpr size_t kChannels = 3;

size_t bytes_of(int pixels) { return static_cast<size_t>(pixels) * kChannels; }
size_t bytes_of(Size size) { return static_cast<size_t>(size.height) * bytes_of(size.width); }

// A row is a sample.
class JoinJob final : public Job {
  public:
    JoinJob(std::unique_ptr<EncodedSource> images, const JoinTable& table,
            const DecodeOptions& options)
        : Job(table.count, 1), images_(std::move(images)), table_(table), options_(options) {}

  private:
    uint8_t* at(int row) const {
        return table_.out + static_cast<size_t>(row) * bytes_of(table_.size);
    }

    Outcome run(Worker& worker, int row) override {
        for (int layer = 0; layer < table_.layers; ++layer) {
            const int64_t picture = int64_t{row} * table_.layers + layer;
            if (table_.offsets[picture] == table_.offsets[picture + 1]) continue;
            uint8_t* const out = layer == 0 ? at(row) : grow(worker.picture, bytes_of(table_.size));
            if (Outcome made = draw_picture(worker, picture, out); !made.ok()) return made;
            if (layer == 0) continue;
            if (table_.rectangles != nullptr) {
                cover(row, out);
            } else if (table_.masks != nullptr) {
                cover_masked(row, out);
            } else {
                const float* weights = table_.weights + 2 * int64_t{row};
                worker.kernels.blend(at(row), out, bytes_of(table_.size), weights[0], weights[1]);
            }
        }
        return {};
    }

    void blank(int row) noexcept override { std::memset(at(row), 0, bytes_of(table_.size)); }

    // Copies the rectangle of a sample from the second picture.
    void cover(int row, const uint8_t* other) const {
        const int32_t* part = table_.rectangles + 4 * int64_t{row};
        const size_t stride = bytes_of(table_.size.width);
        size_t first = stride * static_cast<size_t>(part[0]) + bytes_of(part[1]);
        for (int y = 0; y < part[2]; ++y, first += stride)
            std::memcpy(at(row) + first, other + first, bytes_of(part[3]));
    }

    // Copies the pixels of the mask of a sample from the second picture.
    void cover_masked(int row, const uint8_t* other) const {
        const size_t pixels =
            static_cast<size_t>(table_.size.height) * static_cast<size_t>(table_.size.width);
        const bool* mask = table_.masks + pixels * static_cast<size_t>(row);
        uint8_t* const out = at(row);
        for (size_t i = 0; i < pixels; ++i)
            if (mask[i]) std::memcpy(out + kChannels * i, other + kChannels * i, kChannels);
    }

    // Makes a picture: of one image, or of members on a canvas, which is warped.
    Outcome draw_picture(Worker& worker, int64_t picture, uint8_t* out) {
        const CanvasTable& table = table_.canvas;
        const CanvasLayer& layer = table.layers[picture % table_.layers];
        if (layer.size.height == 0) {
            const auto member = static_cast<int>(table_.offsets[picture]);
            return draw_member(worker, member, table_.size, out, bytes_of(table_.size.width));
        }
        const size_t stride = bytes_of(layer.size.width);
        uint8_t* const canvas = grow(worker.canvas, bytes_of(layer.size));
        fill_gaps(worker, picture, canvas, stride);
        for (int64_t member = table_.offsets[picture]; member < table_.offsets[picture + 1];
             ++member) {
            if (Outcome put = place_on_canvas(worker, static_cast<int>(member), canvas, stride);
                !put.ok())
                return put;
        }
        warp(worker.kernels, canvas, layer.size, out, box_of(table_.size),
             static_cast<int>(kChannels), table.inverse + 9 * picture, layer.warp);
        mirror(worker, table.flips[2 * picture], table.flips[2 * picture + 1], out);
        return {};
    }

    // Fills what no member covers of the part of a canvas that is seen.
    void fill_gaps(Worker& worker, int64_t picture, uint8_t* canvas, size_t stride) {
        const int32_t* seen = table_.canvas.seen + 4 * picture;
        const int end = seen[1] + seen[3];
        uint8_t* const filled = grow(worker.tile, bytes_of(seen[3]));
        for (int x = 0; x < seen[3]; ++x)
            std::memcpy(filled + bytes_of(x), table_.resample.fill, kChannels);
        for (int y = seen[0]; y < seen[0] + seen[2]; ++y) {
            for (int x = seen[1]; x < end;) {
                int covered = x, next = end;  // where the next member begins
                for (int64_t member = table_.offsets[picture]; member < table_.offsets[picture + 1];
                     ++member) {
                    const int32_t *corner = table_.canvas.corners + 2 * member,
                                  *window = table_.canvas.windows + 4 * member;
                    if (corner[0] < 0 || y < corner[0] || y >= corner[0] + window[2]) continue;
                    if (corner[1] <= x) {
                        covered = std::max(covered, corner[1] + window[3]);
                    } else {
                        next = std::min(next, corner[1]);
                    }
                }
                if (covered == x) {
                    std::memcpy(canvas + stride * static_cast<size_t>(y) + bytes_of(x), filled,
                                bytes_of(next - x));
                }
                x = covered == x ? next : covered;
            }
        }
    }

    // Draws a member at its place on the canvas, of rows of so many bytes; one that is not shown
    // elsewhere.
    Outcome place_on_canvas(Worker& worker, int member, uint8_t* canvas, size_t stride) {
        const int32_t* window = table_.canvas.windows + 4 * int64_t{member};
        const int32_t* corner = table_.canvas.corners + 2 * int64_t{member};
        const Size size = {window[2], window[3]};
        if (corner[0] < 0)
            return draw_member(worker, member, size, grow(worker.tile, bytes_of(size)),
                               bytes_of(size.width));
        uint8_t* const out = canvas + stride * static_cast<size_t>(corner[0]) + bytes_of(corner[1]);
        return draw_member(worker, member, size, out, stride);
    }

    // Decodes a member to `out`, its window of this size. `stride`: bytes from one row to the next.
    Outcome draw_member(Worker& worker, int member, Size size, uint8_t* out, size_t stride) {
        Bytes bytes;
        if (Outcome read = images_->get(member, worker.bytes, bytes); !read.ok()) return read;
        View view;
        view.geometries = table_.members;
        view.resample = table_.resample;
        view.size = size;
        view.stride = static_cast<int64_t>(stride);
        view.out = out;
        const Outcome outcome = decode_image(worker, bytes, {view}, member, options_);
        worker.decoder.close();  // the bytes may go
        return outcome;
    }

    void mirror(Worker& worker, bool across, bool down, uint8_t* out) const {
        const size_t row = bytes_of(table_.size.width);
        uint8_t* const other = grow(worker.tile, row);
        for (int y = 0; across && y < table_.size.height; ++y) {
            uint8_t* const one = out + row * static_cast<size_t>(y);
            std::memcpy(other, one, row);
            worker.kernels.mirror(other, one, table_.size.width);
        }
        for (int y = 0; down && y < table_.size.height / 2; ++y) {
            uint8_t* const one = out + row * static_cast<size_t>(y);
            std::swap_ranges(one, one + row,
                             out + row * static_cast<size_t>(table_.size.height - 1 - y));
        }
    }

    std::unique_ptr<EncodedSource> images_;
    const JoinTable table_;
    const DecodeOptions options_;
};

void require(bool condition, const char* message) {
    if (!condition) throw std::invalid_argument(message);
}

bool lies_in(Size size, const int32_t* corner, const int32_t* extent) {
    return corner[0] >= 0 && corner[1] >= 0 && extent[0] >= 0 && extent[1] >= 0 &&
           int64_t{corner[0]} + extent[0] <= size.height &&
           int64_t{corner[1]} + extent[1] <= size.width;
}

// Throws unless all that is written and read of picture `i` lies in the canvas. `offsets`: of its
// members.
void check(const CanvasTable& table, Size size, int64_t i, const int64_t* offsets) {
    require(lies_in(size, table.seen + 4 * i, table.seen + 4 * i + 2),
            "seen: outside of the canvas");
    for (int64_t member = offsets[0]; member < offsets[1]; ++member) {
        const int32_t *corner = table.corners + 2 * member, *window = table.windows + 4 * member;
        require(window[2] > 0 && window[3] > 0, "window: empty");
        // A member that is not shown may not be larger either: memory is taken for it.
        constexpr int32_t kAnywhere[2] = {0, 0};
        require(lies_in(size, corner[0] < 0 ? kAnywhere : corner, window + 2),
                "corners: outside of the canvas");
    }
}

void check(const JoinTable& table, int members) {
    const int64_t pictures = int64_t{table.count} * table.layers;
    const CanvasLayer* layers = table.canvas.layers;
    const bool no_canvas = layers[0].size.height == 0 && layers[0].size.width == 0;
    for (int layer = 0; layer < table.layers && !no_canvas; ++layer) {
        const Size size = layers[layer].size;
        require(size.height > 0 && size.width > 0, "canvas: empty");
        for (float value : layers[layer].warp.fill)
            require(value >= 0 && value <= 255, "fill: 0 to 255 is needed");
    }
    require((table.weights != nullptr) + (table.rectangles != nullptr) + (table.masks != nullptr) ==
                table.layers - 1,
            "two layers are blended, or one covers the other");
    for (int64_t row = 0; table.rectangles != nullptr && row < table.count; ++row) {
        const int32_t* part = table.rectangles + 4 * row;
        require(lies_in(table.size, part, part + 2), "rectangles: outside of the picture");
    }
    require(table.offsets[0] == 0 && table.offsets[pictures] == members,
            "offsets: of all members are needed");
    for (int64_t i = 0; i < pictures; ++i) {
        require(table.offsets[i] <= table.offsets[i + 1], "offsets: not ascending");
        require(i % table.layers > 0 || table.offsets[i] < table.offsets[i + 1],
                "offsets: a sample without members");
        require(!no_canvas || table.offsets[i + 1] - table.offsets[i] <= 1,
                "offsets: several members without a canvas");
    }
    // Now that all offsets are known to be of members.
    for (int64_t i = 0; i < pictures && !no_canvas; ++i)
        check(table.canvas, layers[i % table.layers].size, i, table.offsets + i);
}

}  // namespace

std::shared_ptr<Job> join_job(std::unique_ptr<EncodedSource> images, const JoinTable& table,
                              const DecodeOptions& options) {
    check(table, images->count());
    return std::make_shared<JoinJob>(std::move(images), table, options);
}

}  // namespace fastload
