#include <vector>

#include "exif.hpp"
#include "hash.hpp"
#include "jobs.hpp"
#include "seek_index.hpp"

namespace fastload {

using device::Left;

namespace {

Left plan(const Bytes& file, const View& view, int row, const DecodeOptions& options,
          device::Plans::Image& image) {
    jpeg::Frame frame;
    if (jpeg::read_frame(file.data, file.size, frame) != jpeg::Reason::none || !frame.one_scan)
        return Left::kind;
    const Size size = {frame.height, frame.width};
    if (!options.limits.check(size).ok()) return Left::kind;
    if (options.exif_orientation && jpeg_orientation(file.data, file.size) != 1)
        return Left::turned;
    Geometry geometry;
    if (!resolve(view.geometries, row, size, view.size, geometry).ok()) return Left::box;
    image.hash = hash_bytes(file.data, file.size);
    image.size = file.size;
    std::vector<uint8_t> packed;
    jpeg::Points points;
    if (!options.index->find(image.hash, image.size, packed) ||
        !jpeg::unpack(frame, packed.data(), packed.size(), points))
        return Left::points;
    const device::ResizeTaps taps(geometry, view.resample);
    const Left left = device::plan_crop(frame, file.data, file.size, points, taps.needed,
                                        options.plans->memory, image.plan);
    if (left == Left::none) device::add_resize(taps, image.plan);
    return left;
}

}  // namespace

bool plan_image(const Bytes& file, const View& view, int row, const DecodeOptions& options) {
    device::Plans& plans = *options.plans;
    const auto at = static_cast<size_t>(row);
    if (at >= plans.share) return false;
    device::Plans::Image& image = plans.images[at];
    image.left = plan(file, view, row, options, image);
    if (image.left != Left::none) return false;
    const auto bytes = static_cast<int64_t>(image.plan.bytes_in_batch());
    if (plans.room.fetch_sub(bytes, std::memory_order_relaxed) >= bytes) return true;
    plans.room.fetch_add(bytes, std::memory_order_relaxed);
    image.plan = {};
    image.left = Left::memory;
    return false;
}

}  // namespace fastload
