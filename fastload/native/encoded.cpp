#include "encoded.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fastload {
namespace {

// Samples announced ahead: some tens of milliseconds of decoding on a core, the latency of a slow disk.
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

// An open file; closes itself.
class File {
  public:
    File() = default;
    ~File() { close(); }
    File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
    File& operator=(File&& other) noexcept {
        std::swap(descriptor_, other.descriptor_);
        return *this;
    }

    Outcome open(const char* path) {
        do {
            descriptor_ = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a named pipe must not block us for ever
        } while (descriptor_ < 0 && errno == EINTR);
        return descriptor_ < 0 ? system_error(errno) : Outcome{};
    }

    void close() {
        if (descriptor_ >= 0) ::close(descriptor_);
        descriptor_ = -1;
    }

    // Asks the system to have these bytes in memory soon; `length` < 0 means up to the end.
    void expect(int64_t offset, int64_t length) const {
        // Advice: where it is not taken, the read later waits instead.
        (void)::posix_fadvise(descriptor_, offset, std::max<int64_t>(length, 0), POSIX_FADV_WILLNEED);
    }

    // Reads `length` bytes from `offset` (all that follow if negative), but no more than `most`, into the front of
    // `buffer`, which only grows.
    Outcome read(int64_t offset, int64_t length, int64_t most, std::vector<uint8_t>& buffer, Bytes& bytes) const {
        struct stat info;
        if (::fstat(descriptor_, &info) != 0) return system_error(errno);
        if (S_ISDIR(info.st_mode)) return system_error(EISDIR);
        if (!S_ISREG(info.st_mode)) return {Status::unreadable, "not a regular file"};
        if (offset < 0 || offset > info.st_size || length > info.st_size - offset) {
            return {Status::unreadable, "the file has " + std::to_string(info.st_size) +
                                            " bytes, the sample should be at " + std::to_string(offset) + " and " +
                                            std::to_string(length) + " bytes long"};
        }
        const auto size = static_cast<size_t>(std::min<int64_t>(length < 0 ? info.st_size - offset : length, most));
        if (buffer.size() < size) buffer.resize(size + size / 4);
        bytes = {buffer.data(), 0};
        while (bytes.size < size) {
            const ssize_t got = ::pread(descriptor_, buffer.data() + bytes.size, size - bytes.size,
                                        offset + static_cast<int64_t>(bytes.size));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) return system_error(errno);
            if (got == 0) break;  // shrunk since we asked: what is there decides
            bytes.size += static_cast<size_t>(got);
        }
        return {};
    }

  private:
    int descriptor_ = -1;
};

class Files final : public EncodedSource {
  public:
    explicit Files(PathRows paths)
        : paths_(std::move(paths)), slots_(std::make_unique<Slot[]>(static_cast<size_t>(paths_.count))) {}

    int count() const override { return paths_.count; }

    Outcome get(int row, std::vector<uint8_t>& buffer, Bytes& bytes, int64_t most) override {
        for (int next = row == 0 ? 1 : row + kAhead; next <= row + kAhead && next < paths_.count; ++next) expect(next);
        File file;
        Slot& slot = slots_[static_cast<size_t>(row)];
        if (slot.stage.exchange(taken, std::memory_order_acq_rel) == ready) {
            file = std::move(slot.file);
        } else if (Outcome opened = file.open(path(row).c_str()); !opened.ok()) {
            return opened;
        }
        return file.read(offset(row), length(row), most, buffer, bytes);
    }

  private:
    enum Stage : int8_t { untouched, ready, taken };
    struct Slot {
        std::atomic<int8_t> stage{untouched};
        File file;
    };

    int64_t offset(int row) const { return paths_.offsets ? paths_.offsets[row] : 0; }
    int64_t length(int row) const { return paths_.lengths ? paths_.lengths[row] : -1; }

    std::string path(int row) const {
        const int64_t number = paths_.rows[row], begin = number > 0 ? paths_.ends[number - 1] : 0;
        std::string result = paths_.root;
        if (!result.empty()) result += '/';
        return result.append(reinterpret_cast<const char*>(paths_.blob) + begin,
                             static_cast<size_t>(paths_.ends[number] - begin));
    }

    // Only one thread comes here for a row: the one that took the row `kAhead` before it, or the first.
    void expect(int row) {
        Slot& slot = slots_[static_cast<size_t>(row)];
        if (slot.stage.load(std::memory_order_relaxed) != untouched) return;
        File file;
        if (!file.open(path(row).c_str()).ok()) return;  // `get` will say why
        file.expect(offset(row), length(row));
        slot.file = std::move(file);
        int8_t stage = untouched;
        if (!slot.stage.compare_exchange_strong(stage, ready, std::memory_order_acq_rel)) slot.file.close();
    }

    PathRows paths_;
    std::unique_ptr<Slot[]> slots_;
};

}  // namespace

std::unique_ptr<EncodedSource> open_buffers(std::vector<Bytes> rows) { return std::make_unique<Buffers>(std::move(rows)); }

std::unique_ptr<EncodedSource> open_files(PathRows paths) { return std::make_unique<Files>(std::move(paths)); }

}  // namespace fastload
