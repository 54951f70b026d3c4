// Operations that make a pixel of those around it: weighted sums and medians. Included as
// colour.inl.hpp is, which says how it is compiled.
#pragma once

#include <algorithm>
#include <cstring>

#include "colour_blocks.inl.hpp"
#include "colour_loops.hpp"

namespace fastload {
namespace {

// The position of a pixel that is shown beside the image, at most length - 1 outside of it.
inline int mirrored(int position, int length) {
    if (position < 0) position = -position;
    return position < length ? position : 2 * (length - 1) - position;
}

// total = kAdds ? total + sum : sum, of kRows rows times their weights, added one after the other:
// a value of it stays in a register meanwhile.
template <int kRows, bool kAdds, typename Value>
void add_rows(const Value* const* rows, const float* weights, size_t line,
              float* __restrict__ total) {
    const Value* row[kRows];
    float weight[kRows];
    std::copy_n(rows, kRows, row);
    std::copy_n(weights, kRows, weight);
    for (size_t i = 0; i < line; ++i) {
        float sum = kAdds ? total[i] : 0.0f;
        for (int k = 0; k < kRows; ++k)
            sum = mul_add(static_cast<float>(row[k][i]), weight[k], sum);
        total[i] = sum;
    }
}

// Adds weighted rows to `total`, one after the other, and reads and writes it once for several
// rows. Rows without weight are left out: of a kernel that is smaller than others of its table.
template <typename Value>
class WeightedSum {
  public:
    WeightedSum(float* total, size_t line) : total_(total), line_(line) {}
    void add(const Value* row, float weight) {
        if (weight == 0.0f) return;
        rows_[count_] = row;
        weights_[count_++] = weight;
        if (count_ == kMost) take<kMost>();
    }
    // Writes `total`.
    void flush() {
        if (!started_ && count_ == 0) std::fill_n(total_, line_, 0.0f);
        if (count_ & 8) take<8>();
        if (count_ & 4) take<4>();
        if (count_ & 2) take<2>();
        if (count_ & 1) take<1>();
    }

  private:
    static constexpr int kMost = 16;

    // The first rows that are not added yet.
    template <int kRows>
    void take() {
        started_ ? add_rows<kRows, true>(rows_, weights_, line_, total_)
                 : add_rows<kRows, false>(rows_, weights_, line_, total_);
        started_ = true;
        count_ -= kRows;
        for (int k = 0; k < count_; ++k) {
            rows_[k] = rows_[k + kRows];
            weights_[k] = weights_[k + kRows];
        }
    }

    float* const total_;
    const size_t line_;
    const Value* rows_[kMost];
    float weights_[kMost];
    int count_ = 0;
    bool started_ = false;
};

// Copies packed rows, with `half` pixels more on either side: those of the image in the columns
// that `column` gives. Returns the bytes of a row.
template <typename Column>
size_t widen(const uint8_t* pixels, Size size, int channels, int half, uint8_t* out,
             Column column) {
    const auto each = static_cast<size_t>(channels), beside = static_cast<size_t>(half) * each,
               line = static_cast<size_t>(size.width) * each, wide = line + 2 * beside;
    for (int y = 0; y < size.height; ++y, pixels += line, out += wide) {
        std::memcpy(out + beside, pixels, line);
        for (int x = 0; x < half; ++x) {
            const auto left = static_cast<size_t>(column(x - half)),
                       right = static_cast<size_t>(column(size.width + x));
            std::memcpy(out + static_cast<size_t>(x) * each, pixels + left * each, each);
            std::memcpy(out + beside + line + static_cast<size_t>(x) * each, pixels + right * each,
                        each);
        }
    }
    return wide;
}

void convolve(const FilterTable& table, int row, Size size, int channels, uint8_t* pixels,
              uint8_t* scratch, float* floats) {
    const int side = table.side, half = side / 2;
    const float* const weights = table.kernels + static_cast<ptrdiff_t>(row) * side * side;
    const size_t line = static_cast<size_t>(size.width) * static_cast<size_t>(channels);
    const size_t wide = widen(pixels, size, channels, half, scratch,
                              [&](int x) { return mirrored(x, size.width); });
    for (int y = 0; y < size.height; ++y) {
        WeightedSum<uint8_t> sum(floats, line);
        for (int down = 0; down < side; ++down) {
            const auto from = static_cast<size_t>(mirrored(y + down - half, size.height));
            for (int across = 0; across < side; ++across)
                sum.add(scratch + from * wide +
                            static_cast<size_t>(across) * static_cast<size_t>(channels),
                        weights[down * side + across]);
        }
        sum.flush();
        uint8_t* const out = pixels + line * static_cast<size_t>(y);
        for (size_t i = 0; i < line; ++i) out[i] = to_byte(rounded(floats[i]));
    }
}

// Puts the smaller of two numbers first.
inline void exchange(uint8_t& a, uint8_t& b) {
    const uint8_t low = a < b ? a : b;
    b = a < b ? b : a;
    a = low;
}

// The median of nine, by 19 exchanges (Paeth, Graphics Gems, 1990; Devillard, 1998).
inline uint8_t median_of_nine(uint8_t a, uint8_t b, uint8_t c, uint8_t d, uint8_t e, uint8_t f,
                              uint8_t g, uint8_t h, uint8_t i) {
    exchange(b, c), exchange(e, f), exchange(h, i);
    exchange(a, b), exchange(d, e), exchange(g, h);
    exchange(b, c), exchange(e, f), exchange(h, i);
    exchange(a, d), exchange(f, i), exchange(e, h);
    exchange(d, g), exchange(b, e), exchange(c, f);
    exchange(e, h), exchange(e, c), exchange(g, e);
    exchange(e, c);
    return e;
}

// As many values at a time. The arrays are members of one struct, so that compilers know that they
// do not overlap.
struct MedianBlock {
    static constexpr size_t kMost = 256;
    uint8_t found[kMost], tried[kMost], count[kMost];

    void of_nine(const uint8_t* above, const uint8_t* here, const uint8_t* below, size_t each,
                 size_t values) {
        for (size_t i = 0; i < values; ++i)
            found[i] = median_of_nine(above[i], above[i + each], above[i + 2 * each], here[i],
                                      here[i + each], here[i + 2 * each], below[i], below[i + each],
                                      below[i + 2 * each]);
    }
};

// The median is the largest number that more than half of the neighbours are not below: it is found
// bit by bit from the highest on. Beside the image lie copies of its border.
void median(int side, Size size, int channels, uint8_t* pixels, uint8_t* scratch) {
    const int half = side / 2;
    const auto needed = static_cast<uint8_t>(side * side / 2 + 1);
    const auto each = static_cast<size_t>(channels);
    const size_t line = static_cast<size_t>(size.width) * each;
    const size_t wide = widen(pixels, size, channels, half, scratch,
                              [&](int x) { return std::clamp(x, 0, size.width - 1); });
    const auto row = [&](int y) {
        return scratch + static_cast<size_t>(std::clamp(y, 0, size.height - 1)) * wide;
    };
    MedianBlock block;
    for (int y = 0; y < size.height; ++y) {
        uint8_t* const out = pixels + line * static_cast<size_t>(y);
        for (size_t first = 0; first < line; first += MedianBlock::kMost) {
            const size_t count = std::min(MedianBlock::kMost, line - first);
            if (side == 3) {
                block.of_nine(row(y - 1) + first, row(y) + first, row(y + 1) + first, each, count);
                std::memcpy(out + first, block.found, count);
                continue;
            }
            std::memset(block.found, 0, sizeof block.found);
            for (int bit = 128; bit > 0; bit >>= 1) {
                for (size_t i = 0; i < count; ++i)
                    block.tried[i] = static_cast<uint8_t>(block.found[i] | bit);
                std::memset(block.count, 0, sizeof block.count);
                for (int tap = 0; tap < side * side; ++tap) {
                    const uint8_t* const source =
                        row(y + tap / side - half) + first + static_cast<size_t>(tap % side) * each;
                    for (size_t i = 0; i < count; ++i)
                        block.count[i] =
                            static_cast<uint8_t>(block.count[i] + (source[i] >= block.tried[i]));
                }
                for (size_t i = 0; i < count; ++i)
                    block.found[i] = block.count[i] >= needed ? block.tried[i] : block.found[i];
            }
            std::memcpy(out + first, block.found, count);
        }
    }
}

}  // namespace
}  // namespace fastload
