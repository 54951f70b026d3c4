#include "encoded.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>

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

}  // namespace

File& File::operator=(File&& other) noexcept {
    if (this != &other) {
        close();
        descriptor_ = other.descriptor_;
        other.descriptor_ = -1;
    }
    return *this;
}

Outcome File::open(const char* path) {
    close();
    do {
        descriptor_ = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a named pipe must not block us for ever
    } while (descriptor_ < 0 && errno == EINTR);
    return descriptor_ < 0 ? system_error(errno) : Outcome{};
}

void File::close() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
}

void File::expect(int64_t offset, int64_t length) const {
    // Advice: where it is not taken, the read later waits instead.
    (void)::posix_fadvise(descriptor_, offset, length < 0 ? 0 : length, POSIX_FADV_WILLNEED);
}

Outcome File::read(int64_t offset, int64_t length, int64_t most, std::vector<uint8_t>& buffer, size_t& size) const {
    struct stat info;
    if (::fstat(descriptor_, &info) != 0) return system_error(errno);
    if (S_ISDIR(info.st_mode)) return system_error(EISDIR);
    if (!S_ISREG(info.st_mode)) return {Status::unreadable, "not a regular file"};
    if (offset < 0 || offset > info.st_size || length > info.st_size - offset) {
        return {Status::unreadable, "the file has " + std::to_string(info.st_size) + " bytes, the sample should be at " +
                                        std::to_string(offset) + " and " + std::to_string(length) + " bytes long"};
    }
    size = static_cast<size_t>(std::min<int64_t>(length < 0 ? info.st_size - offset : length, most));
    if (buffer.size() < size) buffer.resize(size + size / 4);
    for (size_t done = 0; done < size;) {
        const ssize_t got = ::pread(descriptor_, buffer.data() + done, size - done, offset + static_cast<int64_t>(done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return system_error(errno);
        if (got == 0) {  // shrunk since we asked: what is there decides
            size = done;
            break;
        }
        done += static_cast<size_t>(got);
    }
    return {};
}

std::string PathRows::path(int row) const {
    const int64_t string = rows[row];
    const int64_t begin = string > 0 ? ends[string - 1] : 0;
    std::string result;
    result.reserve(root.size() + 1 + static_cast<size_t>(ends[string] - begin));
    if (!root.empty()) result.append(root).push_back('/');
    result.append(reinterpret_cast<const char*>(blob) + begin, static_cast<size_t>(ends[string] - begin));
    return result;
}

EncodedFiles::EncodedFiles(PathRows paths)
    : paths_(std::move(paths)), slots_(std::make_unique<Slot[]>(static_cast<size_t>(paths_.count))) {}

void EncodedFiles::expect(int row) {
    Slot& slot = slots_[static_cast<size_t>(row)];
    if (slot.stage.load(std::memory_order_relaxed) != untouched) return;
    File file;
    if (!file.open(paths_.path(row).c_str()).ok()) return;  // `get` will say why
    file.expect(paths_.offsets ? paths_.offsets[row] : 0, paths_.lengths ? paths_.lengths[row] : -1);
    // Only one thread comes here for a row: the one that took the row `kAhead` before it.
    slot.file = std::move(file);
    int8_t stage = untouched;
    if (!slot.stage.compare_exchange_strong(stage, ready, std::memory_order_acq_rel)) slot.file.close();
}

Outcome EncodedFiles::get(int row, std::vector<uint8_t>& buffer, Bytes& bytes, int64_t most) {
    if (row == 0) {
        for (int next = 1; next < std::min(kAhead, paths_.count); ++next) expect(next);
    }
    if (row + kAhead < paths_.count) expect(row + kAhead);

    File file;
    Slot& slot = slots_[static_cast<size_t>(row)];
    if (slot.stage.exchange(taken, std::memory_order_acq_rel) == ready) {
        file = std::move(slot.file);
    } else if (Outcome opened = file.open(paths_.path(row).c_str()); !opened.ok()) {
        return opened;
    }
    const int64_t offset = paths_.offsets ? paths_.offsets[row] : 0;
    const int64_t length = paths_.lengths ? paths_.lengths[row] : -1;
    size_t size = 0;
    Outcome outcome = file.read(offset, length, most, buffer, size);
    bytes = {buffer.data(), size};
    return outcome;
}

}  // namespace fastload
