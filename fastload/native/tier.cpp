#include "tier.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "checksum.hpp"

namespace fastload {
namespace {

// A line of the table: digest (16 bytes), offset (8), length (8), CRC-32 (4). After the lines: the
// mark (8), the number of lines (4). Numbers are little-endian.
constexpr char kMark[] = "fltier2\n";
constexpr size_t kMarkBytes = sizeof(kMark) - 1, kDigest = static_cast<size_t>(kDigestBytes),
                 kLine = kDigest + 8 + 8 + 4, kEnd = kMarkBytes + 4;
// One file has at most 64 ranges, and, if it has several, 16 MiB of them. So its table lies in its
// last 4 KiB: 64 * 36 + 12 = 2,316 bytes.
constexpr size_t kMostRanges = 64, kMostBytes = size_t{16} << 20, kTail = 4096;
static_assert(kMostRanges * kLine + kEnd <= kTail);
constexpr int64_t kNotedAfter = 600;  // seconds
// Smaller files are written to the system's cache: a request to the disk for each takes longer.
constexpr size_t kPastCacheFrom = size_t{256} << 10;

// Appends the lowest `count` bytes of a number, the lowest first.
void put_number(std::vector<uint8_t>& bytes, uint64_t value, int count) {
    for (int i = 0; i < count; ++i) bytes.push_back(static_cast<uint8_t>(value >> 8 * i));
}

uint64_t get_number(const uint8_t* bytes, int count) {
    uint64_t found = 0;
    for (int i = count - 1; i >= 0; --i) found = found << 8 | bytes[i];
    return found;
}

// Calls `make()`, which sets errno where it returns false; if the folder of the name is missing,
// makes the folder and calls again. Returns 0, or an error number.
template <typename Make>
int in_folder(const TierFolder& top, const std::string& name, Make make) {
    if (make()) return 0;
    if (errno != ENOENT) return errno;
    const std::string folder = name.substr(0, name.rfind('/'));
    if (::mkdirat(top.descriptor(), folder.c_str(), 0700) != 0 && errno != EEXIST) return errno;
    return make() ? 0 : errno;
}

// Writes all of these bytes. Returns 0, or an error number.
int write_whole(int file, const iovec* parts, size_t count) {
    size_t size = 0;
    for (size_t i = 0; i < count; ++i) size += parts[i].iov_len;
    ssize_t written;
    do {
        written = ::writev(file, parts, static_cast<int>(count));
    } while (written < 0 && errno == EINTR);
    if (written < 0) return errno;
    return static_cast<size_t>(written) == size ? 0 : ENOSPC;  // the disk took only a part
}

// The content of a file that is written by the disk itself from one block of memory, without pages
// of the system's cache (O_DIRECT). The memory is the thread's, for the next file, too.
class PastCache {
  public:
    PastCache(int file, DiskTime& time) : file_(file), time_(time) {}

    // Whether the system does so for this file.
    bool begins() {
#ifdef O_DIRECT
        thread_local std::unique_ptr<uint8_t, decltype(&std::free)> memory(large_page(),
                                                                           &std::free);
        memory_ = memory.get();
        return memory_ != nullptr && ::fcntl(file_, F_SETFL, O_DIRECT) == 0;
#else
        return false;
#endif
    }

    // Each returns 0, or an error number.
    int add(const uint8_t* data, size_t size) {
        for (size_t done = 0; done < size;) {
            const size_t some = std::min(size - done, kAtOnce - used_);
            std::memcpy(memory_ + used_, data + done, some);
            used_ += some;
            done += some;
            if (used_ == kAtOnce)
                if (const int code = flush()) return code;
        }
        return 0;
    }

    // These are the last bytes of the file, whose size is made a multiple of the page by zeros
    // before them.
    int end(const uint8_t* data, size_t size) {
        static constexpr uint8_t zeros[kPage] = {};
        const size_t over = (used_ + size) % kPage;
        if (const int code = add(zeros, over == 0 ? 0 : kPage - over)) return code;
        if (const int code = add(data, size)) return code;
        return used_ == 0 ? 0 : flush();
    }

  private:
    // Bytes of memory, and so of a request to the disk: a large page of x86-64, which the kernel
    // hands to the disk as one piece, and not as 512.
    static constexpr size_t kAtOnce = size_t{2} << 20;
    // Memory, place and size of such a request are multiples of this, on disks whose sectors are
    // no larger.
    static constexpr size_t kPage = 4096;

    static uint8_t* large_page() {
        auto* const memory = static_cast<uint8_t*>(std::aligned_alloc(kAtOnce, kAtOnce));
#ifdef MADV_HUGEPAGE
        if (memory != nullptr) (void)::madvise(memory, kAtOnce, MADV_HUGEPAGE);
#endif
        return memory;
    }

    int flush() {
        using Clock = std::chrono::steady_clock;
        const iovec all = {memory_, std::exchange(used_, 0)};
        const auto began = Clock::now();
        int code = write_whole(file_, &all, 1);
        time_.seconds += std::chrono::duration<double>(Clock::now() - began).count();
        time_.bytes += static_cast<int64_t>(all.iov_len);
        // Larger sectors, or a file system that says only now that it cannot.
        if (code == EINVAL && ::fcntl(file_, F_SETFL, 0) == 0) code = write_whole(file_, &all, 1);
        return code;
    }

    const int file_;
    DiskTime& time_;
    uint8_t* memory_ = nullptr;
    size_t used_ = 0;  // bytes of it
};

// Writes the ranges and the table to a new file. Returns 0, or an error number.
int write_content(int file, const uint8_t* digests, const Bytes* data, size_t count,
                  DiskTime* time) {
    std::vector<iovec> parts;
    std::vector<uint8_t> table;
    uint64_t offset = 0;
    for (size_t i = 0; i < count; ++i) offset += data[i].size;
    DiskTime unused;
    PastCache direct(file, time != nullptr ? *time : unused);
    const bool past_cache = time != nullptr && offset >= kPastCacheFrom && direct.begins();
    offset = 0;
    for (size_t i = 0; i < count; ++i) {
        table.insert(table.end(), digests + i * kDigest, digests + (i + 1) * kDigest);
        put_number(table, offset, 8);
        put_number(table, data[i].size, 8);
        put_number(table, crc32(data[i].data, data[i].size), 4);
        offset += data[i].size;
        if (!past_cache)
            parts.push_back({const_cast<uint8_t*>(data[i].data), data[i].size});
        else if (const int code = direct.add(data[i].data, data[i].size))
            return code;
    }
    table.insert(table.end(), kMark, kMark + kMarkBytes);
    put_number(table, count, 4);
    if (past_cache) return direct.end(table.data(), table.size());
    parts.push_back({table.data(), table.size()});
    return write_whole(file, parts.data(), parts.size());
}

// Writes `count` ranges to one file, and gives it their names. Returns 0, or an error number.
// `named`: how many ranges, from the first on, have their names after success: all, or one on a
// file system without hard links.
int write_file(const TierFolder& folder, const uint8_t* digests, const Bytes* data, size_t count,
               const std::string& beside, DiskTime* time, size_t& named) {
    named = 0;
    const int top = folder.descriptor();
    const std::string first = TierName(digests).text();
    const size_t name = first.rfind('/') + 1;
    const std::string unfinished = first.substr(0, name) + '.' + first.substr(name) + beside;
    int file = -1;
    int code = in_folder(folder, unfinished, [&] {
        constexpr int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
        file = ::openat(top, unfinished.c_str(), flags, 0600);
        return file >= 0;
    });
    if (code != 0) return code;
    code = write_content(file, digests, data, count, time);
    if (::close(file) != 0 && code == 0) code = errno;
    // The first name last: it renames the unfinished file.
    bool links = true;
    for (size_t i = 1; code == 0 && links && i < count; ++i) {
        const TierName there(digests + i * kDigest);
        code = in_folder(folder, there.text(), [&] {
            return ::linkat(top, unfinished.c_str(), top, there.text(), 0) == 0;
        });
        if (code == EEXIST) code = 0;  // another process has written this range
        links = code == 0 || code == ENOSPC;
        if (links) named = i;
    }
    if (!links) code = 0;  // a file system without hard links
    if (code == 0 && ::renameat(top, unfinished.c_str(), top, first.c_str()) != 0) code = errno;
    if (code != 0) ::unlinkat(top, unfinished.c_str(), 0);
    ++named;
    return code;
}

}  // namespace

bool TierSpan::is_of(const Bytes& data) const {
    return static_cast<int64_t>(data.size) == length && crc32(data.data, data.size) == crc;
}

TierName::TierName(const uint8_t* digest) {
    constexpr char digits[] = "0123456789abcdef";
    char* to = text_;
    for (size_t i = 0; i < kDigest; ++i) {
        *to++ = digits[digest[i] >> 4];
        *to++ = digits[digest[i] & 15];
        if (i == 0) *to++ = '/';
    }
    *to = 0;
}

TierFolder::TierFolder(const std::string& path)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {}

TierFolder::~TierFolder() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

int TierFolder::open(const uint8_t* digest) const {
    int file;
    do {
        file = ::openat(descriptor_, TierName(digest).text(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (file < 0 && errno == EINTR);
    return file;
}

bool find_in_tier(int file, const uint8_t* digest, TierSpan& span) {
    struct stat info;
    if (::fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) return false;
    uint8_t tail[kTail];
    const size_t size = static_cast<size_t>(std::min<int64_t>(info.st_size, kTail));
    if (size < kEnd) return false;
    ssize_t got;
    do {
        got = ::pread(file, tail, size, info.st_size - static_cast<int64_t>(size));
    } while (got < 0 && errno == EINTR);
    if (got != static_cast<ssize_t>(size)) return false;
    const uint8_t* end = tail + size - kEnd;
    const uint64_t lines = get_number(end + kMarkBytes, 4);
    if (std::memcmp(end, kMark, kMarkBytes) != 0 || lines > kMostRanges) return false;
    if (lines * kLine > size - kEnd) return false;
    const uint64_t most = static_cast<uint64_t>(info.st_size) - kEnd - lines * kLine;
    for (uint64_t i = 1; i <= lines; ++i) {
        const uint8_t* line = end - i * kLine;
        if (std::memcmp(line, digest, kDigest) != 0) continue;
        const uint64_t offset = get_number(line + kDigest, 8),
                       length = get_number(line + kDigest + 8, 8);
        if (offset > most || length > most - offset || length == 0) return false;
        span = {static_cast<int64_t>(offset), static_cast<int64_t>(length),
                static_cast<uint32_t>(get_number(line + kDigest + 16, 4)), info.st_mtime};
        return true;
    }
    return false;
}

bool is_in_tier(const TierFolder& folder, const uint8_t* digest) {
    struct stat info;
    return ::fstatat(folder.descriptor(), TierName(digest).text(), &info, 0) == 0 &&
           S_ISREG(info.st_mode) && info.st_size > 0;
}

bool lock_range(int file, const uint8_t* digest) {
#ifdef F_OFD_SETLK
    static_assert(SEEK_SET == 0);
    struct flock lock = {};  // from the start of the file
    lock.l_type = F_WRLCK;
    lock.l_start = static_cast<off_t>(get_number(digest, 7));
    lock.l_len = 1;
    return ::fcntl(file, F_OFD_SETLK, &lock) == 0 || (errno != EAGAIN && errno != EACCES);
#else
    (void)file, (void)digest;
    return true;
#endif
}

void note_use(int file, const TierSpan& span) {
    const int64_t now = ::time(nullptr);
    // A note may lie in the future: clocks are set back, too.
    if (span.used < now - kNotedAfter || span.used > now + kNotedAfter)
        (void)::futimens(file, nullptr);  // if it fails, the file is evicted earlier
}

int write_tier(const std::string& path, const uint8_t* digests, const std::vector<Bytes>& data,
               const std::string& beside, DiskTime* past_cache) {
    const TierFolder folder(path);
    if (folder.descriptor() < 0) return errno;
    size_t most = kMostRanges;
    for (size_t first = 0; first < data.size();) {
        size_t count = 1, bytes = data[first].size;
        while (first + count < data.size() && count < most &&
               bytes + data[first + count].size <= kMostBytes)
            bytes += data[first + count++].size;
        size_t named = 0;
        const int code = write_file(folder, digests + first * kDigest, data.data() + first, count,
                                    beside, past_cache, named);
        if (code != 0) return code;
        if (named < count) most = 1;  // one name, so one range, for each file
        first += named;
    }
    return 0;
}

}  // namespace fastload
