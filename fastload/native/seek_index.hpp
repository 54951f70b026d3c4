// The seek index: a file of the points at which decoding of JPEGs can start (jpeg/points.hpp).
//
// A record holds the points of one JPEG, and is found by a hash of all bytes of that JPEG: a file
// that was changed has no record. Any number of processes read and fill one index. The file has a
// header, a table of entries, and after it the records. Records are appended under a lock, then
// their entries are written: a process that is killed leaves at most some bytes that no entry
// points to.
//
// All that is read is checked. If the file is damaged, only the damaged records are lost. It is
// read with pread, not mapped: if another process cut a mapped file short, reading it would end
// this process (SIGBUS).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace fastload {

constexpr int kPointDistance = 64;

// An open index. Any thread may call its methods, which throw nothing but std::bad_alloc. A forked
// child may read it, and writes nothing.
class SeekIndex {
  public:
    // Opens the index at `path`, or makes one for about `images` images, which may grow to `limit`
    // bytes (and no less than its table: 16 to 32 bytes an image). It is opened for reading only
    // where the file cannot be written. With `only_cheap`, decoders add the points of an image only
    // where little of it lies below the box (Decoder::is_cheap), else of every image. Points that
    // decoders add are `every` pixels apart: 16, 32 or 64. Those that are there may be others.
    //
    // Throws std::system_error if the file can be neither opened nor made, std::invalid_argument if
    // it is no index of this version, or `every` is another number.
    SeekIndex(const std::string& path, uint64_t images, uint64_t limit, bool only_cheap = false,
              int every = kPointDistance);
    // Writes what was added.
    ~SeekIndex();
    SeekIndex(const SeekIndex&) = delete;
    SeekIndex& operator=(const SeekIndex&) = delete;

    // Reads the packed points of the JPEG with this hash and size [bytes] into `points`. False,
    // with `points` undefined, if the index has none.
    bool find(uint64_t hash, uint64_t size, std::vector<uint8_t>& points) const;
    // Adds the points of a JPEG. They are written to the file together with others: after a second,
    // or 256 KiB, or by `flush`. Does nothing if the index is not writable.
    void add(uint64_t hash, uint64_t size, const std::vector<uint8_t>& points);
    // Removes the points of a JPEG: they did not fit its data.
    void drop(uint64_t hash, uint64_t size);
    // Writes what was added. Waits for at most a second while another process is writing; if that
    // is not enough, what was added stays in memory for the next time.
    void flush();

    // Whether points may still be added: not if the file was opened for reading only, was removed,
    // could not be written, or has reached its limit; and not in a forked child.
    bool is_writable() const;

    bool only_cheap() const { return only_cheap_; }
    // Pixels from one point to the next.
    int every() const { return every_; }

    struct Contents {
        uint64_t records = 0;  // JPEGs whose points are in the file
        uint64_t bytes = 0;    // of disk space
        uint64_t slots = 0;    // of the table
        uint64_t limit = 0;    // bytes that the file may grow to
    };
    // What the file holds. Reads the whole table.
    Contents contents() const;

  private:
    // A record that was added and is not in the file yet.
    struct Pending {
        uint64_t hash;
        uint64_t offset;  // of its first byte in `pending_`
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
    const int every_;
    const uint64_t owner_;  // `current_process` where it was opened

    std::atomic<bool> writable_{false};
    std::mutex mutex_;              // protects the members below
    std::vector<uint8_t> pending_;  // the bytes of all pending records
    std::vector<Pending> records_;
    std::chrono::steady_clock::time_point written_ = std::chrono::steady_clock::now();
};

}  // namespace fastload
