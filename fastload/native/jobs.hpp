// The jobs that a pool runs on images: reading headers, decoding, encoding, cropping decoded
// images, joining several images to one sample; and the sources that compressed images come from.
//
// Arrays and memory that a job is given by pointer are borrowed: they must live until the job is
// done.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "colour.hpp"
#include "device_plan.hpp"
#include "geometry.hpp"
#include "pool.hpp"
#include "resample.hpp"
#include "warp.hpp"

namespace fastload {

// Bytes in memory that somebody else owns.
struct Bytes {
    const uint8_t* data = nullptr;
    size_t size = 0;
};

// The compressed images of a batch. Any thread may ask for a row, one thread at a time for the same
// row. Rows that are asked for in ascending order are read ahead.
class EncodedSource {
  public:
    virtual ~EncodedSource() = default;
    virtual int count() const = 0;
    // Gets the bytes of a row, which lie in `buffer` or in memory that lives as long as the source.
    // `most`: how many are needed from the beginning; a source may give more.
    virtual Outcome get(int row, std::vector<uint8_t>& buffer, Bytes& bytes,
                        int64_t most = INT64_MAX) = 0;
};

// Files, or byte ranges of files. The paths are those of a PathTable (fastload/sources/buffers.py):
// path i is root + "/" + blob[ends[i - 1] : ends[i]].
struct PathRows {
    std::string root;                  // may be empty, then without the slash
    const uint8_t* blob = nullptr;     // all paths, one after the other
    const int64_t* ends = nullptr;     // where each path ends in `blob`
    const int64_t* rows = nullptr;     // the path of each row
    const int64_t* offsets = nullptr;  // the first byte of each row in its file; null: whole files
    const int64_t* lengths = nullptr;  // bytes of each row
    int count = 0;                     // of rows
};

// Images in memory, which the caller keeps.
std::unique_ptr<EncodedSource> open_buffers(std::vector<Bytes> rows);

// Images in files, which are opened and announced to the system a few rows ahead.
std::unique_ptr<EncodedSource> open_files(PathRows paths);

// Images in the local tier (tier.hpp), some of them in memory.
struct TierRows {
    std::string folder;                // of the tier
    const uint8_t* digests = nullptr;  // kDigestBytes for each row
    std::vector<Bytes> memory;         // of each row; null data: the row is in the tier
    int count = 0;                     // of rows
};

// The same for the files of a tier; each row is read whole and its checksum compared. Only in
// builds with ISA-L (FASTLOAD_PNG).
std::unique_ptr<EncodedSource> open_tier(TierRows rows);

// Reads the header of each image. `out`: (count, kHeaderColumns) of height, width (as stored),
// components, orientation (Decoder::orientation), progressive (0 or 1), odd (0 or 1), as in
// ImageHeader; zeros for rows that fail.
constexpr int kHeaderColumns = 6;
std::shared_ptr<Job> header_job(std::unique_ptr<EncodedSource> images, const DecodeLimits& limits,
                                int32_t* out);

// Encodes one image of 3 channels to a JPEG (JpegEncoder), which becomes `file`.
std::shared_ptr<Job> encode_job(const uint8_t* pixels, Size size, int quality,
                                std::vector<uint8_t>& file);

// A warp of each image of a batch (warp.hpp).
struct WarpTable {
    const double* inverse = nullptr;  // (rows, 9); null: no warps
    const int32_t* sizes = nullptr;   // (rows, 2): height, width of the outputs; -1, -1: no warp
    WarpOptions options;

    bool has(int row) const { return inverse != nullptr && size_of(row).height != -1; }
    Size size_of(int row) const { return {sizes[2 * int64_t{row}], sizes[2 * int64_t{row} + 1]}; }
};

// One output of each image of a batch: how it is made, and where it goes.
struct View {
    GeometrySource geometries;
    ResampleOptions resample;
    uint8_t* out = nullptr;  // (rows, size.height, size.width, channels)
    Size size;               // of the outputs; of the windows, too
    int channels = 3;
    // (rows, 2): height and width of each output, at most `size`; it is the upper left part of its
    // place in `out`, of which the rest is not written to. Null: all have `size`.
    const int32_t* sizes = nullptr;
    // Not 0: bytes from one row of pixels to the next; `out` is then the place of one image, the
    // same for all rows.
    int64_t stride = 0;
    // Colour operations on the whole images, before their geometry. `kinds` null: none. One chain.
    ColourTable colour;
    bool fused = false;  // as in `colour_job`
    // A second geometry, of the images that `geometries` makes; null: none.
    GeometrySource later;
    ResampleOptions later_resample;
    // Of the images that `geometries` makes, before `later`, which is there then.
    WarpTable warp;

    Size size_of(int row) const {
        return sizes == nullptr ? size : Size{sizes[2 * int64_t{row}], sizes[2 * int64_t{row} + 1]};
    }
    // Bytes from one row of pixels to the next; 0: the rows follow each other.
    int64_t step() const { return sizes == nullptr ? stride : int64_t{channels} * size.width; }
    // Of the place of one output.
    int64_t bytes() const { return int64_t{channels} * size.height * size.width; }
    uint8_t* at(int row) const { return stride != 0 ? out : out + bytes() * row; }
};

struct DecodeOptions {
    DecodeLimits limits;
    bool exif_orientation = false;  // turn images upright; geometries are of the upright image
    bool whole = false;             // also check the data below the box
    // Decode at 1/2, 1/4 or 1/8 where boxes are at least so many times as large as their outputs.
    bool draft = false;
    SeekIndex* index = nullptr;  // for Decoder::use_index; null: none
    // Crops that are planned for a GPU in place of being decoded here, one for each view; empty:
    // none. Needs an index; one column, whose views have no colour and nothing `later`; no `draft`.
    std::vector<device::Plans*> plans;
};

// One image of each sample, and the views of it, which are made of one decoding. All views have 3
// channels, or all have 1: then they show the numbers in the file (masks), which are not
// interpolated (Resampler::begin).
struct ImageColumn {
    std::unique_ptr<EncodedSource> images;
    std::vector<View> views;
};

// Decodes batches. The images of a sample, one of each column, must have the same upright size.
// Rows that fail are zeros in all views.
std::shared_ptr<Job> decode_job(std::vector<ImageColumn> columns, const DecodeOptions& options);

// Decodes one image from memory into row `row` of each view. Leaves the decoder open: the caller
// closes it before `file` may go. `size`, if given: the size that the upright image must have; 0x0:
// any, and becomes its size.
Outcome decode_image(Worker& worker, const Bytes& file, const std::vector<View>& views, int row,
                     const DecodeOptions& options, Size* size = nullptr);

// The part of an image that the colour operations of a row must work on, so that the part `needed`
// is right: `needed` itself, or the whole image if an operation looks at other pixels. Empty if the
// row has no operations.
Box recoloured_part(const View& view, int row, const Box& needed, Size image);

// Applies the colour operations of a row to that part, packed pixels of this size, in place.
void recolour_part(Worker& worker, const View& view, int row, Size part, uint8_t* pixels);

// Gives the rows of the box `needed` to a resampler. `first`: the packed pixels of an image of size
// `part`, of 1 or 3 channels. Uses `worker.scratch`.
void feed(Worker& worker, Resampler& resampler, const uint8_t* first, Size part, Box needed,
          int channels);

// The canvases of all first, or of all second pictures.
struct CanvasLayer {
    Size size;
    WarpOptions warp;
};

// Canvases: where members lie on the canvas of their picture, and how the canvas is warped.
struct CanvasTable {
    CanvasLayer layers[2];  // of first and of second pictures
    // (members, 4): the window of each member's geometry: top, left, height, width.
    const int32_t* windows = nullptr;
    // (members, 2): top, left of the window on the canvas. Below 0: the member is not shown; it is
    // decoded all the same, so that damage is noticed.
    const int32_t* corners = nullptr;
    // (pictures, 4): top, left, height, width of the part of the canvas that the warp reads. Only
    // this part is filled before members are drawn.
    const int32_t* seen = nullptr;
    const double* inverse = nullptr;  // (pictures, 9): the matrix of each warp (warp.hpp)
    const bool* flips = nullptr;  // (pictures, 2): mirror left-right, top-bottom, after the warp
};

// Samples that are made of several images (mosaics, MixUp, CutMix, CopyPaste). A sample has one or
// two layers; each layer is a picture. The second picture is blended with the first, or covers a
// part of it; it may be missing. A picture is one image, or several images (members), each
// resampled to its place on a canvas, and the canvas warped.
struct JoinTable {
    GeometrySource members;  // the geometry of each member
    // (count * layers + 1,): offsets of pictures in the members. Pictures are in the order of
    // samples, those of a sample one after the other.
    const int64_t* offsets = nullptr;
    CanvasTable canvas;  // of size 0x0: no canvases; a picture then has at most one member
    // Of two layers exactly one of these, of one layer none:
    const float* weights = nullptr;  // (count, 2): weights of the two pictures, which are summed
    // (count, 4): top, left, height, width that the second covers.
    const int32_t* rectangles = nullptr;
    const bool* masks = nullptr;  // (count, height, width): whether the second covers a pixel
    int count = 0;                // of samples
    int layers = 1;               // 1 or 2
    ResampleOptions resample;     // of members; its `fill` is also the colour of an empty canvas
    uint8_t* out = nullptr;       // (count, size.height, size.width, 3)
    Size size;                    // of the samples
};

// Throws std::invalid_argument if the table contradicts itself, or anything lies outside of its
// canvas or picture. Rows that fail are zeros.
std::shared_ptr<Job> join_job(std::unique_ptr<EncodedSource> images, const JoinTable& table,
                              const DecodeOptions& options);

// Plans all views of an image for a GPU, if it is in its share, in `options.plans`. False: the CPU
// is to make them, and there it says why.
bool plan_image(const Bytes& file, const std::vector<View>& views, int row,
                const DecodeOptions& options);

// Decoded images of packed pixels, with as many channels as their view, in memory or a memory map.
// All of them must lie in the array: nothing is checked here.
struct PixelRows {
    const uint8_t* base = nullptr;
    const int64_t* rows = nullptr;     // the image of each sample
    const int64_t* offsets = nullptr;  // the first byte of each image; null: they follow each other
    const int32_t* sizes = nullptr;    // (images, 2): height, width; null: all have `size`
    Size size;
    int count = 0;  // of samples
};

// Makes a view of decoded images. It may have 1 to 4 channels, and 1 or 3 if anything is resampled
// or recoloured. `view.later` must be null.
std::shared_ptr<Job> gather_job(const PixelRows& images, View view);

}  // namespace fastload
