#include "seek_index.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "files.hpp"
#include "hash.hpp"
#include "pool.hpp"

namespace fastload {
namespace {

// The start of the file. Numbers have the byte order of the machine that made it, which
// `byte_order` tells; a machine with another order refuses the file.
struct Header {
    char magic[8] = {'f', 'l', 's', 'e', 'e', 'k', 0, 0};
    uint32_t version = 1;
    uint32_t byte_order = 0x01020304;
    uint64_t slots = 0;  // a power of two
    uint64_t limit = 0;  // bytes
    uint64_t unused[3] = {};
    uint64_t check = 0;  // the hash of all before it
};
static_assert(sizeof(Header) == 64, "no gaps");
constexpr size_t kChecked = sizeof(Header) - sizeof(uint64_t);

// An entry of the table has 64 bits: the upper 24 bits of the hash, then the offset of the record
// in the file in units of 8 bytes. The lowest bits of the hash choose a slot; the entry is in this
// slot or one of the 63 after it. The table has 64 more entries than slots, so that no search wraps
// around.
constexpr uint64_t kProbes = 64;
// Neither is the offset of a record: bytes 0 and 8 belong to the header.
constexpr uint64_t kEmpty = 0, kDropped = 1;
constexpr int kOffsetBits = 40;
constexpr uint64_t kMostSlots = uint64_t{1} << 32, kLeastSlots = 1 << 10;

// Before the points of a JPEG.
struct RecordHeader {
    uint64_t check = 0;  // the hash of the rest of the record, this header included
    uint64_t hash = 0;   // of the JPEG
    uint64_t size = 0;   // of the JPEG [bytes]
    uint64_t bytes = 0;  // of the points
};
constexpr uint64_t kMostPoints = uint64_t{64} << 20;  // bytes
// Read at once: nearly every record is shorter (2 kB for a photograph of 110 kB).
constexpr uint64_t kFirstRead = 4096;

// Pending records are written when they have so many bytes, and no more are taken while they have
// more than the latter, because another process keeps the lock.
constexpr size_t kFlushBytes = 256 << 10, kMostPending = 16 << 20;

uint64_t entry_of(uint64_t hash, uint64_t offset) {
    return hash >> kOffsetBits << kOffsetBits | offset / 8;
}
uint64_t tag_of(uint64_t hash) { return hash >> kOffsetBits; }
uint64_t offset_of(uint64_t entry) { return (entry & ((uint64_t{1} << kOffsetBits) - 1)) * 8; }
uint64_t table_end(uint64_t slots) { return sizeof(Header) + 8 * (slots + kProbes); }
// Rounded up to a multiple of 8.
uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// Reads `size` bytes, or fewer at the end of the file, none after an error. Returns how many.
size_t read_at(int file, uint64_t offset, void* into, size_t size) {
    const int64_t got = files::read_at(file, static_cast<int64_t>(offset), into, size);
    return static_cast<size_t>(std::max<int64_t>(got, 0));
}

// False, with errno set, after an error.
bool write_at(int file, uint64_t offset, const void* from, size_t size) {
    return files::write_at(file, static_cast<int64_t>(offset), from, size);
}

// An open file, closed with the object; `get` is negative where it could not be opened.
class Descriptor {
  public:
    Descriptor(const std::string& path, files::Use use) : number_(files::open(path, use)) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~Descriptor() {
        if (number_ >= 0) files::close(number_);
    }
    int get() const { return number_; }
    int release() { return std::exchange(number_, -1); }

  private:
    int number_;
};

// For what errno says.
[[noreturn]] void fail(const std::string& path) {
    throw std::system_error(errno, std::generic_category(), path);
}

// Makes an empty index under another name, and gives it its name when it is complete. If another
// process has made one at the same time, that one stays. Throws std::system_error.
void create(const std::string& path, uint64_t images, uint64_t limit) {
    Header header;
    header.slots = kLeastSlots;
    while (header.slots < 2 * images && header.slots < kMostSlots) header.slots *= 2;
    header.limit = std::max(limit, table_end(header.slots));
    std::string name = path;
    const int made = files::create_beside(name);
    if (made < 0) fail(path);
    header.check = hash_bytes(reinterpret_cast<const uint8_t*>(&header), kChecked);
    const bool good = write_at(made, 0, &header, sizeof header) &&
                      files::resize(made, static_cast<int64_t>(table_end(header.slots))) &&
                      files::give_name(name, path);
    const int error = errno;
    files::close(made);
    files::remove(name);
    errno = error;
    if (!good) fail(path);
}

}  // namespace

SeekIndex::SeekIndex(const std::string& path, uint64_t images, uint64_t limit, bool only_cheap,
                     int every)
    : path_(path), only_cheap_(only_cheap), every_(every), owner_(current_process()) {
    if (every != 16 && every != 32 && every != 64)
        throw std::invalid_argument("points are every 16, 32 or 64 pixels");
    bool writes = true;
    Descriptor file(path, files::Use::change);
    if (file.get() < 0 && errno == ENOENT) {
        create(path, images, limit);
        file = Descriptor(path, files::Use::change);
    } else if (file.get() < 0) {
        writes = false;
        file = Descriptor(path, files::Use::read);
    }
    if (file.get() < 0) fail(path);
    files::About about;
    if (!files::look(file.get(), about) || !about.is_regular)
        throw std::invalid_argument(path + ": not a regular file");
    Header header;
    const bool whole = read_at(file.get(), 0, &header, sizeof header) == sizeof header;
    const Header wanted;
    if (!whole || std::memcmp(header.magic, wanted.magic, sizeof header.magic) != 0 ||
        header.version != wanted.version || header.byte_order != wanted.byte_order ||
        header.check != hash_bytes(reinterpret_cast<const uint8_t*>(&header), kChecked) ||
        header.slots < kLeastSlots || header.slots > kMostSlots ||
        (header.slots & (header.slots - 1)) != 0) {
        throw std::invalid_argument(path + ": no seek index of this version of fastload");
    }
    file_ = file.release();
    slots_ = header.slots;
    limit_ = header.limit;
    writable_ = writes;
}

SeekIndex::~SeekIndex() {
    flush();
    files::close(file_);
}

bool SeekIndex::is_writable() const {
    return writable_.load(std::memory_order_relaxed) && owner_ == current_process();
}

// Reads the points of the record at `offset`. False if it is not the record of this JPEG, or
// damaged.
bool SeekIndex::read_record(uint64_t offset, uint64_t hash, uint64_t size,
                            std::vector<uint8_t>& points) const {
    if (offset < table_end(slots_)) return false;
    uint8_t first[kFirstRead];
    size_t got = read_at(file_, offset, first, kFirstRead);
    RecordHeader header;
    if (got < sizeof header) return false;
    std::memcpy(&header, first, sizeof header);
    if (header.hash != hash || header.size != size || header.bytes > kMostPoints) return false;
    const size_t bytes = sizeof header + static_cast<size_t>(header.bytes);
    points.resize(bytes);
    got = std::min(got, bytes);
    std::memcpy(points.data(), first, got);
    if (got < bytes &&
        read_at(file_, offset + got, points.data() + got, bytes - got) != bytes - got)
        return false;
    if (header.check != hash_bytes(points.data() + 8, bytes - 8)) return false;
    points.erase(points.begin(), points.begin() + sizeof header);
    return true;
}

// As `find`. `entry`: the number of the entry in the table.
bool SeekIndex::lookup(uint64_t hash, uint64_t size, std::vector<uint8_t>& points,
                       uint64_t& entry) const {
    const uint64_t slot = hash & (slots_ - 1);
    uint64_t entries[kProbes] = {};
    read_at(file_, sizeof(Header) + 8 * slot, entries, sizeof entries);
    for (uint64_t i = 0; i < kProbes && entries[i] != kEmpty; ++i) {
        if (entries[i] >> kOffsetBits != tag_of(hash)) continue;
        entry = slot + i;
        if (read_record(offset_of(entries[i]), hash, size, points)) return true;
    }
    return false;
}

bool SeekIndex::find(uint64_t hash, uint64_t size, std::vector<uint8_t>& points) const {
    uint64_t entry = 0;
    return lookup(hash, size, points, entry);
}

void SeekIndex::drop(uint64_t hash, uint64_t size) {
    if (!is_writable()) return;
    std::vector<uint8_t> points;
    uint64_t entry = 0;
    if (lookup(hash, size, points, entry))
        (void)write_at(file_, sizeof(Header) + 8 * entry, &kDropped, sizeof kDropped);
}

void SeekIndex::add(uint64_t hash, uint64_t size, const std::vector<uint8_t>& points) {
    if (!is_writable() || points.size() > kMostPoints) return;
    RecordHeader header;
    header.hash = hash;
    header.size = size;
    header.bytes = points.size();
    std::lock_guard<std::mutex> guard(mutex_);
    if (pending_.size() > kMostPending) return;
    const size_t at = pending_.size(), bytes = sizeof header + points.size();
    pending_.resize(at + padded(bytes));
    uint8_t* const record = pending_.data() + at;
    std::memcpy(record, &header, sizeof header);
    if (!points.empty()) std::memcpy(record + sizeof header, points.data(), points.size());
    header.check = hash_bytes(record + 8, bytes - 8);
    std::memcpy(record, &header.check, sizeof header.check);
    records_.push_back({hash, at});
    const auto now = std::chrono::steady_clock::now();
    if (pending_.size() < kFlushBytes && now - written_ < std::chrono::seconds(1)) return;
    written_ = now;
    write_pending(false);
}

void SeekIndex::flush() {
    if (!is_writable()) return;
    std::lock_guard<std::mutex> guard(mutex_);
    write_pending(true);
}

// Writes the pending records under the lock of the file. If another process has the lock, waits for
// at most a second, or, if not `waits`, leaves them for the next time. The caller holds `mutex_`.
void SeekIndex::write_pending(bool waits) {
    if (records_.empty()) return;
    // Opened again: the lock belongs to an open file description, and that of `file_` is shared
    // with forked children.
    const Descriptor file(path_, files::Use::change);
    files::About ours, theirs;
    if (file.get() < 0 || !files::look(file_, ours) || !files::look(file.get(), theirs) ||
        ours.number != theirs.number || ours.device != theirs.device) {
        writable_ = false;  // the file was removed or replaced
        return;
    }
    for (int tries = waits ? 100 : 1; !files::lock(file.get());) {
        if (errno != EWOULDBLOCK && errno != EINTR) writable_ = false;
        if (!writable_ || --tries == 0) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (!append(file.get())) writable_ = false;
    pending_.clear();
    records_.clear();
}

// Appends the pending records to the file, then writes their entries. False if the disk is full or
// the index has reached its limit. The caller holds the lock of the file.
bool SeekIndex::append(int file) {
    files::About about;
    if (!files::look(file, about)) return false;
    const uint64_t end = padded(std::max(static_cast<uint64_t>(about.bytes), table_end(slots_)));
    if (end + pending_.size() > limit_ || end + pending_.size() >= uint64_t{8} << kOffsetBits)
        return false;
    if (!write_at(file, end, pending_.data(), pending_.size())) {
        (void)files::resize(file, static_cast<int64_t>(end));
        return false;
    }
    std::vector<uint8_t> points;
    for (const Pending& record : records_) {
        uint64_t entries[kProbes] = {}, number = 0;
        RecordHeader header;
        std::memcpy(&header, pending_.data() + record.offset, sizeof header);
        // Another process may have added this JPEG in the meantime.
        if (lookup(record.hash, header.size, points, number)) continue;
        const uint64_t slot = record.hash & (slots_ - 1);
        read_at(file, sizeof(Header) + 8 * slot, entries, sizeof entries);
        const uint64_t* const free = std::find_if(entries, entries + kProbes, [](uint64_t entry) {
            return entry == kEmpty || entry == kDropped;
        });
        if (free == entries + kProbes) continue;  // all are taken: this JPEG gets no entry
        const uint64_t entry = entry_of(record.hash, end + record.offset);
        if (!write_at(file, sizeof(Header) + 8 * (slot + static_cast<uint64_t>(free - entries)),
                      &entry, sizeof entry))
            return false;
    }
    return true;
}

SeekIndex::Contents SeekIndex::contents() const {
    Contents contents;
    contents.slots = slots_;
    contents.limit = limit_;
    files::About about;
    if (files::look(file_, about)) contents.bytes = static_cast<uint64_t>(about.on_disk);
    std::vector<uint64_t> entries(1 << 16);
    const uint64_t all = slots_ + kProbes;
    for (uint64_t at = 0; at < all; at += entries.size()) {
        const auto count = static_cast<size_t>(std::min<uint64_t>(entries.size(), all - at));
        const size_t got = read_at(file_, sizeof(Header) + 8 * at, entries.data(), 8 * count) / 8;
        contents.records += static_cast<uint64_t>(
            std::count_if(entries.begin(), entries.begin() + static_cast<ptrdiff_t>(got),
                          [](uint64_t entry) { return entry != kEmpty && entry != kDropped; }));
        if (got < count) break;
    }
    return contents;
}

}  // namespace fastload
