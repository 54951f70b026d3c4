#include <algorithm>
#include <csetjmp>
#include <cstdio>  // <jpeglib.h> needs it first
#include <stdexcept>
#include <vector>

#include <jerror.h>
#include <jpeglib.h>

#include "decoder.hpp"

#ifdef FASTLOAD_LIBJPEG
#include <dlfcn.h>
#endif

namespace fastload {
namespace {

// The functions of libjpeg-turbo that the core calls.
//
// The library is opened by its path and not linked. Python packages bring a libjpeg of their own
// under the system's SONAME (torchvision: libjpeg.so.62 or libjpeg.so.8, in some versions without
// jpeg_crop_scanline). The dynamic linker gives the one that was loaded first to all who ask for
// this name, so a linked extension might get torchvision's.
#define FASTLOAD_FUNCTIONS(each)                                                           \
    each(std_error) each(CreateDecompress) each(destroy_decompress) each(abort_decompress) \
        each(mem_src) each(read_header) each(start_decompress) each(read_scanlines)        \
            each(crop_scanline) each(skip_scanlines) each(input_complete)

struct LibJpeg {
#define FASTLOAD_DECLARE(name) decltype(&jpeg_##name) name;
    FASTLOAD_FUNCTIONS(FASTLOAD_DECLARE)
};

#ifdef FASTLOAD_LIBJPEG

template <typename Function>
void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr)
        throw std::runtime_error(std::string("libjpeg has no ") + name + "; it is too old");
}

LibJpeg open_library() {
    // By its path; by its name if the system has moved it since the build.
    void* library = dlopen(FASTLOAD_LIBJPEG, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) library = dlopen(FASTLOAD_LIBJPEG_NAME, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    LibJpeg found;
#define FASTLOAD_FIND(name) find(library, "jpeg_" #name, found.name);
    FASTLOAD_FUNCTIONS(FASTLOAD_FIND)
    return found;
}

#else  // linked: a static library, or a platform whose linker binds symbols to their library

LibJpeg open_library() {
#define FASTLOAD_LINKED(name) jpeg_##name,
    return {FASTLOAD_FUNCTIONS(FASTLOAD_LINKED)};
}

#endif

const LibJpeg& libjpeg() {
    static const LibJpeg found = open_library();
    return found;
}

// Pixels decoded on each side of a box: fancy upsampling reads one chroma sample, at most two
// pixels, to either side.
constexpr int kMargin = 2;
// Bytes by which rows miss an alignment of 64. To aligned rows libjpeg-turbo's colour conversion
// writes past the caches (movntdq), and the resampler, which reads them next, would wait for
// memory.
constexpr size_t kMisalignment = 8;
// Rows given to the sink at a time: few enough to stay in the first-level cache.
constexpr int kRowsAtOnce = 8;

struct ErrorState {
    jpeg_error_mgr base;  // the first member: libjpeg gives back a pointer to it
    std::jmp_buf escape;  // where errors jump to
    bool damaged;         // there was an error, or a warning that pixels are wrong
    int64_t max_work;     // DecodeLimits::max_work
    char message[JMSG_LENGTH_MAX];
};

ErrorState& error_of(j_common_ptr info) { return *reinterpret_cast<ErrorState*>(info->err); }

[[noreturn]] void on_error(j_common_ptr info) {
    ErrorState& error = error_of(info);
    if (!error.damaged) (*info->err->format_message)(info, error.message);
    error.damaged = true;
    std::longjmp(error.escape, 1);
}

// Whether a warning leaves the pixels right. The same list is in fastload/decode/libraries.py.
bool is_benign(const jpeg_error_mgr& error) {
    switch (error.msg_code) {
        case JWRN_EXTRANEOUS_DATA:
            // Padding; but before a restart marker (0xd0 to 0xd7) the decoder has lost its place.
            return error.msg_parm.i[1] < 0xd0 || error.msg_parm.i[1] > 0xd7;
        case JWRN_NOT_SEQUENTIAL:  // a sequential scan does not use these parameters
        case JWRN_ADOBE_XFORM:
        case JWRN_JFIF_MAJOR:
        case JWRN_TOO_MUCH_DATA: return true;
        default: return false;
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
    std::snprintf(error.message, sizeof error.message,
                  "%d scans of %ux%u pixels are more work than is allowed",
                  decoder->input_scan_number, decoder->image_height, decoder->image_width);
    error.damaged = true;
    std::longjmp(error.escape, 1);
}

// Whether there is an end marker. In entropy-coded data 0xff is never followed by 0xd9.
bool has_end_marker(const uint8_t* data, size_t size) {
    // From the end, as it is nearly always the last two bytes.
    for (size_t i = size; i >= 2; --i) {
        if (data[i - 1] == 0xd9 && data[i - 2] == 0xff) return true;
    }
    return false;
}

// LibJpegDecoder is the interface, so that other files need not include <jpeglib.h>.
class TurboDecoder final : public LibJpegDecoder {
  public:
    TurboDecoder() {
        info_.err = libjpeg().std_error(&error_.base);
        error_.base.error_exit = on_error;
        error_.base.emit_message = on_message;
        error_.message[0] = '\0';
    }
    ~TurboDecoder() override {
        if (created_) libjpeg().destroy_decompress(&info_);
    }

    Outcome open(const uint8_t* data, size_t size, const DecodeLimits& limits) override;
    void reduce(int shift) override { shift_ = shift; }
    Outcome read(const Box& box, bool whole, RowSink& sink) override;
    void close() override {
        if (open_) libjpeg().abort_decompress(&info_);
        open_ = false;
    }

  private:
    Outcome damage() {
        libjpeg().abort_decompress(&info_);
        open_ = false;
        return {Status::damaged, error_.message};
    }

    // Calls libjpeg. False if it jumped out of `call`, or warned of damage. `call` must own
    // nothing: a jump skips destructors.
    template <typename Function>
    bool attempt(Function call) {
        if (setjmp(error_.escape)) return false;
        call();
        return !error_.damaged;
    }

    bool read_rows(JSAMPARRAY into, int count);
    bool skip(int count) {
        return attempt([&] { libjpeg().skip_scanlines(&info_, static_cast<JDIMENSION>(count)); });
    }
    // Whether the scans of a progressive image leave out low frequencies. libjpeg then estimates
    // them from the blocks around, and each of its versions does so in another way.
    bool is_guesswork() const;

    jpeg_decompress_struct info_;
    ErrorState error_;
    jpeg_progress_mgr progress_;
    bool created_ = false;
    bool open_ = false;
    int shift_ = 0;
    std::vector<uint8_t> rows_;
};

Outcome TurboDecoder::open(const uint8_t* data, size_t size, const DecodeLimits& limits) {
    close();
    error_.max_work = limits.max_work();
    // A new object for each image: libjpeg keeps tables from one image to the next, so a file
    // without tables would be decoded with those of the image before.
    if (created_) libjpeg().destroy_decompress(&info_);
    error_.damaged = false;
    created_ = attempt([&] { libjpeg().CreateDecompress(&info_, JPEG_LIB_VERSION, sizeof info_); });
    if (!created_) return {Status::damaged, error_.message};
    progress_.progress_monitor = on_progress;
    info_.progress = &progress_;
    const bool read = attempt([&] {
        libjpeg().mem_src(&info_, data, static_cast<unsigned long>(size));
        libjpeg().read_header(&info_, TRUE);
    });
    if (!read) return damage();
    open_ = true;
    shift_ = 0;
    header_.size = {static_cast<int>(info_.image_height), static_cast<int>(info_.image_width)};
    header_.components = info_.num_components;
    header_.progressive = info_.progressive_mode != 0;
    header_.arithmetic = info_.arith_code != 0;
    Outcome outcome = limits.check(header_.size);
    if (!outcome.ok()) close();
    return outcome;
}

bool TurboDecoder::is_guesswork() const {
    if (!info_.progressive_mode || info_.coef_bits == nullptr) return false;
    for (int component = 0; component < info_.num_components; ++component) {
        for (int k = 1; k < 10; ++k) {
            if (info_.coef_bits[component][k] != 0) return true;
        }
    }
    return false;
}

bool TurboDecoder::read_rows(JSAMPARRAY into, int count) {
    return attempt([&] {
        const auto rows = static_cast<JDIMENSION>(count);
        for (JDIMENSION done = 0; done < rows && !error_.damaged;) {
            done += libjpeg().read_scanlines(&info_, into + done, rows - done);
        }
    });
}

Outcome TurboDecoder::read(const Box& box, bool whole, RowSink& sink) {
    const J_COLOR_SPACE space = info_.jpeg_color_space;
    if (space != JCS_YCbCr && space != JCS_RGB && space != JCS_GRAYSCALE) {
        close();
        return {Status::unsupported, "a JPEG of " + std::to_string(header_.components) +
                                         " components that are neither grey, YCbCr nor RGB"};
    }
    info_.out_color_space = JCS_EXT_RGBX;
    info_.dct_method = JDCT_ISLOW;
    info_.do_fancy_upsampling = TRUE;
    info_.scale_num = 1;
    info_.scale_denom = 1u << shift_;
    if (!attempt([&] { libjpeg().start_decompress(&info_); })) return damage();
    if (is_guesswork()) {
        close();
        return {Status::damaged, "a progressive JPEG that leaves out low frequencies"};
    }

    const int image_width = static_cast<int>(info_.output_width);
    const int image_height = static_cast<int>(info_.output_height);
    // Reduced images are small, so all rows and columns are decoded. All are decoded too if libjpeg
    // makes more than two rows at a time (sampling factor 4), because of a fault of
    // jpeg_skip_scanlines (2.1.5): it takes the next row of blocks as read only if one row is left
    // to make. With four rows at a time it reads it again while three or two are left, and after
    // the last row of blocks waits for another one for ever.
    const bool all = shift_ > 0 || info_.max_v_samp_factor > 2;
    const int margin = all ? image_width : kMargin;
    JDIMENSION start = static_cast<JDIMENSION>(std::max(box.left - margin, 0));
    JDIMENSION width =
        static_cast<JDIMENSION>(std::min(box.left + box.width + margin, image_width)) - start;
    if (width < static_cast<JDIMENSION>(image_width) &&
        !attempt([&] { libjpeg().crop_scanline(&info_, &start, &width); })) {
        return damage();
    }

    const size_t stride = (size_t{width} * 4 + kRowSlack + 63) / 64 * 64;
    grow(rows_, stride * kRowsAtOnce + 128);
    uint8_t* base =
        rows_.data() + kMisalignment + (64 - reinterpret_cast<uintptr_t>(rows_.data()) % 64) % 64;
    JSAMPROW targets[kRowsAtOnce];
    const uint8_t* visible[kRowsAtOnce];
    for (int i = 0; i < kRowsAtOnce; ++i) {
        targets[i] = base + stride * i;
        visible[i] = targets[i] + size_t{4} * (static_cast<JDIMENSION>(box.left) - start);
    }

    const int first = all ? 0 : std::max(box.top - kMargin, 0);
    if (first > 0 && !skip(first)) return damage();
    for (int y = first; y < box.top; ++y) {
        if (!read_rows(targets, 1)) return damage();
    }
    for (int done = 0; done < box.height;) {
        const int count = std::min(kRowsAtOnce, box.height - done);
        if (!read_rows(targets, count)) return damage();
        sink.take(visible, count);
        done += count;
    }

    const int below = image_height - (box.top + box.height);
    // jpeg_skip_scanlines to the last row would drop the rest unread, so that row is decoded.
    const int skipped = all ? 0 : below - 1;
    if (whole && skipped > 0 && !skip(skipped)) return damage();
    for (int y = std::max(skipped, 0); whole && y < below; ++y) {
        if (!read_rows(targets, 1)) return damage();
    }
    const jpeg_source_mgr& source = *info_.src;
    const bool ends = info_.unread_marker == JPEG_EOI || libjpeg().input_complete(&info_) ||
                      has_end_marker(source.next_input_byte, source.bytes_in_buffer);
    close();
    return ends ? Outcome{} : Outcome{Status::damaged, "Premature end of JPEG file"};
}

}  // namespace

std::unique_ptr<LibJpegDecoder> LibJpegDecoder::make() { return std::make_unique<TurboDecoder>(); }
void LibJpegDecoder::load() { libjpeg(); }

}  // namespace fastload
