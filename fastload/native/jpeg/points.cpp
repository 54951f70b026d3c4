#include "jpeg/points.hpp"

#include <algorithm>
#include <cstring>

namespace fastload::jpeg {
namespace {

// Packed points begin with: step (2 bytes, the lower first), bits of each difference of positions
// (1 byte), bits of each difference of DC coefficients (1).
constexpr size_t kHeader = 4;
constexpr int kMostPositionBits = 40, kMostDcBits16 = 17;

// Moves the sign to the lowest bit, so that small differences are small numbers (zigzag encoding).
uint32_t folded(int32_t value) {
    return static_cast<uint32_t>(value) << 1 ^ static_cast<uint32_t>(value >> 31);
}
int32_t unfolded(uint32_t value) { return static_cast<int32_t>(value >> 1 ^ (~(value & 1) + 1)); }

// How many bits a number has, without leading zeros.
int bits_of(uint64_t value) {
    int bits = 0;
    for (; value != 0; value >>= 1) ++bits;
    return bits;
}

size_t packed_bytes(size_t points, int position_bits, int dc_bits, int components) {
    const auto each = static_cast<size_t>(position_bits + components * dc_bits);
    return kHeader + (points * each + 7) / 8;
}

class BitWriter {
  public:
    // Eight bytes beyond the last number are written, too.
    explicit BitWriter(uint8_t* out) : next_(out) {}
    // At most 40 bits.
    void put(uint64_t value, int bits) {
        word_ |= value << count_;
        count_ += bits;
        std::memcpy(next_, &word_, 8);
        next_ += count_ >> 3;
        word_ >>= count_ & ~7;
        count_ &= 7;
    }

  private:
    uint8_t* next_;
    uint64_t word_ = 0;
    int count_ = 0;  // bits of `word_`, below 8 between two numbers
};

class BitReader {
  public:
    BitReader(const uint8_t* data, size_t size) : data_(data), size_(size) {}
    // At most 40 bits; zeros from the end on.
    uint64_t take(int bits) {
        const size_t byte = at_ >> 3;
        uint64_t word = 0;  // 57 of its bits are valid: bytes are read from the lower bits on
        if (byte + 8 <= size_) {
            std::memcpy(&word, data_ + byte, 8);
        } else {
            for (size_t k = byte; k < size_; ++k) word |= uint64_t{data_[k]} << 8 * (k - byte);
        }
        const uint64_t value = word >> (at_ & 7) & ((uint64_t{1} << bits) - 1);
        at_ += static_cast<size_t>(bits);
        return value;
    }

  private:
    const uint8_t* data_;
    size_t size_;
    size_t at_ = 0;  // bits
};

Point first_point(const Frame& frame) {
    Point point;
    point.position = 8 * static_cast<int64_t>(frame.scan);
    return point;
}

}  // namespace

bool find_rows(const Frame& frame, const uint8_t* data, size_t size, int rows,
               std::vector<size_t>& starts) {
    const int in_row = mcu_columns(frame) / frame.restart_interval;
    starts.assign(1, frame.scan);
    size_t at = frame.scan;
    for (int number = 0; starts.size() < static_cast<size_t>(rows);) {
        const void* const found = std::memchr(data + at, 0xff, size - at);
        if (found == nullptr) return false;
        at = static_cast<size_t>(static_cast<const uint8_t*>(found) - data) + 2;
        if (at > size) return false;
        if (data[at - 1] == 0) continue;
        if (data[at - 1] != 0xd0 + (number & 7)) return false;
        if (++number % in_row == 0) starts.push_back(at);
    }
    return true;
}

void pack(const Frame& frame, const Points& points, std::vector<uint8_t>& out) {
    uint64_t positions = 0, dcs = 0;  // the bits that are set in any of the differences
    Point before = first_point(frame);
    for (const Point& point : points.points) {
        positions |= static_cast<uint64_t>(point.position - before.position);
        for (int i = 0; i < frame.components; ++i) dcs |= folded(point.dc[i] - before.dc[i]);
        before = point;
    }
    const int position_bits = bits_of(positions), dc_bits = bits_of(dcs);
    out.push_back(static_cast<uint8_t>(points.step & 255));
    out.push_back(static_cast<uint8_t>(points.step >> 8));
    out.push_back(static_cast<uint8_t>(position_bits));
    out.push_back(static_cast<uint8_t>(dc_bits));
    const size_t begin = out.size();
    const size_t end =
        begin - kHeader +
        packed_bytes(points.points.size() - 1, position_bits, dc_bits, frame.components);
    out.resize(end + 8);
    BitWriter writer(out.data() + begin);
    before = first_point(frame);
    for (size_t k = 1; k < points.points.size(); ++k) {
        const Point& point = points.points[k];
        writer.put(static_cast<uint64_t>(point.position - before.position), position_bits);
        for (int i = 0; i < frame.components; ++i)
            writer.put(folded(point.dc[i] - before.dc[i]), dc_bits);
        before = point;
    }
    out.resize(end);
}

bool unpack(const Frame& frame, const uint8_t* data, size_t size, Points& points) {
    if (!frame.one_scan || size < kHeader) return false;
    points.step = data[0] | data[1] << 8;
    const int position_bits = data[2], dc_bits = data[3];
    if (points.step < 1 || position_bits > kMostPositionBits || dc_bits > kMostDcBits16)
        return false;
    const auto count = static_cast<size_t>(points.in_row(mcu_columns(frame))) *
                       static_cast<size_t>(mcu_rows(frame));
    if (size != packed_bytes(count - 1, position_bits, dc_bits, frame.components)) return false;
    points.points.resize(count);
    points.points[0] = first_point(frame);
    // In variables: a point that was just written field by field is slow to copy in one piece.
    int64_t position = points.points[0].position;
    uint32_t dc[kMostComponents] = {};  // modulo 2^32
    BitReader reader(data + kHeader, size - kHeader);
    for (size_t k = 1; k < count; ++k) {
        position += static_cast<int64_t>(reader.take(position_bits));
        for (int i = 0; i < frame.components; ++i)
            dc[i] += static_cast<uint32_t>(unfolded(static_cast<uint32_t>(reader.take(dc_bits))));
        points.points[k].position = position;
        for (int i = 0; i < kMostComponents; ++i)
            points.points[k].dc[i] = static_cast<int16_t>(dc[i]);
    }
    return true;
}

}  // namespace fastload::jpeg
