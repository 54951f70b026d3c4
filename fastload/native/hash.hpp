// A 64-bit hash at several bytes a cycle, to notice that data have changed. It is not a
// cryptographic hash: different data with the same hash can be constructed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fastload {

namespace hashing {

inline uint64_t load(const uint8_t* from) {
    uint64_t value;
    std::memcpy(&value, from, 8);
    return value;
}

// The exclusive or of both halves of a product of 128 bits: it depends on all bits of the factors.
inline uint64_t mix(uint64_t a, uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Odd numbers without a pattern: the first 64 bits of the fractions of the square roots of 2, 3, 5
// and 7, with the last bit set.
constexpr uint64_t kKeys[4] = {0x6a09e667f3bcc909, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b,
                               0xa54ff53a5f1d36f1};

}  // namespace hashing

// The hash of `size` bytes; `data` may be null if size is 0. The same on every machine with the
// same byte order.
inline uint64_t hash_bytes(const uint8_t* data, size_t size) {
    using namespace hashing;
    // Four independent sums of 16 bytes a step, so that the processor works on all at once.
    uint64_t sums[4] = {kKeys[0], kKeys[1], kKeys[2], kKeys[3]};
    size_t at = 0;
    for (; size - at >= 64; at += 64) {
        for (size_t i = 0; i < 4; ++i) {
            const uint8_t* const from = data + at + 16 * i;
            sums[i] = (sums[i] << 29 | sums[i] >> 35) +
                      mix(load(from) ^ kKeys[i], load(from + 8) + sums[i]);
        }
    }
    // The last bytes, padded with zeros. The size, which is hashed too, distinguishes them from
    // data that end in such zeros.
    uint8_t rest[64] = {};
    if (size > at) std::memcpy(rest, data + at, size - at);
    for (size_t i = 0; i < 4; ++i) {
        sums[i] = (sums[i] << 29 | sums[i] >> 35) +
                  mix(load(rest + 16 * i) ^ kKeys[i], load(rest + 16 * i + 8) + sums[i]);
    }
    uint64_t all = static_cast<uint64_t>(size) ^ kKeys[0];
    for (const uint64_t sum : sums) all = mix(all ^ sum, kKeys[1]) + sum;
    return mix(all ^ kKeys[2], kKeys[3]);
}

}  // namespace fastload
