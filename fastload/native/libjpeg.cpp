#include "libjpeg.hpp"

#include <algorithm>
#include <csetjmp>
#include <cstdio>  // <jpeglib.h> needs it first
#include <cstring>
#include <stdexcept>
#include <vector>

#include <jpeglib.h>
#include <jerror.h>

#include "kernels.hpp"

#ifdef FASTLOAD_LIBJPEG
#include <dlfcn.h>
#endif

namespace fastload {
namespace {

// The functions of the library, from a copy that the core chooses itself.
//
// Python packages bring a libjpeg of their own under the system's SONAME (torchvision: libjpeg.so.62 or libjpeg.so.8,
// built without jpeg_crop_scanline in some versions). The dynamic linker takes whichever was loaded first for all who
// ask for that name, so an extension that is simply linked may get torchvision's. A library opened by its path is
// always the one meant.
struct LibJpeg {
    decltype(&jpeg_std_error) std_error;
    decltype(&jpeg_CreateDecompress) create_decompress;
    decltype(&jpeg_destroy_decompress) destroy_decompress;
    decltype(&jpeg_abort_decompress) abort_decompress;
    decltype(&jpeg_mem_src) mem_src;
    decltype(&jpeg_read_header) read_header;
    decltype(&jpeg_start_decompress) start_decompress;
    decltype(&jpeg_read_scanlines) read_scanlines;
    decltype(&jpeg_crop_scanline) crop_scanline;
    decltype(&jpeg_skip_scanlines) skip_scanlines;
    decltype(&jpeg_input_complete) input_complete;
};

#ifdef FASTLOAD_LIBJPEG

template <typename Function>
void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) throw std::runtime_error(std::string("libjpeg has no ") + name + "; it is too old");
}

LibJpeg load() {
    // By its path; if the system has moved it since the build, by its name.
    void* library = dlopen(FASTLOAD_LIBJPEG, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) library = dlopen(FASTLOAD_LIBJPEG_NAME, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    LibJpeg found;
    find(library, "jpeg_std_error", found.std_error);
    find(library, "jpeg_CreateDecompress", found.create_decompress);
    find(library, "jpeg_destroy_decompress", found.destroy_decompress);
    find(library, "jpeg_abort_decompress", found.abort_decompress);
    find(library, "jpeg_mem_src", found.mem_src);
    find(library, "jpeg_read_header", found.read_header);
    find(library, "jpeg_start_decompress", found.start_decompress);
    find(library, "jpeg_read_scanlines", found.read_scanlines);
    find(library, "jpeg_crop_scanline", found.crop_scanline);
    find(library, "jpeg_skip_scanlines", found.skip_scanlines);
    find(library, "jpeg_input_complete", found.input_complete);
    return found;
}

#else  // linked: a static library, or a platform whose linker binds symbols to their library

LibJpeg load() {
    return {jpeg_std_error,   jpeg_CreateDecompress, jpeg_destroy_decompress, jpeg_abort_decompress,
            jpeg_mem_src,     jpeg_read_header,      jpeg_start_decompress,   jpeg_read_scanlines,
            jpeg_crop_scanline, jpeg_skip_scanlines, jpeg_input_complete};
}

#endif

const LibJpeg& libjpeg() {
    static const LibJpeg found = load();
    return found;
}

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

void load_libjpeg() { libjpeg(); }

struct LibJpegDecoder::State {
    jpeg_decompress_struct info;
    ErrorState error;
    jpeg_progress_mgr progress;
    bool created = false;
    bool open = false;
    int shift = 0;
    ImageHeader header;
    std::vector<uint8_t> rows;

    Outcome damage() {
        libjpeg().abort_decompress(&info);
        open = false;
        return {Status::damaged, error.message};
    }

    // The functions below contain setjmp. They own nothing, so that a jump skips no destructor.
    bool create();
    bool read_header(const uint8_t* data, size_t size);
    bool start();
    // Whether the scans of a progressive image have left out low frequencies, which libjpeg then makes up from the
    // blocks around, each version in another way.
    bool is_guesswork() const;
    bool choose_columns(JDIMENSION* start, JDIMENSION* width);
    bool skip(JDIMENSION count);
    bool read_rows(JSAMPARRAY rows, JDIMENSION count);
};

bool LibJpegDecoder::State::create() {
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

bool LibJpegDecoder::State::read_header(const uint8_t* data, size_t size) {
    if (setjmp(error.escape)) return false;
    libjpeg().mem_src(&info, data, static_cast<unsigned long>(size));
    libjpeg().read_header(&info, TRUE);
    return !error.damaged;
}

bool LibJpegDecoder::State::start() {
    if (setjmp(error.escape)) return false;
    info.out_color_space = JCS_EXT_RGBX;
    info.dct_method = JDCT_ISLOW;
    info.do_fancy_upsampling = TRUE;
    info.scale_num = 1;
    info.scale_denom = 1u << shift;
    libjpeg().start_decompress(&info);
    return !error.damaged;
}

bool LibJpegDecoder::State::is_guesswork() const {
    if (!info.progressive_mode || info.coef_bits == nullptr) return false;
    for (int component = 0; component < info.num_components; ++component) {
        for (int k = 1; k < 10; ++k) {
            if (info.coef_bits[component][k] != 0) return true;
        }
    }
    return false;
}

bool LibJpegDecoder::State::choose_columns(JDIMENSION* start, JDIMENSION* width) {
    if (setjmp(error.escape)) return false;
    libjpeg().crop_scanline(&info, start, width);
    return !error.damaged;
}

bool LibJpegDecoder::State::skip(JDIMENSION count) {
    if (setjmp(error.escape)) return false;
    libjpeg().skip_scanlines(&info, count);
    return !error.damaged;
}

bool LibJpegDecoder::State::read_rows(JSAMPARRAY into, JDIMENSION count) {
    if (setjmp(error.escape)) return false;
    for (JDIMENSION done = 0; done < count && !error.damaged;) {
        done += libjpeg().read_scanlines(&info, into + done, count - done);
    }
    return !error.damaged;
}

LibJpegDecoder::LibJpegDecoder() : state_(std::make_unique<State>()) {
    State& s = *state_;
    s.info.err = libjpeg().std_error(&s.error.base);
    s.error.base.error_exit = on_error;
    s.error.base.emit_message = on_message;
    s.error.message[0] = '\0';
}

LibJpegDecoder::~LibJpegDecoder() {
    if (state_->created) libjpeg().destroy_decompress(&state_->info);
}

const ImageHeader& LibJpegDecoder::header() const { return state_->header; }

void LibJpegDecoder::close() {
    State& s = *state_;
    if (s.open) libjpeg().abort_decompress(&s.info);
    s.open = false;
}

Outcome LibJpegDecoder::open(const uint8_t* data, size_t size, const DecodeLimits& limits) {
    State& s = *state_;
    close();
    s.error.max_work = limits.max_work();
    if (!s.create()) return {Status::damaged, s.error.message};
    if (!s.read_header(data, size)) return s.damage();
    s.open = true;
    s.shift = 0;
    s.header.size = {static_cast<int>(s.info.image_height), static_cast<int>(s.info.image_width)};
    s.header.components = s.info.num_components;
    s.header.progressive = s.info.progressive_mode != 0;
    Outcome outcome = limits.check(s.header.size);
    if (!outcome.ok()) close();
    return outcome;
}

bool LibJpegDecoder::reduce(int shift) {
    state_->shift = shift;
    return true;
}

Outcome LibJpegDecoder::read(const Box& box, bool whole, RowSink& sink) {
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

    const int image_width = static_cast<int>(s.info.output_width);
    const int image_height = static_cast<int>(s.info.output_height);
    // Of reduced images, which are small, all is decoded: how the library crops and skips in them is left untried.
    const bool all = s.shift > 0;
    const int margin = all ? image_width : kMargin;
    JDIMENSION start = static_cast<JDIMENSION>(std::max(box.left - margin, 0));
    JDIMENSION width = static_cast<JDIMENSION>(std::min(box.left + box.width + margin, image_width)) - start;
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

    const int first = all ? 0 : std::max(box.top - kMargin, 0);
    if (first > 0 && !s.skip(static_cast<JDIMENSION>(first))) return s.damage();
    for (int y = first; y < box.top; ++y) {
        if (!s.read_rows(targets, 1)) return s.damage();
    }
    for (int done = 0; done < box.height;) {
        const int count = std::min(kChunk, box.height - done);
        if (!s.read_rows(targets, static_cast<JDIMENSION>(count))) return s.damage();
        sink.take(visible, count);
        done += count;
    }

    const int below = image_height - (box.top + box.height);
    // Skipping to the very end would drop the rest unread, so the last row is decoded.
    const int skipped = all ? 0 : below - 1;
    if (whole && skipped > 0 && !s.skip(static_cast<JDIMENSION>(skipped))) return s.damage();
    for (int y = std::max(skipped, 0); whole && y < below; ++y) {
        if (!s.read_rows(targets, 1)) return s.damage();
    }
    const jpeg_source_mgr& source = *s.info.src;
    const bool ends = s.info.unread_marker == JPEG_EOI || libjpeg().input_complete(&s.info) ||
                      has_end_marker(source.next_input_byte, source.bytes_in_buffer);
    close();
    if (!ends) return {Status::damaged, "Premature end of JPEG file"};
    return {};
}

}  // namespace fastload
