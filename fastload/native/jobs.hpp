// The jobs that a pool runs: compressed images to headers and to pixels, and decoded images to
// crops.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "colour.hpp"
#include "geometry.hpp"
#include "pool.hpp"
#include "resample.hpp"
#include "warp.hpp"

namespace fastload {

struct Bytes {
    const uint8_t* data = nullptr;
    size_t size = 0;
};

class EncodedSource {
  public:
    virtual ~EncodedSource() = default;
    virtual int count() const = 0;
    // The bytes of a row, perhaps in `buffer`. Each row is asked for once. `most` bounds how many
    // are needed.
    virtual Outcome get(int row, std::vector<uint8_t>& buffer, Bytes& bytes,
                        int64_t most = INT64_MAX) = 0;
};

// Paths as fastload/sources/buffers.py stores them, for some of its rows. The arrays are borrowed.
struct PathRows {
    std::string root;
    const uint8_t* blob = nullptr;
    const int64_t* ends = nullptr;
    const int64_t* rows = nullptr;     // which path each sample is
    const int64_t* offsets = nullptr;  // first byte of each sample, or nullptr for whole files
    const int64_t* lengths = nullptr;
    int count = 0;
};

// Byte strings that the caller keeps.
std::unique_ptr<EncodedSource> open_buffers(std::vector<Bytes> rows);

// Files, opened and announced to the system a few samples ahead, so that the disk works while we
// decode.
std::unique_ptr<EncodedSource> open_files(PathRows paths);

// Rows of the local tier (tier.hpp), and rows in memory. The arrays are borrowed.
struct TierRows {
    std::string folder;
    const uint8_t* digests = nullptr;  // kDigestBytes a row
    std::vector<Bytes> memory;         // of each row; data null: it is in the tier
    int count = 0;
};

// The same for the files of a tier, each read whole and checked. Only where ISA-L is
// (FASTLOAD_PNG).
std::unique_ptr<EncodedSource> open_tier(TierRows rows);

// Height, width (as stored), components, EXIF orientation, progressive or not, odd or not
// (ImageHeader), for each row; zeros where it fails.
constexpr int kHeaderColumns = 6;
std::shared_ptr<Job> header_job(std::unique_ptr<EncodedSource> images, const DecodeLimits& limits,
                                int32_t* out);

// The JPEG of one image of 3 channels (JpegEncoder) into `file`. The pixels are borrowed.
std::shared_ptr<Job> encode_job(const uint8_t* pixels, Size size, int quality,
                                std::vector<uint8_t>& file);

// What is made of each image: a batch of images of one size. Their windows have that size, too.
struct View {
    GeometrySource geometries;
    ResampleOptions resample;
    uint8_t* out = nullptr;
    Size size;
    int channels = 3;
    // Other than 0: bytes from a row of the output to the next, and `out` is that of one image,
    // whichever it is.
    int64_t stride = 0;
    // What is done to the colours of the whole images before; `kinds` null: nothing. One chain.
    ColourTable colour;
    bool fused = false;  // of `colour_job`
    // What is done to the images that `geometries` makes, before they are the outputs; null:
    // nothing.
    GeometrySource later;
    ResampleOptions later_resample;

    int64_t bytes() const { return int64_t{channels} * size.height * size.width; }
    uint8_t* at(int row) const { return stride != 0 ? out : out + bytes() * row; }
};

struct DecodeOptions {
    DecodeLimits limits;
    bool exif_orientation = false;  // geometries are then those of the upright image
    bool whole = false;             // also check the data below the box
    bool draft =
        false;  // reduce in decoding what is at least twice the output, by whole powers of two
    SeekIndex* index = nullptr;  // Decoder::use_index
};

// One of the images of each sample, and its views: out of one decoding, all of 3 channels, or of 1
// for the numbers in the file (masks), which are not weighed (Resampler::begin).
struct ImageColumn {
    std::unique_ptr<EncodedSource> images;
    std::vector<View> views;
};

// The images of a sample, one of each column, must be of one size, upright.
std::shared_ptr<Job> decode_job(std::vector<ImageColumn> columns, const DecodeOptions& options);

// One image from memory, into row `row` of each view. What the views need of the image is decoded
// once. `size`, where given: what the upright image must have, or 0x0, which then becomes its size.
Outcome decode_image(Worker& worker, const Bytes& file, const std::vector<View>& views, int row,
                     const DecodeOptions& options, Size* size = nullptr);

// Of a view with steps of colour: which part of an image they work on, for `needed` to be right
// after them; empty for a row without steps.
Box recoloured_part(const View& view, int row, const Box& needed, Size image);

// The same part, (height, width, channels), in place.
void recolour_part(Worker& worker, const View& view, int row, Size part, uint8_t* pixels);

// Rows of packed pixels, of an image whose part begins with `first`, into a resampler.
void feed(Worker& worker, Resampler& resampler, const uint8_t* first, Size part, Box needed,
          int channels);

// Where members lie on the canvases of pictures, and what becomes of these.
struct CanvasTable {
    Size size;                         // of all
    const int32_t* windows = nullptr;  // of each member, of its geometry: top, left, height, width
    const int32_t* corners = nullptr;  // of each member: top, left of its window on the canvas;
                                       // below 0: it is decoded, so that damage is noticed, and not
                                       // shown
    const int32_t* seen = nullptr;     // of each picture: top, left, height, width on the canvas
                                       // beside which the warp reads nothing
    const double* inverse = nullptr;   // of each picture: nine numbers (warp.hpp)
    const bool* flips = nullptr;       // of each picture: left-right, top-bottom, after the warp
    WarpOptions warp;
};

// What samples of several images are made of. A sample is a picture, or two, the first of which it
// always has: they are blended, or the second covers a part of the first. A picture is an image, or
// several, its members, each resampled to its place on a canvas, and the canvas warped. The arrays
// are borrowed.
struct JoinTable {
    GeometrySource members;            // what of each member is shown: its window
    const int64_t* offsets = nullptr;  // at which member the pictures begin, and where the last one
                                       // ends
    CanvasTable canvas;                // of size 0x0: there is none; a picture is one member, or
                                       // none
    const float* weights = nullptr;    // of each sample and layer, where two are blended; or null
    const int32_t* rectangles = nullptr;  // of each sample: top, left, height, width of what the
                                          // second layer covers; or null
    const bool* masks = nullptr;  // of each sample and pixel: whether the second layer covers it;
                                  // or null
    int count = 0, layers = 1;    // `layers`: 1 or 2
    ResampleOptions resample;     // of members; its fill is also what lies between them on a canvas
    uint8_t* out = nullptr;       // 3 channels
    Size size;
};

// Throws std::invalid_argument where something lies outside of the canvas.
std::shared_ptr<Job> join_job(std::unique_ptr<EncodedSource> images, const JoinTable& table,
                              const DecodeOptions& options);

// Decoded images, in memory or a memory map, of as many interleaved channels as their view. The
// arrays are borrowed, and were checked to be in bounds.
struct PixelRows {
    const uint8_t* base = nullptr;
    const int64_t* rows = nullptr;  // which image each sample is
    const int64_t* offsets =
        nullptr;  // first byte of each image, or nullptr for equal images one after the other
    const int32_t* sizes = nullptr;  // height, width of each image, or nullptr for `size`
    Size size;
    int count = 0;
};

// Resampling needs 1 or 3 channels.
std::shared_ptr<Job> gather_job(const PixelRows& images, View view);

}  // namespace fastload
