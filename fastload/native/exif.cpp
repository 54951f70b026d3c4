#include <cstring>

#include "jpeg.hpp"

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

}  // namespace

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

}  // namespace fastload
