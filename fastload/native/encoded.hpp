// The compressed images of a batch: in memory, in files, in byte ranges of files.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "image.hpp"

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

struct Bytes {
    const uint8_t* data = nullptr;
    size_t size = 0;
};

class EncodedSource {
  public:
    virtual ~EncodedSource() = default;
    virtual int count() const = 0;
    // The bytes of a row, perhaps in `buffer`. Each row is asked for once. `most` bounds how many are needed.
    virtual Outcome get(int row, std::vector<uint8_t>& buffer, Bytes& bytes, int64_t most) = 0;
};

// Byte strings that the caller keeps.
class EncodedBuffers final : public EncodedSource {
  public:
    explicit EncodedBuffers(std::vector<Bytes> rows) : rows_(std::move(rows)) {}
    int count() const override { return static_cast<int>(rows_.size()); }
    Outcome get(int row, std::vector<uint8_t>&, Bytes& bytes, int64_t) override {
        bytes = rows_[static_cast<size_t>(row)];
        return {};
    }

  private:
    std::vector<Bytes> rows_;
};

// Paths as fastload/sources/paths.py stores them, for some of its rows. The arrays are borrowed.
struct PathRows {
    std::string root;
    const uint8_t* blob = nullptr;
    const int64_t* ends = nullptr;
    const int64_t* rows = nullptr;     // which path each sample is
    const int64_t* offsets = nullptr;  // first byte of each sample, or nullptr for whole files
    const int64_t* lengths = nullptr;
    int count = 0;

    std::string path(int row) const;
};

// Files, opened and announced to the system a few samples ahead, so that the disk works while we decode.
class EncodedFiles final : public EncodedSource {
  public:
    explicit EncodedFiles(PathRows paths);
    int count() const override { return paths_.count; }
    Outcome get(int row, std::vector<uint8_t>& buffer, Bytes& bytes, int64_t most) override;

  private:
    enum Stage : int8_t { untouched, ready, taken };
    struct Slot {
        std::atomic<int8_t> stage{untouched};
        File file;
    };

    void expect(int row);

    PathRows paths_;
    std::unique_ptr<Slot[]> slots_;
};

}  // namespace fastload
