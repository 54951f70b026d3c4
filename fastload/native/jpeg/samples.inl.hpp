// Decoding: from coefficients to pixels by inverse DCT, upsampling and colour conversion. Included
// once per instruction set.
//
// Each step gives the same integers as libjpeg-turbo with its defaults (the "slow" integer DCT,
// "fancy" upsampling). Coefficients that no encoder writes may overflow 16 bits; the results are
// then those of its SSE2 and AVX2 code.
#pragma once

#include "jpeg/kernels.hpp"
#include "simd.hpp"

namespace fastload::jpeg {
namespace {

// A vector of pairs (a, b) of 16-bit numbers, for madd16.
inline V pair(int a, int b) {
    return Simd::all32(static_cast<int>(static_cast<uint32_t>(a) & 0xffff) |
                       static_cast<int>(static_cast<uint32_t>(b) << 16));
}

// The numbers of a vector of 16-bit numbers as 32-bit numbers, in two vectors. LowWide: only those
// of the lower half of each lane.
struct Wide {
    V low, high;
};
struct LowWide {
    V low;
};

inline Wide operator+(Wide a, Wide b) {
    return {Simd::add32(a.low, b.low), Simd::add32(a.high, b.high)};
}
inline Wide operator-(Wide a, Wide b) {
    return {Simd::sub32(a.low, b.low), Simd::sub32(a.high, b.high)};
}
inline LowWide operator+(LowWide a, LowWide b) { return {Simd::add32(a.low, b.low)}; }
inline LowWide operator-(LowWide a, LowWide b) { return {Simd::sub32(a.low, b.low)}; }

// The numbers of two vectors in pairs (x, y), made once. `times(a, b)`: a x + b y.
struct Pairs {
    V low, high;
    Pairs(V a, V b) : low(Simd::low16(a, b)), high(Simd::high16(a, b)) {}
    Wide times(int a, int b) const {
        return {Simd::madd16(low, pair(a, b)), Simd::madd16(high, pair(a, b))};
    }
};
struct LowPairs {
    V low;
    LowPairs(V a, V b) : low(Simd::low16(a, b)) {}
    LowWide times(int a, int b) const { return {Simd::madd16(low, pair(a, b))}; }
};

// Sums of cosines of multiples of pi / 16, with 13 fractional bits; the digits of a name are the
// value, k0298 = 0.298... The algorithm is that of Loeffler, Ligtenberg and Moschytz (ICASSP 1989)
// with 12 multiplications, as in libjpeg's jidctint.c.
constexpr int k0298 = 2446, k0390 = 3196, k0541 = 4433, k0765 = 6270, k0899 = 7373, k1175 = 9633,
              k1501 = 12299, k1847 = 15137, k1961 = 16069, k2053 = 16819, k2562 = 20995,
              k3072 = 25172;
constexpr int kConstantBits = 13, kPassBits = 2;

// Divides by 2^kShift, rounded.
template <int kShift>
inline V descaled(V x) {
    return Simd::right32<kShift>(Simd::add32(x, Simd::all32(1 << (kShift - 1))));
}
template <int kShift>
inline V descale(Wide x) {
    return Simd::pack32(descaled<kShift>(x.low), descaled<kShift>(x.high));
}
template <int kShift>
inline V descale(LowWide x) {
    const V low = descaled<kShift>(x.low);
    return Simd::pack32(low, low);
}

// 16-bit numbers times 2^kBits: moved to the upper halves of 32-bit numbers, then shifted right.
template <int kBits>
inline Wide scale(V x) {
    return {Simd::right32<16 - kBits>(Simd::low16(Simd::zero(), x)),
            Simd::right32<16 - kBits>(Simd::high16(Simd::zero(), x))};
}

// The last step of a transform: sums and differences of the even and the odd part.
template <int kShift, int kHalf, typename Sums>
inline void join(const Sums (&even)[kHalf], const Sums (&odd)[kHalf], V (&out)[8]) {
    for (int i = 0; i < kHalf; ++i) {
        out[i] = descale<kShift>(even[i] + odd[i]);
        out[2 * kHalf - 1 - i] = descale<kShift>(even[i] - odd[i]);
    }
}

// One dimension of the inverse DCT of all columns.
template <int kShift>
inline void transform(V (&x)[8]) {
    const Pairs even_pairs(x[2], x[6]);
    const Wide even3 = even_pairs.times(k0541 + k0765, k0541),
               even2 = even_pairs.times(k0541, k0541 - k1847);
    // In 16 bits, as in libjpeg-turbo's vector code.
    const V sum = Simd::add16(x[0], x[4]), difference = Simd::sub16(x[0], x[4]);
    const Wide even0 = scale<kConstantBits>(sum), even1 = scale<kConstantBits>(difference);
    const Wide even[4] = {even0 + even3, even1 + even2, even1 - even2, even0 - even3};

    const Pairs sums(Simd::add16(x[7], x[3]), Simd::add16(x[5], x[1]));
    const Wide z3 = sums.times(k1175 - k1961, k1175), z4 = sums.times(k1175, k1175 - k0390);
    const Pairs outer(x[7], x[1]), inner(x[5], x[3]);
    const Wide odd[4] = {
        outer.times(-k0899, k1501 - k0899) + z4, inner.times(-k2562, k3072 - k2562) + z3,
        inner.times(k2053 - k2562, -k2562) + z4, outer.times(k0298 - k0899, -k0899) + z3};
    join<kShift>(even, odd, x);
}

// The same if x[4] to x[7] are zero. OfTwo is Pairs, or LowPairs for the left half of the columns
// only; the right half of the result is then undefined.
template <int kShift, typename OfTwo>
inline void transform_half(V (&x)[8]) {
    const OfTwo even_pairs(x[0], x[2]), odd_pairs(x[1], x[3]);
    using Sums = decltype(even_pairs.times(0, 0));
    const int one = 1 << kConstantBits;
    const Sums even[4] = {even_pairs.times(one, k0541 + k0765), even_pairs.times(one, k0541),
                          even_pairs.times(one, -k0541), even_pairs.times(one, -k0541 - k0765)};
    const Sums odd[4] = {odd_pairs.times(k1501 - k0899 + k1175 - k0390, k1175),
                         odd_pairs.times(k1175, k3072 - k2562 + k1175 - k1961),
                         odd_pairs.times(k1175 - k0390, -k2562 + k1175),
                         odd_pairs.times(-k0899 + k1175, k1175 - k1961)};
    join<kShift>(even, odd, x);
}

inline void transpose(V (&x)[8]) {
    V a[8], b[8];
    for (int i = 0; i < 4; ++i) {
        a[2 * i] = Simd::low16(x[2 * i], x[2 * i + 1]);
        a[2 * i + 1] = Simd::high16(x[2 * i], x[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
        b[4 * i] = Simd::low32(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = Simd::high32(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = Simd::low32(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = Simd::high32(a[4 * i + 1], a[4 * i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        x[2 * i] = Simd::low64(b[i], b[i + 4]);
        x[2 * i + 1] = Simd::high64(b[i], b[i + 4]);
    }
}

// Transposes if only the left half of the columns may be nonzero: the lower four rows of the result
// are then zero, and are not written.
inline void transpose_left(V (&x)[8]) {
    V a[4];
    for (int i = 0; i < 4; ++i) a[i] = Simd::low16(x[2 * i], x[2 * i + 1]);
    const V b0 = Simd::low32(a[0], a[1]), b1 = Simd::high32(a[0], a[1]);
    const V b2 = Simd::low32(a[2], a[3]), b3 = Simd::high32(a[2], a[3]);
    x[0] = Simd::low64(b0, b2);
    x[1] = Simd::high64(b0, b2);
    x[2] = Simd::low64(b1, b3);
    x[3] = Simd::high64(b1, b3);
}

// If all rows of a lane but the first are zero, libjpeg-turbo only shifts the first row left, in 16
// bits. For numbers of up to 14 bits the transform gives the same. Larger numbers are cut to 14
// bits here, so that it does for them, too.
inline V as_if_shifted(V first, V others) {
    V zero = Simd::equal32(others, Simd::zero());
    zero = Simd::bit_and(zero, Simd::swap64(zero));
    zero = Simd::bit_and(zero, Simd::swap32(zero));
    const V wrapped = Simd::right16<kPassBits>(Simd::left16<kPassBits>(first));
    return Simd::bit_xor(first, Simd::bit_and(zero, Simd::bit_xor(first, wrapped)));
}

constexpr int kFirstShift = kConstantBits - kPassBits, kSecondShift = kConstantBits + kPassBits + 3;

inline KeptBlock block_of(const SamplesTask& task, int number) {
    if (task.blocks == nullptr) return task.kept[number];
    const Block<DoubleEntry>& block = task.blocks[task.order[number]];
    return {block.coefficients, block.result & (kEndAdvance - 1)};
}

// Gets the coefficients of kLanes blocks, from block `first` of the task on. Lanes after the last
// block get that one again; their samples go to the tail of the row. Returns the largest reach of
// these blocks.
inline int take_blocks(const SamplesTask& task, int first, const int16_t* (&blocks)[kLanes]) {
    int reach = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
        const KeptBlock block =
            block_of(task, first + lane < task.count ? first + lane : task.count - 1);
        blocks[lane] = block.coefficients;
        reach = block.reach > reach ? block.reach : reach;
    }
    return reach;
}

// Blocks to 8 x 8 samples.
void to_whole_samples(const SamplesTask& task) {
    const V centre = Simd::all8(128);
    uint8_t* out = task.out;
    for (int first = 0; first < task.count; first += kLanes, out += 8 * kLanes) {
        const int16_t* blocks[kLanes];
        const int reach = take_blocks(task, first, blocks);
        if (reach <= 1) {
            for (int lane = 0; lane < kLanes; ++lane) {
                const auto product = static_cast<int16_t>(blocks[lane][0] * task.quantisers[0]);
                const int value =
                    (static_cast<int16_t>(static_cast<uint32_t>(product) << kPassBits) + 16) >> 5;
                const int sample = (value < -128 ? -128 : value > 127 ? 127 : value) + 128;
                const uint64_t row = static_cast<uint64_t>(sample) * 0x0101010101010101u;
                for (int y = 0; y < 8; ++y) std::memcpy(out + y * task.stride + 8 * lane, &row, 8);
            }
            continue;
        }
        V x[8];
        const int rows = reach <= kCorner ? 4 : 8;
        V others = Simd::zero();
        for (int y = 0; y < rows; ++y) {
            x[y] = Simd::load_lanes(blocks, 8 * y);
            if (y > 0) others = Simd::bit_or(others, x[y]);
            x[y] = Simd::mul16(x[y], Simd::repeat(task.quantisers + 8 * y));
        }
        x[0] = as_if_shifted(x[0], others);
        if (rows == 4) {
            transform_half<kFirstShift, LowPairs>(x);
            transpose_left(x);
            transform_half<kSecondShift, Pairs>(x);
        } else {
            transform<kFirstShift>(x);
            transpose(x);
            transform<kSecondShift>(x);
        }
        transpose(x);
        for (int y = 0; y < 8; y += 2) {
            const V two_rows = Simd::add8(Simd::pack16(x[y], x[y + 1]), centre);
            Simd::store_halves(out + y * task.stride, two_rows);
            Simd::store_halves(out + (y + 1) * task.stride, Simd::swap64(two_rows));
        }
    }
}

// One dimension of the inverse DCT of all columns to four numbers, as in libjpeg's jidctred.c,
// which ignores some coefficients. Constants that are not above are written as numbers with 13
// fractional bits. The result is transposed.
template <int kShift>
inline void transform_to_four(V (&x)[8]) {
    const Pairs even_pairs(x[2], x[6]), outer(x[7], x[5]), inner(x[3], x[1]);
    const Wide first = scale<kConstantBits + 1>(x[0]), second = even_pairs.times(k1847, -k0765);
    const Wide even[2] = {first + second, first - second};
    const Wide odd[2] = {outer.times(-4176, -4926) + inner.times(k0899, k2562),
                         outer.times(-1730, 11893) + inner.times(-17799, 8697)};
    join<kShift + 1>(even, odd, x);
    for (int y = 4; y < 8; ++y) x[y] = Simd::zero();
    transpose(x);
}

// Blocks to 4 x 4 samples.
void to_four_samples(const SamplesTask& task) {
    const V centre = Simd::all8(128);
    uint8_t* out = task.out;
    for (int first = 0; first < task.count; first += kLanes, out += 4 * kLanes) {
        const int16_t* blocks[kLanes];
        take_blocks(task, first, blocks);
        V x[8];
        for (int y = 0; y < 8; ++y)
            x[y] =
                Simd::mul16(Simd::load_lanes(blocks, 8 * y), Simd::repeat(task.quantisers + 8 * y));
        transform_to_four<kFirstShift>(x);
        transform_to_four<kSecondShift>(x);
        for (int y = 0; y < 4; ++y) {
            uint8_t samples[kVectorBytes];
            Simd::store(samples, Simd::add8(Simd::pack16(x[y], x[y]), centre));
            for (int lane = 0; lane < kLanes; ++lane)
                std::memcpy(out + y * task.stride + 4 * lane, samples + 16 * lane, 4);
        }
    }
}

// Blocks to 2 x 2 samples, by jidctred.c, too: of rows and columns 0, 1, 3, 5 and 7. The constants
// have 13 fractional bits.
void to_two_samples(const SamplesTask& task) {
    constexpr int k1 = 29692, k3 = -10426, k5 = 6967, k7 = -5906;
    static constexpr int16_t kOfRow[8] = {0, k1, 0, k3, 0, k5, 0, k7};
    const V centre = Simd::all8(128), of_row = Simd::repeat(kOfRow);
    uint8_t* out = task.out;
    for (int first = 0; first < task.count; first += kLanes, out += 2 * kLanes) {
        const int16_t* blocks[kLanes];
        const int reach = take_blocks(task, first, blocks);
        auto row = [&](int y) {
            return Simd::mul16(Simd::load_lanes(blocks, 8 * y),
                               Simd::repeat(task.quantisers + 8 * y));
        };
        const Wide even = scale<kConstantBits + 2>(row(0));
        Wide odd = Pairs(row(3), row(1)).times(k3, k1);
        if (reach > kCorner) odd = odd + Pairs(row(7), row(5)).times(k7, k5);
        const V upper = descale<kFirstShift + 2>(even + odd),
                lower = descale<kFirstShift + 2>(even - odd);
        // From here on the first number of each lane is of the upper row, the second of the lower.
        const V evens =
            Simd::low32(scale<kConstantBits + 2>(upper).low, scale<kConstantBits + 2>(lower).low);
        const V products[2] = {Simd::madd16(upper, of_row), Simd::madd16(lower, of_row)};
        const V halves = Simd::add32(Simd::low32(products[0], products[1]),
                                     Simd::high32(products[0], products[1]));
        const V odds = Simd::add32(halves, Simd::swap64(halves));
        const V four = descaled<kSecondShift + 2>(
            Simd::low32(Simd::add32(evens, odds), Simd::sub32(evens, odds)));
        const V numbers = Simd::pack32(four, four);
        uint8_t samples[kVectorBytes];
        Simd::store(samples, Simd::add8(Simd::pack16(numbers, numbers), centre));
        for (int lane = 0; lane < kLanes; ++lane) {
            std::memcpy(out + 2 * lane, samples + 16 * lane, 2);
            std::memcpy(out + task.stride + 2 * lane, samples + 16 * lane + 2, 2);
        }
    }
}

// Blocks to one sample each: their mean, which is an eighth of the DC coefficient.
void to_means(const SamplesTask& task) {
    for (int i = 0; i < task.count; ++i) {
        const auto product =
            static_cast<int16_t>(block_of(task, i).coefficients[0] * task.quantisers[0]);
        const int value = (product + 4) >> 3;
        task.out[i] = static_cast<uint8_t>((value < -128 ? -128 : value > 127 ? 127 : value) + 128);
    }
}

void to_samples(const SamplesTask& task) {
    switch (task.size) {
        case 8: return to_whole_samples(task);
        case 4: return to_four_samples(task);
        case 2: return to_two_samples(task);
        default: return to_means(task);
    }
}

// The lower or upper 8 bytes of each lane as 16-bit numbers.
inline V widen_low(V bytes) { return Simd::low8(bytes, Simd::zero()); }
inline V widen_high(V bytes) { return Simd::high8(bytes, Simd::zero()); }
inline V triple(V x) { return Simd::add16(x, Simd::add16(x, x)); }

// Bytes from 16-bit numbers: those at even positions, and those at odd ones.
inline V merge(V even, V odd) { return Simd::bit_or(even, Simd::left16<8>(odd)); }

void double_width(const uint8_t* row, uint8_t* out, int width) {
    const V one = Simd::all16(1), two = Simd::all16(2);
    auto blend = [&](V here, V before, V after) {
        here = triple(here);
        return merge(Simd::right16<2>(Simd::add16(here, Simd::add16(before, one))),
                     Simd::right16<2>(Simd::add16(here, Simd::add16(after, two))));
    };
    for (int x = 0; x < width; x += kVectorBytes) {
        const V before = Simd::load(row + x - 1), here = Simd::load(row + x),
                after = Simd::load(row + x + 1);
        Simd::store_lanes(out + 2 * x, 32,
                          blend(widen_low(here), widen_low(before), widen_low(after)));
        Simd::store_lanes(out + 2 * x + 16, 32,
                          blend(widen_high(here), widen_high(before), widen_high(after)));
    }
}

void blend_rows(const uint8_t* near, const uint8_t* far, bool above, uint8_t* out, int width) {
    const V bias = Simd::all16(above ? 1 : 2);
    auto blend = [&](V a, V b) {
        return Simd::right16<2>(Simd::add16(triple(a), Simd::add16(b, bias)));
    };
    for (int x = 0; x < width; x += kVectorBytes) {
        const V a = Simd::load(near + x), b = Simd::load(far + x);
        Simd::store(out + x, Simd::pack16u(blend(widen_low(a), widen_low(b)),
                                           blend(widen_high(a), widen_high(b))));
    }
}

void blend_and_double(const uint8_t* near, const uint8_t* far, uint8_t* out, int width,
                      int16_t* scratch) {
    // The blended columns from -1 to width, from scratch[0] on.
    for (int x = -1; x <= width; x += kVectorBytes) {
        const V a = Simd::load(near + x), b = Simd::load(far + x);
        auto* to = reinterpret_cast<uint8_t*>(scratch + x + 1);
        Simd::store_lanes(to, 32, Simd::add16(triple(widen_low(a)), widen_low(b)));
        Simd::store_lanes(to + 16, 32, Simd::add16(triple(widen_high(a)), widen_high(b)));
    }
    const V eight = Simd::all16(8), seven = Simd::all16(7);
    for (int x = 0; x < width; x += kVectorBytes / 2) {
        const V before = Simd::load(scratch + x), after = Simd::load(scratch + x + 2);
        const V here = triple(Simd::load(scratch + x + 1));
        Simd::store(out + 2 * x,
                    merge(Simd::right16<4>(Simd::add16(here, Simd::add16(before, eight))),
                          Simd::right16<4>(Simd::add16(here, Simd::add16(after, seven)))));
    }
}

// Interleaves red, green, blue and 255 to 4-byte pixels.
inline void store_pixels(uint8_t* out, V red, V green, V blue) {
    const V opaque = Simd::all8(255);
    const V rg_low = Simd::low8(red, green), rg_high = Simd::high8(red, green);
    const V bx_low = Simd::low8(blue, opaque), bx_high = Simd::high8(blue, opaque);
    Simd::store_lanes(out, 64, Simd::low16(rg_low, bx_low));
    Simd::store_lanes(out + 16, 64, Simd::high16(rg_low, bx_low));
    Simd::store_lanes(out + 32, 64, Simd::low16(rg_high, bx_high));
    Simd::store_lanes(out + 48, 64, Simd::high16(rg_high, bx_high));
}

void ycc_to_rgbx(const uint8_t* const* rows, uint8_t* out, int width) {
    // The factors 1.402, 1.772, -0.34414 and -0.71414 less whole numbers (1, 2, 0 and -1), as
    // 16-bit factors do not reach that far; for green with 16 fractional bits, for red and blue
    // with 15. For red half of 26345, rounded: the result is the same for all 256 values.
    constexpr int kRed = 13173, kBlue = -7471, kGreenBlue = -22554, kGreenRed = 65536 - 46802;
    const V centre = Simd::all16(128), half = Simd::all32(1 << 15);
    const V red_scale = Simd::all16(kRed), blue_scale = Simd::all16(kBlue),
            green_scale = pair(kGreenBlue, kGreenRed);
    struct Rgb {
        V red, green, blue;
    };
    auto convert = [&](V y, V cb, V cr) -> Rgb {
        cb = Simd::sub16(cb, centre);
        cr = Simd::sub16(cr, centre);
        auto green = [&](V both) {
            return Simd::right32<16>(Simd::add32(Simd::madd16(both, green_scale), half));
        };
        const V green_part = Simd::pack32(green(Simd::low16(cb, cr)), green(Simd::high16(cb, cr)));
        return {
            Simd::add16(y, Simd::add16(cr, Simd::mul_round16(cr, red_scale))),
            Simd::add16(y, Simd::sub16(green_part, cr)),
            Simd::add16(y, Simd::add16(Simd::add16(cb, cb), Simd::mul_round16(cb, blue_scale)))};
    };
    for (int x = 0; x < width; x += kVectorBytes) {
        const V y = Simd::load(rows[0] + x), cb = Simd::load(rows[1] + x),
                cr = Simd::load(rows[2] + x);
        const Rgb low = convert(widen_low(y), widen_low(cb), widen_low(cr));
        const Rgb high = convert(widen_high(y), widen_high(cb), widen_high(cr));
        store_pixels(out + 4 * x, Simd::pack16u(low.red, high.red),
                     Simd::pack16u(low.green, high.green), Simd::pack16u(low.blue, high.blue));
    }
}

void rgb_to_rgbx(const uint8_t* const* rows, uint8_t* out, int width) {
    for (int x = 0; x < width; x += kVectorBytes) {
        store_pixels(out + 4 * x, Simd::load(rows[0] + x), Simd::load(rows[1] + x),
                     Simd::load(rows[2] + x));
    }
}

}  // namespace
}  // namespace fastload::jpeg
