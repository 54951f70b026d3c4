#include "masks.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

namespace fastload {
namespace {

constexpr int kScale = 5;  // polygons are drawn in steps of a fifth of a pixel
// Coordinates are limited to this [pixels]: pycocotools computes five times as much in an int.
constexpr double kFarAway = 1e8;
// Which of the 12 numbers of a "warp" or "back" are its matrix.
constexpr int kMatrix[9] = {0, 1, 2, 3, 4, 5, 6, 7, 10};

Outcome bad(std::string why) { return {Status::damaged, std::move(why)}; }

// Converts a whole number within bounds. False for anything else, NaN included.
bool whole(double value, double low, double high, int64_t& out) {
    if (!(value >= low && value <= high) || value != std::floor(value)) return false;
    out = static_cast<int64_t>(value);
    return true;
}

// A "grid" step along x or y: one axis of a Geometry.
struct Axis {
    int64_t box, length;   // of the box in the image before: first position, length
    int64_t grid;          // the length that the box is resampled to
    int64_t start, shown;  // of the window in that: first position, length
    int64_t how;           // 1: mirrored, 2: was mirrored when it was resampled, 4: "nearest-exact"

    // Every second of the 12 numbers of the step, from `numbers` on. False if they make no sense.
    bool read(const double* numbers) {
        const double side = kLargestSide;
        return whole(numbers[0], 0, side, box) && whole(numbers[2], 1, side, length) &&
               whole(numbers[4], 1, side, grid) && whole(numbers[6], -side, side, start) &&
               whole(numbers[8], 1, side, shown) && whole(numbers[10], 0, 7, how);
    }

    // The position in the image before that is shown at position `at` of the window; -1: padding.
    int64_t source(int64_t at) const {
        const bool mirrored = (how & 1) != 0, mirrored_first = (how & 2) != 0,
                   exact = (how & 4) != 0;
        const int64_t place = start + (mirrored ? shown - 1 - at : at);
        if (place < 0 || place >= grid) return -1;
        if (length == grid) return box + place;
        // In single precision, as torch's nearest.
        const float scale = static_cast<float>(length) / static_cast<float>(grid);
        const auto counted = static_cast<float>(mirrored_first ? grid - 1 - place : place);
        const auto found =
            std::min(static_cast<int64_t>(std::floor((counted + (exact ? 0.5f : 0.0f)) * scale)),
                     length - 1);
        return box + (mirrored_first ? length - 1 - found : found);
    }
};

// For each position of an axis of one image, a position in another; -1: padding.
using Places = std::vector<int32_t>;

// Each position of an axis is itself.
Places identity(int length) {
    Places places(static_cast<size_t>(length));
    for (int i = 0; i < length; ++i) places[static_cast<size_t>(i)] = i;
    return places;
}

// Applies a step to an axis: `places` of an image become those of what the step makes of this
// image. False if the box does not lie in the image.
bool apply_step(const Axis& axis, Places& places) {
    if (axis.box + axis.length > static_cast<int64_t>(places.size())) return false;
    Places seen(static_cast<size_t>(axis.shown));
    for (int64_t i = 0; i < axis.shown; ++i) {
        const int64_t at = axis.source(i);
        seen[static_cast<size_t>(i)] = at < 0 ? -1 : places[static_cast<size_t>(at)];
    }
    places.swap(seen);
    return true;
}

// Which source pixel each output pixel shows: the "grid" and "back" steps of a map, that is, parts
// of separable geometry with warps between them.
class Chain {
  public:
    // Reads the steps of one map. False if they make no sense, or no image of size `out`.
    bool read(const double* map, const int32_t* steps, int count, Size out) {
        parts_.clear();
        for (int i = 0; i < count; ++i, map += kStepNumbers) {
            const auto step = static_cast<MapStep>(steps[i]);
            if (step == MapStep::grid) {
                Axis x, y;
                if (!x.read(map) || !y.read(map + 1)) return false;
                if (parts_.empty()) {
                    source_ = {static_cast<int>(y.length), static_cast<int>(x.length)};
                    begin(source_);
                }
                Part& part = parts_.back();
                if (!apply_step(x, part.x) || !apply_step(y, part.y)) return false;
            } else if (step == MapStep::back) {
                int64_t width, height;
                if (parts_.empty() || !whole(map[8], 1, kLargestSide, width) ||
                    !whole(map[9], 1, kLargestSide, height))
                    return false;
                begin({static_cast<int>(height), static_cast<int>(width)});
                for (int n = 0; n < 9; ++n) parts_.back().inverse[n] = map[kMatrix[n]];
            }
        }
        return !parts_.empty() && parts_.back().x.size() == static_cast<size_t>(out.width) &&
               parts_.back().y.size() == static_cast<size_t>(out.height);
    }

    // The size of the source image.
    Size source() const { return source_; }
    // Whether there is no warp: output pixel (row, column) shows source pixel (y()[row],
    // x()[column]).
    bool is_axis_aligned() const { return parts_.size() == 1; }
    const Places& x() const { return parts_.back().x; }
    const Places& y() const { return parts_.back().y; }

    // For each output pixel, the index of its source pixel, column by column; -1: padding.
    void places(std::vector<int64_t>& out) const {
        const size_t width = x().size(), height = y().size();
        out.resize(width * height);
        size_t i = 0;
        for (size_t row = 0; row < height; ++row) {
            for (size_t column = 0; column < width; ++column, ++i)
                out[i] = place(x()[column], y()[row]);
        }
    }

  private:
    // A warp (none for the first part), and the separable geometry after it.
    struct Part {
        Places x, y;             // in the source, or in the image that the warp makes
        double inverse[9] = {};  // of the warp: from its output to the part before
    };

    void begin(Size size) { parts_.push_back({identity(size.width), identity(size.height), {}}); }

    // The index of the source pixel of a pixel of the last part. Takes the nearest pixel with the
    // same operations as `warp` in warp.cpp.
    int64_t place(int64_t column, int64_t row) const {
        for (size_t n = parts_.size() - 1; n > 0; --n) {
            if (column < 0 || row < 0) return -1;
            const double* m = parts_[n].inverse;
            const Part& before = parts_[n - 1];
            const double across = static_cast<double>(column) + 0.5,
                         down = static_cast<double>(row) + 0.5;
            double u = m[0] * across + (m[1] * down + m[2]);
            double v = m[3] * across + (m[4] * down + m[5]);
            if (!(m[6] == 0.0 && m[7] == 0.0 && m[8] == 1.0)) {
                const double w = m[6] * across + (m[7] * down + m[8]);
                u /= w;
                v /= w;
            }
            const bool inside = u >= 0 && v >= 0 && u < static_cast<double>(before.x.size()) &&
                                v < static_cast<double>(before.y.size());
            if (!inside) return -1;
            column = before.x[static_cast<size_t>(u)];
            row = before.y[static_cast<size_t>(v)];
        }
        return column < 0 || row < 0 ? -1 : column * source_.height + row;
    }

    Size source_;
    std::vector<Part> parts_;
};

struct Corner {
    double x, y;
};

// Moves a corner of a polygon from the source image to the output.
void move(const double* map, const int32_t* steps, int count, Corner& corner) {
    for (int i = 0; i < count; ++i, map += kStepNumbers) {
        const auto step = static_cast<MapStep>(steps[i]);
        const double x = corner.x, y = corner.y;
        if (step == MapStep::move) {
            corner = {x * map[0] + map[2], y * map[1] + map[3]};
        } else if (step == MapStep::warp) {
            double m[9];
            for (int n = 0; n < 9; ++n) m[n] = map[kMatrix[n]];
            const double scale = m[6] * x + m[7] * y + m[8];
            corner = {(m[0] * x + m[1] * y + m[2]) / scale, (m[3] * x + m[4] * y + m[5]) / scale};
        }
    }
}

// In fifths of a pixel, rounded as in pycocotools: (int)(5 * value + 0.5), which cuts towards 0.
int64_t in_fifths(double value) {
    const double near = value >= -kFarAway && value <= kFarAway ? value
                        : value > 0                             ? kFarAway
                                                                : -kFarAway;
    return static_cast<int64_t>(kScale * near + 0.5);
}

// Fills polygons by their crossings: for each column of the output, the rows at which the inside of
// the polygon begins or ends. Each side is followed in steps of a fifth of a pixel along its longer
// direction. Where x goes from 5k + 2 to 5k + 3, the side crosses the middle of column k.
class Border {
  public:
    // For masks of this size.
    void begin(Size size) {
        size_ = size;
        toggles_.assign((static_cast<size_t>(size.height) + 1) * static_cast<size_t>(size.width),
                        0);
        inside_.resize(static_cast<size_t>(size.width));
        reset_extent();
    }

    // Adds a side of the polygon, in fifths of a pixel.
    void side(int64_t x0, int64_t y0, int64_t x1, int64_t y1) {
        const int64_t dx = std::abs(x1 - x0), dy = std::abs(y1 - y0);
        const bool flat = dx >= dy;
        if (flat ? x0 > x1 : y0 > y1) {
            std::swap(x0, x1);
            std::swap(y0, y1);
        }
        if (dx == 0) return;
        if (flat) {
            const double slope = static_cast<double>(y1 - y0) / static_cast<double>(dx);
            const auto at = [&](int64_t t) {
                return static_cast<int64_t>(static_cast<double>(y0) +
                                            slope * static_cast<double>(t) + 0.5);
            };
            for_columns(x0, x1, [&](int64_t level) {
                return std::min(at(level - x0), at(level - x0 + 1));
            });
            return;
        }
        const double slope = static_cast<double>(x1 - x0) / static_cast<double>(dy);
        const auto at = [&](int64_t t) {
            return static_cast<int64_t>(static_cast<double>(x0) + slope * static_cast<double>(t) +
                                        0.5);
        };
        const int64_t first = at(0), last = at(dy);
        for_columns(std::min(first, last), std::max(first, last), [&](int64_t level) {
            // Bisection for the last step before the crossing: `at` is monotonic.
            int64_t low = 0, high = dy;
            while (high - low > 1) {
                const int64_t middle = low + (high - low) / 2;
                ((at(middle) <= level) == (first <= level) ? low : high) = middle;
            }
            return y0 + low;
        });
    }

    // Sets the pixels inside of the polygon to 1, and removes the polygon.
    void fill(uint8_t* mask) {
        if (top_ <= bottom_) {
            const auto width = static_cast<size_t>(size_.width);
            const auto left = static_cast<size_t>(left_), right = static_cast<size_t>(right_) + 1;
            std::fill(inside_.begin(), inside_.end(), uint8_t{0});
            for (int64_t row = top_; row <= bottom_; ++row) {
                uint8_t* toggles = toggles_.data() + static_cast<size_t>(row) * width;
                uint8_t* inside = inside_.data();
                uint8_t* to = mask + static_cast<size_t>(row) * width;
                const bool seen = row < size_.height;
                for (size_t x = left; x < right; ++x) {
                    inside[x] ^= toggles[x];
                    toggles[x] = 0;
                }
                for (size_t x = left; seen && x < right; ++x) to[x] |= inside[x];
            }
        }
        reset_extent();
    }

  private:
    void reset_extent() {
        left_ = top_ = INT64_MAX;
        right_ = bottom_ = -1;
    }

    // Adds a crossing for each column whose middle lies between `low` and `high`. `row_of(x)`: the
    // y of the step from x to x + 1 [fifths].
    template <typename RowOf>
    void for_columns(int64_t low, int64_t high, const RowOf& row_of) {
        // 5k + 2 >= low and 5k + 3 <= high.
        const int64_t first = low <= 2 ? 0 : (low - 2 + kScale - 1) / kScale;
        const int64_t end = high < 3 ? 0 : std::min<int64_t>((high - 3) / kScale + 1, size_.width);
        for (int64_t column = first; column < end; ++column)
            cross(column, row_of(kScale * column + 2));
    }

    void cross(int64_t column, int64_t fifths) {
        double y = (static_cast<double>(fifths) + 0.5) / kScale - 0.5;
        y = std::clamp(y, 0.0, static_cast<double>(size_.height));
        const auto row = static_cast<int64_t>(std::ceil(y));
        toggles_[static_cast<size_t>(row * size_.width + column)] ^= 1;
        left_ = std::min(left_, column);
        right_ = std::max(right_, column);
        top_ = std::min(top_, row);
        bottom_ = std::max(bottom_, row);
    }

    Size size_;
    // Of each pixel whether the inside begins or ends there; one more row than the mask, for
    // crossings below it.
    std::vector<uint8_t> toggles_;
    std::vector<uint8_t> inside_;  // of each column, at the row in work
    // Columns and rows with crossings, ends included.
    int64_t left_ = 0, right_ = 0, top_ = 0, bottom_ = 0;
};

class MaskJob final : public Job {
  public:
    explicit MaskJob(const MaskTable& table) : Job(table.count, 1), table_(table) {}

  private:
    struct Image {
        const double* map;  // its steps
        Chain chain;
        std::vector<int64_t> places;  // of the chain, if it has warps
        Border border;
        std::vector<uint8_t> pixels;  // a mask of the source image, column by column
    };

    size_t mask_bytes() const {
        return static_cast<size_t>(table_.size.height) * static_cast<size_t>(table_.size.width);
    }

    uint8_t* mask(int64_t object) const {
        return table_.out + static_cast<size_t>(object) * mask_bytes();
    }

    Outcome run(Worker&, int row) override {
        const int64_t first = table_.images[row], end = table_.images[row + 1];
        if (first == end) return {};
        Image image;
        image.map = table_.maps + int64_t{row} * table_.step_count * kStepNumbers;
        if (!image.chain.read(image.map, table_.steps, table_.step_count, table_.size))
            return {Status::bad_geometry, "the geometry makes no masks of the size of its image"};
        if (!image.chain.is_axis_aligned()) image.chain.places(image.places);
        image.border.begin(table_.size);
        for (int64_t object = first; object < end; ++object) {
            std::memset(mask(object), 0, mask_bytes());
            const Outcome made = draw(image, object);
            if (!made.ok())
                return bad("object " + std::to_string(object - first) + ": " + made.message);
        }
        return {};
    }

    void blank(int row) noexcept override {
        for (int64_t object = table_.images[row]; object < table_.images[row + 1]; ++object)
            std::memset(mask(object), 0, mask_bytes());
    }

    // Draws all shapes of an object: numbers as fastload/sources/masks.py has them.
    Outcome draw(Image& image, int64_t object) const {
        const double* at = table_.shapes + table_.objects[object];
        const double* end = table_.shapes + table_.objects[object + 1];
        bool polygons = false;
        while (at < end) {
            const int64_t left = end - at - 1;
            int64_t count;
            if (whole(*at, 3, static_cast<double>(left / 2), count)) {
                polygon(image, at + 1, count, mask(object));
                at += 1 + 2 * count;
                polygons = true;
            } else if (whole(-*at, 1, static_cast<double>(left - 2), count)) {
                const Size size = image.chain.source();
                if (at[1] != size.height || at[2] != size.width)
                    return bad("its mask is of an image of another size than " + text(size));
                if (!runs(image, at + 3, count, mask(object)))
                    return bad("its run lengths do not add up to the pixels of the image");
                at += 3 + count;
            } else {
                return bad("its shape is neither polygons nor run lengths");
            }
        }
        if (polygons) hide_padding(image, mask(object));
        return {};
    }

    // Draws a polygon of `count` corners (x, y).
    void polygon(Image& image, const double* corners, int64_t count, uint8_t* out) const {
        const auto corner = [&](int64_t i) {
            Corner at = {corners[2 * i], corners[2 * i + 1]};
            move(image.map, table_.steps, table_.step_count, at);
            return std::make_pair(in_fifths(at.x), in_fifths(at.y));
        };
        const auto begin = corner(0);
        auto from = begin;
        for (int64_t i = 1; i <= count; ++i) {
            const auto to = i < count ? corner(i) : begin;
            image.border.side(from.first, from.second, to.first, to.second);
            from = to;
        }
        image.border.fill(out);
    }

    // Draws `count` run lengths (COCO: pixels column by column, the first run outside). False if
    // they do not add up to the pixels of the source image.
    bool runs(Image& image, const double* lengths, int64_t count, uint8_t* out) const {
        const Size size = image.chain.source();
        const int64_t pixels = int64_t{size.height} * size.width;
        image.pixels.resize(static_cast<size_t>(pixels));
        int64_t done = 0;
        Extent extent;
        for (int64_t i = 0; i < count; ++i) {
            int64_t length;
            if (!whole(lengths[i], 0, static_cast<double>(pixels - done), length)) return false;
            std::memset(image.pixels.data() + done, static_cast<int>(i & 1),
                        static_cast<size_t>(length));
            if ((i & 1) != 0 && length > 0) extent.add(done, done + length - 1, size.height);
            done += length;
        }
        if (done != pixels) return false;
        if (!image.chain.is_axis_aligned()) {
            for (size_t i = 0; i < image.places.size(); ++i) {
                const int64_t place = image.places[i];
                if (place >= 0) out[i] |= image.pixels[static_cast<size_t>(place)];
            }
            return true;
        }
        const Places &across = image.chain.x(), &down = image.chain.y();
        const auto [left, right] = showing(across, extent.left, extent.right);
        const auto [top, bottom] = showing(down, extent.top, extent.bottom);
        for (size_t y = top; y < bottom; ++y) {
            if (down[y] < 0) continue;
            uint8_t* to = out + y * across.size();
            const uint8_t* row = image.pixels.data() + down[y];
            for (size_t x = left; x < right; ++x) {
                if (across[x] >= 0) to[x] |= row[int64_t{across[x]} * size.height];
            }
        }
        return true;
    }

    // Columns and rows of the source image in which an object has pixels, ends included.
    struct Extent {
        int64_t left = INT64_MAX, right = -1, top = INT64_MAX, bottom = -1;

        // Adds a run from pixel `first` to `last`, counted column by column.
        void add(int64_t first, int64_t last, int64_t height) {
            const bool one = first / height == last / height;
            left = std::min(left, first / height);
            right = std::max(right, last / height);
            top = std::min(top, one ? first % height : 0);
            bottom = std::max(bottom, one ? last % height : height - 1);
        }
    };

    // The smallest range [first, end) of the output that holds all positions which show one of
    // [low, high].
    static std::pair<size_t, size_t> showing(const Places& places, int64_t low, int64_t high) {
        const auto shown = [&](int32_t place) { return place >= low && place <= high; };
        const auto first = std::find_if(places.begin(), places.end(), shown);
        const auto last = std::find_if(places.rbegin(), places.rend(), shown);
        const auto end = static_cast<size_t>(places.rend() - last);
        return {std::min(static_cast<size_t>(first - places.begin()), end), end};
    }

    // Sets the mask to 0 in padding, where polygons are drawn too.
    static void hide_padding(const Image& image, uint8_t* out) {
        if (!image.chain.is_axis_aligned()) {
            for (size_t i = 0; i < image.places.size(); ++i) {
                if (image.places[i] < 0) out[i] = 0;
            }
            return;
        }
        const Places& across = image.chain.x();
        const bool all =
            std::none_of(across.begin(), across.end(), [](int32_t x) { return x < 0; });
        for (const int32_t y : image.chain.y()) {
            if (y < 0) std::memset(out, 0, across.size());
            for (size_t x = 0; !all && x < across.size(); ++x) {
                if (across[x] < 0) out[x] = 0;
            }
            out += across.size();
        }
    }

    const MaskTable table_;
};

}  // namespace

std::shared_ptr<Job> mask_job(const MaskTable& table) { return std::make_shared<MaskJob>(table); }

}  // namespace fastload
