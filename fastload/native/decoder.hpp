// Decoders of single images: one interface for all formats, and the decoder that chooses by the
// first bytes.
//
// None of them throws for what is in a file: errors of the data are an Outcome. All may throw
// std::bad_alloc. The data are borrowed: they must live from `open` until `close`, the next `open`,
// or the end of the decoder.
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
    Size size;  // as stored, before EXIF orientation is applied
    int components = 0;
    bool progressive = false;
    bool arithmetic = false;  // a JPEG with arithmetic coding, not Huffman codes
    bool odd = false;         // a JPEG with unusual or damaged headers: libjpeg-turbo judges it
};

struct DecodeLimits {
    int64_t max_pixels = 178956970;  // of an image; the default is where Pillow's error begins

    // Limit on pixels times scans of a progressive JPEG. Each scan goes over the whole image, at
    // about a nanosecond a pixel, and can be as short as twenty bytes: without a limit a file of 93
    // KB keeps a processor busy for minutes. Real files have up to about 20 scans. So 24 scans are
    // allowed in the largest image, and more in smaller ones, for the same time. The same number is
    // in fastload/files.py.
    int64_t max_work() const { return 24 * max_pixels; }

    // `too_large` if an image of this size has more than max_pixels.
    Outcome check(Size size) const {
        if (int64_t{size.height} * size.width <= max_pixels) return {};
        return {Status::too_large,
                text(size) + " pixels are more than the limit of " + std::to_string(max_pixels)};
    }
};

// The decoder of one format. It decodes one image after the other, for one thread at a time, and
// keeps its memory between images.
class ImageDecoder {
  public:
    virtual ~ImageDecoder() = default;

    // Reads the header. If only the first part of a file is given, `damaged` may mean that more is
    // needed.
    virtual Outcome open(const uint8_t* data, size_t size, const DecodeLimits& limits) = 0;
    // Gives the rows of `box`, which lies in the image, to `sink`, from column box.left on, and
    // closes the image. If the outcome is not ok, the sink may have got some rows. With `whole`,
    // the data below the box are checked too, which takes the time to decode their entropy code;
    // without, only that the end of the image is there.
    virtual Outcome read(const Box& box, bool whole, RowSink& sink) = 0;
    virtual void close() {}
    // Called between `open` and `read`: the first byte of each pixel shall be the number in the
    // file: a grey value (without alpha) or a palette index. False if the image has colours, or
    // more than 8 bits. (Not needed for JPEGs: the first byte of a grey pixel is its value.)
    virtual bool keep_numbers() { return false; }

    const ImageHeader& header() const { return header_; }

  protected:
    ImageHeader header_;
};

// libjpeg-turbo, with the accurate integer DCT and fancy upsampling. Missing or undecodable data,
// for which the library makes up pixels with a warning, are an error.
class LibJpegDecoder : public ImageDecoder {
  public:
    static std::unique_ptr<LibJpegDecoder> make();
    // Opens the library at the first call. Throws std::runtime_error if it is missing or too old.
    static void load();
    // Called between `open` and `read`: decode the image 2^shift times smaller on each side,
    // rounded up. `shift`: 0 to 3. The box of `read` is then one of the smaller image.
    virtual void reduce(int shift) = 0;
};

// All PNGs but interlaced ones, to the RGB that Pillow makes: alpha, gamma and colour profiles are
// ignored; of 16 bits the upper eight are taken. Rows are decoded down to the bottom of the box,
// and their columns to its right edge, but the checksums of all data are compared. What a usual
// encoder does not write is `damaged`: other decoders may read it. `kernels` must live as long as
// the decoder.
std::unique_ptr<ImageDecoder> make_png_decoder(const Kernels& kernels);

// Decodes a PNG of 16 bits, grey or RGB and not interlaced, with all its bits: writes
// (image.height, image.width, channels) numbers to `out`. Anything else, or another size, is
// `damaged`.
Outcome read_png16(const Kernels& kernels, const uint8_t* data, size_t size, Size image,
                   int channels, uint16_t* out);

// libwebp, which reads the data down to the last row of the box. Animations, and what the library
// refuses, are `damaged`: other decoders may read them.
std::unique_ptr<ImageDecoder> make_webp_decoder();

// The message of `other_format`.
constexpr const char* kOtherFormat = "no format that the core reads";

// How many images were decoded, by which decoder.
struct DecoderCounts {
    // JPEGs by jpeg::Reason: `none`: by our own decoder; else by libjpeg-turbo for this reason.
    std::atomic<int64_t> of[jpeg::kReasons] = {};
    std::atomic<int64_t> png{0}, webp{0};
    std::atomic<int64_t> narrowed{0};  // of `png`: had 16 bits, of which the upper 8 were kept
    std::atomic<int64_t> reduced{0};   // of the JPEGs: were decoded at a smaller size
    std::atomic<int64_t> indexed{0};   // of `of[none]`: by the points of a seek index
    std::atomic<int64_t> noted{0};     // of `of[none]`: their points were added to a seek index
};

// Decodes all formats that this build reads; the first bytes say which. Baseline and progressive
// JPEGs are decoded by our own decoder; the others, and all in which it finds anything unusual, by
// libjpeg-turbo. `kernels` and `counts` must live as long as the decoder.
class Decoder final : public ImageDecoder {
  public:
    Decoder(const Kernels& kernels, DecoderCounts& counts);

    Outcome open(const uint8_t* data, size_t size, const DecodeLimits& limits) override;
    // After `open` of a whole file: `damaged` if it is too short for its pixels, so that no memory
    // is taken for an image that is not there.
    Outcome check_length() const;
    // After `open` of a whole file, or of enough of a JPEG: the orientation of the image, see
    // exif.hpp.
    int orientation() const;
    // As LibJpegDecoder::reduce. False if the image cannot be decoded smaller; then nothing
    // changes.
    bool reduce(int shift);
    bool keep_numbers() override;
    Outcome read(const Box& box, bool whole, RowSink& sink) override;
    void close() override { libjpeg_->close(); }

    // `read` in two steps, between which the image may be decoded together with another one. `sink`
    // must live until `finish`.
    void begin(const Box& box, bool whole, RowSink& sink);
    Outcome finish();
    // Whether a file that begins with these bytes may be of a format that this build reads.
    static bool may_read(const uint8_t* data, size_t size);

    // As in BaselineDecoder. If `has_turn` is false, `finish` does what is left.
    bool has_turn() const {
        return other_ == nullptr && reason_ == jpeg::Reason::none && own_.has_turn();
    }
    static void read_on(Decoder& a, Decoder& b) { jpeg::BaselineDecoder::read_on(a.own_, b.own_); }

    // True: libjpeg-turbo decodes all JPEGs from now on; false: only those that our own decoder
    // leaves to it.
    void use_libjpeg(bool always) { always_libjpeg_ = always; }

    // From now on JPEGs of at least 128 MCUs are decoded by the points in the index; points that it
    // lacks are added. Null: no index. The index must live until the next call. `hash`: of the next
    // file (hash_bytes), if it is known; 0: it is not.
    void use_index(SeekIndex* index, uint64_t hash = 0) {
        index_ = index;
        known_hash_ = hash;
    }

    // The formats besides JPEG that this build reads: Pillow's name, and the library that decodes
    // it.
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
    std::unique_ptr<ImageDecoder> png_, webp_;  // null if this build has none
    bool always_libjpeg_ = false;
    SeekIndex* index_ = nullptr;
    uint64_t known_hash_ = 0;
    jpeg::Points points_;
    std::vector<uint8_t> packed_;  // points as the index stores them
    uint64_t without_points_ = 0;  // images so far that the index did not have

    // Of the open image:
    ImageDecoder* other_ = nullptr;             // png_ or webp_; null: a JPEG
    jpeg::Reason reason_ = jpeg::Reason::none;  // why our own decoder does not decode it
    int shift_ = 0;                             // as given to `reduce`
    const uint8_t* data_ = nullptr;
    size_t size_ = 0;
    DecodeLimits limits_;
    // From `begin` to `finish`:
    Box box_;
    bool whole_ = false;
    RowSink* sink_ = nullptr;
    uint64_t hash_ = 0;        // of the file, if the index is used
    bool has_points_ = false;  // `packed_` are the points in the index
    bool is_noting_ = false;   // points are noted for the index
};

}  // namespace fastload
