// Files of the local tier (fastload/stores/tier.py): ranges of bytes that were fetched from a
// store, kept on local disk. One file holds the bytes of up to 64 ranges, then a table with one
// line for each range, then a mark and the number of lines. It has one name (hard link) for each of
// its ranges. Only in builds with ISA-L (FASTLOAD_PNG). Nothing here throws but std::bad_alloc; any
// number of threads and processes may call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "jobs.hpp"

namespace fastload {

constexpr int64_t kDigestBytes = 16;

// Where the bytes of a range are in its file.
struct TierSpan {
    int64_t offset = 0;  // of the first byte
    int64_t length = 0;  // bytes; 0: there is no such range
    uint32_t crc = 0;    // CRC-32 of the bytes
    int64_t used = 0;    // when the use of the file was last noted [seconds since 1970]

    // Whether these are the bytes of the range: by length and checksum.
    bool is_of(const Bytes& data) const;
};

// The name of the file of a range, from the folder of the tier on: dd/ddd..., the digest in 32
// hexadecimal digits of which the first two name a folder. `digest`: kDigestBytes.
class TierName {
  public:
    explicit TierName(const uint8_t* digest);
    const char* text() const { return text_; }

  private:
    char text_[2 * kDigestBytes + 2];
};

// The open folder of a tier. The files of many ranges are found from there: the system goes through
// the folders above it once. Where it cannot be opened no range has a file.
class TierFolder {
  public:
    explicit TierFolder(const std::string& path);
    ~TierFolder();
    TierFolder(const TierFolder&) = delete;
    TierFolder& operator=(const TierFolder&) = delete;

    int descriptor() const { return descriptor_; }
    // Opens the file of a range for reading. Returns a descriptor, which the caller must close, or
    // -1 with errno set.
    int open(const uint8_t* digest) const;

  private:
    const int descriptor_;
};

// Looks for a range in the table of an open file. False, with `span` untouched, where the file is
// not one of the tier, or does not hold the range, or the line makes no sense. A range of length 0
// counts as missing: a line of zeros would be one.
bool find_in_tier(int file, const uint8_t* digest, TierSpan& span);

// Whether a range has a file that is not empty. The file may be damaged, or removed a moment later.
bool is_in_tier(const TierFolder& folder, const uint8_t* digest);

// Takes a lock on one byte of an open file, which the digest chooses, unless another open file
// description has it. True, too, where the system or the file system has no such locks. The lock
// ends when the file is closed.
bool lock_range(int file, const uint8_t* digest);

// Sets the modification time of a file to now, if the last note is older than ten minutes, so that
// files in use are evicted last. `span`: of any range in the file.
void note_use(int file, const TierSpan& span);

// How long a disk took for what was written past the system's cache.
struct DiskTime {
    int64_t bytes = 0;
    double seconds = 0;
};

// Writes ranges, several to a file; each gets its name when its file is complete. `digests`:
// kDigestBytes for each of `data`. `beside`: a suffix for unfinished files that no other thread or
// process uses. The folder, `path`, must exist. `past_cache`: if it is given, files of 256 KiB and
// more are written by the disk itself, where it can, no copy stays in the system's cache, and what
// that took is added. Returns 0, or the error number (errno) at which it stopped.
int write_tier(const std::string& path, const uint8_t* digests, const std::vector<Bytes>& data,
               const std::string& beside, DiskTime* past_cache = nullptr);

}  // namespace fastload
