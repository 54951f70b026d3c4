#include "decoder.hpp"

#include <cstring>

#include "exif.hpp"
#include "hash.hpp"
#include "kernels.hpp"
#include "seek_index.hpp"

namespace fastload {
namespace {

bool is_jpeg(const uint8_t* data, size_t size) {
    return size >= 3 && data[0] == 0xff && data[1] == 0xd8 && data[2] == 0xff;
}
bool is_png(const uint8_t* data, size_t size) {
    return size >= 8 && std::memcmp(data, "\x89PNG\r\n\x1a\n", 8) == 0;
}
bool is_webp(const uint8_t* data, size_t size) {
    return size >= 12 && std::memcmp(data, "RIFF", 4) == 0 && std::memcmp(data + 8, "WEBP", 4) == 0;
}

// The seek index is not used for images with fewer MCUs: looking up their points would take longer
// than decoding what the points leave out.
constexpr int kLeastMcus = 128;
// To note its points, an image must be read to its end. For most crops this takes another sixth of
// the time. So in training (`only_cheap`) points are noted of images with at most 1/8 of their
// height below the box, and of one in 16 of the others, for data sets whose crops always end at the
// same height.
constexpr int kShareBelow = 8;
constexpr uint64_t kOthersRead = 16;

void count(std::atomic<int64_t>& counter) { counter.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

Decoder::Decoder(const Kernels& kernels, DecoderCounts& counts)
    : counts_(counts), own_(*kernels.jpeg), libjpeg_(LibJpegDecoder::make()) {
#ifdef FASTLOAD_PNG
    png_ = make_png_decoder(kernels);
#endif
#ifdef FASTLOAD_WEBP
    webp_ = make_webp_decoder();
#endif
}

std::map<std::string, std::string> Decoder::formats() {
    return {
#ifdef FASTLOAD_PNG
        {"PNG", "ISA-L"},
#endif
#ifdef FASTLOAD_WEBP
        {"WEBP", "libwebp"},
#endif
    };
}

Outcome Decoder::open(const uint8_t* data, size_t size, const DecodeLimits& limits) {
    close();
    data_ = data;
    size_ = size;
    limits_ = limits;
    other_ = nullptr;
    if (is_png(data, size)) other_ = png_.get();
    if (is_webp(data, size)) other_ = webp_.get();
    if (other_ == nullptr) return open_jpeg();
    Outcome outcome = other_->open(data, size, limits);
    header_ = other_->header();
    return outcome;
}

bool Decoder::may_read(const uint8_t* data, size_t size) {
    return is_jpeg(data, size) || is_png(data, size) || is_webp(data, size);
}

Outcome Decoder::open_jpeg() {
    if (size_ == 0) return {Status::damaged, "the file is empty"};
    if (!is_jpeg(data_, size_)) return {Status::other_format, kOtherFormat};
    shift_ = 0;
    reason_ = always_libjpeg_ ? jpeg::Reason::forced : own_.open(data_, size_, limits_.max_work());
    if (reason_ != jpeg::Reason::none) return open_libjpeg();
    const jpeg::Frame& frame = own_.frame();
    header_ = {{frame.height, frame.width}, frame.components, frame.progressive};
    return limits_.check(header_.size);
}

Outcome Decoder::check_length() const {
    // A block of 8 x 8 samples takes at least one bit (the Huffman code of its DC coefficient). One
    // component has a sample for each pixel along one axis, and for at least every fourth pixel
    // along the other, as sampling factors are 1 to 4: so at least one bit for 8 x 32 = 16 x 16
    // pixels. The PNG decoder has a check of its own (`open`); WebP's lossless format has no such
    // bound. The same check is in fastload/decode/image.py.
    const int64_t bits = int64_t{header_.size.height / 16} * (header_.size.width / 16);
    if (other_ != nullptr || header_.arithmetic || bits / 8 <= static_cast<int64_t>(size_))
        return {};
    return {Status::damaged, "Premature end of JPEG file"};
}

Outcome Decoder::open_libjpeg() {
    Outcome outcome = libjpeg_->open(data_, size_, limits_);
    libjpeg_->reduce(shift_);
    header_ = libjpeg_->header();
    header_.odd = reason_ == jpeg::Reason::unusual;
    return outcome;
}

int Decoder::orientation() const {
    if (other_ != nullptr && other_ == png_.get()) return png_orientation(data_, size_);
    return other_ != nullptr ? webp_orientation(data_, size_) : jpeg_orientation(data_, size_);
}

bool Decoder::reduce(int shift) {
    if (other_ != nullptr || (reason_ == jpeg::Reason::none && !own_.reduce(shift))) return false;
    if (reason_ != jpeg::Reason::none) libjpeg_->reduce(shift);
    shift_ = shift;
    return true;
}

bool Decoder::keep_numbers() {
    return other_ != nullptr ? other_->keep_numbers() : header_.components == 1;
}

Outcome Decoder::read(const Box& box, bool whole, RowSink& sink) {
    begin(box, whole, sink);
    return finish();
}

void Decoder::begin(const Box& box, bool whole, RowSink& sink) {
    box_ = box;
    whole_ = whole;
    sink_ = &sink;
    if (other_ == nullptr && reason_ == jpeg::Reason::none) begin_own();
}

Outcome Decoder::finish() {
    if (other_ == nullptr) return finish_jpeg();
    Outcome outcome = other_->read(box_, whole_, *sink_);
    if (!outcome.ok()) return outcome;
    count(other_ == png_.get() ? counts_.png : counts_.webp);
    // The depth is the ninth byte of the header, which follows 8 bytes of signature and 8 bytes of
    // length and name; `open` has checked that they are there.
    if (other_ == png_.get() && data_[24] == 16) count(counts_.narrowed);
    return outcome;
}

// Whether to note the points of the open image while its box is decoded, if `only_cheap`.
bool Decoder::is_cheap(uint64_t hash) {
    const int64_t end = int64_t{box_.top + box_.height} << shift_;
    if ((header_.size.height - end) * kShareBelow <= header_.size.height) return true;
    // The counter makes it other images in each epoch, even if a decoder always gets the same ones.
    const uint64_t mixed = (hash ^ ++without_points_) * 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio
    return (mixed >> 32) % kOthersRead == 0;
}

// Looks up the points of the image; if the index lacks them, begins to decode without, and perhaps
// notes them. There are points only of files that were read to their end without a fault, so with
// `whole` nothing else need be read.
void Decoder::begin_own() {
    const jpeg::Frame& frame = own_.frame();
    has_points_ = is_noting_ = false;
    if (index_ != nullptr && frame.one_scan &&
        int64_t{jpeg::mcu_rows(frame)} * jpeg::mcu_columns(frame) >= kLeastMcus) {
        hash_ = known_hash_ != 0 ? known_hash_ : hash_bytes(data_, size_);
        has_points_ = index_->find(hash_, size_, packed_);
        if (has_points_) return;
        is_noting_ = index_->is_writable() && (!index_->only_cheap() || whole_ || is_cheap(hash_));
        points_.step = std::max(1, index_->every() / (8 * frame.h));
    }
    own_.begin(box_, whole_, *sink_, is_noting_ ? &points_ : nullptr);
}

jpeg::Reason Decoder::finish_own() {
    const jpeg::Frame& frame = own_.frame();
    if (has_points_) {
        if (jpeg::unpack(frame, packed_.data(), packed_.size(), points_) &&
            own_.read_by_points(points_, box_, *sink_)) {
            count(counts_.indexed);
            return jpeg::Reason::none;
        }
        sink_->restart();
        index_->drop(hash_, size_);
        return own_.read(box_, whole_, *sink_);
    }
    const jpeg::Reason reason = own_.finish();
    if (!is_noting_ || reason != jpeg::Reason::none || points_.points.empty()) return reason;
    packed_.clear();
    jpeg::pack(frame, points_, packed_);
    index_->add(hash_, size_, packed_);
    count(counts_.noted);
    return reason;
}

Outcome Decoder::finish_jpeg() {
    const bool own = reason_ == jpeg::Reason::none;
    if (own) reason_ = finish_own();
    count(counts_.of[static_cast<int>(reason_)]);
    if (shift_ > 0) count(counts_.reduced);
    if (reason_ == jpeg::Reason::none) return {};
    if (own) {
        sink_->restart();
        if (Outcome opened = open_libjpeg(); !opened.ok()) return opened;
    }
    return libjpeg_->read(box_, whole_, *sink_);
}

}  // namespace fastload
