#include "jpeg/frame.hpp"

#include <algorithm>
#include <cstring>

namespace fastload::jpeg {
namespace {

constexpr int kLargestSide = 65500;  // libjpeg's own limit

int two_bytes(const uint8_t* at) { return at[0] << 8 | at[1]; }

// The segments of a file are read by these; each gets exactly the bytes that the segment's length declares, and is
// true where they make sense.
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
        if (frame.height < 1 || frame.width < 1 || frame.height > kLargestSide || frame.width > kLargestSide) return false;
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

    // Which samplings are decoded here: chroma whole or half in either direction.
    bool sampling() {
        Component* all = frame.component;
        for (int i = 0; i < frame.components; ++i) {
            if (all[i].h < 1 || all[i].h > 4 || all[i].v < 1 || all[i].v > 4) return false;
        }
        if (frame.components == 1) {
            all[0].h = all[0].v = 1;  // one component is never interleaved: its MCU is a block, whatever is declared
            return true;
        }
        frame.h = all[0].h;
        frame.v = all[0].v;
        const bool good = frame.h <= 2 && frame.v <= 2 && all[1].h == 1 && all[1].v == 1 && all[2].h == 1 && all[2].v == 1;
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

    // As libjpeg guesses it.
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

    bool start_of_scan(const uint8_t* at, const uint8_t* end) {
        if (!saw_frame || end - at < 1) return false;
        const int count = at[0];
        if (end - at != 4 + 2 * count) return false;
        if (count < frame.components) {
            reason = Reason::layout;
            return false;
        }
        if (count != frame.components) return false;
        ++at;
        for (int i = 0; i < count; ++i, at += 2) {
            Component& component = frame.component[i];
            component.dc_table = at[1] >> 4;
            component.ac_table = at[1] & 15;
            if (at[0] != component.id || component.dc_table > 3 || component.ac_table > 3) return false;
            if (frame.dc_codes[component.dc_table] == nullptr || frame.ac_codes[component.ac_table] == nullptr) return false;
            if (component.quantisers > 3 || frame.quantisers[component.quantisers].values == nullptr) return false;
        }
        return at[0] == 0 && at[1] == 63 && at[2] == 0 && sampling() && colour();
    }
};

}  // namespace

Reason read_frame(const uint8_t* data, size_t size, Frame& frame) {
    frame = Frame();
    if (size < 4 || data[0] != 0xff || data[1] != 0xd8) return Reason::unusual;
    Parser parser{frame};
    const uint8_t* at = data + 2;
    const uint8_t* const stop = data + size;
    for (;;) {
        if (at == stop || *at != 0xff) return Reason::unusual;
        while (at != stop && *at == 0xff) ++at;  // any number of 0xff may come before a marker
        if (stop - at < 3) return Reason::unusual;
        const int marker = *at++;
        const int length = two_bytes(at);
        if (length < 2 || stop - at < length) return Reason::unusual;
        const uint8_t* const from = at + 2;
        const uint8_t* const end = at + length;
        at = end;
        bool good = true;
        if (marker == 0xc0 || marker == 0xc1) {
            good = parser.start_of_frame(from, end);
        } else if (marker == 0xc4) {
            good = parser.codes(from, end);
        } else if (marker == 0xdb) {
            good = parser.quantisers(from, end);
        } else if (marker == 0xdd) {
            good = length == 4;
            if (good) frame.restart_interval = two_bytes(from);
        } else if (marker == 0xda) {
            good = parser.start_of_scan(from, end);
            frame.scan = static_cast<size_t>(end - data);
            if (good) return Reason::none;
        } else if (marker >= 0xe0 && marker <= 0xef) {
            parser.application(marker - 0xe0, from, end);
        } else if (marker >= 0xc2 && marker <= 0xcf && marker != 0xc8 && marker != 0xcc) {
            return Reason::progressive;
        } else {
            good = marker == 0xfe;  // a comment
        }
        if (!good) return parser.reason;
    }
}

}  // namespace fastload::jpeg
