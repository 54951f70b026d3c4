#include <vector>

#include "exif.hpp"
#include "hash.hpp"
#include "jobs.hpp"
#include "resident_images.hpp"
#include "seek_index.hpp"

namespace fastload {

using device::Left;

namespace {

Left plan(const Bytes& file, const std::vector<View>& views, size_t row,
          const DecodeOptions& options) {
    jpeg::Frame frame;
    if (jpeg::read_frame(file.data, file.size, frame) != jpeg::Reason::none || !frame.one_scan)
        return Left::kind;
    const Size size = {frame.height, frame.width};
    if (!options.limits.check(size).ok()) return Left::kind;
    if (options.exif_orientation && jpeg_orientation(file.data, file.size) != 1)
        return Left::turned;
    std::vector<Geometry> geometries(views.size());
    for (size_t i = 0; i < views.size(); ++i) {
        if (!resolve(views[i].geometries, static_cast<int>(row), size, views[i].size, geometries[i])
                 .ok())
            return Left::box;
    }
    const device::Plans& all = *options.plans.front();
    device::Plans::Image& first = options.plans.front()->images[row];
    const bool is_resident = all.resident != nullptr && all.resident->is_resident(all.numbers[row]);
    jpeg::Points points;
    if (is_resident) {  // `file` is its headers
        first.hash = all.resident->hash(all.numbers[row]);
        first.size = all.resident->size(all.numbers[row]);
    } else {
        first.hash = hash_bytes(file.data, file.size);
        first.size = file.size;
        std::vector<uint8_t> packed;
        if (!options.index->find(first.hash, first.size, packed) ||
            !jpeg::unpack(frame, packed.data(), packed.size(), points))
            return Left::points;
    }
    for (size_t i = 0; i < views.size(); ++i) {
        const device::ResizeTaps taps(geometries[i], views[i].resample);
        device::Plans::Image& image = options.plans[i]->images[row];
        image.hash = first.hash;
        image.size = first.size;
        const uint64_t memory = options.plans[i]->memory;
        const Left left = is_resident ? all.resident->plan(all.numbers[row], frame, taps.needed,
                                                           memory, image.plan)
                                      : device::plan_crop(frame, file.data, file.size, points,
                                                          taps.needed, memory, image.plan);
        if (left != Left::none) return left;
        device::add_resize(taps, image.plan);
    }
    // Of all views together.
    int64_t bytes = 0;
    for (const device::Plans* plans : options.plans)
        bytes += static_cast<int64_t>(plans->images[row].plan.bytes_in_batch());
    std::atomic<int64_t>& room = options.plans.front()->room;
    if (room.fetch_sub(bytes, std::memory_order_relaxed) >= bytes) return Left::none;
    room.fetch_add(bytes, std::memory_order_relaxed);
    return Left::memory;
}

}  // namespace

bool plan_image(const Bytes& file, const std::vector<View>& views, int row,
                const DecodeOptions& options) {
    const auto at = static_cast<size_t>(row);
    if (at >= options.plans.front()->share) return false;
    const Left left = plan(file, views, at, options);
    for (device::Plans* plans : options.plans) {
        device::Plans::Image& image = plans->images[at];
        image.left = left;
        if (left != Left::none) image.plan = {};
    }
    return left == Left::none;
}

}  // namespace fastload
