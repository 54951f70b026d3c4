// A decoder for the JPEGs that nearly all photographs are: baseline Huffman, one interleaved scan, 8 bits.
//
// Decodes a box and no more: of the blocks above and beside it only the DC coefficients are summed up, the rows below are
// not read. The pixels are those of libjpeg-turbo's full decode with its defaults, cropped. It has no words for what is
// wrong with a file: whatever it does not like it leaves to libjpeg-turbo.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "image.hpp"
#include "jpeg/kernels.hpp"

namespace fastload::jpeg {

// Why an image goes to libjpeg-turbo. The numbers index the counts that Python reads.
enum class Reason : int {
    none = 0,     // decoded here
    progressive,  // or arithmetic, or lossless
    components,   // CMYK, YCCK, or anything but grey and three colours
    layout,       // several scans, or sampling factors that hardly any file has
    unusual,      // damaged, cut off, garbage between the markers, tables that make no sense: libjpeg's verdict counts
    forced,       // asked for
};
constexpr int kReasons = 6;

enum class Colour { grey, ycc, rgb };

constexpr int kMostComponents = 3;

struct Component {
    int id = 0;
    int h = 1, v = 1;  // blocks a MCU, across and down
    int quantisers = 0;
    int dc_table = 0, ac_table = 0;
};

struct Frame {
    int width = 0, height = 0;
    int components = 0;
    Component component[kMostComponents];
    int h = 1, v = 1;  // the largest sampling factors: 1 or 2
    Colour colour = Colour::grey;
    int restart_interval = 0;  // MCUs, 0 for none

    // In the file's own order (zigzag), as they were when the scan began; null where not defined.
    struct Quantisers {
        const uint8_t* values = nullptr;
        bool wide = false;  // two bytes each
    };
    Quantisers quantisers[4];
    // 16 counts of codes by length, then the symbols.
    const uint8_t* dc_codes[4] = {};
    const uint8_t* ac_codes[4] = {};

    size_t scan = 0;  // offset of the entropy-coded data
};

// Reads the headers. Anything but `Reason::none` means that the frame is not to be used. Points into `data`.
Reason read_frame(const uint8_t* data, size_t size, Frame& frame);

// The tables of one slot, and what they were made from: files by the same encoder settings share theirs.
class CodeTables {
  public:
    // `codes`: 16 counts and the symbols. False if they are no prefix code that libjpeg would take.
    bool make(const uint8_t* codes, bool dc);

    // For coefficients; made when first asked for, as the next.
    const CodeTable<DoubleEntry>& full();
    // For skipping: as many symbols at once as the lookup holds, without AC coefficients.
    const CodeTable<Entry>& skipping();
    // The same for blocks of which only the DC coefficient is of interest, among others that are decoded.
    const CodeTable<DoubleEntry>& passing();

  private:
    template <typename E>
    struct Slot {
        std::unique_ptr<CodeTable<E>> table;
        bool made = false;
    };
    template <typename E, typename Function>
    const CodeTable<E>& get(Slot<E>& slot, Function fill);

    Slot<DoubleEntry> full_, passing_;
    Slot<Entry> skipping_;
    Code code_;
    uint8_t source_[16 + 256];
    bool made_ = false;
};

// In a JPEG's scan a zero follows every 0xff; 0xff with anything else is a marker and ends the data. Both are dealt with
// here, ahead of the decoder, which then takes 8 bytes at a time without looking.
class BitSource {
  public:
    BitSource() : window_(kWindow + kPadding) {}

    void start(const uint8_t* from, const uint8_t* end) {
        raw_ = from;
        end_ = end;
        begin_segment();
    }

    // Makes kMostChunkBytes readable from `state.next` on, zeros behind the last of the data.
    void reserve() {
        if (dry_ || static_cast<size_t>(stop_ - state.next) >= kMostChunkBytes) return;
        if (static_cast<size_t>(window_.data() + kWindow - state.next) < 2 * kMostChunkBytes) {
            const auto left = static_cast<size_t>(stop_ - state.next);
            std::memmove(window_.data(), state.next, left);
            state.next = window_.data();
            stop_ = window_.data() + left;
        }
        unstuff();
    }

    // Bits left before the marker or the end of the file: exact once these are in sight, and only negative then.
    int64_t left() const { return int64_t{8} * (stop_ - state.next) + int64_t{state.count}; }
    bool overdrawn() const { return left() < 0; }

    // Steps over restart marker `number` (0 to 7), which must be next but for the padding of the last byte.
    bool restart(int number) {
        reserve();
        if (!dry_ || left() < 0 || left() > 7 || end_ - raw_ < 2 || raw_[1] != 0xd0 + number) return false;
        raw_ += 2;
        begin_segment();
        return true;
    }

    // Whether an end marker follows somewhere. Nearly always it is next, or in the last two bytes of the file.
    bool ends() const {
        for (const uint8_t* at = end_; at - raw_ >= 2; --at) {
            if (at[-1] == 0xd9 && at[-2] == 0xff) return true;
        }
        return false;
    }

    BitState state;

  private:
    static constexpr size_t kWindow = 8 * kMostChunkBytes;
    // Behind the data, for a whole chunk that begins at their very end, or with the bits in hand a little beyond it.
    static constexpr size_t kPadding = kMostChunkBytes + 16;
    static constexpr ptrdiff_t kAhead = 16 << 10;  // unstuffed at a time: what lies below the box is not needed

    void begin_segment() {
        state = BitState();
        state.next = stop_ = window_.data();
        dry_ = false;
    }

    void unstuff() {
        const uint8_t* const most = window_.data() + kWindow;
        const uint8_t* const limit = most - stop_ < kAhead ? most : stop_ + kAhead;
        while (stop_ < limit && raw_ < end_) {
            const auto room = static_cast<size_t>(limit - stop_ < end_ - raw_ ? limit - stop_ : end_ - raw_);
            const void* found = std::memchr(raw_, 0xff, room);
            const size_t length = found == nullptr ? room : static_cast<size_t>(static_cast<const uint8_t*>(found) - raw_);
            std::memcpy(stop_, raw_, length);
            stop_ += length;
            raw_ += length;
            if (found == nullptr) continue;
            if (end_ - raw_ < 2 || raw_[1] != 0) {
                dry_ = true;
                break;
            }
            *stop_++ = 0xff;
            raw_ += 2;
        }
        dry_ = dry_ || raw_ == end_;
        if (dry_) std::memset(stop_, 0, kPadding);
    }

    std::vector<uint8_t> window_;
    uint8_t* stop_ = nullptr;        // behind the last unstuffed byte
    const uint8_t* raw_ = nullptr;   // the first byte not yet unstuffed
    const uint8_t* end_ = nullptr;
    bool dry_ = true;                // raw_ is at a marker, or at the end of the file
};

class BaselineDecoder {
  public:
    explicit BaselineDecoder(const Kernels& kernels) : kernels_(kernels) {}

    // Reads the headers. The data must live until the last `read`.
    Reason open(const uint8_t* data, size_t size);
    const Frame& frame() const { return frame_; }
    // As ImageDecoder's. The pixels are those of libjpeg-turbo at this scale.
    bool reduce(int shift);

    // Gives the rows of `box`, which lies in the image, to `sink`. If the answer is not `Reason::none`, it may have given
    // some. `whole`: the entropy-coded data below the box are read, too.
    Reason read(const Box& box, bool whole, RowSink& sink);

  private:
    // Samples of the MCU row in work, and the row above them.
    struct Plane {
        std::vector<uint8_t> samples;
        ptrdiff_t stride = 0;
        int16_t quantisers[64];
        int block = 8;  // samples on each side of a block, fewer in a reduced image
        uint32_t dc = 0;  // of the block before, modulo 2^32
        int first_block = 0;  // in a MCU
        uint16_t order[2][kMostBlocks];  // of a chunk, those in the upper and in the lower row of a MCU, from left to right

        uint8_t* row(int y) { return samples.data() + kRowLead + stride * (y + 1); }
    };
    // Whether rows are blended with chroma rows above and below.
    bool is_context() const { return down_ == 2 && smooth_; }
    bool prepare();
    void plan(const Box& box);
    int begin_chunk(int64_t stop);
    bool skip_to(int64_t mcu);
    bool decode_row(int row, const Box& box);
    void pad_edges();
    void emit(int row, const Box& box, RowSink& sink);
    const uint8_t* chroma_row(Plane& plane, int row, int y, const Box& box, std::vector<uint8_t>& out);

    const Kernels& kernels_;
    const uint8_t* data_ = nullptr;
    size_t size_ = 0;
    Frame frame_;
    BitSource source_;
    CodeTables dc_tables_[4], ac_tables_[4];

    // The image as it is decoded.
    int width_ = 0, height_ = 0;
    int mcu_width_ = 0, mcu_height_ = 0;
    int across_ = 1, down_ = 1;  // pixels for a chroma sample
    bool smooth_ = true;         // whether chroma is upsampled smoothly, or repeated

    // The MCU: its blocks, their components, the MCUs of the image.
    int blocks_ = 0;
    int component_of_[8] = {};
    int columns_ = 0, rows_ = 0;
    int most_mcus_ = 0;  // in a chunk

    // What of the image is decoded: MCU columns and rows.
    int first_column_ = 0, stop_column_ = 0, first_row_ = 0, last_row_ = 0;

    int64_t mcu_ = 0;  // the next one
    int64_t until_restart_ = 0;
    int restart_number_ = 0;

    // The blocks of a chunk, which has them before the two idle ones, so that it may be shorter.
    Block<DoubleEntry> decoded_[kMostBlocks + 2];
    Block<Entry> skipped_[kMostBlocks + 2];
    std::vector<int16_t> coefficients_;

    Plane planes_[kMostComponents];
    std::vector<uint8_t> upsampled_[2];
    std::vector<int16_t> scratch_;
    std::vector<uint8_t> pixels_;
    int next_y_ = 0;
};

}  // namespace fastload::jpeg
