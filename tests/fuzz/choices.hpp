// What the fuzz targets share: numbers from the input, images of noise, memory of exactly the size
// that is promised.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "image.hpp"

namespace fastload {

using Pixels = std::vector<uint8_t>;

// Appends a number of 4 bytes, the highest first.
inline void put_u32(Pixels& file, uint32_t number) {
    for (int shift = 24; shift >= 0; shift -= 8)
        file.push_back(static_cast<uint8_t>(number >> shift));
}

// Ends the process, with a message, if the condition does not hold: then the fuzzer keeps the
// input.
inline void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "%s\n", what);
    std::abort();
}

// Reads numbers from the input, one after the other; zeros after its end.
class Choices {
  public:
    Choices(const uint8_t* data, size_t size) : next_(data), end_(data + size) {}

    // 0 to 255; 0 to 65535; any 32 bits.
    int byte() { return next_ == end_ ? 0 : *next_++; }
    bool ended() const { return next_ == end_; }
    int word() { return byte() << 8 | byte(); }
    uint32_t bits() { return static_cast<uint32_t>(word()) << 16 | static_cast<uint32_t>(word()); }
    int32_t any() { return static_cast<int32_t>(bits()); }
    bool flag() { return (byte() & 1) != 0; }
    // In [0, 1).
    double uniform() { return word() / 65536.0; }
    // A side of an image: 1 to 65500, most often up to 256.
    int side() { return byte() < 160 ? 1 + byte() : 1 + word() % kLargestSide; }
    // The size of an image of at most `most` pixels; if it had more, it gets fewer rows.
    Size size(int64_t most) {
        Size size = {side(), side()};
        size.height = static_cast<int>(
            std::min<int64_t>(size.height, std::max<int64_t>(most / size.width, 1)));
        return size;
    }

  private:
    static constexpr int kLargestSide = 65500;

    const uint8_t* next_;
    const uint8_t* end_;
};

// Random bytes; for odd seeds only 0 and 255, whose sums are largest.
inline Pixels noise(size_t size, int seed) {
    static const Pixels table = [] {
        Pixels made(2 << 16);
        uint32_t state = 1;
        for (size_t i = 0; i < made.size(); ++i) {
            state = state * 1664525u + 1013904223u;
            made[i] = static_cast<uint8_t>(i < made.size() / 2 ? state >> 24
                                           : state >> 31       ? 255
                                                               : 0);
        }
        return made;
    }();
    Pixels made(size);
    const size_t half = table.size() / 2, from = seed % 2 == 0 ? 0 : half,
                 skip = static_cast<size_t>(seed) * 251;
    for (size_t at = 0; at < size; at += half - skip) {
        std::memcpy(made.data() + at, table.data() + from + skip, std::min(half - skip, size - at));
    }
    return made;
}

// A copy of values in heap memory of exactly their size and `slack` elements without meaning, so
// that a sanitizer sees the first access beyond.
template <typename T>
std::unique_ptr<T[]> exactly(const T* values, size_t count, size_t slack = 0) {
    std::unique_ptr<T[]> made(new T[count + slack]);
    std::copy(values, values + count, made.get());
    std::memset(made.get() + count, 0xee, slack * sizeof(T));
    return made;
}

// Calls `work(pointer to a copy of the values)`, which changes them, and returns the result. The
// copy ends with its heap memory, and begins at `offset` in it, so at any alignment. The bytes
// before it must not change.
template <typename Work>
Pixels in_place(const Pixels& before, size_t offset, Work work) {
    constexpr uint8_t kBefore = 0xa7;
    Pixels all(offset, kBefore);
    all.insert(all.end(), before.begin(), before.end());
    const auto memory = exactly(all.data(), all.size());
    work(memory.get() + offset);
    require(std::all_of(memory.get(), memory.get() + offset,
                        [](uint8_t value) { return value == kBefore; }),
            "bytes before the images are changed");
    return Pixels(memory.get() + offset, memory.get() + all.size());
}

}  // namespace fastload
