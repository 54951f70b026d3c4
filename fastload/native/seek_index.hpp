// A file of the points at which the JPEGs of a data set can be decoded from (jpeg/points.hpp).
//
// Records are found by a hash of the bytes of their JPEG: whatever is done to a file, it has its
// own record or none. Any number of processes read and fill one index. The file has a header of
// fixed content, a table of entries and after it records; these are appended under a lock, then
// their entries are written. A process that is killed leaves at most some bytes that no entry
// points to.
//
// Whatever is read is checked; a damaged file costs the records that are damaged. It is read with
// pread, not mapped: a map of a file that somebody cuts short ends the process.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace fastload {

class SeekIndex {
  public:
    // Opens the index at `path`, or makes one with room for `images`, which grows no larger than
    // `limit` bytes; reads only, where the file or its folder cannot be written. Throws
    // std::system_error, or std::invalid_argument if the file is no index of this version. With
    // `only_cheap`, decoders add the points of an image where little of it is left below the box
    // (Decoder::is_cheap), else of each.
    SeekIndex(const std::string& path, uint64_t images, uint64_t limit, bool only_cheap = false);
    ~SeekIndex();
    SeekIndex(const SeekIndex&) = delete;
    SeekIndex& operator=(const SeekIndex&) = delete;

    // The packed points of the JPEG with this hash and size, into `points`. False if there are
    // none. Any thread may call this and what follows.
    bool find(uint64_t hash, uint64_t size, std::vector<uint8_t>& points) const;
    // Keeps the points of a JPEG; in the file they are a second later, with others, or after
    // `flush`.
    void add(uint64_t hash, uint64_t size, const std::vector<uint8_t>& points);
    // Forgets the points of a JPEG: they do not fit its data.
    void drop(uint64_t hash, uint64_t size);
    // Writes what was added. Returns at once where another process has been writing for a second.
    void flush();

    // Whether points may still be added: not in a child of the process that opened it, nor once the
    // index has reached its limit or could not be written.
    bool is_open() const;

    bool only_cheap() const { return only_cheap_; }

    struct Contents {
        uint64_t records = 0, bytes = 0, slots = 0, limit = 0;
    };
    // What the file holds: reads its table.
    Contents contents() const;

  private:
    struct Record {
        uint64_t hash;
        uint64_t at;  // first byte in `pending_`
        uint64_t bytes;
    };
    bool read_record(uint64_t offset, uint64_t hash, uint64_t size,
                     std::vector<uint8_t>& points) const;
    bool lookup(uint64_t hash, uint64_t size, std::vector<uint8_t>& points, uint64_t& entry) const;
    void write_pending(bool waits);
    bool append(int file);

    const std::string path_;
    int file_ = -1;
    uint64_t slots_ = 0, limit_ = 0;
    const bool only_cheap_;
    const uint64_t owner_;

    std::atomic<bool> writable_{false};
    std::mutex mutex_;  // of what follows
    std::vector<uint8_t> pending_;
    std::vector<Record> records_;
    std::chrono::steady_clock::time_point written_ = std::chrono::steady_clock::now();
};

}  // namespace fastload
