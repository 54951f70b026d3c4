// Where the compressed images of a batch come from: memory, files, byte ranges of files, the local
// tier (EncodedSource in jobs.hpp).
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "decoder.hpp"
#include "files.hpp"
#include "jobs.hpp"
#include "tier.hpp"

namespace fastload {
namespace {

// How many rows before its turn a file is opened and announced to the system: decoding 16 images
// takes a core some tens of milliseconds, as long as a slow disk takes to answer.
constexpr int kAhead = 16;

// Of a longer file so many bytes are read first, and the rest only if it begins as an image.
constexpr size_t kLookedAt = size_t{1} << 20;

Outcome system_error(int code) {
    return {Status::unreadable, std::generic_category().message(code)};
}

// Images in memory.
class Buffers final : public EncodedSource {
  public:
    explicit Buffers(std::vector<Bytes> rows) : rows_(std::move(rows)) {}

    int count() const override { return static_cast<int>(rows_.size()); }
    Outcome get(int row, std::vector<uint8_t>&, Bytes& bytes, int64_t) override {
        bytes = rows_[static_cast<size_t>(row)];
        return {};
    }

  private:
    std::vector<Bytes> rows_;
};

// Reads `length` bytes from `offset` on, fewer where the file ends before, into `buffer`, which is
// enlarged if it is too small. `bytes`: what was read.
Outcome read_part(int file, int64_t offset, int64_t length, std::vector<uint8_t>& buffer,
                  Bytes& bytes) {
    const auto size = static_cast<size_t>(length);
    bytes = {buffer.data(), 0};
    for (const size_t stop : {std::min(size, kLookedAt), size}) {
        if (buffer.size() < stop) buffer.resize(stop + stop / 4);
        bytes.data = buffer.data();
        const size_t wanted = stop - bytes.size;
        const int64_t got = files::read_at(file, offset + static_cast<int64_t>(bytes.size),
                                           buffer.data() + bytes.size, wanted);
        if (got < 0) return system_error(errno);
        bytes.size += static_cast<size_t>(got);
        // If the file has become shorter, the decoder judges what there is.
        if (static_cast<size_t>(got) < wanted) return {};
        if (stop < size && !Decoder::may_read(bytes.data, bytes.size))
            return {Status::other_format, kOtherFormat};
    }
    return {};
}

// As `read_part`, of a file that may be anything: `length` bytes (to the end of the file if it is
// negative), but at most `most`.
Outcome read_file(int file, int64_t offset, int64_t length, int64_t most,
                  std::vector<uint8_t>& buffer, Bytes& bytes) {
    files::About about;
    if (!files::look(file, about)) return system_error(errno);
    if (about.is_folder) return system_error(EISDIR);
    if (!about.is_regular) return {Status::unreadable, "not a regular file"};
    if (offset < 0 || offset > about.bytes || length > about.bytes - offset) {
        return {Status::unreadable,
                "the file has " + std::to_string(about.bytes) + " bytes, the sample should be at " +
                    std::to_string(offset) + " and " + std::to_string(length) + " bytes long"};
    }
    return read_part(file, offset,
                     std::min<int64_t>(length < 0 ? about.bytes - offset : length, most), buffer,
                     bytes);
}

// Closes a file at the end of a block; -1: there is none.
struct Closer {
    const int file;
    ~Closer() {
        if (file >= 0) files::close(file);
    }
};

// Opens and announces the file of a row `kAhead` rows before it is needed, so that the disk works
// while images are decoded.
class FilesAhead : public EncodedSource {
  public:
    ~FilesAhead() override {
        for (int row = 0; row < count_; ++row) const Closer closer{files_[row]};
    }

    int count() const override { return count_; }

  protected:
    explicit FilesAhead(int count)
        : count_(count), files_(std::make_unique<std::atomic<int>[]>(static_cast<size_t>(count))) {
        for (int row = 0; row < count; ++row)
            files_[row].store(kUntouched, std::memory_order_relaxed);
    }

    // Opens the file of a row. Returns a descriptor, which the caller must close, or -1 with errno
    // set; -1, too, if the row is in no file.
    virtual int open(int row) const = 0;
    // Tells the system which bytes of the open file of a row will be read. Called at most once a
    // row, by any thread.
    virtual void announce(int row, int file) = 0;

    // Returns a descriptor of the file of a row, which the caller must close, or -1 with errno set.
    // `announced`: whether `announce` was called for it, in this thread or before.
    int take(int row, bool& announced) {
        for (int next = row == 0 ? 1 : row + kAhead; next <= row + kAhead && next < count_; ++next)
            open_ahead(next);
        const int file = files_[row].exchange(kTaken, std::memory_order_acq_rel);
        announced = file >= 0;
        return announced ? file : open(row);
    }

  private:
    // States of a row in `files_`, besides the descriptor of its open file.
    static constexpr int kUntouched = -1, kTaken = -2;

    // Opens and announces the file of a row, unless it was taken already. Only one thread calls
    // this for a row: the one that takes the row `kAhead` before it, or, for the first ones, row 0.
    void open_ahead(int row) {
        int stage = files_[row].load(std::memory_order_relaxed);
        if (stage != kUntouched) return;
        const int file = open(row);
        if (file < 0) return;  // `take` tries again, and reports the error
        announce(row, file);
        if (!files_[row].compare_exchange_strong(stage, file, std::memory_order_acq_rel))
            files::close(file);
    }

    const int count_;
    std::unique_ptr<std::atomic<int>[]> files_;  // of each row: a descriptor or a state
};

// Files, or byte ranges of files.
class Files final : public FilesAhead {
  public:
    explicit Files(PathRows paths) : FilesAhead(paths.count), paths_(std::move(paths)) {}

    Outcome get(int row, std::vector<uint8_t>& buffer, Bytes& bytes, int64_t most) override {
        bool announced;
        const int file = take(row, announced);
        if (file < 0) return system_error(errno);
        const Closer closer{file};
        return read_file(file, offset(row), length(row), most, buffer, bytes);
    }

  private:
    int64_t offset(int row) const { return paths_.offsets ? paths_.offsets[row] : 0; }
    int64_t length(int row) const { return paths_.lengths ? paths_.lengths[row] : -1; }

    void announce(int row, int file) override {
        files::read_ahead(file, offset(row), std::max<int64_t>(length(row), 0));
    }

    int open(int row) const override {
        const int64_t number = paths_.rows[row], begin = number > 0 ? paths_.ends[number - 1] : 0;
        std::string path = paths_.root;
        if (!path.empty()) path += '/';
        path.append(reinterpret_cast<const char*>(paths_.blob) + begin,
                    static_cast<size_t>(paths_.ends[number] - begin));
        return files::open(path, files::Use::read);
    }

    const PathRows paths_;
};

#ifdef FASTLOAD_PNG

// Ranges of the local tier.
class TierFiles final : public FilesAhead {
  public:
    explicit TierFiles(TierRows rows)
        : FilesAhead(rows.count),
          rows_(std::move(rows)),
          folder_(rows_.folder),
          spans_(static_cast<size_t>(rows_.count)) {}

    // Reads the whole range, whatever `most` says: its checksum is of all bytes.
    Outcome get(int row, std::vector<uint8_t>& buffer, Bytes& bytes, int64_t) override {
        bytes = rows_.memory[static_cast<size_t>(row)];
        if (bytes.data != nullptr) return {};
        bool announced;
        const int file = take(row, announced);
        if (file < 0) return system_error(errno);
        const Closer closer{file};
        // If it was not announced, another thread may be writing to `spans_[row]` now.
        const TierSpan span = announced ? spans_[static_cast<size_t>(row)] : find(row, file);
        if (span.length == 0) return {Status::unreadable, "not in this file of the local tier"};
        Outcome read = read_part(file, span.offset, span.length, buffer, bytes);
        if (!read.ok()) return read;
        if (!span.is_of(bytes)) return {Status::unreadable, "damaged in the local tier"};
        note_use(file, span);
        return {};
    }

  private:
    int open(int row) const override {
        if (rows_.memory[static_cast<size_t>(row)].data != nullptr) return -1;
        return folder_.open(rows_.digests + kDigestBytes * int64_t{row});
    }

    void announce(int row, int file) override {
        const TierSpan span = spans_[static_cast<size_t>(row)] = find(row, file);
        if (span.length > 0) files::read_ahead(file, span.offset, span.length);
    }

    // A span of length 0 if the range is not in the file.
    TierSpan find(int row, int file) const {
        TierSpan span;
        (void)find_in_tier(file, rows_.digests + kDigestBytes * int64_t{row}, span);
        return span;
    }

    const TierRows rows_;
    const TierFolder folder_;
    std::vector<TierSpan> spans_;  // of each row that was announced
};

#endif

}  // namespace

std::unique_ptr<EncodedSource> open_buffers(std::vector<Bytes> rows) {
    return std::make_unique<Buffers>(std::move(rows));
}

std::unique_ptr<EncodedSource> open_files(PathRows paths) {
    return std::make_unique<Files>(std::move(paths));
}

#ifdef FASTLOAD_PNG

std::unique_ptr<EncodedSource> open_tier(TierRows rows) {
    return std::make_unique<TierFiles>(std::move(rows));
}

#endif

}  // namespace fastload
