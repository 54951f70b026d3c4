// JPEGs of a data set whose entropy-coded data stay in a GPU's memory: what the host keeps of each,
// by its number.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "decoder.hpp"
#include "device_plan.hpp"
#include "seek_index.hpp"

namespace fastload {

class ResidentImages {
  public:
    // Of so many images, of which none is resident yet.
    explicit ResidentImages(size_t count) : images_(count) {}
    ResidentImages(const ResidentImages&) = delete;
    ResidentImages& operator=(const ResidentImages&) = delete;

    size_t count() const { return images_.size(); }

    // Prepares an image to be resident, by its points in the index. Appends what is to be copied to
    // the device to `bytes`, as `prepare_resident` has it; nothing where the result is not `none`.
    // Threads may prepare other images meanwhile. `scan`: becomes the number of bytes of the
    // headers of the file.
    device::Left prepare(size_t number, const uint8_t* data, size_t size, const SeekIndex& index,
                         const DecodeLimits& limits, bool exif_orientation,
                         std::vector<uint8_t>& bytes, size_t& scan);
    // From here on a prepared image is planned by what lies on the device at this address. Throws
    // std::invalid_argument: it was not prepared, or the address is no multiple of 16.
    void place(size_t number, uint64_t address);
    // From here on it is not. Batches that were planned before are as they were.
    void drop(size_t number) { images_[number].address.store(0, std::memory_order_relaxed); }
    bool is_resident(size_t number) const { return address_of(number) != 0; }

    // Plans the box of an image by the frame of its headers. Left::points if it is not resident.
    // Thread-safe.
    device::Left plan(size_t number, const jpeg::Frame& frame, const Box& box, uint64_t memory,
                      device::CropPlan& out) const;
    // Hash and size of the file.
    uint64_t hash(size_t number) const { return images_[number].hash; }
    uint64_t size(size_t number) const { return images_[number].size; }

    // Bytes of the host's memory that are kept.
    size_t nbytes() const;

  private:
    struct Image {
        device::ResidentImage resident;
        uint64_t hash = 0, size = 0;       // of its file
        std::atomic<uint64_t> address{0};  // 0: not resident
    };
    uint64_t address_of(size_t number) const {
        return images_[number].address.load(std::memory_order_relaxed);
    }

    std::vector<Image> images_;
};

}  // namespace fastload
