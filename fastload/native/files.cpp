// Files of POSIX.
#include "files.hpp"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fastload::files {

int open(const std::string& path, Use use) {
    int file;
    do {
        // O_NONBLOCK: opening a named pipe would wait for a writer.
        file =
            ::open(path.c_str(), (use == Use::change ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK);
    } while (file < 0 && errno == EINTR);
    return file;
}

void close(int file) noexcept { ::close(file); }

bool look(int file, About& about) {
    struct stat found;
    if (::fstat(file, &found) != 0) return false;
    about = {S_ISREG(found.st_mode),
             S_ISDIR(found.st_mode),
             found.st_size,
             int64_t{found.st_blocks} * 512,
             static_cast<uint64_t>(found.st_dev),
             static_cast<uint64_t>(found.st_ino)};
    return true;
}

int64_t read_at(int file, int64_t offset, void* into, size_t size) {
    size_t done = 0;
    while (done < size) {
        const ssize_t got = ::pread(file, static_cast<char*>(into) + done, size - done,
                                    offset + static_cast<int64_t>(done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += static_cast<size_t>(got);
    }
    return static_cast<int64_t>(done);
}

bool write_at(int file, int64_t offset, const void* from, size_t size) {
    size_t done = 0;
    while (done < size) {
        const ssize_t put = ::pwrite(file, static_cast<const char*>(from) + done, size - done,
                                     offset + static_cast<int64_t>(done));
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        done += static_cast<size_t>(put);
    }
    return true;
}

bool resize(int file, int64_t bytes) { return ::ftruncate(file, bytes) == 0; }

void read_ahead(int file, int64_t offset, int64_t length) {
#ifdef __APPLE__
    struct radvisory range = {offset, static_cast<int>(std::min<int64_t>(length, INT_MAX))};
    if (length > 0) (void)::fcntl(file, F_RDADVISE, &range);
#else
    (void)::posix_fadvise(file, offset, length, POSIX_FADV_WILLNEED);
#endif
}

int create_beside(std::string& path) {
    path += ".XXXXXX";
    const int file = ::mkstemp(path.data());
    if (file >= 0 && ::fchmod(file, 0644) == 0) return file;
    if (file >= 0) {
        const int error = errno;
        ::close(file);
        ::unlink(path.c_str());
        errno = error;
    }
    return -1;
}

bool give_name(const std::string& path, const std::string& name) {
    return ::link(path.c_str(), name.c_str()) == 0 || errno == EEXIST ||
           std::rename(path.c_str(), name.c_str()) == 0;
}

void remove(const std::string& path) noexcept { ::unlink(path.c_str()); }

bool lock(int file) { return ::flock(file, LOCK_EX | LOCK_NB) == 0; }

}  // namespace fastload::files
