#include "orientation.hpp"

#include <cstring>
#include <utility>

#include "kernels.hpp"

namespace fastload {
namespace {

// Bytes of a TIFF structure, in its own byte order; reads outside give 0.
class Tiff {
  public:
    Tiff(const uint8_t* data, size_t size) : data_(data), size_(size), big_(size >= 2 && data[0] == 'M') {}

    uint32_t u16(size_t at) const {
        if (at > size_ || size_ - at < 2) return 0;
        return big_ ? uint32_t{data_[at]} << 8 | data_[at + 1] : uint32_t{data_[at + 1]} << 8 | data_[at];
    }

    uint32_t u32(size_t at) const {
        return big_ ? u16(at) << 16 | u16(at + 2) : u16(at + 2) << 16 | u16(at);
    }

  private:
    const uint8_t* data_;
    size_t size_;
    bool big_;
};

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

int tiff_orientation(const uint8_t* data, size_t size) {
    constexpr uint32_t kOrientation = 0x0112, kShort = 3;
    const Tiff tiff(data, size);
    if (tiff.u16(2) != 42) return 1;
    const size_t directory = tiff.u32(4);
    const uint32_t entries = tiff.u16(directory);
    for (uint32_t i = 0; i < entries; ++i) {
        const size_t entry = directory + 2 + 12 * size_t{i};
        if (entry > size) break;
        if (tiff.u16(entry) != kOrientation || tiff.u16(entry + 2) != kShort) continue;
        const uint32_t value = tiff.u16(entry + 8);
        return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
    }
    return 1;
}

int exif_orientation(const uint8_t* data, size_t size) {
    size_t at = 2;  // behind SOI
    while (at + 4 <= size && data[at] == 0xff) {
        const uint8_t marker = data[at + 1];
        if (marker == 0xff) {  // fill byte
            ++at;
            continue;
        }
        if (marker == 0xda || marker == 0xd9) break;  // start of scan, end of image
        const size_t length = size_t{data[at + 2]} << 8 | data[at + 3];
        if (length < 2 || length > size - at - 2) break;
        if (marker == 0xe1 && length >= 8 && std::memcmp(data + at + 4, "Exif\0\0", 6) == 0) {
            return tiff_orientation(data + at + 10, length - 8);
        }
        at += 2 + length;
    }
    return 1;
}

Size upright_size(Size stored, int orientation) {
    if (is_swapped(orientation)) std::swap(stored.height, stored.width);
    return stored;
}

Size upright_lead(Size stored, int orientation, int shift) {
    const int rest = (1 << shift) - 1;
    const Size beyond = {rows_from_end(orientation) ? -stored.height & rest : 0,
                         columns_from_end(orientation) ? -stored.width & rest : 0};
    return upright_size(beyond, orientation);
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
