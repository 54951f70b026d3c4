#include "file.hpp"

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fastload {
namespace {

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

}  // namespace fastload
