// From coefficients to samples: dequantisation and the inverse DCT of libjpeg-turbo (jidctint.c,
// the "slow" integer DCT), eight threads a block. Numbers wrap and saturate as in its vector code,
// which differs from its plain one only for coefficients that no encoder writes; the CPU core does
// the same (jpeg/samples.inl.hpp, where the constants are explained).
#pragma once

#include "cuda/batch.cuh"

namespace fastload::device {

struct alignas(16) Eight {
    int16_t at[8];
};

struct SampleMemory {
    struct alignas(16) Block {
        Eight rows[8];      // after the columns were transformed
        int16_t first[8];   // the first coefficient of each column, dequantised
        uint8_t others[8];  // whether a column has any other that is not zero
    } blocks[kSampleThreads / 8];
};

// A column of a block: which crop, component and place.
struct BlockPlace {
    const Plane* plane;
    uint32_t in_plane;  // the number of the block there
};

FASTLOAD_DEVICE BlockPlace place_of(const ChunkArguments& arguments, uint32_t block) {
    const Crop* const crops = arguments.crops;
    const Crop& crop = crops[crop_with(arguments.crop_count, block,
                                       [=](uint32_t i) { return crops[i].first_block; })];
    int component = 0;
    while (component + 1 < crop.components && crop.plane[component + 1].first_block <= block)
        ++component;
    const Plane& plane = crop.plane[component];
    return {&plane, block - plane.first_block};
}

FASTLOAD_DEVICE int16_t saturated(int32_t value) {
    return static_cast<int16_t>(value < -32768 ? -32768 : value > 32767 ? 32767 : value);
}

// One dimension of the inverse DCT. `shift`: the fractional bits that are dropped, rounded.
template <int kShift>
FASTLOAD_DEVICE void transform(const int16_t (&x)[8], int16_t (&out)[8]) {
    constexpr int k0298 = 2446, k0390 = 3196, k0541 = 4433, k0765 = 6270, k0899 = 7373,
                  k1175 = 9633, k1501 = 12299, k1847 = 15137, k1961 = 16069, k2053 = 16819,
                  k2562 = 20995, k3072 = 25172;
    // Sums of 16 bits wrap; those of 32 bits do, too.
    auto add16 = [](int16_t a, int16_t b) { return static_cast<int16_t>(a + b); };
    auto times = [](int16_t a, int factor_a, int16_t b, int factor_b) {
        return static_cast<uint32_t>(a * factor_a) + static_cast<uint32_t>(b * factor_b);
    };
    auto scaled = [](int16_t a) { return static_cast<uint32_t>(a * (1 << 13)); };
    const uint32_t even3 = times(x[2], k0541 + k0765, x[6], k0541),
                   even2 = times(x[2], k0541, x[6], k0541 - k1847);
    const uint32_t even0 = scaled(add16(x[0], x[4])),
                   even1 = scaled(static_cast<int16_t>(x[0] - x[4]));
    const uint32_t even[4] = {even0 + even3, even1 + even2, even1 - even2, even0 - even3};
    const int16_t sum3 = add16(x[7], x[3]), sum4 = add16(x[5], x[1]);
    const uint32_t z3 = times(sum3, k1175 - k1961, sum4, k1175),
                   z4 = times(sum3, k1175, sum4, k1175 - k0390);
    const uint32_t odd[4] = {times(x[7], -k0899, x[1], k1501 - k0899) + z4,
                             times(x[5], -k2562, x[3], k3072 - k2562) + z3,
                             times(x[5], k2053 - k2562, x[3], -k2562) + z4,
                             times(x[7], k0298 - k0899, x[1], -k0899) + z3};
    constexpr uint32_t kHalf = 1u << (kShift - 1);
    for (int i = 0; i < 4; ++i) {
        out[i] = saturated(static_cast<int32_t>(even[i] + odd[i] + kHalf) >> kShift);
        out[7 - i] = saturated(static_cast<int32_t>(even[i] - odd[i] + kHalf) >> kShift);
    }
}

FASTLOAD_KERNEL(fastload_make_samples, ChunkArguments, kSampleThreads) {
    FASTLOAD_SHARED(SampleMemory, memory);
    const uint32_t first = FASTLOAD_BLOCK * (kSampleThreads / 8);
    FASTLOAD_THREADS(t) {  // a column
        if (first + t / 8 < arguments.blocks) {
            const uint32_t number = first + t / 8, column = t % 8;
            const BlockPlace place = place_of(arguments, number);
            auto* const from =
                reinterpret_cast<Eight*>(arguments.coefficients) + uint64_t{8} * number + column;
            const Eight coefficients = *from;
            *from = Eight{};
            SampleMemory::Block& block = memory.blocks[t / 8];
            int16_t x[8], made[8];
            int others = 0;
            for (int y = 0; y < 8; ++y) {
                others |= y == 0 ? 0 : coefficients.at[y];
                x[y] = static_cast<int16_t>(coefficients.at[y] *
                                            place.plane->quantisers[8 * column + y]);
            }
            transform<11>(x, made);
            for (int y = 0; y < 8; ++y) block.rows[y].at[column] = made[y];
            block.first[column] = x[0];
            block.others[column] = others != 0 ? 1 : 0;
        }
    }
    FASTLOAD_BARRIER();
    FASTLOAD_THREADS(t) {  // a row
        if (first + t / 8 < arguments.blocks) {
            const uint32_t number = first + t / 8, row = t % 8;
            const BlockPlace place = place_of(arguments, number);
            const SampleMemory::Block& block = memory.blocks[t / 8];
            Eight x = block.rows[row];
            int others = 0;
            for (int i = 0; i < 8; ++i) others |= block.others[i];
            // Where all rows but the first are zero, libjpeg-turbo only shifts the first row, in 16
            // bits: the same, but for numbers of more than 14 bits.
            for (int i = 0; others == 0 && i < 8; ++i)
                x.at[i] = static_cast<int16_t>(static_cast<uint32_t>(block.first[i]) << 2);
            int16_t made[8];
            transform<18>(x.at, made);
            struct alignas(8) Row {
                uint8_t at[8];
            } samples;
            for (int i = 0; i < 8; ++i) {
                const int value = made[i] < -128 ? -128 : made[i] > 127 ? 127 : made[i];
                samples.at[i] = static_cast<uint8_t>(value + 128);
            }
            const uint32_t width = place.plane->width;
            const uint32_t y = place.in_plane / width, x_block = place.in_plane % width;
            *reinterpret_cast<Row*>(arguments.samples + uint64_t{64} * place.plane->first_block +
                                    uint64_t{8} * ((uint64_t{8} * y + row) * width + x_block)) =
                samples;
        }
    }
}

}  // namespace fastload::device
