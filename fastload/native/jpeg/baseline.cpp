#include "jpeg/baseline.hpp"

#include <algorithm>
#include <cstring>

namespace fastload::jpeg {
namespace {

constexpr int kChunkRows = 8;  // handed over at a time: few enough to stay in the first-level cache

// Entries that drop nothing and go nowhere: what follows the last block of a chunk.
template <typename E>
const CodeTable<E> kIdle = {};

size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Each sample twice, or four times.
void repeat(const uint8_t* samples, int count, int times, uint8_t* out) {
    for (int i = 0; times == 2 && i < count; ++i) out[2 * i] = out[2 * i + 1] = samples[i];
    for (int i = 0; times == 4 && i < count; ++i) {
        const uint32_t four = samples[i] * 0x01010101u;
        std::memcpy(out + 4 * i, &four, 4);
    }
}

}  // namespace

Reason BaselineDecoder::open(const uint8_t* data, size_t size, int64_t max_work) {
    data_ = data;
    size_ = size;
    max_work_ = max_work;
    turn_ = Turn::none;
    const Reason reason = read_frame(data, size, frame_);
    if (reason != Reason::none) return reason;
    return reduce(0) ? Reason::none : Reason::layout;
}

bool BaselineDecoder::reduce(int shift) {
    // Chroma that is less in both directions needs to be reduced less: half of it has as many
    // samples as there are pixels then.
    const bool both = frame_.h > 1 && frame_.v > 1 && shift > 0;
    const int across = both ? frame_.h / 2 : frame_.h, width = divide_up(frame_.width, 1 << shift);
    // Not upsampled smoothly by libjpeg; such images are rare.
    if (across == 2 && shift < 3 && width <= 4) return false;
    width_ = width;
    height_ = divide_up(frame_.height, 1 << shift);
    for (Plane& plane : planes_) plane.block = (both ? 16 : 8) >> shift;
    planes_[0].block = 8 >> shift;
    mcu_width_ = frame_.h * planes_[0].block;
    mcu_height_ = frame_.v * planes_[0].block;
    across_ = across;
    down_ = both ? 1 : frame_.v;
    smooth_ = shift < 3 && across < 4;
    return true;
}

// What depends on the image, but not on the box.
Reason BaselineDecoder::prepare() {
    if (!frame_.one_scan) {
        const int64_t pixels = int64_t{frame_.width} * frame_.height;
        const Reason reason = scans_.read(data_, size_, frame_, max_work_ / pixels);
        if (reason != Reason::none) return reason;
    }
    blocks_ = 0;
    for (int i = 0; i < frame_.components; ++i) {
        const Component& component = frame_.component[i];
        Plane& plane = planes_[i];
        plane.first_block = blocks_;
        for (int k = 0; k < component.h * component.v; ++k) component_of_[blocks_++] = i;
        const Frame::Quantisers& from =
            frame_.one_scan ? frame_.quantisers[component.quantisers] : scans_.quantisers(i);
        for (int k = 0; k < 64; ++k) {
            const int value =
                from.wide ? from.values[2 * k] << 8 | from.values[2 * k + 1] : from.values[k];
            plane.quantisers[kPlaces.at[k + 1]] = static_cast<int16_t>(value);
        }
    }
    columns_ = mcu_columns(frame_);
    rows_ = mcu_rows(frame_);
    return frame_.one_scan && !prepare_tables() ? Reason::unusual : Reason::none;
}

// For entropy decoding with the pixels.
bool BaselineDecoder::prepare_tables() {
    most_mcus_ = kMostBlocks / blocks_;
    for (int i = 0; i < frame_.components; ++i) {
        const Component& component = frame_.component[i];
        // Components with the same codes share their tables.
        int same = 0;
        while (frame_.component[same].dc_table != component.dc_table ||
               frame_.component[same].ac_table != component.ac_table)
            ++same;
        tables_of_[i] = same;
        if (same == i && !tables_[i].make(frame_.dc_codes[component.dc_table],
                                          frame_.ac_codes[component.ac_table]))
            return false;
        for (int k = 0; k < most_mcus_ * component.h; ++k) {
            const int block = k / component.h * blocks_ + planes_[i].first_block + k % component.h;
            planes_[i].order[0][k] = static_cast<uint16_t>(block);
            planes_[i].order[1][k] = static_cast<uint16_t>(block + component.h);
        }
    }
    return true;
}

void BaselineDecoder::plan(const Box& box) {
    const int right = box.left + box.width, bottom = box.top + box.height;
    // One chroma sample to either side, where there is one: smooth upsampling looks there.
    const int block = planes_[frame_.components - 1].block;
    const int margin = smooth_ ? across_ - 1 : 0;
    const int chroma_left = std::max(box.left / across_ - margin, 0);
    const int chroma_right =
        std::min((right - 1) / across_ + 1 + margin, divide_up(width_, across_));
    first_column_ = chroma_left / block;
    stop_column_ = divide_up(chroma_right, block);
    const int above = is_context() ? 1 : 0;
    first_row_ = std::max(box.top - above, 0) / mcu_height_;
    last_row_ = (bottom - 1) / mcu_height_;
    // The last two rows of a MCU row wait for the chroma of the next (the first of the two for
    // libjpeg only, whose verdict on that data is to be ours).
    if (is_context() && (bottom - 1) % mcu_height_ >= mcu_height_ - 2)
        last_row_ = std::min(last_row_ + 1, rows_ - 1);
    // Its verdict on the others of these rows is ours, too.
    const int at_once = frame_.rows_at_once;
    last_row_ = std::min(last_row_ / at_once * at_once + at_once, rows_) - 1;

    const int mcus = stop_column_ - first_column_;
    for (int i = 0; i < frame_.components; ++i) {
        const Component& component = frame_.component[i];
        const int width = planes_[i].block * component.h * mcus,
                  height = kRowsInWork * planes_[i].block * component.v + 1;
        planes_[i].stride =
            static_cast<ptrdiff_t>(padded(kRowLead + static_cast<size_t>(width) + kRowTail));
        grow(planes_[i].samples,
             static_cast<size_t>(planes_[i].stride) * static_cast<size_t>(height));
    }
    // Of samples that are repeated four times, up to three are of pixels beside the box.
    const size_t width = static_cast<size_t>(box.width) + 6;
    for (auto& rows : upsampled_) grow(rows, width + kRowTail);
    grow(scratch_, width + kRowTail);
    grow(pixels_, kChunkRows * padded(4 * width + kRowTail));
}

// The blocks of a chunk, and the tables that they are looked up in.
void BaselineDecoder::plan_blocks(Stream& stream) {
    const int begin = kMostBlocks - most_mcus_ * blocks_;
    for (int i = begin; i < kMostBlocks; ++i) {
        const int component = component_of_[(i - begin) % blocks_];
        BlockTables& tables = tables_[tables_of_[component]];
        const bool mean = planes_[component].block == 1;
        stream.blocks[i].tables = mean ? tables.passing() : tables.full();
        stream.blocks[i].only_mean = mean;
    }
    for (int i = kMostBlocks; i < kMostBlocks + 2; ++i)
        stream.blocks[i].tables = {&kIdle<DoubleEntry>, &kIdle<DoubleEntry>};
}

// The same for what is stepped over.
void BaselineDecoder::plan_skipping(Stream& stream) {
    // Entries for skipping take time to make, and are not needed for a whole image.
    const int64_t all = int64_t{rows_} * columns_;
    if (int64_t{last_row_ - first_row_ + 1} * (stop_column_ - first_column_) >= all) return;
    const int begin = kMostBlocks - most_mcus_ * blocks_;
    for (int i = begin; i < kMostBlocks; ++i) {
        stream.skipped[i].tables =
            tables_[tables_of_[component_of_[(i - begin) % blocks_]]].skipping();
    }
    for (int i = kMostBlocks; i < kMostBlocks + 2; ++i)
        stream.skipped[i].tables = {&kIdle<Entry>, &kIdle<Entry>};
}

// At the first MCU.
void BaselineDecoder::start(Stream& stream) {
    stream.source.start(data_ + frame_.scan, data_ + size_, noted_ != nullptr);
    stream.mcu = 0;
    stream.until_restart = frame_.restart_interval;
    stream.restart_number = 0;
    std::fill(stream.dc, stream.dc + kMostComponents, 0);
}

// At the point before a MCU that has one. False where no MCU can begin at that place. What is read
// ends soon after the first point from `stop_column_` on.
bool BaselineDecoder::seek(Stream& stream, int row, int column) {
    const auto in_row = static_cast<size_t>(known_->in_row(columns_));
    const size_t number = static_cast<size_t>(row) * in_row + static_cast<size_t>(column / step_);
    const size_t after =
        static_cast<size_t>(row) * in_row + static_cast<size_t>(divide_up(stop_column_, step_));
    const Point& point = known_->points[number];
    const auto size = static_cast<int64_t>(size_);
    const int64_t byte = point.position >> 3;
    int64_t stop = size;
    if (after < known_->points.size()) {
        // Two bytes more: one that is started, and the zero that may be after it.
        stop = std::min((known_->points[after].position >> 3) + 2, size);
    }
    if (byte < static_cast<int64_t>(frame_.scan) || byte >= stop) return false;
    const uint8_t* const from = data_ + byte;
    // Between a byte and the zero after it, which is left out.
    if (from[-1] == 0xff && from[0] == 0 && byte > static_cast<int64_t>(frame_.scan)) return false;
    stream.mcu = int64_t{row} * columns_ + column;
    std::copy(point.dc, point.dc + kMostComponents, stream.dc);
    if (frame_.restart_interval != 0) {
        const int64_t interval = stream.mcu / frame_.restart_interval;
        const int64_t in_interval = stream.mcu % frame_.restart_interval;
        // A point between two intervals is before the marker, except for the first.
        const bool before_marker = in_interval == 0 && stream.mcu > 0;
        stream.until_restart = before_marker ? 0 : frame_.restart_interval - in_interval;
        stream.restart_number = static_cast<int>((interval - (before_marker ? 1 : 0)) & 7);
    }
    return stream.source.start_in(from, static_cast<int>(point.position & 7), data_ + stop, true);
}

// Steps over the next chunk: up to `stop`, but not over a restart marker, and to a point where one
// is near enough. How many MCUs it has; 0 where the marker that has to be before it is not.
int BaselineDecoder::begin_chunk(Stream& stream, int64_t stop) {
    if (frame_.restart_interval != 0 && stream.until_restart == 0) {
        if (!stream.source.restart(stream.restart_number)) return 0;
        stream.restart_number = (stream.restart_number + 1) & 7;
        stream.until_restart = frame_.restart_interval;
        std::fill(stream.dc, stream.dc + kMostComponents, 0);
    }
    stream.source.reserve();
    int64_t mcus = stop - stream.mcu;
    if (step_ > 0) {
        const auto column = static_cast<int>(stream.mcu % columns_);
        int until = step_ - column % step_;  // a point
        // All of them are noted, but the chunks are as long as they can be where they are compared.
        if (noted_ == nullptr) until += std::max(most_mcus_ - until, 0) / step_ * step_;
        mcus = std::min(mcus, int64_t{std::min(until, columns_ - column)});
        if (mcus > most_mcus_) {  // chunks of one size: 8 and 8 MCUs rather than 12 and 4
            const int64_t chunks = (mcus + most_mcus_ - 1) / most_mcus_;
            mcus = (mcus + chunks - 1) / chunks;
        }
    }
    mcus = std::min(mcus, int64_t{most_mcus_});
    if (frame_.restart_interval != 0) mcus = std::min(mcus, stream.until_restart);
    stream.mcu += mcus;
    stream.until_restart -= mcus;
    return static_cast<int>(mcus);
}

// After a chunk, with its DC coefficients summed: where there is a point, it is noted, or compared.
bool BaselineDecoder::end_chunk(Stream& stream) {
    if (step_ == 0) return true;
    const auto column = static_cast<int>(stream.mcu % columns_);
    if (column % step_ != 0 || stream.mcu == int64_t{rows_} * columns_) return true;
    int bit = 0;
    Point point;
    point.position = 8 * (stream.source.position(bit) - data_) + bit;
    for (int i = 0; i < frame_.components; ++i) point.dc[i] = static_cast<int16_t>(stream.dc[i]);
    if (noted_ != nullptr) {
        noted_->points.push_back(point);
        return true;
    }
    const auto in_row = static_cast<size_t>(known_->in_row(columns_));
    return known_->points[static_cast<size_t>(stream.mcu / columns_) * in_row +
                          static_cast<size_t>(column / step_)] == point;
}

// The next chunk that is stepped over, on the way to an MCU. False where the marker that has to be
// before it is not.
bool BaselineDecoder::begin_skip(Stream& stream, int64_t stop) {
    stream.stop = stop;
    const int blocks = begin_chunk(stream, stop) * blocks_;
    stream.skip = {stream.source.state, stream.skipped + kMostBlocks - blocks, blocks};
    return blocks != 0;
}

// Once it is done: its DC coefficients are summed.
bool BaselineDecoder::end_skip(Stream& stream) {
    stream.source.state = stream.skip.bits;
    stream.source.state.count &= 63;
    if (stream.source.overdrawn()) return false;
    int32_t before = 0;
    for (int k = 0, in_mcu = 0; k < stream.skip.count; ++k) {
        const int32_t sum = stream.skip.blocks[k].result;
        stream.dc[component_of_[in_mcu]] += static_cast<uint32_t>(sum - before);
        before = sum;
        in_mcu = in_mcu + 1 == blocks_ ? 0 : in_mcu + 1;
    }
    return end_chunk(stream);
}

// Of `count` streams, each in a row of MCUs after that of the one before: to `stop` and as many
// rows after it.
bool BaselineDecoder::skip_to(int count, int64_t stop) {
    Stream* busy[kStreams];
    int left = 0;
    for (int k = 0; k < count; ++k) {
        const int64_t own_stop = stop + int64_t{k} * columns_;
        if (streams_[k].mcu >= own_stop) continue;
        busy[left++] = &streams_[k];
        if (!begin_skip(streams_[k], own_stop)) return false;
    }
    while (left > 0) {
        if (!(left == 2 ? kernels_.skip_two(busy[0]->skip, busy[1]->skip)
                        : kernels_.skip_one(busy[0]->skip)))
            return false;
        for (int k = left - 1; k >= 0; --k) {
            Stream& stream = *busy[k];
            if (!stream.skip.is_done()) continue;
            if (!end_skip(stream)) return false;
            if (stream.mcu >= stream.stop) {
                busy[k] = busy[--left];
            } else if (!begin_skip(stream, stream.stop)) {
                return false;
            }
        }
    }
    return true;
}

// The next chunk of a row that is decoded. False where the marker that has to be before it is not.
bool BaselineDecoder::begin_blocks(Stream& stream, int row) {
    stream.row = row;
    stream.mcus = begin_chunk(stream, int64_t{row} * columns_ + stop_column_);
    const int blocks = stream.mcus * blocks_;
    stream.chunk = {stream.source.state, stream.blocks + kMostBlocks - blocks, blocks};
    return blocks != 0;
}

// Once it is done: its samples are made; `first` is the first of the rows in work.
bool BaselineDecoder::end_blocks(Stream& stream, int first, const Box& box) {
    stream.source.state = stream.chunk.bits;
    stream.source.state.count &= 63;
    if (stream.source.overdrawn()) return false;
    make_samples(stream, stream.row - first, box);
    return end_chunk(stream);
}

// The samples of `count` MCU rows from `row` on; `first` is the first of the rows in work. Each of
// the first streams is at `column` of one of them; rows that are more than streams are started by
// their points as streams come free. What is left of the box is decoded with it.
bool BaselineDecoder::decode_rows(int first, int row, int count, int column, const Box& box) {
    int started = std::min(count, kStreams), left = started;
    Stream* busy[kStreams];
    for (int k = 0; k < started; ++k) {
        busy[k] = &streams_[k];
        if (!begin_blocks(*busy[k], row + k)) return false;
    }
    while (left > 0) {
        if (!(left == 2 ? kernels_.decode_two(busy[0]->chunk, busy[1]->chunk)
                        : kernels_.decode_one(busy[0]->chunk)))
            return false;
        for (int k = left - 1; k >= 0; --k) {
            Stream& stream = *busy[k];
            if (!stream.chunk.is_done()) continue;
            if (!end_blocks(stream, first, box)) return false;
            if (stream.mcu < int64_t{stream.row} * columns_ + stop_column_) {
                if (!begin_blocks(stream, stream.row)) return false;
            } else if (started < count) {
                if (!seek(stream, row + started, column) || !begin_blocks(stream, row + started))
                    return false;
                ++started;
            } else {
                busy[k] = busy[--left];
            }
        }
    }
    return true;
}

// The chunk before the stream's next MCU, of the `in_work`-th of the rows in work: DC coefficients
// in place of differences, and samples.
void BaselineDecoder::make_samples(Stream& stream, int in_work, const Box& box) {
    const int row = stream.row, mcus = stream.mcus;
    const int blocks = mcus * blocks_;
    Block<DoubleEntry>* const chunk = stream.chunk.blocks;
    const auto column = static_cast<int>(stream.mcu - mcus - int64_t{row} * columns_);
    const int before = std::min(std::max(first_column_ - column, 0), mcus);  // left of the box
    for (int i = 0; i < frame_.components; ++i) {
        const Component& component = frame_.component[i];
        Plane& plane = planes_[i];
        const int in_mcu = component.h * component.v;
        uint32_t dc = stream.dc[i];
        for (int first = plane.first_block; first < blocks; first += blocks_) {
            for (int k = first; k < first + in_mcu; ++k) {
                int16_t& coefficient = chunk[k].coefficients[0];
                dc += static_cast<uint32_t>(int32_t{coefficient});
                coefficient = static_cast<int16_t>(dc);
            }
        }
        stream.dc[i] = dc;
        if (before == mcus) continue;
        for (int down = 0; down < component.v; ++down) {
            uint8_t* const out =
                samples_of(plane, i, row, in_work, down, component.h * (column + before), box);
            if (out == nullptr) continue;
            kernels_.to_samples({chunk, plane.order[down] + before * component.h, nullptr,
                                 (mcus - before) * component.h, plane.quantisers, out, plane.stride,
                                 plane.block});
        }
    }
}

// Where the samples of a block of a MCU row go; null where they are not needed.
uint8_t* BaselineDecoder::samples_of(Plane& plane, int component, int row, int in_work, int down,
                                     int column, const Box& box) {
    // Luma above or below the box is in a MCU row for its chroma only.
    const int y = plane.block * (row * frame_.v + down);
    if (component == 0 && (y + plane.block <= box.top || y >= box.top + box.height)) return nullptr;
    return plane.row(plane.block * (in_work * frame_.component[component].v + down)) +
           plane.block * (column - frame_.component[component].h * first_column_);
}

void BaselineDecoder::place_row(int row, const Box& box) {
    for (int i = 0; i < frame_.components; ++i) {
        const Component& component = frame_.component[i];
        Plane& plane = planes_[i];
        for (int down = 0; down < component.v; ++down) {
            const int stop = component.h * stop_column_;
            for (int column = component.h * first_column_; column < stop; column += kMostBlocks) {
                uint8_t* const out = samples_of(plane, i, row, 0, down, column, box);
                if (out == nullptr) break;
                const int count = std::min(stop - column, kMostBlocks),
                          y = row * component.v + down;
                KeptBlock blocks[kMostBlocks];
                for (int k = 0; k < count; ++k)
                    blocks[k] = {scans_.block(i, y, column + k), scans_.reach(i, y, column + k)};
                kernels_.to_samples({nullptr, nullptr, blocks, count, plane.quantisers, out,
                                     plane.stride, plane.block});
            }
        }
    }
}

// Copies of the outermost chroma samples of the image beside them: upsampling has no special cases
// then.
void BaselineDecoder::pad_edges(int count) {
    const int width = divide_up(width_, across_) - planes_[1].block * first_column_;
    for (int i = 1; i < frame_.components; ++i) {
        for (int y = 0; y < count * planes_[1].block; ++y) {
            uint8_t* row = planes_[i].row(y);
            if (first_column_ == 0) row[-1] = row[0];
            if (stop_column_ == columns_) row[width] = row[width - 1];
        }
    }
}

// A row of chroma samples for the pixels of row `y` from box.left on.
const uint8_t* BaselineDecoder::chroma_row(Plane& plane, int row, int y, const Box& box,
                                           std::vector<uint8_t>& out) {
    const int first = box.left / across_, width = (box.left + box.width - 1) / across_ + 1 - first;
    const int x = first - plane.block * first_column_;
    const uint8_t* near = plane.row(y / down_ - plane.block * row) + x;
    const uint8_t* far = near;
    const bool above = y % 2 == 0;
    if (is_context()) {
        const int neighbour = std::clamp(y / 2 + (above ? -1 : 1), 0, divide_up(height_, 2) - 1);
        far = plane.row(neighbour - plane.block * row) + x;
    }
    if (across_ == 1 && !is_context()) return near;
    if (!smooth_) {
        repeat(near, width, across_, out.data());
    } else if (across_ == 1) {
        kernels_.blend_rows(near, far, above, out.data(), width);
    } else if (down_ == 1) {
        kernels_.double_width(near, out.data(), width);
    } else {
        kernels_.blend_and_double(near, far, out.data(), width, scratch_.data());
    }
    return out.data() + box.left % across_;
}

// The pixel rows that are complete once `count` MCU rows from `row` on are decoded.
void BaselineDecoder::emit(int row, int count, const Box& box, RowSink& sink) {
    const int complete =
        row + count == rows_ ? height_ : mcu_height_ * (row + count) - (is_context() ? 1 : 0);
    const int stop = std::min(complete, box.top + box.height);
    const size_t stride = padded(4 * static_cast<size_t>(box.width) + kRowTail);
    while (next_y_ < stop) {
        const int rows_at_once = std::min(kChunkRows, stop - next_y_);
        const uint8_t* finished[kChunkRows];
        for (int i = 0; i < rows_at_once; ++i) {
            const int y = next_y_ + i;
            const uint8_t* rows[3];
            rows[0] = planes_[0].row(y - mcu_height_ * row) + box.left - mcu_width_ * first_column_;
            rows[1] = rows[2] = rows[0];
            if (frame_.components == 3) {
                for (int c = 1; c < 3; ++c)
                    rows[c] = chroma_row(planes_[c], row, y, box, upsampled_[c - 1]);
            }
            uint8_t* out = pixels_.data() + stride * static_cast<size_t>(i);
            (frame_.colour == Colour::ycc ? kernels_.ycc_to_rgbx : kernels_.rgb_to_rgbx)(rows, out,
                                                                                         box.width);
            finished[i] = out;
        }
        sink.take(finished, rows_at_once);
        next_y_ += rows_at_once;
    }
}

// What follows once the samples of MCU rows are there.
void BaselineDecoder::finish_rows(int row, int count, const Box& box, RowSink& sink) {
    if (across_ == 2) pad_edges(count);
    emit(row, count, box, sink);
    if (!is_context()) return;
    for (int i = 0; i < frame_.components; ++i) {
        Plane& plane = planes_[i];
        const uint8_t* last = plane.row(count * plane.block * frame_.component[i].v - 1);
        std::memcpy(plane.row(-1) - kRowLead, last - kRowLead, static_cast<size_t>(plane.stride));
    }
}

// At the first MCU of a row, after its restart marker.
void BaselineDecoder::start_row(Stream& stream, int row) {
    start(stream);
    stream.source.start(data_ + row_starts_[static_cast<size_t>(row)], data_ + size_);
    stream.mcu = int64_t{row} * columns_;
    stream.restart_number = static_cast<int>(stream.mcu / frame_.restart_interval & 7);
}

// Two rows of MCUs at a time, each from its restart marker on. All that `read_in_turn` would read
// is read, and each row must end where the next one's marker is: the verdict is the same.
bool BaselineDecoder::read_by_restarts(const Box& box, bool whole, RowSink& sink) {
    const int stop_row = whole ? rows_ : last_row_ + 1;
    if (!find_rows(frame_, data_, size_, stop_row, row_starts_)) return false;
    for (Stream& stream : streams_) {
        plan_blocks(stream);
        plan_skipping(stream);
    }
    int count = 0;
    for (int row = 0; row < stop_row; row += count) {
        const bool in_box = row >= first_row_ && row <= last_row_;
        const int until = row < first_row_ ? first_row_ : in_box ? last_row_ + 1 : stop_row;
        count = std::min(kStreams, until - row);
        for (int k = 0; k < count; ++k) start_row(streams_[k], row + k);
        const int64_t first = int64_t{row} * columns_;
        if (in_box) {
            if (!skip_to(count, first + first_column_) ||
                !decode_rows(row, row, count, first_column_, box))
                return false;
            finish_rows(row, count, box, sink);
        }
        if (!skip_to(count, first + columns_)) return false;
        for (int k = 0; k < count && row + k + 1 < stop_row; ++k) {
            const size_t next = row_starts_[static_cast<size_t>(row + k + 1)];
            if (streams_[k].source.marker() != data_ + next - 2) return false;
        }
    }
    return streams_[count - 1].source.ends();
}

bool BaselineDecoder::read_by_points(const Points& points, const Box& box, RowSink& sink) {
    if (!frame_.one_scan || prepare() != Reason::none) return false;
    if (points.step < 1 || points.points.size() != static_cast<size_t>(points.in_row(columns_)) *
                                                       static_cast<size_t>(rows_)) {
        return false;
    }
    plan(box);
    next_y_ = box.top;
    known_ = &points;
    noted_ = nullptr;
    step_ = points.step;
    const int column = first_column_ / step_ * step_;
    for (Stream& stream : streams_) plan_blocks(stream);
    for (int row = first_row_; row <= last_row_; row += kRowsInWork) {
        const int count = std::min(kRowsInWork, last_row_ - row + 1);
        for (int k = 0; k < std::min(count, kStreams); ++k) {
            if (!seek(streams_[k], row + k, column)) return false;
        }
        if (!decode_rows(row, row, count, column, box)) return false;
        finish_rows(row, count, box, sink);
    }
    return true;
}

}  // namespace fastload::jpeg
