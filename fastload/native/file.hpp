// The compressed bytes of a sample: a file, or a byte range of one.
#pragma once

#include <string>
#include <vector>

#include "status.hpp"

namespace fastload {

// An open file; closes itself.
class File {
  public:
    File() = default;
    ~File() { close(); }
    File(File&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = -1; }
    File& operator=(File&& other) noexcept;
    File(const File&) = delete;

    Outcome open(const char* path);
    bool is_open() const { return descriptor_ >= 0; }
    void close();

    // Asks the system to have these bytes in memory soon; `length` < 0 means up to the end.
    void expect(int64_t offset, int64_t length) const;

    // Reads `length` bytes from `offset` (all that follow if negative), but no more than `most`, into the front of
    // `buffer`, which only grows.
    Outcome read(int64_t offset, int64_t length, int64_t most, std::vector<uint8_t>& buffer, size_t& size) const;

  private:
    int descriptor_ = -1;
};

}  // namespace fastload
