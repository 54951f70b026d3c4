// Types that all parts of the core share: the outcome of one image, sizes, boxes, rows of pixels;
// and helpers for buffers that are kept between images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fastload {

// Why an image has no pixels. The numbers are part of the Python interface (`Status` in
// fastload/native/pool.py): append, never renumber.
enum class Status : int32_t {
    ok = 0,
    damaged = 1,       // for PNG and WebP also valid, but unusual: other decoders may read it
    other_format = 2,  // the core does not read this format: other decoders may
    unsupported = 3,   // a valid JPEG that the core does not convert (CMYK, YCCK)
    too_large = 4,     // more pixels than allowed; not decoded
    unreadable = 5,    // the operating system could not open or read the file; out of memory
    bad_geometry = 6,  // the box does not lie in the image
    cancelled = 7,
};

// The result of one step for one image. `message` is empty if `status` is ok.
struct Outcome {
    Status status = Status::ok;
    std::string message;

    bool ok() const { return status == Status::ok; }
};

// Of an image or a rectangle [pixels].
struct Size {
    int height = 0;
    int width = 0;
};

// For messages: "375x500".
inline std::string text(Size size) {
    return std::to_string(size.height) + "x" + std::to_string(size.width);
}

// a / b, rounded up. Neither may be negative; a + b - 1 must fit an int.
inline int divide_up(int a, int b) { return (a + b - 1) / b; }

// Enlarges `buffer` to `size` elements if it is smaller, and returns its first element. Buffers
// are kept between images, so that memory is taken only for the largest so far. Throws
// std::bad_alloc.
template <typename T>
T* grow(std::vector<T>& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
    return buffer.data();
}

// Frees the memory of a buffer that holds more than `most` bytes, so that one unusually large image
// does not keep its memory for ever.
template <typename T>
void release_large(std::vector<T>& buffer, size_t most) {
    if (buffer.size() > most / sizeof(T)) std::vector<T>().swap(buffer);
}

// A rectangle in an image [pixels]; (top, left) is its first pixel.
struct Box {
    int top = 0;
    int left = 0;
    int height = 0;
    int width = 0;
};

// All of an image.
inline Box box_of(Size size) { return {0, 0, size.height, size.width}; }

// Inner loops work on whole vectors: so many bytes after the last pixel of a row may be read, and
// in buffers between two steps overwritten.
constexpr int kRowSlack = 64;

// Receives the rows of an image from a decoder. The rows belong to the caller, and are valid only
// during the call.
class RowSink {
  public:
    // `count` rows of 4-byte pixels (red, green, blue, and a byte without meaning), from top to
    // bottom, over all calls. kRowSlack bytes after each row are readable.
    virtual void take(const uint8_t* const* rows, int count) = 0;
    // Forgets all rows so far: the decoder starts again with the first one.
    virtual void restart() = 0;

  protected:
    ~RowSink() = default;
};

}  // namespace fastload
