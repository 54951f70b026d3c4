// What the host does for crops of JPEGs that are decoded on a GPU by their points (cuda/): it reads
// headers, looks up points, copies the entropy-coded data of the crop's rows without the stuffed
// zeros, says which bits each thread decodes, and makes the weights of the resize.
//
// Everything that the device takes as a size or a place is made and checked here.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/batch.cuh"
#include "geometry.hpp"
#include "image.hpp"
#include "jpeg/frame.hpp"
#include "jpeg/points.hpp"
#include "resample.hpp"

namespace fastload {

class ResidentImages;

namespace device {

// Why a crop is left to the CPU. The numbers are part of the Python interface: append, never
// renumber.
enum class Left : int {
    none = 0,  // the device decodes it
    kind,      // no JPEG that the core decodes itself, or in several scans
    points,    // the seek index has none, or they do not fit the data
    memory,    // it takes more memory than a chunk may have
    box,       // it does not lie in the image
    turned,    // it is to be turned upright by its EXIF orientation
    share,     // it is in the share of the CPU
};
constexpr int kLeft = 7;

// Bytes that a block takes on the device while its chunk is decoded: 64 coefficients and 64
// samples.
constexpr uint64_t kBytesOfBlock = 64 * 2 + 64;

// A crop, before it has a place in a batch: offsets and numbers of blocks are from its own first.
struct CropPlan {
    Crop crop;
    uint64_t blocks = 0;
    std::vector<Segment> segments;  // those of most bits first
    // Huffman codes, then data, then kDataPadding zeros or more, then the weights of the resize.
    std::vector<uint8_t> bytes;
    Resize resize = {};  // of `plan_resize`

    // Of its pixels [bytes].
    uint64_t pixels() const {
        return uint64_t{3} * static_cast<uint64_t>(crop.height) * static_cast<uint64_t>(crop.width);
    }
    // What it adds to the buffer of its batch, about [bytes].
    uint64_t bytes_in_batch() const {
        return bytes.size() + sizeof(Crop) + sizeof(Resize) + sizeof(Task) +
               segments.size() * sizeof(Segment);
    }
    // What it takes on the device while its chunk is decoded [bytes].
    uint64_t memory() const { return kBytesOfBlock * blocks + pixels(); }
};

// Plans the box of an image by its points. Thread-safe; memory of `out` is reused. The file is not
// needed afterwards. `memory`: what it may take on the device [bytes].
Left plan_crop(const jpeg::Frame& frame, const uint8_t* data, size_t size,
               const jpeg::Points& points, const Box& box, uint64_t memory, CropPlan& out);

// What the host keeps of an image whose data stay on the device: what its threads decode, row by
// row, from left to right.
struct ResidentImage {
    std::vector<Segment> segments;
};

// Prepares an image to be resident. Thread-safe. `bytes`: what is to be copied to the device, to a
// place that is a multiple of 16: the Huffman codes, then the data of the whole image without
// stuffing, then kDataPadding zeros or more.
Left prepare_resident(const jpeg::Frame& frame, const uint8_t* data, size_t size,
                      const jpeg::Points& points, ResidentImage& resident,
                      std::vector<uint8_t>& bytes);

// As `plan_crop`, of an image whose `bytes` lie on the device at `address`. `frame`: of the header
// of the same file. The pixels are those of `plan_crop`; so is the verdict, but for data between a
// point and a restart marker that the box does not need, which are not read.
Left plan_resident(const jpeg::Frame& frame, const ResidentImage& resident, uint64_t address,
                   const Box& box, uint64_t memory, CropPlan& out);

// The weights of a geometry, and the part of the box that they need.
struct ResizeTaps {
    Taps rows, columns;
    Box needed;
    uint8_t fill[4] = {};

    // `geometry`: checked by `resolve`.
    ResizeTaps(const Geometry& geometry, const ResampleOptions& options);
};

// Adds the resize to a planned crop, whose box is `taps.needed`.
void add_resize(const ResizeTaps& taps, CropPlan& out);

// What a job plans of a batch in place of decoding it.
struct Plans {
    // An image of the batch.
    struct Image {
        Left left = Left::share;
        CropPlan plan;                // if `left` is none
        uint64_t hash = 0, size = 0;  // of its file
    };

    // Of `count` images the first `first` are for the device. `bytes`: what a chunk may take there,
    // and also how many bytes may be copied to it for the batch.
    Plans(size_t count, size_t first, uint64_t bytes)
        : images(count),
          share(std::min(first, count)),
          memory(bytes),
          room(static_cast<int64_t>(std::min<uint64_t>(bytes, INT64_MAX))) {}

    std::vector<Image> images;
    const size_t share;
    const uint64_t memory;
    std::atomic<int64_t> room;
    // Images that stay on the device, and the number there of each of the batch; null: none.
    const ResidentImages* resident = nullptr;
    std::vector<size_t> numbers;
};

// Crops that are decoded together; see ChunkArguments.
struct Chunk {
    uint32_t first_crop = 0, crops = 0;
    uint32_t first_task = 0, tasks = 0;
    uint64_t blocks = 0;
    uint64_t strips = 0;
    uint64_t first_pixel = 0, pixels = 0;  // of all crops of the batch [bytes]
};

// Crops in one buffer, which is copied to the device at once, divided into chunks of bounded
// memory.
class BatchPlan {
  public:
    // `memory`: of coefficients, samples and pixels of a chunk, on the device [bytes].
    explicit BatchPlan(uint64_t memory) : memory_(memory) {}

    // For `plan_crop`.
    uint64_t memory() const { return memory_; }
    // Takes memory for so many bytes of all plans.
    void reserve(size_t bytes) { buffer_.reserve(bytes); }
    // Adds a crop that was planned with `memory`, for row `row` of the batch.
    void add(const CropPlan& plan, uint32_t row = 0);
    // After the last crop.
    void finish();

    size_t crops() const { return crops_.size(); }
    // Bytes of all pixels, 3 a pixel: crop after crop, row after row.
    uint64_t pixel_bytes() const { return pixel_bytes_; }
    const Crop& crop(size_t number) const { return crops_[number]; }
    // Where the pixels of a crop begin among those of all [bytes].
    uint64_t first_pixel(size_t number) const;
    const std::vector<Segment>& segments() const { return segments_; }
    const std::vector<Task>& tasks() const { return tasks_; }
    const std::vector<Chunk>& chunks() const { return chunks_; }
    // Of all chunks the most blocks.
    uint64_t largest_chunk() const;

    // After `finish`: codes and data, then the tables below, each from a multiple of 16 on.
    const std::vector<uint8_t>& buffer() const { return buffer_; }
    size_t crops_at() const { return crops_at_; }
    size_t segments_at() const { return segments_at_; }
    size_t tasks_at() const { return tasks_at_; }
    size_t resizes_at() const { return resizes_at_; }

  private:
    const uint64_t memory_;
    std::vector<uint8_t> buffer_;
    std::vector<Crop> crops_;
    std::vector<Resize> resizes_;           // of each crop
    std::vector<uint32_t> segment_counts_;  // of each crop
    std::vector<Segment> segments_;
    std::vector<Task> tasks_;
    std::vector<Chunk> chunks_;
    uint64_t pixel_bytes_ = 0;
    size_t crops_at_ = 0, segments_at_ = 0, tasks_at_ = 0, resizes_at_ = 0;
};

}  // namespace device
}  // namespace fastload
