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

template <typename T>
void grow(std::vector<T>& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
}

int divide_up(int a, int b) { return (a + b - 1) / b; }

}  // namespace

Reason BaselineDecoder::open(const uint8_t* data, size_t size, int64_t max_work) {
    data_ = data;
    size_ = size;
    max_work_ = max_work;
    const Reason reason = read_frame(data, size, frame_);
    if (reason != Reason::none) return reason;
    return reduce(0) ? Reason::none : Reason::layout;
}

bool BaselineDecoder::reduce(int shift) {
    // Chroma that is half in both directions needs to be reduced less: it has as many samples as
    // there are pixels then.
    const bool both = frame_.h == 2 && frame_.v == 2 && shift > 0;
    const int across = both ? 1 : frame_.h, width = divide_up(frame_.width, 1 << shift);
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
    smooth_ = shift < 3;
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
        plane.dc = 0;
        for (int k = 0; k < component.h * component.v; ++k) component_of_[blocks_++] = i;
        const Frame::Quantisers& from =
            frame_.one_scan ? frame_.quantisers[component.quantisers] : scans_.quantisers(i);
        for (int k = 0; k < 64; ++k) {
            const int value =
                from.wide ? from.values[2 * k] << 8 | from.values[2 * k + 1] : from.values[k];
            plane.quantisers[kPlaces.at[k + 1]] = static_cast<int16_t>(value);
        }
    }
    columns_ = divide_up(frame_.width, 8 * frame_.h);
    rows_ = divide_up(frame_.height, 8 * frame_.v);
    return frame_.one_scan && !prepare_tables() ? Reason::unusual : Reason::none;
}

// For entropy decoding with the pixels.
bool BaselineDecoder::prepare_tables() {
    most_mcus_ = kMostBlocks / blocks_;
    for (int i = 0; i < frame_.components; ++i) {
        const Component& component = frame_.component[i];
        if (!dc_tables_[component.dc_table].make(frame_.dc_codes[component.dc_table], true))
            return false;
        if (!ac_tables_[component.ac_table].make(frame_.ac_codes[component.ac_table], false))
            return false;
        for (int k = 0; k < most_mcus_ * component.h; ++k) {
            const int block = k / component.h * blocks_ + planes_[i].first_block + k % component.h;
            planes_[i].order[0][k] = static_cast<uint16_t>(block);
            planes_[i].order[1][k] = static_cast<uint16_t>(block + component.h);
        }
    }
    source_.start(data_ + frame_.scan, data_ + size_);
    mcu_ = 0;
    until_restart_ = frame_.restart_interval;
    restart_number_ = 0;
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

    if (frame_.one_scan) plan_blocks();
    const int mcus = stop_column_ - first_column_;
    for (int i = 0; i < frame_.components; ++i) {
        const Component& component = frame_.component[i];
        const int width = planes_[i].block * component.h * mcus,
                  height = planes_[i].block * component.v + 1;
        planes_[i].stride =
            static_cast<ptrdiff_t>(padded(kRowLead + static_cast<size_t>(width) + kRowTail));
        grow(planes_[i].samples,
             static_cast<size_t>(planes_[i].stride) * static_cast<size_t>(height));
    }
    const size_t width = static_cast<size_t>(box.width) + 2;
    for (auto& rows : upsampled_) grow(rows, width + kRowTail);
    grow(scratch_, width + kRowTail);
    grow(pixels_, kChunkRows * padded(4 * width + kRowTail));
}

// The blocks of a chunk, and the tables that they are looked up in.
void BaselineDecoder::plan_blocks() {
    // Entries for skipping take time to make, and are not needed for a whole image.
    const int64_t all = int64_t{rows_} * columns_;
    const bool skips = int64_t{last_row_ - first_row_ + 1} * (stop_column_ - first_column_) < all;
    grow(coefficients_, size_t{64} * kMostBlocks + 64 + 1);
    const int begin = kMostBlocks - most_mcus_ * blocks_;
    for (int i = begin; i < kMostBlocks; ++i) {
        const Component& component = frame_.component[component_of_[(i - begin) % blocks_]];
        CodeTables& dc = dc_tables_[component.dc_table];
        CodeTables& ac = ac_tables_[component.ac_table];
        const bool mean = planes_[component_of_[(i - begin) % blocks_]].block == 1;
        decoded_[i] = {&dc.full(), mean ? &ac.passing() : &ac.full(),
                       coefficients_.data() + 64 * i};
        if (skips) skipped_[i] = {&dc.skipping(), &ac.skipping()};
    }
    for (int i = kMostBlocks; i < kMostBlocks + 2; ++i) {
        decoded_[i] = {&kIdle<DoubleEntry>, &kIdle<DoubleEntry>,
                       coefficients_.data() + 64 * kMostBlocks};
        skipped_[i] = {&kIdle<Entry>, &kIdle<Entry>};
    }
}

// Steps over the next chunk: up to `stop`, but not over a restart marker. How many MCUs it has; 0
// where the marker that has to be before it is not.
int BaselineDecoder::begin_chunk(int64_t stop) {
    if (frame_.restart_interval != 0 && until_restart_ == 0) {
        if (!source_.restart(restart_number_)) return 0;
        restart_number_ = (restart_number_ + 1) & 7;
        until_restart_ = frame_.restart_interval;
        for (Plane& plane : planes_) plane.dc = 0;
    }
    source_.reserve();
    const int64_t most = std::min(stop - mcu_, int64_t{most_mcus_});
    const int64_t mcus = frame_.restart_interval == 0 ? most : std::min(most, until_restart_);
    mcu_ += mcus;
    until_restart_ -= mcus;
    return static_cast<int>(mcus);
}

bool BaselineDecoder::skip_to(int64_t stop) {
    while (mcu_ < stop) {
        const int mcus = begin_chunk(stop), blocks = mcus * blocks_;
        if (mcus == 0) return false;
        BlocksTask<Entry> task = {source_.state, skipped_ + kMostBlocks - blocks, blocks};
        if (!kernels_.skip_blocks(task)) return false;
        source_.state = task.bits;
        if (source_.overdrawn()) return false;
        int32_t before = 0;
        for (int i = 0, in_mcu = 0; i < blocks; ++i) {
            const int32_t sum = task.blocks[i].result;
            planes_[component_of_[in_mcu]].dc += static_cast<uint32_t>(sum - before);
            before = sum;
            in_mcu = in_mcu + 1 == blocks_ ? 0 : in_mcu + 1;
        }
    }
    return true;
}

// The samples of a MCU row.
bool BaselineDecoder::decode_row(int row, const Box& box) {
    const int64_t stop = int64_t{row} * columns_ + stop_column_;
    for (int column = first_column_; column < stop_column_;) {
        const int mcus = begin_chunk(stop), blocks = mcus * blocks_;
        if (mcus == 0) return false;
        BlocksTask<DoubleEntry> task = {source_.state, decoded_ + kMostBlocks - blocks, blocks,
                                        planes_[0].block == 1};
        std::memset(task.blocks[0].coefficients, 0,
                    sizeof(int16_t) * 64 * static_cast<size_t>(blocks));
        if (!kernels_.decode_blocks(task)) return false;
        source_.state = task.bits;
        if (source_.overdrawn()) return false;
        for (int i = 0; i < frame_.components; ++i) {
            const Component& component = frame_.component[i];
            Plane& plane = planes_[i];
            const int in_mcu = component.h * component.v;
            uint32_t dc = plane.dc;
            for (int first = plane.first_block; first < blocks; first += blocks_) {
                for (int k = first; k < first + in_mcu; ++k) {
                    int16_t& coefficient = *task.blocks[k].coefficients;
                    dc += static_cast<uint32_t>(int32_t{coefficient});
                    coefficient = static_cast<int16_t>(dc);
                }
            }
            plane.dc = dc;
            for (int down = 0; down < component.v; ++down) {
                uint8_t* const out = samples_of(plane, i, row, down, component.h * column, box);
                if (out == nullptr) continue;
                kernels_.to_samples({task.blocks, plane.order[down], mcus * component.h,
                                     plane.quantisers, out, plane.stride, plane.block});
            }
        }
        column += mcus;
    }
    return true;
}

// Where the samples of a block of a MCU row go; null where they are not needed.
uint8_t* BaselineDecoder::samples_of(Plane& plane, int component, int row, int down, int column,
                                     const Box& box) {
    // Luma above or below the box is in a MCU row for its chroma only.
    const int y = plane.block * (row * frame_.v + down);
    if (component == 0 && (y + plane.block <= box.top || y >= box.top + box.height)) return nullptr;
    return plane.row(plane.block * down) +
           plane.block * (column - frame_.component[component].h * first_column_);
}

void BaselineDecoder::place_row(int row, const Box& box) {
    uint16_t order[kMostBlocks];
    for (int i = 0; i < kMostBlocks; ++i) order[i] = static_cast<uint16_t>(i);
    for (int i = 0; i < frame_.components; ++i) {
        const Component& component = frame_.component[i];
        Plane& plane = planes_[i];
        for (int down = 0; down < component.v; ++down) {
            const int stop = component.h * stop_column_;
            for (int column = component.h * first_column_; column < stop; column += kMostBlocks) {
                uint8_t* const out = samples_of(plane, i, row, down, column, box);
                if (out == nullptr) break;
                const int count = std::min(stop - column, kMostBlocks),
                          y = row * component.v + down;
                Block<DoubleEntry> blocks[kMostBlocks];
                for (int k = 0; k < count; ++k) {
                    blocks[k].coefficients = scans_.block(i, y, column + k);
                    blocks[k].result = kEndAdvance | scans_.reach(i, y, column + k);
                }
                kernels_.to_samples(
                    {blocks, order, count, plane.quantisers, out, plane.stride, plane.block});
            }
        }
    }
}

// Copies of the outermost chroma samples of the image beside them: upsampling has no special cases
// then.
void BaselineDecoder::pad_edges() {
    const int width = divide_up(width_, across_) - planes_[1].block * first_column_;
    for (int i = 1; i < frame_.components; ++i) {
        for (int y = 0; y < planes_[1].block; ++y) {
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
        for (int i = 0; i < width; ++i) out[2 * i] = out[2 * i + 1] = near[i];
    } else if (across_ == 1) {
        kernels_.blend_rows(near, far, above, out.data(), width);
    } else if (down_ == 1) {
        kernels_.double_width(near, out.data(), width);
    } else {
        kernels_.blend_and_double(near, far, out.data(), width, scratch_.data());
    }
    return out.data() + box.left % across_;
}

// The pixel rows that are complete once MCU row `row` is decoded.
void BaselineDecoder::emit(int row, const Box& box, RowSink& sink) {
    const int complete =
        row == rows_ - 1 ? height_ : mcu_height_ * (row + 1) - (is_context() ? 1 : 0);
    const int stop = std::min(complete, box.top + box.height);
    const size_t stride = padded(4 * static_cast<size_t>(box.width) + kRowTail);
    while (next_y_ < stop) {
        const int count = std::min(kChunkRows, stop - next_y_);
        const uint8_t* finished[kChunkRows];
        for (int i = 0; i < count; ++i) {
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
        sink.take(finished, count);
        next_y_ += count;
    }
}

Reason BaselineDecoder::read(const Box& box, bool whole, RowSink& sink) {
    if (const Reason reason = prepare(); reason != Reason::none) {
        scans_.release();
        return reason;
    }
    plan(box);
    next_y_ = box.top;
    for (int row = first_row_; row <= last_row_; ++row) {
        if (!frame_.one_scan) {
            place_row(row, box);
        } else if (!skip_to(int64_t{row} * columns_ + first_column_) || !decode_row(row, box)) {
            return Reason::unusual;
        }
        if (across_ == 2) pad_edges();
        emit(row, box, sink);
        if (is_context()) {
            for (int i = 0; i < frame_.components; ++i) {
                const Plane& plane = planes_[i];
                const uint8_t* last = planes_[i].row(plane.block * frame_.component[i].v - 1);
                std::memcpy(planes_[i].row(-1) - kRowLead, last - kRowLead,
                            static_cast<size_t>(plane.stride));
            }
        }
    }
    scans_.release();
    if (!frame_.one_scan) return Reason::none;
    if (!skip_to(int64_t{whole ? rows_ : last_row_ + 1} * columns_)) return Reason::unusual;
    return source_.ends() ? Reason::none : Reason::unusual;
}

}  // namespace fastload::jpeg
