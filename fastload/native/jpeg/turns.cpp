// An image in one scan without points, chunk by chunk from its beginning on, alone or beside
// another one.
#include "jpeg/baseline.hpp"

#include <algorithm>
#include <utility>

namespace fastload::jpeg {

void BaselineDecoder::begin(const Box& box, bool whole, RowSink& sink, Points* noted) {
    if (noted != nullptr) noted->points.clear();
    turn_ = Turn::none;
    box_ = box;
    whole_ = whole;
    sink_ = &sink;
    known_ = nullptr;
    noted_ = noted;
    step_ = noted == nullptr ? 0 : noted->step;
    is_bad_ = false;
    thrown_ = nullptr;
    in_turn_ = frame_.one_scan && (noted != nullptr || !restarts_rows(frame_));
    if (in_turn_) begin_turns();
}

Reason BaselineDecoder::finish() {
    while (has_turn()) {
        Stream& stream = streams_[0];
        (void)(turn_ == Turn::skip ? kernels_.skip_one(stream.skip)
                                   : kernels_.decode_one(stream.chunk));
        end_turn();
    }
    if (thrown_ != nullptr) std::rethrow_exception(std::exchange(thrown_, nullptr));
    if (in_turn_) return is_bad_ ? Reason::unusual : Reason::none;
    if (const Reason reason = prepare(); reason != Reason::none) {
        scans_.release();
        return reason;
    }
    plan(box_);
    next_y_ = box_.top;
    if (frame_.one_scan)
        return read_by_restarts(box_, whole_, *sink_) ? Reason::none : Reason::unusual;
    for (int row = first_row_; row <= last_row_; ++row) {
        place_row(row, box_);
        finish_rows(row, 1, box_, *sink_);
    }
    scans_.release();
    return Reason::none;
}

void BaselineDecoder::begin_turns() {
    is_bad_ = true;
    if (prepare() != Reason::none) return;
    plan(box_);
    next_y_ = box_.top;
    Stream& stream = streams_[0];
    plan_blocks(stream);
    plan_skipping(stream);
    start(stream);
    if (noted_ != nullptr) {
        noted_->points.emplace_back();
        noted_->points[0].position = 8 * static_cast<int64_t>(frame_.scan);
    }
    row_ = first_row_;
    is_read_ = false;
    is_bad_ = !next_turn();
    if (is_bad_) turn_ = Turn::none;
}

// The chunk that comes next; where all was read, none. False where the data are bad.
bool BaselineDecoder::next_turn() {
    Stream& stream = streams_[0];
    turn_ = Turn::skip;
    for (; row_ <= last_row_; ++row_) {
        const int64_t row = int64_t{row_} * columns_;
        if (stream.mcu < row + first_column_) return begin_skip(stream, row + first_column_);
        if (stream.mcu < row + stop_column_) {
            turn_ = Turn::decode;
            return begin_blocks(stream, row_);
        }
        // Several rows at a time, as by points: 2% faster than one by one.
        const int count = (row_ - first_row_) % kRowsInWork + 1;
        if (count == kRowsInWork || row_ == last_row_)
            finish_rows(row_ - count + 1, count, box_, *sink_);
    }
    const int64_t all = int64_t{rows_} * columns_;
    const int64_t asked = whole_ ? all : int64_t{last_row_ + 1} * columns_;
    if (stream.mcu < asked) return begin_skip(stream, asked);
    if (!is_read_ && !stream.source.ends()) return false;
    is_read_ = true;
    if (noted_ != nullptr && stream.mcu < all) return begin_skip(stream, all);
    turn_ = Turn::none;
    return true;
}

// What a chunk that is done is for, and the next one.
bool BaselineDecoder::take_turn() {
    Stream& stream = streams_[0];
    if (turn_ == Turn::skip) {
        if (stream.skip.bad || !end_skip(stream)) return false;
    } else {
        const int first = row_ - (row_ - first_row_) % kRowsInWork;
        if (stream.chunk.bad || !end_blocks(stream, first, box_)) return false;
    }
    return next_turn();
}

void BaselineDecoder::end_turn() noexcept {
    try {
        if (take_turn()) return;
    } catch (...) {
        thrown_ = std::current_exception();
    }
    turn_ = Turn::none;
    // Damage below what was asked for is no fault of it.
    if (is_read_) {
        noted_->points.clear();
    } else {
        is_bad_ = true;
    }
}

// Whether the chunk in work has nothing left for the loops.
bool BaselineDecoder::is_turn_done() const {
    const Stream& stream = streams_[0];
    return turn_ == Turn::skip ? stream.skip.bad || stream.skip.is_done()
                               : stream.chunk.bad || stream.chunk.is_done();
}

void BaselineDecoder::read_on(BaselineDecoder& a, BaselineDecoder& b) {
    const JpegKernels& kernels = a.kernels_;
    Stream &first = a.streams_[0], &second = b.streams_[0];
    while (a.has_turn() && b.has_turn()) {
        if (a.turn_ != b.turn_) {
            Stream& skipping = a.turn_ == Turn::skip ? first : second;
            Stream& decoding = a.turn_ == Turn::skip ? second : first;
            (void)kernels.skip_and_decode(skipping.skip, decoding.chunk);
        } else if (a.turn_ == Turn::skip) {
            (void)kernels.skip_two(first.skip, second.skip);
        } else {
            (void)kernels.decode_two(first.chunk, second.chunk);
        }
        if (a.is_turn_done()) a.end_turn();
        if (b.is_turn_done()) b.end_turn();
    }
}

}  // namespace fastload::jpeg
