#include "jpeg.hpp"

#include "kernels.hpp"
#include "orientation.hpp"

namespace fastload {

JpegDecoder::JpegDecoder(const Kernels& kernels, DecoderCounts* counts) : own_(*kernels.jpeg), counts_(counts) {}

Outcome JpegDecoder::open(const uint8_t* data, size_t size, const DecodeLimits& limits) {
    close();
    if (size == 0) return {Status::damaged, "the file is empty"};
    if (size < 3 || data[0] != 0xff || data[1] != 0xd8 || data[2] != 0xff) {
        return {Status::other_format, "no format that the core reads"};
    }
    data_ = data;
    size_ = size;
    limits_ = limits;
    shift_ = 0;
    reason_ = always_libjpeg_ ? jpeg::Reason::forced : own_.open(data, size);
    if (reason_ != jpeg::Reason::none) return open_libjpeg();
    const jpeg::Frame& frame = own_.frame();
    header_ = {{frame.height, frame.width}, frame.components, false, exif_orientation(data, size)};
    return limits.check(header_.size);
}

bool JpegDecoder::reduce(int shift) {
    if (!(reason_ == jpeg::Reason::none ? own_.reduce(shift) : libjpeg_.reduce(shift))) return false;
    shift_ = shift;
    return true;
}

Outcome JpegDecoder::open_libjpeg() {
    Outcome outcome = libjpeg_.open(data_, size_, limits_);
    libjpeg_.reduce(shift_);
    header_ = libjpeg_.header();
    header_.orientation = exif_orientation(data_, size_);
    return outcome;
}

Outcome JpegDecoder::read(const Box& box, bool whole, RowSink& sink) {
    const bool own = reason_ == jpeg::Reason::none;
    if (own) reason_ = own_.read(box, whole, sink);
    if (counts_ != nullptr) {
        counts_->of[static_cast<int>(reason_)].fetch_add(1, std::memory_order_relaxed);
        if (shift_ > 0) counts_->reduced.fetch_add(1, std::memory_order_relaxed);
    }
    if (reason_ == jpeg::Reason::none) return {};
    if (own) {
        sink.restart();
        if (Outcome opened = open_libjpeg(); !opened.ok()) return opened;
    }
    return libjpeg_.read(box, whole, sink);
}

}  // namespace fastload
