#include "inflate.hpp"

#include <algorithm>
#include <climits>
#include <new>

#ifdef FASTLOAD_ISAL
#include <isa-l/crc.h>
#include <isa-l/igzip_lib.h>
#else
#include <zlib.h>
#endif

namespace fastload::png {

bool Pieces::take(const uint8_t** data, size_t* size) {
    while (count > 0) {
        const uint8_t* chunk = next;
        *size = size_t{chunk[0]} << 24 | size_t{chunk[1]} << 16 | size_t{chunk[2]} << 8 | chunk[3];
        *data = chunk + 8;
        next = chunk + 12 + *size;
        --count;
        if (*size > 0) return true;
    }
    return false;
}

#ifdef FASTLOAD_ISAL

struct Inflater::State {
    inflate_state stream;
    bool broken;

    void begin() {
        isal_inflate_init(&stream);
        stream.crc_flag = ISAL_ZLIB;  // header and checksum, too
        broken = false;
    }
    void step() { broken = isal_inflate(&stream) != ISAL_DECOMP_OK; }
    bool finished() const { return stream.block_state == ISAL_BLOCK_FINISH; }
};

const char* Inflater::library() { return "ISA-L"; }

uint32_t checksum(const uint8_t* data, size_t size) {
    return crc32_gzip_refl(0, data, static_cast<uint64_t>(size));
}

#else

struct Inflater::State {
    z_stream stream = {};
    bool broken;
    bool ended;

    State() {
        if (inflateInit(&stream) != Z_OK) throw std::bad_alloc();
    }
    ~State() { inflateEnd(&stream); }
    State(const State&) = delete;
    State& operator=(const State&) = delete;

    void begin() {
        inflateReset(&stream);
        stream.avail_in = 0;
        broken = ended = false;
    }
    void step() {
        const int found = inflate(&stream, Z_NO_FLUSH);
        ended = found == Z_STREAM_END;
        broken = !ended && found != Z_OK && found != Z_BUF_ERROR;
    }
    bool finished() const { return ended; }
};

const char* Inflater::library() { return "zlib"; }

uint32_t checksum(const uint8_t* data, size_t size) {
    return static_cast<uint32_t>(crc32(0, data, static_cast<uInt>(size)));  // chunks have less than 2 GiB
}

#endif

Inflater::Inflater() : state_(std::make_unique<State>()) {}
Inflater::~Inflater() = default;

void Inflater::begin(Pieces pieces) {
    pieces_ = pieces;
    state_->begin();
}

// Up to `size` bytes; fewer only where the stream ends or is damaged.
size_t Inflater::some(uint8_t* out, size_t size) {
    State& s = *state_;
    size_t done = 0;
    while (done < size && !s.broken) {
        const auto wanted = static_cast<uint32_t>(std::min<size_t>(size - done, INT_MAX));
        s.stream.next_out = out + done;
        s.stream.avail_out = wanted;
        s.step();
        const size_t got = wanted - s.stream.avail_out;
        done += got;
        if (got > 0) continue;  // there may be more, without more input
        if (s.finished() || s.stream.avail_in > 0) break;
        const uint8_t* data;
        size_t bytes;
        if (!pieces_.take(&data, &bytes)) break;
        s.stream.next_in = const_cast<uint8_t*>(data);  // of both libraries, which do not write to it
        s.stream.avail_in = static_cast<uint32_t>(bytes);
    }
    return s.broken ? 0 : done;
}

bool Inflater::read(uint8_t* out, size_t size) { return some(out, size) == size; }

bool Inflater::ends() {
    uint8_t more;
    return some(&more, 1) == 0 && !state_->broken && state_->finished();
}

}  // namespace fastload::png
