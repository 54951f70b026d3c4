#include "jpeg/frame.hpp"

#include <algorithm>
#include <cstring>

namespace fastload::jpeg {
namespace {

constexpr int kLargestSide = 65500;  // libjpeg's own limit
constexpr int kStartOfScan = 0xda, kEndOfImage = 0xd9;

int two_bytes(const uint8_t* at) { return at[0] << 8 | at[1]; }

// Reads the marker segments of a file. Each method gets exactly the bytes that the length of the
// segment declares, and returns false if they make no sense.
struct Parser {
    Frame& frame;
    Reason reason = Reason::unusual;
    bool saw_frame = false, saw_jfif = false, saw_adobe = false;
    int adobe_transform = 0;

    bool quantisers(const uint8_t* at, const uint8_t* end) {
        while (at < end) {
            const bool wide = at[0] >> 4 != 0;
            const int slot = at[0] & 15;
            const int bytes = wide ? 128 : 64;
            if (slot > 3 || end - at < 1 + bytes) return false;
            frame.quantisers[slot] = {at + 1, wide};
            at += 1 + bytes;
        }
        return true;
    }

    bool codes(const uint8_t* at, const uint8_t* end) {
        while (at < end) {
            if (end - at < 17) return false;
            int symbols = 0;
            for (int i = 1; i <= 16; ++i) symbols += at[i];
            const int slot = at[0] & 15, kind = at[0] >> 4;
            if (slot > 3 || kind > 1 || symbols > 256 || end - at < 17 + symbols) return false;
            (kind == 0 ? frame.dc_codes : frame.ac_codes)[slot] = at + 1;
            at += 17 + symbols;
        }
        return true;
    }

    bool start_of_frame(const uint8_t* at, const uint8_t* end) {
        if (saw_frame || end - at < 6 || at[0] != 8) return false;
        frame.height = two_bytes(at + 1);
        frame.width = two_bytes(at + 3);
        frame.components = at[5];
        if (end - at != 6 + 3 * frame.components) return false;
        if (frame.height < 1 || frame.width < 1 || frame.height > kLargestSide ||
            frame.width > kLargestSide)
            return false;
        if (frame.components != 1 && frame.components != 3) {
            reason = Reason::components;
            return false;
        }
        at += 6;
        for (int i = 0; i < frame.components; ++i, at += 3) {
            frame.component[i].id = at[0];
            frame.component[i].h = at[1] >> 4;
            frame.component[i].v = at[1] & 15;
            frame.component[i].quantisers = at[2];
            for (int k = 0; k < i; ++k) {
                if (frame.component[k].id == at[0]) return false;
            }
        }
        saw_frame = true;
        return true;
    }

    // Checks the sampling factors. Decoded here is chroma of full or half height, and of full, half
    // or a quarter of the width.
    bool sampling() {
        Component* all = frame.component;
        for (int i = 0; i < frame.components; ++i) {
            if (all[i].h < 1 || all[i].h > 4 || all[i].v < 1 || all[i].v > 4) return false;
        }
        if (frame.components == 1) {
            frame.rows_at_once = all[0].v;
            // One component is never interleaved: its MCU is a block, whatever is declared.
            all[0].h = all[0].v = 1;
            return true;
        }
        frame.h = all[0].h;
        frame.v = all[0].v;
        const bool good = frame.h != 3 && frame.v <= 2 && all[1].h == 1 && all[1].v == 1 &&
                          all[2].h == 1 && all[2].v == 1;
        if (!good) reason = Reason::layout;
        return good;
    }

    void application(int number, const uint8_t* at, const uint8_t* end) {
        if (number == 0 && end - at >= 14 && std::memcmp(at, "JFIF\0", 5) == 0) saw_jfif = true;
        if (number == 14 && end - at >= 12 && std::memcmp(at, "Adobe", 5) == 0) {
            saw_adobe = true;
            adobe_transform = at[11];
        }
    }

    // Chooses the colour space as libjpeg does.
    bool colour() {
        const Component* all = frame.component;
        frame.colour = Colour::ycc;
        if (frame.components == 1) {
            frame.colour = Colour::grey;
        } else if (!saw_jfif && saw_adobe) {
            if (adobe_transform > 1) return false;
            frame.colour = adobe_transform == 0 ? Colour::rgb : Colour::ycc;
        } else if (!saw_jfif && all[0].id == 'R' && all[1].id == 'G' && all[2].id == 'B') {
            frame.colour = Colour::rgb;
        }
        return true;
    }

    // The header of the first scan. (`read_scan` reads those of all scans.)
    bool start_of_scan(const uint8_t* at, const uint8_t* end) {
        if (!saw_frame || end - at < 1) return false;
        const int count = at[0];
        if (end - at != 4 + 2 * count || count > frame.components) return false;
        frame.one_scan = !frame.progressive && count == frame.components;
        ++at;
        for (int i = 0; frame.one_scan && i < count; ++i, at += 2) {
            Component& component = frame.component[i];
            component.dc_table = at[1] >> 4;
            component.ac_table = at[1] & 15;
            if (at[0] != component.id || component.dc_table > 3 || component.ac_table > 3)
                return false;
            if (frame.dc_codes[component.dc_table] == nullptr ||
                frame.ac_codes[component.ac_table] == nullptr)
                return false;
            if (component.quantisers > 3 ||
                frame.quantisers[component.quantisers].values == nullptr)
                return false;
        }
        const bool whole = !frame.one_scan || (at[0] == 0 && at[1] == 63 && at[2] == 0);
        return whole && sampling() && colour();
    }
};

// A marker segment.
struct Segment {
    int marker = 0;
    const uint8_t* length = nullptr;  // the two bytes of its length
    const uint8_t* from = nullptr;    // its contents: [from, end)
    const uint8_t* end = nullptr;
};

// Finds the segment at `at`, whose marker may have any number of 0xff before it. False if there is
// none. The end-of-image marker has no contents.
bool next_segment(const uint8_t* at, const uint8_t* stop, Segment& segment) {
    if (at == stop || *at != 0xff) return false;
    while (at != stop && *at == 0xff) ++at;
    if (at == stop) return false;
    segment.marker = *at++;
    segment.length = segment.from = segment.end = at;
    if (segment.marker == kEndOfImage) return true;
    if (stop - at < 2) return false;
    const int length = two_bytes(at);
    if (length < 2 || stop - at < length) return false;
    segment.from = at + 2;
    segment.end = at + length;
    return true;
}

// Reads tables, comments and application data. `known` becomes false for other markers. Returns
// false for these, and if the contents make no sense.
bool read_tables(Parser& parser, const Segment& segment, bool& known) {
    known = true;
    if (segment.marker == 0xc4) return parser.codes(segment.from, segment.end);
    if (segment.marker == 0xdb) return parser.quantisers(segment.from, segment.end);
    if (segment.marker == 0xdd) {
        if (segment.end - segment.from != 2) return false;
        parser.frame.restart_interval = two_bytes(segment.from);
        return true;
    }
    if (segment.marker >= 0xe0 && segment.marker <= 0xef) {
        parser.application(segment.marker - 0xe0, segment.from, segment.end);
        return true;
    }
    known = segment.marker == 0xfe;  // a comment
    return known;
}

}  // namespace

Reason read_frame(const uint8_t* data, size_t size, Frame& frame) {
    frame = Frame();
    if (size < 4 || data[0] != 0xff || data[1] != 0xd8) return Reason::unusual;
    Parser parser{frame};
    const uint8_t* at = data + 2;
    const uint8_t* const stop = data + size;
    for (;;) {
        Segment segment;
        if (!next_segment(at, stop, segment) || segment.marker == kEndOfImage)
            return Reason::unusual;
        at = segment.end;
        bool known = false;
        if (read_tables(parser, segment, known)) continue;
        if (known) return parser.reason;
        if (segment.marker >= 0xc0 && segment.marker <= 0xc2) {
            frame.progressive = segment.marker == 0xc2;
            if (!parser.start_of_frame(segment.from, segment.end)) return parser.reason;
        } else if (segment.marker == kStartOfScan) {
            if (!parser.start_of_scan(segment.from, segment.end)) return parser.reason;
            frame.scan_header = static_cast<size_t>(segment.length - data);
            frame.scan = static_cast<size_t>(segment.end - data);
            size_t scan_at = frame.scan_header;
            Scan scan;
            return read_scan(data, size, frame, scan_at, scan) ? Reason::none : Reason::unusual;
        } else {
            const bool frame_of_others = segment.marker >= 0xc3 && segment.marker <= 0xcf &&
                                         segment.marker != 0xc8 && segment.marker != 0xcc;
            return frame_of_others ? Reason::coding : Reason::unusual;
        }
    }
}

bool read_scan(const uint8_t* data, size_t size, const Frame& frame, size_t& at, Scan& scan) {
    if (at > size || size - at < 2) return false;
    const uint8_t* from = data + at;
    const int length = two_bytes(from);
    if (length < 3 || size - at < static_cast<size_t>(length)) return false;
    scan = Scan();
    scan.components = from[2];
    if (scan.components < 1 || scan.components > frame.components ||
        length != 6 + 2 * scan.components)
        return false;
    from += 3;
    for (int i = 0; i < scan.components; ++i, from += 2) {
        // In the order of the frame; libjpeg takes no other.
        int k = i == 0 ? 0 : scan.component[i - 1] + 1;
        while (k < frame.components && frame.component[k].id != from[0]) ++k;
        if (k == frame.components) return false;
        scan.component[i] = k;
        scan.dc_table[i] = from[1] >> 4;
        scan.ac_table[i] = from[1] & 15;
        if (scan.dc_table[i] > 3 || scan.ac_table[i] > 3) return false;
    }
    scan.first = from[0];
    scan.last = from[1];
    scan.high = from[2] >> 4;
    scan.low = from[2] & 15;
    at += static_cast<size_t>(length);
    return true;
}

Next read_next(const uint8_t* data, size_t size, Frame& frame, size_t& at) {
    Parser parser{frame};
    const uint8_t* const stop = data + size;
    for (;;) {
        Segment segment;
        if (at > size || !next_segment(data + at, stop, segment)) return Next::unusual;
        at = static_cast<size_t>(segment.end - data);
        if (segment.marker == kEndOfImage) return Next::end;
        if (segment.marker == kStartOfScan) {
            at = static_cast<size_t>(segment.length - data);
            return Next::scan;
        }
        bool known = false;
        if (!read_tables(parser, segment, known)) return Next::unusual;
    }
}

}  // namespace fastload::jpeg
