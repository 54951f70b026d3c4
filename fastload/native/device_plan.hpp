// What the host does for crops of JPEGs that are decoded on a GPU by their points (cuda/): it reads
// headers, looks up points, copies the entropy-coded data of the crop's rows without the stuffed
// zeros, and says which bits each thread decodes.
//
// Everything that the device takes as a size or a place is made and checked here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/batch.cuh"
#include "geometry.hpp"
#include "image.hpp"
#include "jpeg/frame.hpp"
#include "jpeg/points.hpp"

namespace fastload {

class SeekIndex;

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
};
constexpr int kLeft = 6;

// Bytes that a block takes on the device while its chunk is decoded: 64 coefficients and 64
// samples.
constexpr uint64_t kBytesOfBlock = 64 * 2 + 64;

// A crop, before it has a place in a batch: offsets and numbers of blocks are from its own first.
struct CropPlan {
    Crop crop;
    uint64_t blocks = 0;
    std::vector<Segment> segments;  // those of most bits first
    std::vector<uint8_t> bytes;     // Huffman codes, then data, then kDataPadding zeros or more
};

// Plans the box of an image by its points. Thread-safe; memory of `out` is reused. The file is not
// needed afterwards.
Left plan_crop(const jpeg::Frame& frame, const uint8_t* data, size_t size,
               const jpeg::Points& points, const Box& box, uint64_t most_blocks, CropPlan& out);

// The same with the points of the index.
class Planner {
  public:
    Left plan(const jpeg::Frame& frame, const uint8_t* data, size_t size, const SeekIndex& index,
              const Box& box, uint64_t most_blocks, CropPlan& out);

  private:
    std::vector<uint8_t> packed_;
    jpeg::Points points_;
};

// A crop as a job plans it (`plan_job`).
struct PlannedCrop {
    Left left = Left::kind;
    Geometry geometry;  // whose box is decoded
    CropPlan plan;      // if `left` is none
};

// Crops that are decoded together; see ChunkArguments.
struct Chunk {
    uint32_t first_crop = 0, crops = 0;
    uint32_t first_task = 0, tasks = 0;
    uint64_t blocks = 0;
    uint64_t strips = 0;
};

// Crops in one buffer, which is copied to the device at once, divided into chunks of bounded
// memory.
class BatchPlan {
  public:
    // `memory`: of coefficients and samples of a chunk, on the device [bytes].
    explicit BatchPlan(uint64_t memory)
        : most_blocks_(std::min<uint64_t>(memory / kBytesOfBlock, UINT32_MAX / 64)) {}

    // For `plan_crop`.
    uint64_t most_blocks() const { return most_blocks_; }
    // Takes memory for so many bytes of all plans.
    void reserve(size_t bytes) { buffer_.reserve(bytes); }
    // Adds a crop that was planned with `most_blocks`.
    void add(const CropPlan& plan);
    // After the last crop.
    void finish();

    size_t crops() const { return crops_.size(); }
    // Bytes of all pixels, 3 a pixel: crop after crop, row after row.
    uint64_t pixel_bytes() const { return pixel_bytes_; }
    const Crop& crop(size_t number) const { return crops_[number]; }
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

  private:
    const uint64_t most_blocks_;
    std::vector<uint8_t> buffer_;
    std::vector<Crop> crops_;
    std::vector<uint32_t> segment_counts_;  // of each crop
    std::vector<Segment> segments_;
    std::vector<Task> tasks_;
    std::vector<Chunk> chunks_;
    uint64_t pixel_bytes_ = 0;
    size_t crops_at_ = 0, segments_at_ = 0, tasks_at_ = 0;
};

}  // namespace device
}  // namespace fastload
