#include "encode.hpp"

#include <algorithm>
#include <cstring>

namespace fastload {

using namespace jpeg;

namespace {

// The Huffman codes of the JPEG standard, annex K.3: how many codes there are of each length from 1
// bit on, and their symbols.
struct StandardCode {
    uint8_t counts[16];
    uint8_t symbols[162];

    constexpr int size() const {
        int sum = 0;
        for (const uint8_t count : counts) sum += count;
        return sum;
    }
};
constexpr StandardCode kCodes[2][2] = {
    // Luma: of DC coefficients, then of AC coefficients.
    {{{0, 1, 5, 1, 1, 1, 1, 1, 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
     {{0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 0x7d},
      {0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51, 0x61,
       0x07, 0x22, 0x71, 0x14, 0x32, 0x81, 0x91, 0xa1, 0x08, 0x23, 0x42, 0xb1, 0xc1, 0x15, 0x52,
       0xd1, 0xf0, 0x24, 0x33, 0x62, 0x72, 0x82, 0x09, 0x0a, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x25,
       0x26, 0x27, 0x28, 0x29, 0x2a, 0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45,
       0x46, 0x47, 0x48, 0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63, 0x64,
       0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x83,
       0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99,
       0x9a, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6,
       0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3,
       0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xe1, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8,
       0xe9, 0xea, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa}}},
    // Chroma.
    {{{0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
     {{0, 2, 1, 2, 4, 4, 3, 4, 7, 5, 4, 4, 0, 1, 2, 0x77},
      {0x00, 0x01, 0x02, 0x03, 0x11, 0x04, 0x05, 0x21, 0x31, 0x06, 0x12, 0x41, 0x51, 0x07, 0x61,
       0x71, 0x13, 0x22, 0x32, 0x81, 0x08, 0x14, 0x42, 0x91, 0xa1, 0xb1, 0xc1, 0x09, 0x23, 0x33,
       0x52, 0xf0, 0x15, 0x62, 0x72, 0xd1, 0x0a, 0x16, 0x24, 0x34, 0xe1, 0x25, 0xf1, 0x17, 0x18,
       0x19, 0x1a, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x43, 0x44,
       0x45, 0x46, 0x47, 0x48, 0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63,
       0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a,
       0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97,
       0x98, 0x99, 0x9a, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4,
       0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca,
       0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7,
       0xe8, 0xe9, 0xea, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa}}},
};

// The same in the form that `write_blocks` uses.
struct BothCodes {
    WrittenCodes luma = {}, chroma = {};

    constexpr BothCodes() {
        fill(luma, kCodes[0]);
        fill(chroma, kCodes[1]);
    }

  private:
    static constexpr void fill(WrittenCodes& out, const StandardCode* from) {
        fill(out.dc, from[0], true);
        fill(out.ac, from[1], false);
        for (int run = 0; run < 16; ++run) {
            for (int number = -kSmallNumber; number < kSmallNumber; ++number) {
                int size = 0;
                while ((number < 0 ? -number : number) >> size != 0) ++size;
                const int bits = number < 0 ? number + (1 << size) - 1 : number;
                out.small[run][number + kSmallNumber] =
                    out.ac[run << 4 | size] | static_cast<Written>(bits) << kWrittenLengthBits;
            }
        }
    }

    static constexpr void fill(Written* out, const StandardCode& from, bool dc) {
        uint32_t code = 0;
        int number = 0;
        for (uint32_t length = 1; length <= 16; ++length, code <<= 1) {
            for (int i = 0; i < from.counts[length - 1]; ++i, ++number, ++code) {
                const uint32_t symbol = from.symbols[number], size = dc ? symbol : symbol & 15;
                out[symbol] = code << size << kWrittenLengthBits | (length + size);
            }
        }
    }
};
constexpr BothCodes kWritten;

}  // namespace

void JpegEncoder::write_headers(Size size) {
    const auto byte = [&](int value) { file_.push_back(static_cast<uint8_t>(value)); };
    const auto bytes = [&](std::initializer_list<int> values) {
        for (const int value : values) byte(value);
    };
    const auto two = [&](int value) { bytes({value >> 8, value & 255}); };
    bytes({0xff, 0xd8});
    // JFIF 1.1, square pixels.
    bytes({0xff, 0xe0, 0, 16, 'J', 'F', 'I', 'F', 0, 1, 1, 0, 0, 1, 0, 1, 0, 0});
    for (int table = 0; table < 2; ++table) {
        bytes({0xff, 0xdb, 0, 67, table});
        for (const uint8_t place : Places::kZigzag) byte(quality_.of(table).quantisers[place]);
    }
    bytes({0xff, 0xc0, 0, 17, 8});
    two(size.height);
    two(size.width);
    bytes({3, 1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1});  // a MCU has 2 x 2 blocks of luma
    for (int table = 0; table < 2; ++table) {
        for (int ac = 0; ac < 2; ++ac) {
            const StandardCode& code = kCodes[table][ac];
            bytes({0xff, 0xc4, 0, 19 + code.size(), ac << 4 | table});
            file_.insert(file_.end(), code.counts, code.counts + 16);
            file_.insert(file_.end(), code.symbols, code.symbols + code.size());
        }
    }
    bytes({0xff, 0xda, 0, 12, 3, 1, 0, 2, 0x11, 3, 0x11, 0, 63, 0});
}

// Lists the blocks of a row of MCUs in the order of the file. All rows use the same memory.
void JpegEncoder::plan_row() {
    columns_ = planes_[1].columns;
    const auto columns = static_cast<size_t>(columns_);
    for (int i = 0; i < 4; ++i) grow(coefficients_[i], 64 * ((i < 2 ? 2 : 1) * columns + 3));
    grow(reach_, 2 * columns);
    blocks_.clear();
    for (size_t column = 0; column < columns; ++column) {
        for (int i = 0; i < 2; ++i) {
            const int16_t* const pair = coefficients_[i].data() + 128 * column;
            blocks_.push_back({pair, 0});
            blocks_.push_back({pair + 64, 0});
        }
        for (int c = 1; c < 3; ++c)
            blocks_.push_back({coefficients_[1 + c].data() + 64 * column, c});
    }
    grow(bits_, blocks_.size() * kMostWrittenBytes + 8);
}

// Computes the coefficients of a row of MCUs. Blocks beyond the image, which complete a MCU, have
// only a DC coefficient, equal to that of the block before, as libjpeg makes them.
void JpegEncoder::make_row(int row) {
    for (int i = 0; i < 4; ++i) {
        const int component = std::max(i - 1, 0);
        SamplePlane& plane = planes_[component];
        const int y = component == 0 ? 2 * row + i : row;
        int16_t* const out = coefficients_[i].data();
        if (y < plane.rows) {
            kernels_.to_coefficients({plane.row(8 * y), plane.stride, plane.columns,
                                      &quality_.of(component), out, reach_.data()});
            if (component > 0 || plane.columns == 2 * columns_) continue;
            int16_t* const beyond = out + 64 * plane.columns;
            std::fill_n(beyond, 64, int16_t{0});
            beyond[0] = beyond[-64];
        } else {
            std::fill_n(out, 128 * columns_, int16_t{0});
            for (int column = 0; column < columns_; ++column) {
                const int16_t before = coefficients_[0][static_cast<size_t>(128 * column + 64)];
                out[128 * column] = out[128 * column + 64] = before;
            }
        }
    }
}

// Appends entropy-coded data to the file, with a zero after each 0xff (byte stuffing).
void JpegEncoder::stuff(const uint8_t* from, const uint8_t* stop) {
    while (from != stop) {
        const void* const found = std::memchr(from, 0xff, static_cast<size_t>(stop - from));
        const uint8_t* const end = found == nullptr ? stop : static_cast<const uint8_t*>(found) + 1;
        file_.insert(file_.end(), from, end);
        if (found != nullptr) file_.push_back(0);
        from = end;
    }
}

const std::vector<uint8_t>& JpegEncoder::run(const uint8_t* pixels, Size size, int quality) {
    quality_.set(quality);
    planes_.take(pixels, size, false);
    plan_row();
    file_.clear();
    write_headers(size);
    static constexpr const WrittenCodes* kByComponent[3] = {&kWritten.luma, &kWritten.chroma,
                                                            &kWritten.chroma};
    int32_t dc[3] = {};
    BitOutput bits;
    for (int row = 0; row < planes_[1].rows; ++row) {
        make_row(row);
        bits.next = bits_.data();
        WriteTask task = {blocks_.data(), static_cast<int>(blocks_.size()), kByComponent, dc, bits};
        kernels_.write_blocks(task);
        bits = task.out;
        stuff(bits_.data(), bits.next);
    }
    if (bits.count > 0) {  // the last byte is filled with ones
        const auto last = static_cast<uint8_t>(bits.bits >> 56 | 255u >> bits.count);
        stuff(&last, &last + 1);
    }
    file_.push_back(0xff);
    file_.push_back(0xd9);
    return file_;
}

void JpegEncoder::trim(size_t most) {
    planes_.trim(most);
    if (file_.capacity() > most) std::vector<uint8_t>().swap(file_);
}

}  // namespace fastload
