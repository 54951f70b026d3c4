#include "resident_images.hpp"

#include <stdexcept>

#include "exif.hpp"
#include "hash.hpp"

namespace fastload {

using device::Left;

Left ResidentImages::prepare(size_t number, const uint8_t* data, size_t size,
                             const SeekIndex& index, const DecodeLimits& limits,
                             bool exif_orientation, std::vector<uint8_t>& bytes, size_t& scan) {
    jpeg::Frame frame;
    if (jpeg::read_frame(data, size, frame) != jpeg::Reason::none || !frame.one_scan ||
        !limits.check({frame.height, frame.width}).ok())
        return Left::kind;
    if (exif_orientation && jpeg_orientation(data, size) != 1) return Left::turned;
    Image& image = images_[number];
    image.hash = hash_bytes(data, size);
    image.size = size;
    scan = frame.scan;
    std::vector<uint8_t> packed, made;
    jpeg::Points points;
    if (!index.find(image.hash, image.size, packed) ||
        !jpeg::unpack(frame, packed.data(), packed.size(), points))
        return Left::points;
    const Left left = device::prepare_resident(frame, data, size, points, image.resident, made);
    if (left == Left::none) bytes.insert(bytes.end(), made.begin(), made.end());
    return left;
}

void ResidentImages::place(size_t number, uint64_t address) {
    Image& image = images_[number];
    if (image.resident.segments.empty() || address == 0 || address % 16 != 0)
        throw std::invalid_argument("place: not prepared, or no multiple of 16");
    image.address.store(address, std::memory_order_relaxed);
}

Left ResidentImages::plan(size_t number, const jpeg::Frame& frame, const Box& box, uint64_t memory,
                          device::CropPlan& out) const {
    const uint64_t address = address_of(number);
    if (address == 0) return Left::points;
    return device::plan_resident(frame, images_[number].resident, address, box, memory, out);
}

size_t ResidentImages::nbytes() const {
    size_t bytes = images_.size() * sizeof(Image);
    for (const Image& image : images_)
        bytes += image.resident.segments.capacity() * sizeof(device::Segment);
    return bytes;
}

}  // namespace fastload
