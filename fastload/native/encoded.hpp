// The compressed images of a batch: in memory, in files, in byte ranges of files.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "image.hpp"

namespace fastload {

struct Bytes {
    const uint8_t* data = nullptr;
    size_t size = 0;
};

class EncodedSource {
  public:
    virtual ~EncodedSource() = default;
    virtual int count() const = 0;
    // The bytes of a row, perhaps in `buffer`. Each row is asked for once. `most` bounds how many are needed.
    virtual Outcome get(int row, std::vector<uint8_t>& buffer, Bytes& bytes, int64_t most = INT64_MAX) = 0;
};

// Paths as fastload/sources/buffers.py stores them, for some of its rows. The arrays are borrowed.
struct PathRows {
    std::string root;
    const uint8_t* blob = nullptr;
    const int64_t* ends = nullptr;
    const int64_t* rows = nullptr;     // which path each sample is
    const int64_t* offsets = nullptr;  // first byte of each sample, or nullptr for whole files
    const int64_t* lengths = nullptr;
    int count = 0;
};

// Byte strings that the caller keeps.
std::unique_ptr<EncodedSource> open_buffers(std::vector<Bytes> rows);

// Files, opened and announced to the system a few samples ahead, so that the disk works while we decode.
std::unique_ptr<EncodedSource> open_files(PathRows paths);

}  // namespace fastload
