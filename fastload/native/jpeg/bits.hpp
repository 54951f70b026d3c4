// Reads the entropy-coded data of a scan: removes the stuffing, and keeps as many bytes ready as a
// chunk of blocks can need.
#pragma once

#include <cstring>
#include <vector>

#include "jpeg/kernels.hpp"

namespace fastload::jpeg {

// In the data of a scan, a zero is stuffed after every 0xff byte; 0xff followed by another byte is
// a marker and ends the data. This class copies the data into a window without the stuffed zeros.
// The decoder then loads 8 bytes at a time from there, without checks: after the data there are
// zeros. The file is borrowed. For one thread at a time.
class BitSource {
  public:
    BitSource() : window_(kWindow + kPadding) {}

    // Starts at the byte `from` of a file that ends at `end`. `places`: whether `position` will be
    // called.
    void start(const uint8_t* from, const uint8_t* end, bool places = false) {
        raw_ = from;
        end_ = end;
        places_ = places;
        begin_segment();
    }

    // As `start`, from bit `bit` of the byte at `from` on; bit 0 is the highest. False if there is
    // no such byte.
    bool start_in(const uint8_t* from, int bit, const uint8_t* end, bool places) {
        start(from, end, places);
        reserve();
        if (bit == 0) return true;
        if (stop_ == state.next) return false;
        state.bits = uint64_t{*state.next++} << 56 << bit;
        state.count = static_cast<uint32_t>(8 - bit);
        return true;
    }

    // The place of the next bit: its byte in the file, and the bit in that byte, 0 being the
    // highest. Only after `start` with `places`, and if not `overdrawn`.
    const uint8_t* position(int& bit) {
        const int64_t bits = 8 * (before_window_ + (state.next - window_.data())) - state.count;
        const int64_t byte = bits >> 3;
        while (passed_ < stuffed_.size() && stuffed_[passed_] < byte) ++passed_;
        bit = static_cast<int>(bits & 7);
        return segment_ + byte + passed_;
    }

    // Makes kMostChunkBytes readable from `state.next` on: data, and zeros after the end of the
    // data.
    void reserve() {
        if (dry_ || static_cast<size_t>(stop_ - state.next) >= kMostChunkBytes) return;
        if (static_cast<size_t>(window_.data() + kWindow - state.next) < 2 * kMostChunkBytes) {
            const auto left = static_cast<size_t>(stop_ - state.next);
            std::memmove(window_.data(), state.next, left);
            before_window_ += state.next - window_.data();
            state.next = window_.data();
            stop_ = window_.data() + left;
        }
        unstuff();
    }

    // Bits left before the marker or the end of the file. Exact, and possibly negative, once the
    // end is in the window; before that a lower bound, which is not negative.
    int64_t left() const { return int64_t{8} * (stop_ - state.next) + int64_t{state.count}; }
    // Whether more bits were taken than there are: the data are cut off or damaged.
    bool overdrawn() const { return left() < 0; }

    // Goes on after restart marker `number` (0 to 7). False if it is not next, apart from the
    // padding of the last byte.
    bool restart(int number) {
        reserve();
        if (!dry_ || left() < 0 || left() > 7 || end_ - raw_ < 2 || raw_[1] != 0xd0 + number)
            return false;
        raw_ += 2;
        begin_segment();
        return true;
    }

    // The marker that ends the data, in the file. Null if there is none, or bits before it were not
    // used, apart from the padding of the last byte.
    const uint8_t* marker() {
        reserve();
        return dry_ && left() >= 0 && left() <= 7 && raw_ != end_ ? raw_ : nullptr;
    }

    // Whether an end marker follows. Searched from the end of the file, as it is nearly always
    // there.
    bool ends() const {
        for (const uint8_t* at = end_; at - raw_ >= 2; --at) {
            if (at[-1] == 0xd9 && at[-2] == 0xff) return true;
        }
        return false;
    }

    BitState state;

  private:
    static constexpr size_t kWindow = 8 * kMostChunkBytes;
    // Zeros after the data: for a whole chunk that begins at their end, and 16 bytes, as bits that
    // are already in `state` let it begin a little beyond.
    static constexpr size_t kPadding = kMostChunkBytes + 16;
    // Bytes that are unstuffed at a time. Not more, as the data below the box are not needed.
    static constexpr ptrdiff_t kAhead = 16 << 10;

    // At the first byte of the scan, or after a restart marker.
    void begin_segment() {
        state = BitState();
        state.next = stop_ = window_.data();
        dry_ = false;
        segment_ = raw_;
        before_window_ = 0;
        passed_ = 0;
        stuffed_.clear();
    }

    // Copies the next kAhead bytes to the window, or up to its end or that of the data.
    void unstuff() {
        const uint8_t* const most = window_.data() + kWindow;
        const uint8_t* const limit = most - stop_ < kAhead ? most : stop_ + kAhead;
        while (stop_ < limit && raw_ < end_) {
            const auto size =
                static_cast<size_t>(limit - stop_ < end_ - raw_ ? limit - stop_ : end_ - raw_);
            const void* found = std::memchr(raw_, 0xff, size);
            const size_t length =
                found == nullptr ? size
                                 : static_cast<size_t>(static_cast<const uint8_t*>(found) - raw_);
            std::memcpy(stop_, raw_, length);
            stop_ += length;
            raw_ += length;
            if (found == nullptr) continue;
            if (end_ - raw_ < 2 || raw_[1] != 0) {
                dry_ = true;
                break;
            }
            if (places_) stuffed_.push_back(before_window_ + (stop_ - window_.data()));
            *stop_++ = 0xff;
            raw_ += 2;
        }
        dry_ = dry_ || raw_ == end_;
        if (dry_) std::memset(stop_, 0, kPadding);
    }

    std::vector<uint8_t> window_;
    uint8_t* stop_ = nullptr;       // the end of the data in the window
    const uint8_t* raw_ = nullptr;  // the first byte of the file that was not copied yet
    const uint8_t* end_ = nullptr;  // of the file
    bool dry_ = true;               // raw_ is at a marker, or at the end of the file

    // For `position`. Data bytes, without stuffed zeros, are counted from `segment_` on.
    bool places_ = false;
    const uint8_t* segment_ = nullptr;  // in the file: the start, or after the last restart marker
    int64_t before_window_ = 0;         // data bytes before the window
    std::vector<int64_t> stuffed_;  // the numbers of the data bytes after which a zero was removed
    size_t passed_ = 0;             // how many of these lie before the last `position`
};

}  // namespace fastload::jpeg
