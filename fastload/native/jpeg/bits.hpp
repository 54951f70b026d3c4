// Entropy-coded data without stuffing, as much of it as a chunk of blocks can take.
#pragma once

#include <cstring>
#include <vector>

#include "jpeg/kernels.hpp"

namespace fastload::jpeg {

// In a JPEG's scan a zero follows every 0xff; 0xff with anything else is a marker and ends the
// data. Both are dealt with here, ahead of the decoder, which then takes 8 bytes at a time without
// looking.
class BitSource {
  public:
    BitSource() : window_(kWindow + kPadding) {}

    void start(const uint8_t* from, const uint8_t* end) {
        raw_ = from;
        end_ = end;
        begin_segment();
    }

    // Makes kMostChunkBytes readable from `state.next` on, zeros after the last of the data.
    void reserve() {
        if (dry_ || static_cast<size_t>(stop_ - state.next) >= kMostChunkBytes) return;
        if (static_cast<size_t>(window_.data() + kWindow - state.next) < 2 * kMostChunkBytes) {
            const auto left = static_cast<size_t>(stop_ - state.next);
            std::memmove(window_.data(), state.next, left);
            state.next = window_.data();
            stop_ = window_.data() + left;
        }
        unstuff();
    }

    // Bits left before the marker or the end of the file: exact once these are in sight, and only
    // negative then.
    int64_t left() const { return int64_t{8} * (stop_ - state.next) + int64_t{state.count}; }
    bool overdrawn() const { return left() < 0; }

    // Steps over restart marker `number` (0 to 7), which must be next but for the padding of the
    // last byte.
    bool restart(int number) {
        reserve();
        if (!dry_ || left() < 0 || left() > 7 || end_ - raw_ < 2 || raw_[1] != 0xd0 + number)
            return false;
        raw_ += 2;
        begin_segment();
        return true;
    }

    // The marker that ends the data, where all bits before it are used but for the padding of the
    // last byte; else null.
    const uint8_t* marker() {
        reserve();
        return dry_ && left() >= 0 && left() <= 7 && raw_ != end_ ? raw_ : nullptr;
    }

    // Whether an end marker follows somewhere. Nearly always it is next, or in the last two bytes
    // of the file.
    bool ends() const {
        for (const uint8_t* at = end_; at - raw_ >= 2; --at) {
            if (at[-1] == 0xd9 && at[-2] == 0xff) return true;
        }
        return false;
    }

    BitState state;

  private:
    static constexpr size_t kWindow = 8 * kMostChunkBytes;
    // After the data, for a whole chunk that begins at their very end, or with the bits in hand a
    // little beyond it.
    static constexpr size_t kPadding = kMostChunkBytes + 16;
    static constexpr ptrdiff_t kAhead =
        16 << 10;  // unstuffed at a time: what lies below the box is not needed

    void begin_segment() {
        state = BitState();
        state.next = stop_ = window_.data();
        dry_ = false;
    }

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
            *stop_++ = 0xff;
            raw_ += 2;
        }
        dry_ = dry_ || raw_ == end_;
        if (dry_) std::memset(stop_, 0, kPadding);
    }

    std::vector<uint8_t> window_;
    uint8_t* stop_ = nullptr;       // after the last unstuffed byte
    const uint8_t* raw_ = nullptr;  // the first byte not yet unstuffed
    const uint8_t* end_ = nullptr;
    bool dry_ = true;  // raw_ is at a marker, or at the end of the file
};

}  // namespace fastload::jpeg
