// Random numbers as a function of a counter, without state: the same numbers as fastload/draws.py.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fastload {

// Which numbers are drawn: for `count` samples, one stream of one epoch. The arrays are borrowed.
struct Counter {
    const int64_t* indices;  // of the samples in the source
    const int64_t* repeats;  // how often each came before in this epoch; null: each comes once
    std::size_t count;
    uint64_t seed;
    uint32_t epoch;
    uint32_t stream;  // below 2^16: the operation that draws
};

using Words = std::array<uint32_t, 4>;

// Ten rounds of Philox4x32 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
// four random words from four words and a key.
inline Words philox(Words c, uint64_t key) {
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
        c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
             static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    return c;
}

// Block `block` (below 2^16) of the words of sample number `sample`, which is below counter.count.
inline Words words_of(const Counter& counter, std::size_t sample, uint32_t block) {
    const uint64_t index = static_cast<uint64_t>(counter.indices[sample]);
    uint64_t high = index >> 32;
    if (counter.repeats != nullptr) high |= static_cast<uint64_t>(counter.repeats[sample]) << 8;
    return philox({static_cast<uint32_t>(index), static_cast<uint32_t>(high), counter.epoch,
                   counter.stream << 16 | block},
                  counter.seed);
}

// A number in [0, 1) from the upper 27 and 26 bits of two words, as numpy makes its doubles.
inline double uniform(uint32_t high, uint32_t low) {
    const uint64_t bits = static_cast<uint64_t>(high >> 5) << 26 | low >> 6;
    return static_cast<double>(bits) * 0x1p-53;
}

// out[i * per_sample + j]: number j of sample i, in [0, 1) with 53 random bits.
inline void draw_uniforms(const Counter& counter, std::size_t per_sample, double* out) {
    for (std::size_t sample = 0; sample < counter.count; ++sample) {
        for (std::size_t j = 0; j < per_sample; j += 2) {
            const Words words = words_of(counter, sample, static_cast<uint32_t>(j / 2));
            *out++ = uniform(words[0], words[1]);
            if (j + 1 < per_sample) *out++ = uniform(words[2], words[3]);
        }
    }
}

// out[i]: 64 random bits of sample i.
inline void draw_integers(const Counter& counter, uint64_t* out) {
    for (std::size_t sample = 0; sample < counter.count; ++sample) {
        const Words words = words_of(counter, sample, 0);
        out[sample] = uint64_t{words[0]} << 32 | words[1];
    }
}

}  // namespace fastload
