// Our own decoder for the JPEGs that nearly all photographs are: Huffman coding, 8 bits, baseline
// or progressive.
//
// It decodes a box and no more. Of an image in one scan, blocks above and beside the box are
// stepped over: only their DC coefficients are summed. Rows below the box are not read. Of an image
// in several scans all coefficients are read, but pixels are made only of the box. The pixels equal
// those of libjpeg-turbo's full decode with its defaults, cropped. It does not say what is wrong
// with a file: images that it does not decode are left to libjpeg-turbo.
#pragma once

#include <exception>
#include <vector>

#include "image.hpp"
#include "jpeg/bits.hpp"
#include "jpeg/frame.hpp"
#include "jpeg/huffman.hpp"
#include "jpeg/kernels.hpp"
#include "jpeg/points.hpp"
#include "jpeg/scans.hpp"

namespace fastload::jpeg {

// For one thread at a time; memory is reused. `kernels` must live as long as the object.
class BaselineDecoder {
  public:
    explicit BaselineDecoder(const JpegKernels& kernels) : kernels_(kernels), scans_(kernels) {}

    // Reads the headers. The data are borrowed until the last `read`. `max_work`: the limit of
    // pixels times scans.
    Reason open(const uint8_t* data, size_t size, int64_t max_work);
    const Frame& frame() const { return frame_; }
    // As Decoder::reduce. The pixels are those of libjpeg-turbo at this scale.
    bool reduce(int shift);

    // Gives the rows of `box`, which lies in the image, to `sink`. If the result is not
    // `Reason::none`, the sink may have got some rows. `whole`: the entropy-coded data below the
    // box are read, too. `noted`, with its step set, gets the points of an image in one scan. For
    // this the data below the box are read, too; if anything there is wrong, it gets no points.
    Reason read(const Box& box, bool whole, RowSink& sink, Points* noted = nullptr) {
        begin(box, whole, sink, noted);
        return finish();
    }

    // `read` in two steps, between which the image may be decoded together with another one. The
    // arguments of `begin` must live until `finish`.
    void begin(const Box& box, bool whole, RowSink& sink, Points* noted = nullptr);
    Reason finish();
    // Whether something is left that can be read beside another image. Where each row begins at a
    // restart marker, or there are several scans, all is read by `finish`.
    bool has_turn() const { return turn_ != Turn::none; }
    // Two images that have turns: until one of them has none. The lookups of the one are made while
    // the other's wait. What is wrong with one of them does not touch the other; its own `finish`
    // returns it.
    static void read_on(BaselineDecoder& a, BaselineDecoder& b);

    // The same by the points of an image in one scan, from `unpack` for this frame: of each row of
    // the box, only the data from the point before the box to its right edge are read. False if the
    // points do not fit the data, or the data are bad; the sink may have got some rows.
    bool read_by_points(const Points& points, const Box& box, RowSink& sink);

  private:
    // A place in the entropy-coded data, and the chunk of blocks that is decoded from there.
    struct Stream {
        BitSource source;
        int64_t mcu = 0;  // the next one
        int64_t until_restart = 0;
        int restart_number = 0;
        uint32_t dc[kMostComponents] = {};  // of the block before, modulo 2^32
        int row = 0;                        // of MCUs, that is decoded
        int mcus = 0;                       // in the chunk that is decoded
        Chunk<DoubleEntry> chunk;
        // The chunk's blocks are the last before the two idle ones, so that it may be shorter.
        Block<DoubleEntry> blocks[kMostBlocks + 2];
        // The same where they are stepped over, up to an MCU.
        int64_t stop = 0;
        Chunk<Entry> skip;
        Block<Entry> skipped[kMostBlocks + 2];
    };
    static constexpr int kStreams = 2;
    static constexpr int kRowsInWork = 4;         // of MCUs
    static constexpr int kMostInMcu = 4 * 2 + 2;  // blocks

    // Samples of the MCU rows in work, and the row above them.
    struct Plane {
        std::vector<uint8_t> samples;
        ptrdiff_t stride = 0;
        int16_t quantisers[64];
        int block = 8;        // samples on each side of a block, fewer in a reduced image
        int first_block = 0;  // in a MCU
        uint16_t order[2][kMostBlocks];  // of a chunk, those in the upper and in the lower row of a
                                         // MCU, from left to right

        uint8_t* row(int y) { return samples.data() + kRowLead + stride * (y + 1); }
    };
    // Whether rows are blended with chroma rows above and below.
    bool is_context() const { return down_ == 2 && smooth_; }
    Reason prepare();
    bool prepare_tables();
    void plan(const Box& box);
    void plan_blocks(Stream& stream);
    void plan_skipping(Stream& stream);
    void start(Stream& stream);
    void begin_turns();
    bool next_turn();
    bool take_turn();
    void end_turn() noexcept;
    bool is_turn_done() const;
    bool read_by_restarts(const Box& box, bool whole, RowSink& sink);
    void start_row(Stream& stream, int row);
    bool seek(Stream& stream, int row, int column);
    int begin_chunk(Stream& stream, int64_t stop);
    bool end_chunk(Stream& stream);
    bool skip_to(int count, int64_t stop);
    bool begin_skip(Stream& stream, int64_t stop);
    bool end_skip(Stream& stream);
    bool decode_rows(int first, int row, int count, int column, const Box& box);
    bool begin_blocks(Stream& stream, int row);
    bool end_blocks(Stream& stream, int first, const Box& box);
    void make_samples(Stream& stream, int in_work, const Box& box);
    // The same of coefficients that are there.
    void place_row(int row, const Box& box);
    uint8_t* samples_of(Plane& plane, int component, int row, int in_work, int down, int column,
                        const Box& box);
    void finish_rows(int row, int count, const Box& box, RowSink& sink);
    void pad_edges(int count);
    void emit(int row, int count, const Box& box, RowSink& sink);
    const uint8_t* chroma_row(Plane& plane, int row, int y, const Box& box,
                              std::vector<uint8_t>& out);

    const JpegKernels& kernels_;
    const uint8_t* data_ = nullptr;
    size_t size_ = 0;
    Frame frame_;
    int64_t max_work_ = 0;
    Scans scans_;  // where there are several
    BlockTables tables_[kMostComponents];
    int tables_of_[kMostComponents] = {};  // of each component, in `tables_`

    // The image as it is decoded.
    int width_ = 0, height_ = 0;
    int mcu_width_ = 0, mcu_height_ = 0;
    int across_ = 1, down_ = 1;  // pixels for a chroma sample
    bool smooth_ = true;         // whether chroma is upsampled smoothly, or repeated

    // The MCU: its blocks, their components, the MCUs of the image.
    int blocks_ = 0;
    int component_of_[kMostInMcu] = {};
    int columns_ = 0, rows_ = 0;
    int most_mcus_ = 0;  // in a chunk

    // What of the image is decoded: MCU columns and rows.
    int first_column_ = 0, stop_column_ = 0, first_row_ = 0, last_row_ = 0;

    Stream streams_[kStreams];
    std::vector<size_t> row_starts_;  // by restart markers

    // The distance of the points that chunks end at, 0 for none: MCUs of a row.
    int step_ = 0;
    const Points* known_ = nullptr;  // what is found at these points is compared with them
    Points* noted_ = nullptr;        // or added to these

    // An image in one scan that is read from its beginning on, chunk by chunk.
    enum class Turn { none, skip, decode };
    Turn turn_ = Turn::none;  // what the first stream's next chunk is
    bool in_turn_ = false;
    Box box_;
    bool whole_ = false;
    RowSink* sink_ = nullptr;
    int row_ = 0;           // of MCUs, of the box: that is decoded, or comes next
    bool is_read_ = false;  // what was asked for; what is left is read for its points
    bool is_bad_ = false;
    std::exception_ptr thrown_;  // while it was read beside another image

    Plane planes_[kMostComponents];
    std::vector<uint8_t> upsampled_[2];
    std::vector<int16_t> scratch_;
    std::vector<uint8_t> pixels_;
    int next_y_ = 0;
};

}  // namespace fastload::jpeg
