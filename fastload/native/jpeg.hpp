// One JPEG to pixels: headers, and rows of a region.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "geometry.hpp"
#include "jpeg/frame.hpp"
#include "row_sink.hpp"

namespace fastload {

struct JpegHeader {
    Size size;  // as stored, before any EXIF rotation
    int components = 0;
    bool progressive = false;
};

struct JpegLimits {
    int64_t max_pixels = 178956970;

    // Pixels times scans. Each scan of a progressive file goes over the whole image again, at about a nanosecond a
    // pixel, and costs its author twenty bytes: without a limit 93 KB keep a processor busy for minutes. Real files have
    // up to about 20 scans; so many are allowed in the largest image, and more in smaller ones, for the same time.
    // The same number is in fastload/decode/base.py.
    int64_t max_work() const { return 24 * max_pixels; }
};

struct Kernels;

// How many images were decoded by what: ours at `jpeg::Reason::none`, by libjpeg-turbo for each other reason.
struct DecoderCounts {
    std::atomic<int64_t> of[jpeg::kReasons] = {};
};

// Decoders that are kept between images; for one thread at a time. Baseline files are decoded by our own decoder
// (jpeg/baseline.hpp); the others, and all in which it sees anything unusual, by libjpeg-turbo with the accurate integer
// DCT and fancy upsampling. Damage that libjpeg only warns about and paints over (missing or undecodable data) is an error.
class JpegDecoder {
  public:
    // `counts` may be null.
    explicit JpegDecoder(const Kernels& kernels, DecoderCounts* counts = nullptr);
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

    // From now on libjpeg-turbo decodes all images, or only those that it has to.
    void use_libjpeg(bool always);

  private:
    Outcome open_libjpeg();
    Outcome read_libjpeg(const Box& box, bool whole, RowSink& sink);

    struct State;
    std::unique_ptr<State> state_;
};

// The EXIF orientation (1 to 8) of a JPEG; 1 where there is none or it makes no sense.
int exif_orientation(const uint8_t* data, size_t size);

}  // namespace fastload
