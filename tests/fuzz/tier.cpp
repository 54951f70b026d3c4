// Fuzz target: files of the local tier. The first byte says which of two things is done.
//
// Any bytes are a file of the tier, and a range is looked for that is in it, or is not. What must
// hold, besides that memory is in order: what is found lies in the file, before its table, and is
// read as it is there if its checksum fits, else refused.
//
// Ranges of any bytes are written, by the system's cache or past it, their files changed: bytes,
// the end, or a file in another's place. Each range is read as it was, or refused; if nothing was
// changed, read.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "choices.hpp"
#include "jobs.hpp"
#include "tier.hpp"

namespace {

using namespace fastload;

constexpr size_t kDigest = static_cast<size_t>(kDigestBytes), kMostRanges = 70;
constexpr size_t kLarge = size_t{256} << 10;
constexpr int64_t kTable = 64 * 36 + 12;  // bytes, of the most lines and the end

// A folder of this process, until it ends.
class Folder {
  public:
    Folder() { require(::mkdir(path.c_str(), 0700) == 0, "the folder cannot be made"); }
    ~Folder() {
        for (const char* name : {"/00", "/01", "/02", ""}) ::rmdir((path + name).c_str());
    }

    const std::string path = "/tmp/fastload-fuzz-tier-" + std::to_string(::getpid());
};

const std::string& folder() {
    static const Folder made;
    return made.path;
}

std::string path_of(const uint8_t* digest) { return folder() + '/' + TierName(digest).text(); }

Pixels content(const std::string& path) {
    Pixels found;
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    require(file >= 0, "a file is missing");
    found.resize(static_cast<size_t>(::lseek(file, 0, SEEK_END)));
    require(::pread(file, found.data(), found.size(), 0) == static_cast<ssize_t>(found.size()),
            "a file cannot be read");
    ::close(file);
    return found;
}

void put(const std::string& path, const uint8_t* data, size_t size) {
    ::mkdir(path.substr(0, path.rfind('/')).c_str(), 0700);
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    require(file >= 0 && ::write(file, data, size) == static_cast<ssize_t>(size), "cannot write");
    ::close(file);
}

// Digests of the ranges, some in one folder.
Pixels digests_of(size_t count) {
    Pixels found(count * kDigest);
    uint64_t state = 1;
    for (size_t i = 0; i < found.size(); ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        found[i] = i % kDigest == 0 ? static_cast<uint8_t>(i / kDigest % 3)
                                    : static_cast<uint8_t>(state >> 56);
    }
    return found;
}

void any_file(const uint8_t* data, size_t size) {
    const Pixels digest = digests_of(1), file = Pixels(data, data + size);
    const std::string path = path_of(digest.data());
    put(path, file.data(), file.size());
    const int opened = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    TierSpan span;
    const bool found = find_in_tier(opened, digest.data(), span);
    ::close(opened);
    const auto length = static_cast<int64_t>(file.size());
    require(!found || (span.offset >= 0 && span.length > 0 && span.length < length &&
                       span.offset < length - span.length),
            "a range goes beyond its file");
    const auto rows = open_tier({folder(), digest.data(), {Bytes{nullptr, 0}}, 1});
    Pixels buffer;
    Bytes bytes{nullptr, 0};
    const bool read = rows->get(0, buffer, bytes, 10).ok();
    require(found || !read, "a range is read that is not in the file");
    if (read) {
        require(span.is_of(bytes), "a range is read whose checksum is another");
        require(std::equal(bytes.data, bytes.data + bytes.size, file.data() + span.offset),
                "a range is not what is in the file");
    }
    ::unlink(path.c_str());
}

// Whether anything was changed.
bool change(const Pixels& digests, size_t count, Choices& choices) {
    bool changed = false;
    while (!choices.ended()) {
        const int what = choices.byte();
        const auto range = static_cast<size_t>(choices.byte()) % count;
        const std::string path = path_of(digests.data() + range * kDigest);
        const auto size = static_cast<int64_t>(content(path).size());
        // Anywhere, or in the table.
        const int64_t spread = choices.word(), most = std::min(size, kTable);
        const int64_t at = (what & 1) != 0 ? spread * size / 65536 : size - 1 - spread % most;
        const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
        changed = true;
        if (what >= 250) {
            require(::ftruncate(file, at) == 0, "cannot cut");
        } else if (what >= 245) {
            require(::ftruncate(file, size + spread % 5000) == 0, "cannot lengthen");
        } else {
            const auto value = static_cast<uint8_t>(choices.byte());
            require(::pwrite(file, &value, 1, at) == 1, "cannot write");
        }
        ::close(file);
        if (what == 244) {
            const auto other = static_cast<size_t>(choices.byte()) % count;
            const Pixels file_of = content(path);
            const std::string to = path_of(digests.data() + other * kDigest);
            ::unlink(to.c_str());
            put(to, file_of.data(), file_of.size());
        }
        if (content(path).empty()) break;
    }
    return changed;
}

void written(const uint8_t* data, size_t size) {
    if (size < 2) return;
    const bool past_cache = data[0] >= 240;
    const size_t count = 1 + data[0] % kMostRanges, changes = std::min<size_t>(data[1], size - 2);
    Choices choices(data + 2, changes);
    const Pixels all(data + 2 + changes, data + size), digests = digests_of(count);
    std::vector<Pixels> ranges;
    std::vector<Bytes> bytes;
    for (size_t i = 0; i < count; ++i) {
        // Some empty, most short, of overlapping parts.
        const size_t from = all.empty() ? 0 : i * 37 % all.size();
        const size_t length = std::min(all.size() - from, i * i % 301);
        ranges.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(from),
                            all.begin() + static_cast<std::ptrdiff_t>(from + length));
    }
    // Small files are written by the cache in any case.
    if (past_cache) ranges.back().resize(kLarge + all.size(), 7);
    for (const Pixels& range : ranges) bytes.push_back({range.data(), range.size()});
    DiskTime time;
    DiskTime* const past = past_cache ? &time : nullptr;
    require(write_tier(folder(), digests.data(), bytes, ".1.tmp", past) == 0, "not written");
    const bool changed = change(digests, count, choices);
    std::vector<Bytes> nothing(count, Bytes{nullptr, 0});
    const TierFolder opened(folder());
    const auto rows = open_tier({folder(), digests.data(), nothing, static_cast<int>(count)});
    for (size_t i = 0; i < count; ++i) {
        require(is_in_tier(opened, digests.data() + i * kDigest) || changed, "no file of a range");
        Pixels buffer;
        Bytes found{nullptr, 0};
        const bool read = rows->get(static_cast<int>(i), buffer, found, 10).ok();
        require(read || changed || ranges[i].empty(), "a whole range is refused");
        require(!read || (found.size == ranges[i].size() &&
                          std::equal(ranges[i].begin(), ranges[i].end(), found.data)),
                "a range is not what was written");
    }
    for (size_t i = 0; i < count; ++i) ::unlink(path_of(digests.data() + i * kDigest).c_str());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    if (data[0] % 2 == 0)
        any_file(data + 1, size - 1);
    else
        written(data + 1, size - 1);
    return 0;
}
