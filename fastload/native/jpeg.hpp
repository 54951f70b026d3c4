// One JPEG to pixels: headers, and rows of a region.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "geometry.hpp"

namespace fastload {

struct JpegHeader {
    Size size;  // as stored, before any EXIF rotation
    int components = 0;
    bool progressive = false;
};

struct JpegLimits {
    int64_t max_pixels = 178956970;
};

// Takes rows of 4-byte pixels (RGBX), top to bottom; kRowSlack bytes behind each row are readable.
class RowSink {
  public:
    virtual void take(const uint8_t* const* rows, int count) = 0;

  protected:
    ~RowSink() = default;
};

// A libjpeg decoder that is kept between images; for one thread at a time. Accurate integer DCT, fancy upsampling.
// Damage that libjpeg only warns about and paints over (missing or undecodable data) is an error here.
class JpegDecoder {
  public:
    JpegDecoder();
    ~JpegDecoder();
    JpegDecoder(const JpegDecoder&) = delete;
    JpegDecoder& operator=(const JpegDecoder&) = delete;

    // Reads the header and stays open: the data must live until `close`, the next `open`, or the end of the object.
    Outcome open(const uint8_t* data, size_t size, const JpegLimits& limits);
    const JpegHeader& header() const;

    // Gives the rows of `box` to `sink`, each from column box.left on, and closes. With `whole`, the data below the
    // box is checked too, which costs its entropy decoding; without, only that the end of the image is there.
    Outcome read(const Box& box, bool whole, RowSink& sink);
    void close();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

// The EXIF orientation (1 to 8) of a JPEG; 1 where there is none or it makes no sense.
int exif_orientation(const uint8_t* data, size_t size);

}  // namespace fastload
