// One image to pixels, whatever its format.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "image.hpp"
#include "jpeg/baseline.hpp"

namespace fastload {

struct Kernels;
class SeekIndex;

struct ImageHeader {
    Size size;  // as stored, before any EXIF rotation
    int components = 0;
    bool progressive = false;
    int orientation = 1;      // of EXIF, 1 to 8; 1 where there is none or it makes no sense
    bool arithmetic = false;  // a JPEG whose entropy coding is arithmetic, not Huffman's
    bool odd = false;         // a JPEG with headers that are not as a sound encoder writes them:
                              // libjpeg-turbo judges it
};

struct DecodeLimits {
    int64_t max_pixels = 178956970;

    // Pixels times scans. Each scan of a progressive file goes over the whole image again, at about
    // a nanosecond a pixel, and costs its author twenty bytes: without a limit 93 KB keep a
    // processor busy for minutes. Real files have up to about 20 scans; so many are allowed in the
    // largest image, and more in smaller ones, for the same time. The same number is in
    // fastload/files.py.
    int64_t max_work() const { return 24 * max_pixels; }

    Outcome check(Size size) const {
        if (int64_t{size.height} * size.width <= max_pixels) return {};
        return {Status::too_large,
                text(size) + " pixels are more than the limit of " + std::to_string(max_pixels)};
    }
};

// What the decoder of a format does: one image after the other, for one thread at a time. Its
// memory is kept between images.
class ImageDecoder {
  public:
    virtual ~ImageDecoder() = default;

    // Reads the header and stays open: the data must live until `close`, the next `open`, or the
    // end of the object. Of the first part of a file, `damaged` may mean that more of it is needed.
    virtual Outcome open(const uint8_t* data, size_t size, const DecodeLimits& limits) = 0;
    // Gives the rows of `box`, which lies in the image, to `sink`, each from column box.left on,
    // and closes. With `whole`, the data below the box is checked too, which costs its entropy
    // decoding; without, only that the end of the image is there.
    virtual Outcome read(const Box& box, bool whole, RowSink& sink) = 0;
    virtual void close() {}
    // Between `open` and `read`: the first byte of a pixel is then the number in the file, a grey
    // value or the place in the palette. False where a pixel has several numbers, or one of more
    // than 8 bits; not for JPEGs, whose grey values the first byte has anyway.
    virtual bool keep_numbers() { return false; }

    const ImageHeader& header() const { return header_; }

  protected:
    ImageHeader header_;
};

// libjpeg-turbo, with the accurate integer DCT and fancy upsampling. Damage that the library only
// warns about and paints over (missing or undecodable data) is an error.
class LibJpegDecoder : public ImageDecoder {
  public:
    static std::unique_ptr<LibJpegDecoder> make();
    // Opens the library, once; throws std::runtime_error if it is not there or too old.
    static void load();
    // Before `read`: from here on the image is 2^shift times smaller on each side (0 to 3; sizes
    // are rounded up), made so in decoding.
    virtual void reduce(int shift) = 0;
};

// All kinds of PNG but interlaced ones, to RGB as Pillow makes it: alpha, gamma and colour profiles
// are left out, of 16 bits the upper eight are taken. Decoded are the rows down to the last of the
// box, and of them no column to its right; but the checksums of all data are compared. Whatever is
// not as a sound encoder writes it is `damaged`: other decoders may know better.
std::unique_ptr<ImageDecoder> make_png_decoder(const Kernels& kernels);

// All of a PNG of 16 bits, grey or RGB and not interlaced, as numbers of this machine: height *
// width * channels of them into `out`. What is anything else is `damaged`, as above.
Outcome read_png16(const Kernels& kernels, const uint8_t* data, size_t size, Size image,
                   int channels, uint16_t* out);

// libwebp. Decoded is down to the last row of the box. Animations, and whatever the library finds
// fault with, are `damaged`: other decoders may know better.
std::unique_ptr<ImageDecoder> make_webp_decoder();

// The EXIF orientation (1 to 8) in the TIFF structure that EXIF data are; 1 where there is none or
// it makes no sense.
int tiff_orientation(const uint8_t* data, size_t size);

// How many images were decoded by what: JPEGs by our own decoder at `jpeg::Reason::none`, by
// libjpeg-turbo for each other reason; and those of other formats.
struct DecoderCounts {
    std::atomic<int64_t> of[jpeg::kReasons] = {};
    std::atomic<int64_t> png{0}, webp{0};
    std::atomic<int64_t> narrowed{0};  // PNGs of 16 bits, of all of these: the upper 8 were kept
    std::atomic<int64_t> reduced{0};   // JPEGs, of all of these
    std::atomic<int64_t> indexed{0};   // of those by our own decoder: by the points of an index
    std::atomic<int64_t> noted{0};     // and those whose points were noted for it
};

// The decoder of the format that the first bytes say. Baseline JPEGs are decoded by our own; the
// others, and all in which it sees anything unusual, by libjpeg-turbo.
class Decoder final : public ImageDecoder {
  public:
    Decoder(const Kernels& kernels, DecoderCounts& counts);

    Outcome open(const uint8_t* data, size_t size, const DecodeLimits& limits) override;
    // Of a whole file: `damaged` where it is too short for its pixels, so that nothing is allocated
    // for what is not there.
    Outcome check_length() const;
    // As LibJpegDecoder's. False where that cannot be; then the image stays as it is.
    bool reduce(int shift);
    bool keep_numbers() override;
    Outcome read(const Box& box, bool whole, RowSink& sink) override;
    void close() override { libjpeg_->close(); }

    // `read` in two parts, between which the image may be decoded beside another one. `sink` must
    // live until `finish`.
    void begin(const Box& box, bool whole, RowSink& sink);
    Outcome finish();
    // As those of BaselineDecoder: where nothing is left for it, `finish` does the rest.
    bool has_turn() const {
        return other_ == nullptr && reason_ == jpeg::Reason::none && own_.has_turn();
    }
    static void read_on(Decoder& a, Decoder& b) { jpeg::BaselineDecoder::read_on(a.own_, b.own_); }

    // From now on libjpeg-turbo decodes all JPEGs, or only those that it has to.
    void use_libjpeg(bool always) { always_libjpeg_ = always; }

    // From now on JPEGs of many blocks are decoded by the points that the index has of them; those
    // of which it has none, it is given. Null: no index. It must live as long as it is used.
    void use_index(SeekIndex* index) { index_ = index; }

    // The formats beside JPEG that this build reads, by Pillow's names, and with which library.
    static std::map<std::string, std::string> formats();

  private:
    Outcome open_jpeg();
    Outcome open_libjpeg();
    Outcome finish_jpeg();
    void begin_own();
    jpeg::Reason finish_own();
    bool is_cheap(uint64_t hash);

    DecoderCounts& counts_;
    jpeg::BaselineDecoder own_;
    std::unique_ptr<LibJpegDecoder> libjpeg_;
    std::unique_ptr<ImageDecoder> png_, webp_;  // null where the build has none
    bool always_libjpeg_ = false;
    SeekIndex* index_ = nullptr;
    jpeg::Points points_;
    std::vector<uint8_t> packed_;  // points
    uint64_t without_points_ = 0;  // images so far that the index did not have

    // Of the image in work.
    ImageDecoder* other_ = nullptr;             // png_ or webp_; null for a JPEG
    jpeg::Reason reason_ = jpeg::Reason::none;  // why not by our own decoder
    int shift_ = 0;
    const uint8_t* data_ = nullptr;
    size_t size_ = 0;
    DecodeLimits limits_;
    // Since `begin`.
    Box box_;
    bool whole_ = false;
    RowSink* sink_ = nullptr;
    uint64_t hash_ = 0;        // of the bytes, where the index is of use
    bool has_points_ = false;  // `packed_` are the index's
    bool is_noting_ = false;
};

}  // namespace fastload
