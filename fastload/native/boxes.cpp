#include "boxes.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "masks.hpp"

namespace fastload {
namespace {

// How far a box may reach out of the image [pixels]: `_ROUNDING` of fastload/geometry/points.py.
constexpr double kRounding = 1e-6;

// The block of a step in `PointMap.table` has 6 rows of two numbers, x and y. Where rows begin:
constexpr int kScale = 0, kShift = 2, kLow = 4, kHigh = 6, kSize = 8;

// As numpy's minimum and maximum: NaN if one of the numbers is NaN.
double smaller(double a, double b) { return a < b || std::isnan(a) ? a : b; }
double larger(double a, double b) { return a > b || std::isnan(a) ? a : b; }

// A box.
struct Corners {
    double ends[4];  // left, top, right, bottom

    double side(int axis) const { return ends[axis + 2] - ends[axis]; }
    double area() const { return side(0) * side(1); }
};

// A "move" step. `clip`: to the window that it shows.
void move_box(const double* block, Corners& box, bool clip) {
    for (int axis = 0; axis < 2; ++axis) {
        double ends[2];
        for (int end = 0; end < 2; ++end) {
            ends[end] = box.ends[axis + 2 * end] * block[kScale + axis] + block[kShift + axis];
            if (clip)
                ends[end] = smaller(larger(ends[end], block[kLow + axis]), block[kHigh + axis]);
        }
        box.ends[axis] = smaller(ends[0], ends[1]);
        box.ends[axis + 2] = larger(ends[0], ends[1]);
    }
}

// A "warp" step: the smallest upright box around the four mapped corners. `clip`: to the image. A
// matrix that changes nothing clips nothing either, as Python may leave out such a step.
void warp_box(const double* block, Corners& box, bool clip) {
    const double m[9] = {block[0], block[1], block[2], block[3], block[4],
                         block[5], block[6], block[7], block[10]};
    bool is_identity = true;
    for (int n = 0; n < 9; ++n) is_identity = is_identity && m[n] == (n % 4 == 0 ? 1.0 : 0.0);
    const double beyond = is_identity ? std::numeric_limits<double>::infinity() : 0.0;
    Corners made;
    for (int corner = 0; corner < 4; ++corner) {
        const double x = box.ends[corner == 1 || corner == 2 ? 2 : 0],
                     y = box.ends[corner < 2 ? 1 : 3];
        const double scale = m[6] * x + m[7] * y + m[8];
        double at[2] = {(m[0] * x + m[1] * y + m[2]) / scale, (m[3] * x + m[4] * y + m[5]) / scale};
        for (int axis = 0; axis < 2; ++axis) {
            if (clip) at[axis] = smaller(larger(at[axis], -beyond), block[kSize + axis] + beyond);
            made.ends[axis] = corner == 0 ? at[axis] : smaller(made.ends[axis], at[axis]);
            made.ends[axis + 2] = corner == 0 ? at[axis] : larger(made.ends[axis + 2], at[axis]);
        }
    }
    box = made;
}

// A "within" step: a box whose centre is not in the window becomes a point, the upper left corner
// of the window.
void keep_within(const double* block, Corners& box) {
    if (block[4] == 0) return;
    for (int axis = 0; axis < 2; ++axis) {
        const double centre = 0.5 * (box.ends[axis] + box.ends[axis + 2]);
        if (block[axis] < centre && centre < block[2 + axis]) continue;
        for (int end = 0; end < 4; ++end) box.ends[end] = block[end % 2];
        return;
    }
}

// A "drop" step: whether a box is kept. `whole`: the box if nothing had been clipped.
bool is_enough(const double* block, const Corners& box, const Corners& whole) {
    const double visible = block[2], smallest = block[3], ratio = block[4];
    for (int axis = 0; axis < 2; ++axis) {
        for (int end = axis; end < 4; end += 2) {
            const double place = box.ends[end];
            if (!(place >= -kRounding && place <= block[kSize + axis] + kRounding)) return false;
        }
        if (!(box.side(axis) >= block[axis])) return false;
    }
    const double area = box.area();
    if (!(area >= visible * whole.area() && area >= smallest)) return false;
    const double shorter = smaller(box.side(0), box.side(1)),
                 longer = larger(box.side(0), box.side(1));
    return std::isinf(ratio) || longer <= shorter * ratio;
}

// Converts one box of an image of this size. Products are computed in the precision of `Number`, as
// numpy does, then rounded to single precision.
template <typename Number>
void centre(const float* box, double height, double width, float* out) {
    const double sides[2] = {width, height};
    for (int axis = 0; axis < 2; ++axis) {
        const float sum = box[axis] + box[axis + 2], side = box[axis + 2] - box[axis];
        out[axis] = static_cast<float>(sum * static_cast<Number>(0.5 / sides[axis]));
        out[axis + 2] = static_cast<float>(side * static_cast<Number>(1 / sides[axis]));
    }
}

}  // namespace

void centre_boxes(const CentreTable& table) {
    float* out = table.out;
    for (int64_t image = 0; image < table.images; ++image) {
        const int64_t of_size = table.one_size ? 0 : image;
        const auto height = static_cast<double>(table.heights[of_size]),
                   width = static_cast<double>(table.widths[of_size]);
        for (int64_t n = table.offsets[image]; n < table.offsets[image + 1]; ++n, out += 4) {
            if (table.labels != nullptr) {
                *out++ = static_cast<float>(image);
                *out++ = static_cast<float>(table.labels[n]);
            }
            if (table.one_size) {
                centre<float>(table.boxes + 4 * n, height, width, out);
            } else {
                centre<double>(table.boxes + 4 * n, height, width, out);
            }
        }
    }
}

void move_boxes(const BoxTable& table) {
    const bool drops = std::count(table.steps, table.steps + table.step_count,
                                  static_cast<int32_t>(MapStep::drop)) > 0;
    for (int64_t n = 0; n < table.count * table.each; ++n) {
        const double* block = table.maps + n / table.each * table.step_count * kStepNumbers;
        Corners box, whole;
        std::copy_n(table.boxes + 4 * n, 4, box.ends);
        whole = box;
        bool kept = true;
        for (int64_t i = 0; i < table.step_count; ++i, block += kStepNumbers) {
            switch (static_cast<MapStep>(table.steps[i])) {
                case MapStep::move:
                    move_box(block, box, true);
                    if (drops) move_box(block, whole, false);
                    break;
                case MapStep::warp:
                    warp_box(block, box, true);
                    if (drops) warp_box(block, whole, false);
                    break;
                case MapStep::drop:
                    kept = kept && is_enough(block, box, whole);
                    if (block[5] == 1) whole = box;
                    break;
                case MapStep::within: keep_within(block, box); break;
                default:  // steps of masks: grid, back
                    break;
            }
        }
        std::copy_n(box.ends, 4, table.boxes + 4 * n);
        table.kept[n] = kept;
    }
}

}  // namespace fastload
