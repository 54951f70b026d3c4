#include "device_plan.hpp"

#include <algorithm>
#include <cstring>

#include "jpeg/huffman.hpp"
#include "jpeg/kernels.hpp"

namespace fastload::device {
namespace {

// Bits of a crop's data are numbered by 32 bits.
constexpr size_t kMostBytes = size_t{1} << 28;

size_t padded(size_t bytes) { return (bytes + 15) / 16 * 16; }

// Appends entropy-coded data of a file without the stuffed zeros, from one of its bytes on.
class Unstuffed {
  public:
    Unstuffed(const uint8_t* from, const uint8_t* end, std::vector<uint8_t>& out, size_t first)
        : raw_(from), end_(end), out_(out), first_(first) {}

    // Up to the byte at `stop`, or the one after it where that is a stuffed zero; but not beyond a
    // marker.
    void copy(const uint8_t* stop) {
        while (raw_ < stop) {
            const auto size = static_cast<size_t>(stop - raw_);
            const void* const found = std::memchr(raw_, 0xff, size);
            const uint8_t* const until =
                found == nullptr ? stop : static_cast<const uint8_t*>(found);
            out_.insert(out_.end(), raw_, until);
            raw_ = until;
            if (found == nullptr) return;
            if (end_ - raw_ < 2 || raw_[1] != 0) return;
            out_.push_back(0xff);
            raw_ += 2;
        }
    }
    // Goes beyond restart marker `number`; false if it is not next.
    bool pass_marker(int64_t number) {
        if (end_ - raw_ < 2 || raw_[0] != 0xff || raw_[1] != 0xd0 + (number & 7)) return false;
        raw_ += 2;
        return true;
    }
    const uint8_t* raw() const { return raw_; }
    // How many bits there are, from the first of the crop's data on.
    int64_t bits() const { return int64_t{8} * static_cast<int64_t>(out_.size() - first_); }

  private:
    const uint8_t* raw_;  // the next byte of the file
    const uint8_t* const end_;
    std::vector<uint8_t>& out_;
    const size_t first_;  // of the crop's data in `out_`
};

// Finds the segments of a crop, and copies their data.
class Segments {
  public:
    Segments(const jpeg::Frame& frame, const uint8_t* data, size_t size, const jpeg::Points& points,
             CropPlan& out)
        : frame_(frame),
          data_(data),
          end_(data + size),
          points_(points),
          columns_(jpeg::mcu_columns(frame)),
          out_(out),
          first_(out.bytes.size()) {}

    // Those of MCU row `row` of the image which have any of the columns [from, stop). `in_crop`:
    // the number of the row in the rectangle, whose first column is `from`. False where the points
    // do not fit the data.
    bool add_row(int row, int in_crop, int from, int stop) {
        const int64_t in_row = points_.in_row(columns_);
        const int step = points_.step;
        const jpeg::Point* point = &points_.points[static_cast<size_t>(row * in_row + from / step)];
        const jpeg::Point* const all = points_.points.data() + points_.points.size();
        // Of what follows the image's last point the end is not known. So what is before it is
        // decoded, too, and judges the point; it lies outside of the rectangle.
        const bool before = point + 1 == all && point != points_.points.data();
        if (before) --point;
        if (!is_place(*point)) return false;
        Unstuffed source(byte_of(*point), end_, out_.bytes, first_);
        if (before) {
            const int64_t mcu = int64_t{row} * columns_ + from / step * step;
            const int count = from >= step ? step : columns_ - (columns_ - 1) / step * step;
            if (!add_segments(source, *point, point + 1, mcu - count, count, in_crop, -columns_))
                return false;
            ++point;
        }
        for (int column = from / step * step; column < stop; column += step, ++point) {
            const jpeg::Point* const next = point + 1 == all ? nullptr : point + 1;
            const int count = std::min(step, columns_ - column);
            if (!add_segments(source, *point, next, int64_t{row} * columns_ + column, count,
                              in_crop, column - from))
                return false;
        }
        // The next row begins with a copy of its own of the byte that both have.
        if (point != all && bit_of(*point) > 0) source.copy(byte_of(*point) + 1);
        return true;
    }

  private:
    const uint8_t* byte_of(const jpeg::Point& point) const { return data_ + (point.position >> 3); }
    static int bit_of(const jpeg::Point& point) { return static_cast<int>(point.position & 7); }

    // Whether a MCU can begin there.
    bool is_place(const jpeg::Point& point) const {
        const auto scan = static_cast<int64_t>(frame_.scan);
        const int64_t byte = point.position >> 3;
        if (byte < scan || point.position > int64_t{8} * (end_ - data_)) return false;
        // Between a byte and the zero after it, which is left out.
        const uint8_t* const at = data_ + byte;
        return byte == scan || at == end_ || at[-1] != 0xff || at[0] != 0;
    }

    // What lies from a point to the next, or to the end of the scan: `count` MCUs from `mcu` on.
    // There is more than one segment where restart markers lie in between. `source` is at the byte
    // of the point.
    bool add_segments(Unstuffed& source, const jpeg::Point& point, const jpeg::Point* next,
                      int64_t mcu, int count, int row, int column) {
        const int64_t stop = mcu + count, interval = frame_.restart_interval;
        const uint8_t* const limit = next != nullptr && is_place(*next) ? byte_of(*next) : end_;
        if (next != nullptr && (!is_place(*next) || limit < source.raw())) return false;
        Segment segment = {};
        segment.row = static_cast<uint16_t>(row);
        int64_t begin = source.bits() + bit_of(point);
        std::copy(point.dc, point.dc + kComponents, segment.dc);
        if (interval != 0 && mcu > 0 && mcu % interval == 0) {
            // A point between two intervals is before the marker.
            source.copy(byte_of(point) + (bit_of(point) > 0 ? 1 : 0));
            if (!begin_interval(source, mcu, begin, segment)) return false;
        }
        for (int64_t at = mcu; at < stop;) {
            int64_t until = stop;
            if (interval != 0) until = std::min(until, (at / interval + 1) * interval);
            segment.column = static_cast<int32_t>(column + (at - mcu));
            segment.mcus = static_cast<uint16_t>(until - at);
            int64_t end = 0;
            int slack = 0;  // bits that fill the last byte
            segment.has_end_dc = 0;
            source.copy(limit);
            if (until < stop) {
                end = source.bits();
                slack = 7;
            } else if (next != nullptr) {
                if (source.raw() != limit) return false;
                end = source.bits() + bit_of(*next);
                segment.has_end_dc = 1;
                std::copy(next->dc, next->dc + kComponents, segment.end_dc);
                // Of its last byte only the first bits belong here: it is copied with what follows.
                if (bit_of(*next) > 0 && !has_byte(source, limit)) return false;
            } else {
                end = source.bits();
                slack = static_cast<int>(std::min<int64_t>(end, INT32_MAX));  // any number
            }
            if (end < begin || end >= int64_t{8} * static_cast<int64_t>(kMostBytes)) return false;
            segment.begin = static_cast<uint32_t>(begin);
            segment.end_most = static_cast<uint32_t>(end);
            segment.end_least = static_cast<uint32_t>(std::max(begin, end - slack));
            out_.segments.push_back(segment);
            at = until;
            begin = end;
            if (at < stop && !begin_interval(source, at, begin, segment)) return false;
        }
        return true;
    }

    // Goes on after the restart marker before a MCU. `begin`: where the data before it end [bits].
    static bool begin_interval(Unstuffed& source, int64_t mcu, int64_t& begin, Segment& segment,
                               int64_t interval) {
        const int64_t left = source.bits() - begin;
        if (left < 0 || left > 7 || !source.pass_marker(mcu / interval - 1)) return false;
        begin = source.bits();
        std::fill(segment.dc, segment.dc + kComponents, int16_t{0});
        return true;
    }
    bool begin_interval(Unstuffed& source, int64_t mcu, int64_t& begin, Segment& segment) const {
        return begin_interval(source, mcu, begin, segment, frame_.restart_interval);
    }

    // Whether the byte at `at`, the next one of the source, is one of the data.
    bool has_byte(const Unstuffed& source, const uint8_t* at) const {
        return source.raw() == at && at < end_ && (*at != 0xff || (end_ - at > 1 && at[1] == 0));
    }

    const jpeg::Frame& frame_;
    const uint8_t* const data_;
    const uint8_t* const end_;
    const jpeg::Points& points_;
    const int columns_;  // of MCUs in the image
    CropPlan& out_;
    const size_t first_;
};

// Appends a code of the file, as the kernels take it, if it is a sound one.
bool add_code(const uint8_t* code, bool is_dc, std::vector<uint8_t>& out) {
    jpeg::Code made;
    if (!jpeg::make_code(code, is_dc, made)) return false;
    out.insert(out.end(), code, code + 16);
    out.insert(out.end(), made.symbols, made.symbols + 256);
    return true;
}

// The codes of all components, each once, those for DC first.
bool add_codes(const jpeg::Frame& frame, CropPlan& plan) {
    uint16_t count[2] = {};
    for (const bool is_dc : {true, false}) {
        int numbers[4] = {-1, -1, -1, -1};
        for (int i = 0; i < frame.components; ++i) {
            const jpeg::Component& component = frame.component[i];
            const int slot = is_dc ? component.dc_table : component.ac_table;
            if (numbers[slot] < 0) {
                if (!add_code((is_dc ? frame.dc_codes : frame.ac_codes)[slot], is_dc, plan.bytes))
                    return false;
                numbers[slot] = count[0] + count[1];
                ++count[is_dc ? 0 : 1];
            }
            (is_dc ? plan.crop.plane[i].dc_code : plan.crop.plane[i].ac_code) =
                static_cast<uint32_t>(numbers[slot]);
        }
    }
    plan.crop.dc_codes = count[0];
    plan.crop.ac_codes = count[1];
    return true;
}

void fill_quantisers(const jpeg::Frame::Quantisers& from, int16_t (&out)[64]) {
    for (int k = 0; k < 64; ++k) {
        const int value =
            from.wide ? from.values[2 * k] << 8 | from.values[2 * k + 1] : from.values[k];
        const int place = jpeg::kPlaces.at[k + 1];
        out[place % 8 * 8 + place / 8] = static_cast<int16_t>(value);
    }
}

// The MCUs of an image that a box needs: [first, stop) in both directions.
struct Rectangle {
    int first_column, stop_column, first_row, stop_row;
};

Rectangle rectangle_of(const jpeg::Frame& frame, const Box& box, bool smooth) {
    const int right = box.left + box.width, bottom = box.top + box.height;
    // Smooth upsampling looks at one more sample of chroma on the side that is nearer.
    const int beside = smooth && frame.h == 2 ? 1 : 0, around = smooth && frame.v == 2 ? 1 : 0;
    const int width = divide_up(frame.width, frame.h), height = divide_up(frame.height, frame.v);
    const int chroma_left = std::max(box.left / frame.h - beside, 0),
              chroma_right = std::min((right - 1) / frame.h + 1 + beside, width),
              chroma_top = std::max(box.top / frame.v - around, 0),
              chroma_bottom = std::min((bottom - 1) / frame.v + 1 + around, height);
    return {chroma_left / 8, divide_up(chroma_right, 8), chroma_top / 8,
            divide_up(chroma_bottom, 8)};
}

// What follows from the header: the rectangle of a crop, and all of `out` but its data and
// segments.
Left plan_header(const jpeg::Frame& frame, const Box& box, uint64_t memory, CropPlan& out,
                 Rectangle& area) {
    out.segments.clear();
    out.bytes.clear();
    out.crop = {};
    out.resize = {};
    Crop& crop = out.crop;
    // Of so narrow an image libjpeg repeats chroma.
    if (!frame.one_scan || (frame.h == 2 && frame.width <= 4)) return Left::kind;
    if (box.top < 0 || box.left < 0 || box.height < 1 || box.width < 1 ||
        box.height > frame.height - box.top || box.width > frame.width - box.left)
        return Left::box;
    const bool smooth = frame.h < 4;
    area = rectangle_of(frame, box, smooth);
    crop.columns = area.stop_column - area.first_column;
    const auto mcus =
        static_cast<uint64_t>(crop.columns) * static_cast<uint64_t>(area.stop_row - area.first_row);
    crop.components = static_cast<uint16_t>(frame.components);
    for (int i = 0; i < frame.components; ++i) {
        const jpeg::Component& component = frame.component[i];
        Plane& plane = crop.plane[i];
        plane.h = static_cast<uint32_t>(component.h);
        plane.v = static_cast<uint32_t>(component.v);
        plane.width = plane.h * static_cast<uint32_t>(crop.columns);
        fill_quantisers(frame.quantisers[component.quantisers], plane.quantisers);
    }
    out.blocks = 0;
    for (int i = 0; i < frame.components; ++i) {
        Plane& plane = crop.plane[i];
        plane.first_block = static_cast<uint32_t>(out.blocks);
        out.blocks += mcus * plane.h * plane.v;
        if (out.blocks > UINT32_MAX / 64) return Left::memory;
    }
    crop.luma_left = 8 * frame.h * area.first_column;
    crop.luma_top = 8 * frame.v * area.first_row;
    crop.chroma_left = 8 * area.first_column;
    crop.chroma_top = 8 * area.first_row;
    crop.chroma_width = divide_up(frame.width, frame.h);
    crop.chroma_height = divide_up(frame.height, frame.v);
    crop.top = box.top;
    crop.left = box.left;
    crop.height = box.height;
    crop.width = box.width;
    if (out.memory() > memory) return Left::memory;
    crop.across = static_cast<uint8_t>(frame.h);
    crop.down = static_cast<uint8_t>(frame.v);
    crop.smooth = smooth ? 1 : 0;
    crop.is_ycc = frame.colour == jpeg::Colour::ycc ? 1 : 0;
    if (!add_codes(frame, out)) return Left::kind;
    crop.data = out.bytes.size();
    return Left::none;
}

// Threads that run together then end together, nearly.
void sort_by_bits(std::vector<Segment>& segments) {
    std::stable_sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) {
        return a.end_most - a.begin > b.end_most - b.begin;
    });
}

// All of a crop but the order of its segments: those of a row follow each other.
Left plan_in_order(const jpeg::Frame& frame, const uint8_t* data, size_t size,
                   const jpeg::Points& points, const Box& box, uint64_t memory, CropPlan& out) {
    Rectangle area;
    if (const Left left = plan_header(frame, box, memory, out, area); left != Left::none)
        return left;
    const int columns = jpeg::mcu_columns(frame), rows = jpeg::mcu_rows(frame);
    if (points.step < 1 || points.points.size() != static_cast<size_t>(points.in_row(columns)) *
                                                       static_cast<size_t>(rows))
        return Left::points;
    // Its rows are not longer than the rest of the file, but for the bytes that two of them share.
    const auto first =
        static_cast<size_t>(area.first_row) * static_cast<size_t>(points.in_row(columns));
    const int64_t begin = points.points[first].position >> 3;
    const auto most = std::clamp<int64_t>(static_cast<int64_t>(size) - begin, 0, int64_t{1} << 20);
    out.bytes.reserve(out.bytes.size() + static_cast<size_t>(most) + kDataPadding + 16);
    Segments segments(frame, data, size, points, out);
    for (int row = area.first_row; row < area.stop_row; ++row) {
        if (!segments.add_row(row, row - area.first_row, area.first_column, area.stop_column))
            return Left::points;
        if (out.bytes.size() > kMostBytes) return Left::memory;
    }
    // The bits after the last segment are zeros, and readable.
    out.bytes.resize(padded(out.bytes.size() + kDataPadding));
    return Left::none;
}

}  // namespace

Left plan_crop(const jpeg::Frame& frame, const uint8_t* data, size_t size,
               const jpeg::Points& points, const Box& box, uint64_t memory, CropPlan& out) {
    const Left left = plan_in_order(frame, data, size, points, box, memory, out);
    if (left == Left::none) sort_by_bits(out.segments);
    return left;
}

Left prepare_resident(const jpeg::Frame& frame, const uint8_t* data, size_t size,
                      const jpeg::Points& points, ResidentImage& resident,
                      std::vector<uint8_t>& bytes) {
    CropPlan whole;
    const Box box = {0, 0, frame.height, frame.width};
    const Left left = plan_in_order(frame, data, size, points, box, UINT64_MAX, whole);
    if (left != Left::none) return left;
    resident.segments.assign(whole.segments.begin(), whole.segments.end());  // without slack
    bytes = std::move(whole.bytes);
    return Left::none;
}

Left plan_resident(const jpeg::Frame& frame, const ResidentImage& resident, uint64_t address,
                   const Box& box, uint64_t memory, CropPlan& out) {
    Rectangle area;
    if (const Left left = plan_header(frame, box, memory, out, area); left != Left::none)
        return left;
    out.bytes.clear();  // the codes
    out.crop.is_resident = 1;
    out.crop.codes = address;
    out.crop.data += address;
    const int last_row = jpeg::mcu_rows(frame) - 1;
    auto add = [&](Segment segment) {
        segment.row = static_cast<uint16_t>(segment.row - area.first_row);
        segment.column -= area.first_column;
        out.segments.push_back(segment);
    };
    auto segment = std::lower_bound(
        resident.segments.begin(), resident.segments.end(), area.first_row,
        [](const Segment& one, int row) { return static_cast<int>(one.row) < row; });
    const Segment* before = nullptr;
    bool is_first = true;  // of its row
    for (; segment != resident.segments.end() && segment->row < area.stop_row; ++segment) {
        if (before != nullptr && before->row != segment->row) {
            before = nullptr;
            is_first = true;
        }
        if (segment->column < area.stop_column &&
            segment->column + segment->mcus > area.first_column) {
            // See `Segments::add_row`: of the last point nothing but what is before it judges.
            if (is_first && before != nullptr && segment->row == last_row) add(*before);
            is_first = false;
            add(*segment);
        }
        before = &*segment;
    }
    sort_by_bits(out.segments);
    return Left::none;
}

ResizeTaps::ResizeTaps(const Geometry& geometry, const ResampleOptions& given) {
    ResampleOptions options = given;
    if (geometry.bicubic && options.filter == Filter::bilinear) options.filter = Filter::bicubic;
    std::copy(options.fill, options.fill + 4, fill);
    const Box &box = geometry.box, &window = geometry.window;
    columns.build({box.width, geometry.size.width, window.left, window.width, geometry.mirror, 0.0,
                   static_cast<double>(box.width), geometry.mirror_first},
                  options);
    rows.build({box.height, geometry.size.height, window.top, window.height, geometry.upside_down,
                0.0, static_cast<double>(box.height), geometry.upside_down_first},
               options);
    needed = {box.top, box.left, 1, 1};
    if (columns.count == 0 || rows.count == 0) {
        columns.count = rows.count = 0;  // only padding is shown
        return;
    }
    needed = {box.top + rows.input_start, box.left + columns.input_start, rows.inputs(),
              columns.inputs()};
}

namespace {

// Appends the tables of an axis, which begin at a multiple of 16.
Axis add_axis(const Taps& taps, std::vector<uint8_t>& out) {
    Axis axis = {};
    axis.lead = taps.lead;
    axis.count = taps.count;
    axis.width = taps.width;
    axis.precision = taps.precision;
    const auto count = static_cast<size_t>(taps.count), width = static_cast<size_t>(taps.width);
    axis.first = out.size();
    axis.weights = axis.first + padded(4 * count);
    out.resize(axis.weights + padded(2 * count * width));
    if (count == 0) return axis;
    std::memcpy(out.data() + axis.first, taps.first.data(), 4 * count);
    // Neighbouring threads read neighbouring weights.
    uint8_t* to = out.data() + axis.weights;
    for (size_t k = 0; k < width; ++k) {
        for (size_t i = 0; i < count; ++i, to += 2)
            std::memcpy(to, taps.weights.data() + i * width + k, 2);
    }
    return axis;
}

}  // namespace

void add_resize(const ResizeTaps& taps, CropPlan& out) {
    out.resize.down = add_axis(taps.rows, out.bytes);
    out.resize.across = add_axis(taps.columns, out.bytes);
    std::copy(taps.fill, taps.fill + 4, out.resize.fill);
}

void BatchPlan::add(const CropPlan& plan, uint32_t row) {
    Crop crop = plan.crop;
    const size_t at = buffer_.size();
    if (crop.is_resident == 0) {
        crop.codes = at;
        crop.data += at;
    }
    Resize resize = plan.resize;
    resize.row = row;
    for (Axis* axis : {&resize.down, &resize.across}) {
        axis->first += at;
        axis->weights += at;
    }
    resizes_.push_back(resize);
    crop.first_segment = static_cast<uint32_t>(segments_.size());
    buffer_.insert(buffer_.end(), plan.bytes.begin(), plan.bytes.end());
    segments_.insert(segments_.end(), plan.segments.begin(), plan.segments.end());
    segment_counts_.push_back(static_cast<uint32_t>(plan.segments.size()));
    auto is_full = [&](const Chunk& chunk) {
        return kBytesOfBlock * chunk.blocks + chunk.pixels + plan.memory() > memory_ ||
               chunk.blocks + plan.blocks > UINT32_MAX / 64;
    };
    if (chunks_.empty() || is_full(chunks_.back())) {
        chunks_.emplace_back();
        chunks_.back().first_crop = static_cast<uint32_t>(crops_.size());
        chunks_.back().first_pixel = pixel_bytes_;
    }
    Chunk& chunk = chunks_.back();
    crop.out = chunk.pixels;
    chunk.pixels += plan.pixels();
    pixel_bytes_ += plan.pixels();
    crop.first_block = static_cast<uint32_t>(chunk.blocks);
    for (int i = 0; i < crop.components; ++i) crop.plane[i].first_block += crop.first_block;
    crop.first_strip = static_cast<uint32_t>(chunk.strips);
    chunk.blocks += plan.blocks;
    const uint64_t pixels = static_cast<uint64_t>(crop.height) * static_cast<uint64_t>(crop.width);
    chunk.strips += (pixels + kStrip - 1) / kStrip;
    ++chunk.crops;
    crops_.push_back(crop);
}

void BatchPlan::finish() {
    auto bits = [this](const Task& task) {
        const Segment& segment = segments_[task.first_segment];
        return segment.end_most - segment.begin;
    };
    for (Chunk& chunk : chunks_) {
        chunk.first_task = static_cast<uint32_t>(tasks_.size());
        for (uint32_t i = 0; i < chunk.crops; ++i) {
            const uint32_t number = chunk.first_crop + i;
            for (uint32_t done = 0; done < segment_counts_[number]; done += kSegmentThreads) {
                tasks_.push_back(
                    {i, crops_[number].first_segment + done,
                     std::min(segment_counts_[number] - done, uint32_t{kSegmentThreads})});
            }
        }
        chunk.tasks = static_cast<uint32_t>(tasks_.size()) - chunk.first_task;
        // The longest begin first: they decide when the last one ends.
        std::stable_sort(tasks_.begin() + chunk.first_task, tasks_.end(),
                         [&](const Task& a, const Task& b) { return bits(a) > bits(b); });
    }
    auto append = [this](const auto& table) {
        const size_t at = buffer_.size();
        const size_t bytes = table.size() * sizeof(table[0]);
        buffer_.resize(padded(at + bytes));
        if (bytes > 0) std::memcpy(buffer_.data() + at, table.data(), bytes);
        return at;
    };
    crops_at_ = append(crops_);
    resizes_at_ = append(resizes_);
    segments_at_ = append(segments_);
    tasks_at_ = append(tasks_);
}

uint64_t BatchPlan::first_pixel(size_t number) const {
    for (const Chunk& chunk : chunks_) {
        if (number - chunk.first_crop < chunk.crops) return chunk.first_pixel + crops_[number].out;
    }
    return pixel_bytes_;
}

uint64_t BatchPlan::largest_chunk() const {
    uint64_t most = 0;
    for (const Chunk& chunk : chunks_) most = std::max(most, chunk.blocks);
    return most;
}

}  // namespace fastload::device
