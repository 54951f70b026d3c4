#include "jpeg.hpp"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include "jpeg/baseline.hpp"
#include "kernels.hpp"
#include "libjpeg.hpp"

#include <jerror.h>

namespace fastload {
namespace {

// Fancy upsampling looks one chroma sample, at most two pixels, to either side.
constexpr int kMargin = 2;
// Rows are put off alignment on purpose: to aligned ones libjpeg-turbo's colour conversion writes past the caches
// (movntdq), and the resampler, which reads them at once, would wait for memory.
constexpr size_t kMisalignment = 8;
// Rows handed over at a time: few enough to stay in the first-level cache.
constexpr int kChunk = 8;

struct ErrorState {
    jpeg_error_mgr base;  // first: libjpeg hands back a pointer to it
    std::jmp_buf escape;
    bool damaged;
    int64_t max_work;
    char message[JMSG_LENGTH_MAX];
};

ErrorState& error_of(j_common_ptr info) { return *reinterpret_cast<ErrorState*>(info->err); }

[[noreturn]] void on_error(j_common_ptr info) {
    ErrorState& error = error_of(info);
    if (!error.damaged) (*info->err->format_message)(info, error.message);
    error.damaged = true;
    std::longjmp(error.escape, 1);
}

// Warnings that leave the pixels whole; the same list is in fastload/decode/libraries.py.
bool is_benign(const jpeg_error_mgr& error) {
    switch (error.msg_code) {
        case JWRN_EXTRANEOUS_DATA:  // padding, but before a restart marker the decoder has lost its place
            return error.msg_parm.i[1] < 0xd0 || error.msg_parm.i[1] > 0xd7;
        case JWRN_NOT_SEQUENTIAL:  // parameters that a sequential scan does not use
        case JWRN_ADOBE_XFORM:
        case JWRN_JFIF_MAJOR:
        case JWRN_TOO_MUCH_DATA:
            return true;
        default:
            return false;
    }
}

void on_message(j_common_ptr info, int level) {
    ErrorState& error = error_of(info);
    if (level >= 0 || error.damaged || is_benign(*info->err)) return;
    (*info->err->format_message)(info, error.message);
    error.damaged = true;
}

void on_progress(j_common_ptr info) {
    auto* decoder = reinterpret_cast<j_decompress_ptr>(info);
    ErrorState& error = error_of(info);
    const int64_t pixels = int64_t{decoder->image_height} * decoder->image_width;
    if (decoder->input_scan_number <= error.max_work / std::max<int64_t>(pixels, 1)) return;
    std::snprintf(error.message, sizeof error.message, "%d scans of %ux%u pixels are more work than is allowed",
                  decoder->input_scan_number, decoder->image_height, decoder->image_width);
    error.damaged = true;
    std::longjmp(error.escape, 1);
}

bool has_end_marker(const uint8_t* data, size_t size) {
    // Nearly always the last two bytes; elsewhere in entropy-coded data 0xff is never followed by 0xd9.
    for (size_t i = size; i >= 2; --i) {
        if (data[i - 1] == 0xd9 && data[i - 2] == 0xff) return true;
    }
    return false;
}

}  // namespace

struct JpegDecoder::State {
    State(const Kernels& kernels, DecoderCounts* counter) : own(*kernels.jpeg), counts(counter) {}

    jpeg::BaselineDecoder own;
    DecoderCounts* counts;
    jpeg::Reason reason = jpeg::Reason::none;  // why not by our own decoder
    bool always_libjpeg = false;
    const uint8_t* data = nullptr;
    size_t size = 0;
    JpegLimits limits;

    jpeg_decompress_struct info;
    ErrorState error;
    jpeg_progress_mgr progress;
    bool created = false;
    bool open = false;
    JpegHeader header;
    std::vector<uint8_t> rows;

    void count() {
        if (counts != nullptr) counts->of[static_cast<int>(reason)].fetch_add(1, std::memory_order_relaxed);
    }

    Outcome check_size() const {
        const int64_t pixels = int64_t{header.size.height} * header.size.width;
        if (pixels <= limits.max_pixels) return {};
        return {Status::too_large, std::to_string(header.size.height) + "x" + std::to_string(header.size.width) +
                                       " pixels are more than the limit of " + std::to_string(limits.max_pixels)};
    }

    Outcome damage() {
        libjpeg().abort_decompress(&info);
        open = false;
        return {Status::damaged, error.message};
    }

    // The functions below contain setjmp. They own nothing, so that a jump skips no destructor.
    bool create();
    bool read_header();
    bool start();
    // Whether the scans of a progressive image have left out low frequencies, which libjpeg then makes up from the
    // blocks around, each version in another way.
    bool is_guesswork() const;
    bool choose_columns(JDIMENSION* start, JDIMENSION* width);
    bool skip(JDIMENSION count);
    bool read_rows(JSAMPARRAY rows, JDIMENSION count);
};

bool JpegDecoder::State::create() {
    // Anew for each image: libjpeg keeps tables from one to the next, so that a file without its own would be decoded
    // by those of whatever came before.
    if (created) libjpeg().destroy_decompress(&info);
    created = false;
    error.damaged = false;
    if (setjmp(error.escape)) return false;
    libjpeg().create_decompress(&info, JPEG_LIB_VERSION, sizeof info);
    progress.progress_monitor = on_progress;
    info.progress = &progress;
    created = true;
    return true;
}

bool JpegDecoder::State::read_header() {
    if (setjmp(error.escape)) return false;
    libjpeg().mem_src(&info, data, static_cast<unsigned long>(size));
    libjpeg().read_header(&info, TRUE);
    return !error.damaged;
}

bool JpegDecoder::State::start() {
    if (setjmp(error.escape)) return false;
    info.out_color_space = JCS_EXT_RGBX;
    info.dct_method = JDCT_ISLOW;
    info.do_fancy_upsampling = TRUE;
    libjpeg().start_decompress(&info);
    return !error.damaged;
}

bool JpegDecoder::State::is_guesswork() const {
    if (!info.progressive_mode || info.coef_bits == nullptr) return false;
    for (int component = 0; component < info.num_components; ++component) {
        for (int k = 1; k < 10; ++k) {
            if (info.coef_bits[component][k] != 0) return true;
        }
    }
    return false;
}

bool JpegDecoder::State::choose_columns(JDIMENSION* start, JDIMENSION* width) {
    if (setjmp(error.escape)) return false;
    libjpeg().crop_scanline(&info, start, width);
    return !error.damaged;
}

bool JpegDecoder::State::skip(JDIMENSION count) {
    if (setjmp(error.escape)) return false;
    libjpeg().skip_scanlines(&info, count);
    return !error.damaged;
}

bool JpegDecoder::State::read_rows(JSAMPARRAY into, JDIMENSION count) {
    if (setjmp(error.escape)) return false;
    for (JDIMENSION done = 0; done < count && !error.damaged;) {
        done += libjpeg().read_scanlines(&info, into + done, count - done);
    }
    return !error.damaged;
}

JpegDecoder::JpegDecoder(const Kernels& kernels, DecoderCounts* counts)
    : state_(std::make_unique<State>(kernels, counts)) {
    State& s = *state_;
    s.info.err = libjpeg().std_error(&s.error.base);
    s.error.base.error_exit = on_error;
    s.error.base.emit_message = on_message;
    s.error.message[0] = '\0';
}

JpegDecoder::~JpegDecoder() {
    if (state_->created) libjpeg().destroy_decompress(&state_->info);
}

const JpegHeader& JpegDecoder::header() const { return state_->header; }

void JpegDecoder::close() {
    State& s = *state_;
    if (s.open) libjpeg().abort_decompress(&s.info);
    s.open = false;
}

Outcome JpegDecoder::open(const uint8_t* data, size_t size, const JpegLimits& limits) {
    State& s = *state_;
    close();
    if (size == 0) return {Status::damaged, "the file is empty"};
    if (size < 3 || data[0] != 0xff || data[1] != 0xd8 || data[2] != 0xff) {
        return {Status::not_jpeg, "not a JPEG"};
    }
    s.data = data;
    s.size = size;
    s.limits = limits;
    s.error.max_work = limits.max_work();
    s.reason = s.always_libjpeg ? jpeg::Reason::forced : s.own.open(data, size);
    if (s.reason != jpeg::Reason::none) return open_libjpeg();
    const jpeg::Frame& frame = s.own.frame();
    s.header = {{frame.height, frame.width}, frame.components, false};
    return s.check_size();
}

Outcome JpegDecoder::open_libjpeg() {
    State& s = *state_;
    if (!s.create()) return {Status::damaged, s.error.message};
    if (!s.read_header()) return s.damage();
    s.open = true;
    s.header.size = {static_cast<int>(s.info.image_height), static_cast<int>(s.info.image_width)};
    s.header.components = s.info.num_components;
    s.header.progressive = s.info.progressive_mode != 0;
    Outcome outcome = s.check_size();
    if (!outcome.ok()) close();
    return outcome;
}

Outcome JpegDecoder::read(const Box& box, bool whole, RowSink& sink) {
    State& s = *state_;
    if (s.reason == jpeg::Reason::none) {
        s.reason = s.own.read(box, whole, sink);
        s.count();
        if (s.reason == jpeg::Reason::none) return {};
        sink.restart();
        if (Outcome opened = open_libjpeg(); !opened.ok()) return opened;
    } else {
        s.count();
    }
    return read_libjpeg(box, whole, sink);
}

void JpegDecoder::use_libjpeg(bool always) { state_->always_libjpeg = always; }

Outcome JpegDecoder::read_libjpeg(const Box& box, bool whole, RowSink& sink) {
    State& s = *state_;
    const J_COLOR_SPACE space = s.info.jpeg_color_space;
    if (space != JCS_YCbCr && space != JCS_RGB && space != JCS_GRAYSCALE) {
        close();
        return {Status::unsupported, "a JPEG of " + std::to_string(s.header.components) +
                                         " components that are neither grey, YCbCr nor RGB"};
    }
    if (!s.start()) return s.damage();
    if (s.is_guesswork()) {
        close();
        return {Status::damaged, "a progressive JPEG that leaves out low frequencies"};
    }

    const int image_width = s.header.size.width;
    const int image_height = s.header.size.height;
    JDIMENSION start = static_cast<JDIMENSION>(std::max(box.left - kMargin, 0));
    JDIMENSION width = static_cast<JDIMENSION>(std::min(box.left + box.width + kMargin, image_width)) - start;
    if (width < static_cast<JDIMENSION>(image_width) && !s.choose_columns(&start, &width)) return s.damage();

    const size_t stride = (size_t{width} * 4 + kRowSlack + 63) / 64 * 64;
    if (s.rows.size() < stride * kChunk + 128) s.rows.resize(stride * kChunk + 128);
    uint8_t* base = s.rows.data() + kMisalignment + (64 - reinterpret_cast<uintptr_t>(s.rows.data()) % 64) % 64;
    JSAMPROW targets[kChunk];
    const uint8_t* visible[kChunk];
    for (int i = 0; i < kChunk; ++i) {
        targets[i] = base + stride * i;
        visible[i] = targets[i] + size_t{4} * (static_cast<JDIMENSION>(box.left) - start);
    }

    const int first = std::max(box.top - kMargin, 0);
    if (first > 0 && !s.skip(static_cast<JDIMENSION>(first))) return s.damage();
    if (box.top > first && !s.read_rows(targets, static_cast<JDIMENSION>(box.top - first))) return s.damage();
    for (int done = 0; done < box.height;) {
        const int count = std::min(kChunk, box.height - done);
        if (!s.read_rows(targets, static_cast<JDIMENSION>(count))) return s.damage();
        sink.take(visible, count);
        done += count;
    }

    const int below = image_height - (box.top + box.height);
    // Skipping to the very end would drop the rest unread, so the last row is decoded.
    if (whole && below > 1 && !s.skip(static_cast<JDIMENSION>(below - 1))) return s.damage();
    if (whole && below > 0 && !s.read_rows(targets, 1)) return s.damage();
    const jpeg_source_mgr& source = *s.info.src;
    const bool ends = s.info.unread_marker == JPEG_EOI || libjpeg().input_complete(&s.info) ||
                      has_end_marker(source.next_input_byte, source.bytes_in_buffer);
    close();
    if (!ends) return {Status::damaged, "Premature end of JPEG file"};
    return {};
}

}  // namespace fastload
