// What the parts of the core tell each other about an image: what became of it, sizes, boxes, rows
// of pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fastload {

// The numbers are part of the Python interface (fastload/native/pool.py names them): append, never
// renumber.
enum class Status : int32_t {
    ok = 0,
    damaged = 1,       // or, but for JPEGs, odd: the caller's other decoders may know better
    other_format = 2,  // unknown here: the caller's other decoders may know it
    unsupported = 3,   // a JPEG that is valid, but not decoded here (CMYK, YCCK)
    too_large = 4,     // more pixels than allowed; not decoded
    unreadable = 5,    // the system could not open or read the file
    bad_geometry = 6,  // the box does not fit the image
    cancelled = 7,
};

struct Outcome {
    Status status = Status::ok;
    std::string message;

    bool ok() const { return status == Status::ok; }
};

struct Size {
    int height = 0;
    int width = 0;
};

inline std::string text(Size size) {
    return std::to_string(size.height) + "x" + std::to_string(size.width);
}

// Rounded up; of numbers that are not negative.
inline int divide_up(int a, int b) { return (a + b - 1) / b; }

// Makes a buffer as large as this, if it is smaller.
template <typename T>
void grow(std::vector<T>& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
}

struct Box {
    int top = 0;
    int left = 0;
    int height = 0;
    int width = 0;
};

// Bytes after a row of pixels that may be read, or, of rows in between, overwritten beyond its
// end.
constexpr int kRowSlack = 64;

// Takes rows of 4-byte pixels (RGBX), top to bottom; kRowSlack bytes after each row are readable.
class RowSink {
  public:
    virtual void take(const uint8_t* const* rows, int count) = 0;
    // Forgets what it was given: the first row comes again.
    virtual void restart() = 0;

  protected:
    ~RowSink() = default;
};

}  // namespace fastload
