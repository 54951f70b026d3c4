// The compressed images of a batch: in memory, in files, in byte ranges of files.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "file.hpp"

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
