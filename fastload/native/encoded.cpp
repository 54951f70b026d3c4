// The compressed images of a batch: in memory, in files, in byte ranges of files, in the local
// tier.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "jobs.hpp"
#include "tier.hpp"

namespace fastload {
namespace {

// Samples announced ahead: some tens of milliseconds of decoding on a core, the latency of a slow
// disk.
constexpr int kAhead = 16;

Outcome system_error(int code) {
    return {Status::unreadable, std::system_category().message(code)};
}

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

// Reads `length` bytes from `offset` (all that follow if negative), but no more than `most`, into
// the front of `buffer`, which only grows.
Outcome read_file(int file, int64_t offset, int64_t length, int64_t most,
                  std::vector<uint8_t>& buffer, Bytes& bytes) {
    struct stat info;
    if (::fstat(file, &info) != 0) return system_error(errno);
    if (S_ISDIR(info.st_mode)) return system_error(EISDIR);
    if (!S_ISREG(info.st_mode)) return {Status::unreadable, "not a regular file"};
    if (offset < 0 || offset > info.st_size || length > info.st_size - offset) {
        return {Status::unreadable, "the file has " + std::to_string(info.st_size) +
                                        " bytes, the sample should be at " +
                                        std::to_string(offset) + " and " + std::to_string(length) +
                                        " bytes long"};
    }
    const auto size =
        static_cast<size_t>(std::min<int64_t>(length < 0 ? info.st_size - offset : length, most));
    if (buffer.size() < size) buffer.resize(size + size / 4);
    bytes = {buffer.data(), 0};
    while (bytes.size < size) {
        const ssize_t got = ::pread(file, buffer.data() + bytes.size, size - bytes.size,
                                    offset + static_cast<int64_t>(bytes.size));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return system_error(errno);
        if (got == 0) break;  // shrunk since we asked: what is there decides
        bytes.size += static_cast<size_t>(got);
    }
    return {};
}

// Announces so many bytes to the system, 0 for all that follow. Where it does not take the advice,
// the read later waits instead.
void advise(int file, int64_t offset, int64_t length) {
    (void)::posix_fadvise(file, offset, length, POSIX_FADV_WILLNEED);
}

struct Closer {
    const int file;
    ~Closer() {
        if (file >= 0) ::close(file);
    }
};

// Files that are opened and announced to the system a few samples ahead.
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

    // Empty: this row is in no file.
    virtual std::string path(int row) const = 0;
    // Tells the system what of an open file is going to be read.
    virtual void announce(int row, int file) = 0;

    // The descriptor of the file of a row, which is the caller's then; -1, and errno says why.
    // `announced`: whether `announce` was called for it, before.
    int take(int row, bool& announced) {
        for (int next = row == 0 ? 1 : row + kAhead; next <= row + kAhead && next < count_; ++next)
            expect(next);
        const int file = files_[row].exchange(kTaken, std::memory_order_acq_rel);
        announced = file >= 0;
        return announced ? file : open(row);
    }

  private:
    // Of a row, in place of the descriptor of its open file.
    static constexpr int kUntouched = -1, kTaken = -2;

    int open(int row) const {
        const std::string name = path(row);
        if (name.empty()) return -1;
        int file;
        do {
            file = ::open(name.c_str(), O_RDONLY | O_CLOEXEC |
                                            O_NONBLOCK);  // a named pipe must not block us for ever
        } while (file < 0 && errno == EINTR);
        return file;
    }

    // Only one thread comes here for a row: the one that took the row `kAhead` before it, or the
    // first.
    void expect(int row) {
        int stage = files_[row].load(std::memory_order_relaxed);
        if (stage != kUntouched) return;
        const int file = open(row);
        if (file < 0) return;  // `take` will say why
        announce(row, file);
        if (!files_[row].compare_exchange_strong(stage, file, std::memory_order_acq_rel))
            ::close(file);
    }

    const int count_;
    std::unique_ptr<std::atomic<int>[]> files_;
};

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
        advise(file, offset(row), std::max<int64_t>(length(row), 0));
    }

    std::string path(int row) const override {
        const int64_t number = paths_.rows[row], begin = number > 0 ? paths_.ends[number - 1] : 0;
        std::string path = paths_.root;
        if (!path.empty()) path += '/';
        path.append(reinterpret_cast<const char*>(paths_.blob) + begin,
                    static_cast<size_t>(paths_.ends[number] - begin));
        return path;
    }

    PathRows paths_;
};

#ifdef FASTLOAD_PNG

class TierFiles final : public FilesAhead {
  public:
    explicit TierFiles(TierRows rows)
        : FilesAhead(rows.count),
          rows_(std::move(rows)),
          spans_(static_cast<size_t>(rows_.count)) {}

    // All of it, whatever `most` says: the checksum is that of all bytes.
    Outcome get(int row, std::vector<uint8_t>& buffer, Bytes& bytes, int64_t) override {
        bytes = rows_.memory[static_cast<size_t>(row)];
        if (bytes.data != nullptr) return {};
        bool announced;
        const int file = take(row, announced);
        if (file < 0) return system_error(errno);
        const Closer closer{file};
        // Not announced: another thread may write to its span just now.
        const TierSpan span = announced ? spans_[static_cast<size_t>(row)] : find(row, file);
        if (span.length == 0) return {Status::unreadable, "not in this file of the local tier"};
        Outcome read = read_file(file, span.offset, span.length, INT64_MAX, buffer, bytes);
        if (!read.ok()) return read;
        if (!span.is_of(bytes)) return {Status::unreadable, "damaged in the local tier"};
        note_use(file, span);
        return {};
    }

  private:
    std::string path(int row) const override {
        if (rows_.memory[static_cast<size_t>(row)].data != nullptr) return {};
        return tier_path(rows_.folder, rows_.digests + kDigestBytes * int64_t{row});
    }

    void announce(int row, int file) override {
        const TierSpan span = spans_[static_cast<size_t>(row)] = find(row, file);
        if (span.length > 0) advise(file, span.offset, span.length);
    }

    // Of no bytes: the range is not in the file.
    TierSpan find(int row, int file) const {
        TierSpan span;
        (void)find_in_tier(file, rows_.digests + kDigestBytes * int64_t{row}, span);
        return span;
    }

    const TierRows rows_;
    std::vector<TierSpan> spans_;  // of announced rows
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
