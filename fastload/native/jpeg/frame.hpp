// The headers of a JPEG: sizes, tables, and where the scan begins.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload::jpeg {

// Why an image goes to libjpeg-turbo. The numbers index the counts that Python reads.
enum class Reason : int {
    none = 0,    // decoded here
    coding,      // arithmetic or lossless
    components,  // CMYK, YCCK, or anything but grey and three colours
    layout,      // sampling factors that hardly any file has
    unusual,  // damaged, cut off, garbage between the markers, tables that make no sense: libjpeg's
              // verdict counts
    forced,   // asked for
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
    int h = 1, v = 1;      // the largest sampling factors: 1, 2 or 4; and 1 or 2
    int rows_at_once = 1;  // rows of MCUs that libjpeg decodes before it gives any of their pixels
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

    bool progressive = false;
    bool one_scan = true;    // baseline, all components in the first scan
    size_t scan_header = 0;  // offset of the first scan's marker segment: of its length
    size_t scan = 0;         // offset of the first scan's entropy-coded data
};

// What a scan holds: coefficients `first` to `last` of its components, in zigzag order. A
// progressive file sends each coefficient divided by 2^low at first; later scans (`high` is low + 1
// there) add one bit each.
struct Scan {
    int components = 0;
    int component[kMostComponents] = {};  // index in the frame
    int dc_table[kMostComponents] = {};
    int ac_table[kMostComponents] = {};
    int first = 0, last = 63;
    int high = 0, low = 0;
};

// Reads the headers up to the first scan's. Anything but `Reason::none` means that the frame is not
// to be used. Points into `data`.
Reason read_frame(const uint8_t* data, size_t size, Frame& frame);

// The scan whose marker segment is at `at`, which goes on to its entropy-coded data. False if it
// makes no sense in `frame`.
bool read_scan(const uint8_t* data, size_t size, const Frame& frame, size_t& at, Scan& scan);

// What follows a scan, from the marker at `at` on: tables and comments, which go into `frame`, then
// another scan, whose marker segment `at` points to, or the end of the image.
enum class Next { scan, end, unusual };
Next read_next(const uint8_t* data, size_t size, Frame& frame, size_t& at);

}  // namespace fastload::jpeg
