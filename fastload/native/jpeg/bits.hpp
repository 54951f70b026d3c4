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

    // `places`: whether `position` will be asked for.
    void start(const uint8_t* from, const uint8_t* end, bool places = false) {
        raw_ = from;
        end_ = end;
        places_ = places;
        begin_segment();
    }

    // As `start`, from bit `bit` of the byte at `from` on, 0 being the highest. False if there is
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

    // Where the next bit is: its byte in the file, and in that its bit, 0 being the highest. Only
    // after `start` with `places`, and where the data are not overdrawn.
    const uint8_t* position(int& bit) {
        const int64_t bits = 8 * (before_window_ + (state.next - window_.data())) - state.count;
        const int64_t byte = bits >> 3;
        while (passed_ < stuffed_.size() && stuffed_[passed_] < byte) ++passed_;
        bit = static_cast<int>(bits & 7);
        return segment_ + byte + passed_;
    }

    // Makes kMostChunkBytes readable from `state.next` on, zeros after the last of the data.
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
        segment_ = raw_;
        before_window_ = 0;
        passed_ = 0;
        stuffed_.clear();
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
            if (places_) stuffed_.push_back(before_window_ + (stop_ - window_.data()));
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

    // For `position`. Bytes without stuffing are counted from the last marker or `start` on.
    bool places_ = false;
    const uint8_t* segment_ = nullptr;  // the first of these bytes in the file
    int64_t before_window_ = 0;         // how many of them were before the window
    std::vector<int64_t> stuffed_;      // the numbers of those after which a zero was left out
    size_t passed_ = 0;  // of them, those before the position that was asked for last
};

}  // namespace fastload::jpeg
