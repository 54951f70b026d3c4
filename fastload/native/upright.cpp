#include "upright.hpp"

#include <cstring>
#include <utility>

#include "kernels.hpp"

namespace fastload {
namespace {

// Orientations 5 to 8 swap rows and columns. A pixel (y, x) of the upright image is stored at (y, x), or (x, y) if
// swapped, counted from the end of the stored rows or columns where these say so.
bool is_swapped(int orientation) { return orientation >= 5; }
bool rows_from_end(int orientation) {
    return orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
}
bool columns_from_end(int orientation) {
    return orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
}

}  // namespace

Size upright_size(Size stored, int orientation) {
    if (is_swapped(orientation)) std::swap(stored.height, stored.width);
    return stored;
}

Box stored_box(const Box& upright, Size stored, int orientation) {
    Box box = upright;
    if (is_swapped(orientation)) {
        std::swap(box.top, box.left);
        std::swap(box.height, box.width);
    }
    if (rows_from_end(orientation)) box.top = stored.height - box.top - box.height;
    if (columns_from_end(orientation)) box.left = stored.width - box.left - box.width;
    return box;
}

Uprighter::Uprighter(Size stored, int orientation, std::vector<uint8_t>& pixels)
    : stored_(stored), orientation_(orientation), pixels_(pixels) {
    const size_t bytes = size_t{4} * static_cast<size_t>(stored.height) * static_cast<size_t>(stored.width);
    const size_t row = size_t{4} * static_cast<size_t>(upright_size(stored, orientation).width) + kRowSlack;
    // The box as stored, and behind it one upright row.
    if (pixels_.size() < bytes + row) pixels_.resize(bytes + row);
}

void Uprighter::take(const uint8_t* const* rows, int count) {
    const size_t bytes = size_t{4} * static_cast<size_t>(stored_.width);
    for (int y = 0; y < count; ++y) std::memcpy(pixels_.data() + bytes * taken_++, rows[y], bytes);
}

void Uprighter::give(RowSink& sink) const {
    const Size size = upright_size(stored_, orientation_);
    uint8_t* row = pixels_.data() + size_t{4} * static_cast<size_t>(stored_.height) * static_cast<size_t>(stored_.width);
    const int64_t down = rows_from_end(orientation_) ? -1 : 1, right = columns_from_end(orientation_) ? -1 : 1;
    const int64_t top = down < 0 ? stored_.height - 1 : 0, left = right < 0 ? stored_.width - 1 : 0;
    for (int y = 0; y < size.height; ++y) {
        for (int x = 0; x < size.width; ++x) {
            const int64_t stored_y = top + down * (is_swapped(orientation_) ? x : y);
            const int64_t stored_x = left + right * (is_swapped(orientation_) ? y : x);
            std::memcpy(row + 4 * x, pixels_.data() + 4 * (stored_y * stored_.width + stored_x), 4);
        }
        sink.take(&row, 1);
    }
}

}  // namespace fastload
