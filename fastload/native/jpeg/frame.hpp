// The headers of a JPEG: sizes, tables, and where scans begin. Nothing here throws or takes memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload::jpeg {

// Why libjpeg-turbo decodes an image. The numbers are indices of DecoderCounts::of.
enum class Reason : int {
    none = 0,    // our own decoder decodes it
    coding,      // arithmetic or lossless coding
    components,  // not 1 or 3 components, such as CMYK and YCCK
    layout,      // rare sampling factors
    unusual,     // damaged, cut off, bytes between markers, invalid tables: libjpeg-turbo judges it
    forced,      // the user asked for libjpeg-turbo
};
constexpr int kReasons = 6;

enum class Colour { grey, ycc, rgb };

constexpr int kMostComponents = 3;

struct Component {
    int id = 0;
    int h = 1, v = 1;                // blocks in a MCU, across and down (sampling factors)
    int quantisers = 0;              // slot of the quantisation table
    int dc_table = 0, ac_table = 0;  // slots of the Huffman codes, if `one_scan`
};

struct Frame {
    int width = 0, height = 0;
    int components = 0;
    Component component[kMostComponents];
    int h = 1, v = 1;      // the largest sampling factors: h is 1, 2 or 4, v is 1 or 2
    int rows_at_once = 1;  // rows of MCUs that libjpeg decodes before it gives any of their pixels
    Colour colour = Colour::grey;
    int restart_interval = 0;  // MCUs; 0: no restart markers

    // A quantisation table in the file: 64 values in zigzag order. Null: not defined.
    struct Quantisers {
        const uint8_t* values = nullptr;
        bool wide = false;  // two bytes a value
    };
    Quantisers quantisers[4];
    // Huffman codes in the file: 16 counts of codes by length, then the symbols. Null: not defined.
    const uint8_t* dc_codes[4] = {};
    const uint8_t* ac_codes[4] = {};

    bool progressive = false;
    bool one_scan = true;    // baseline, with all components in the first scan
    size_t scan_header = 0;  // offset of the length of the first scan's marker segment
    size_t scan = 0;         // offset of the first scan's entropy-coded data
};

// A scan: coefficients `first` to `last`, in zigzag order, of its components. A progressive file
// sends each coefficient divided by 2^low at first (`high` is 0); each later scan of it adds one
// bit (`high` is low + 1).
struct Scan {
    int components = 0;
    int component[kMostComponents] = {};  // indices in Frame::component
    int dc_table[kMostComponents] = {};   // slots
    int ac_table[kMostComponents] = {};
    int first = 0, last = 63;
    int high = 0, low = 0;
};

// Reads the headers up to that of the first scan, which is included. `frame` points into `data`,
// and is valid only if the result is `Reason::none`.
Reason read_frame(const uint8_t* data, size_t size, Frame& frame);

// Reads the header of a scan. `at`: the offset of the length of its marker segment; becomes the
// offset of its entropy-coded data. False if it makes no sense in `frame`.
bool read_scan(const uint8_t* data, size_t size, const Frame& frame, size_t& at, Scan& scan);

// Reads what follows a scan, from the marker at offset `at` on: tables, which go to `frame`, and
// comments, up to the next scan (then `at` is as `read_scan` needs it), or the end of the image.
enum class Next { scan, end, unusual };
Next read_next(const uint8_t* data, size_t size, Frame& frame, size_t& at);

}  // namespace fastload::jpeg
