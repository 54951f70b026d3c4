// What the parts of the core tell each other about an image: what became of it, sizes, boxes, rows of pixels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace fastload {

// The numbers are part of the Python interface (fastload/native/__init__.py names them): append, never renumber.
enum class Status : int32_t {
    ok = 0,
    damaged = 1,      // or, but for JPEGs, odd: the caller's other decoders may know better
    other_format = 2, // unknown here: the caller's other decoders may know it
    unsupported = 3,  // a JPEG that is valid, but not decoded here (CMYK, YCCK)
    too_large = 4,    // more pixels than allowed; not decoded
    unreadable = 5,   // the system could not open or read the file
    bad_geometry = 6, // the box does not fit the image
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

struct Box {
    int top = 0;
    int left = 0;
    int height = 0;
    int width = 0;
};

// Takes rows of 4-byte pixels (RGBX), top to bottom; kRowSlack bytes behind each row are readable.
class RowSink {
  public:
    virtual void take(const uint8_t* const* rows, int count) = 0;
    // Forgets what it was given: the first row comes again.
    virtual void restart() = 0;

  protected:
    ~RowSink() = default;
};

struct ImageHeader {
    Size size;  // as stored, before any EXIF rotation
    int components = 0;
    bool progressive = false;
    int orientation = 1;  // of EXIF, 1 to 8; 1 where there is none or it makes no sense
};

struct DecodeLimits {
    int64_t max_pixels = 178956970;

    // Pixels times scans. Each scan of a progressive file goes over the whole image again, at about a nanosecond a
    // pixel, and costs its author twenty bytes: without a limit 93 KB keep a processor busy for minutes. Real files have
    // up to about 20 scans; so many are allowed in the largest image, and more in smaller ones, for the same time.
    // The same number is in fastload/files.py.
    int64_t max_work() const { return 24 * max_pixels; }

    Outcome check(Size size) const {
        const int64_t pixels = int64_t{size.height} * size.width;
        if (pixels <= max_pixels) return {};
        return {Status::too_large, std::to_string(size.height) + "x" + std::to_string(size.width) +
                                       " pixels are more than the limit of " + std::to_string(max_pixels)};
    }
};

// What the decoder of a format does: one image after the other, for one thread at a time. Its memory is kept between images.
class ImageDecoder {
  public:
    virtual ~ImageDecoder() = default;

    // Reads the header and stays open: the data must live until `close`, the next `open`, or the end of the object.
    // Of the first part of a file, `damaged` may mean that more of it is needed.
    virtual Outcome open(const uint8_t* data, size_t size, const DecodeLimits& limits) = 0;
    virtual const ImageHeader& header() const = 0;

    // Before `read`: from here on the image is 2^shift times smaller on each side (1 to 3; sizes are rounded up), made so
    // in decoding. False where that cannot be; then it stays as it is.
    virtual bool reduce(int) { return false; }

    // Gives the rows of `box`, which lies in the image, to `sink`, each from column box.left on, and closes. With `whole`,
    // the data below the box is checked too, which costs its entropy decoding; without, only that the end of the image
    // is there.
    virtual Outcome read(const Box& box, bool whole, RowSink& sink) = 0;
    virtual void close() = 0;
};

}  // namespace fastload
