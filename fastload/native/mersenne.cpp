#include "mersenne.hpp"

#include <algorithm>

namespace fastload {
namespace {

constexpr size_t kRow = kMersenneRow, kWords = kRow - 1;

// Of so many seeds at a time: each word follows from the one before it, through a multiplication.
// The loops are no part of one function, of which GCC 12 makes code that takes half as long again.
constexpr size_t kLanes = 16;
using States = uint32_t[kWords][kLanes];

uint32_t mixed(uint32_t word) { return word ^ word >> 30; }

// The state by one word: `state[0]`, which is given.
[[gnu::noinline]] void by_word(States& state) {
    for (uint32_t i = 1; i < kWords; ++i)
        for (size_t lane = 0; lane < kLanes; ++lane)
            state[i][lane] = 1812433253u * mixed(state[i - 1][lane]) + i;
}

// The state by a key of the words of a seed that are needed to write it: one or two.
[[gnu::noinline]] void by_key(const uint64_t* seeds, States& state) {
    uint32_t keys[2][kLanes];
    for (size_t lane = 0; lane < kLanes; ++lane) {
        const auto low = static_cast<uint32_t>(seeds[lane]),
                   high = static_cast<uint32_t>(seeds[lane] >> 32);
        keys[0][lane] = low;
        keys[1][lane] = high != 0 ? high + 1 : low;
        state[0][lane] = 19650218u;
    }
    by_word(state);
    uint32_t i = 1;
    const auto next = [&] {
        if (++i < kWords) return;
        std::copy_n(state[kWords - 1], kLanes, state[0]);
        i = 1;
    };
    for (size_t step = 0; step < kWords; ++step, next())
        for (size_t lane = 0; lane < kLanes; ++lane)
            state[i][lane] =
                (state[i][lane] ^ mixed(state[i - 1][lane]) * 1664525u) + keys[step % 2][lane];
    for (size_t step = 1; step < kWords; ++step, next())
        for (size_t lane = 0; lane < kLanes; ++lane)
            state[i][lane] = (state[i][lane] ^ mixed(state[i - 1][lane]) * 1566083941u) - i;
    std::fill_n(state[0], kLanes, 0x80000000u);
}

// The states of the first lanes, each into a row of its own.
[[gnu::noinline]] void write(const States& state, size_t lanes, uint32_t* rows) {
    for (size_t i = 0; i < kWords; ++i)
        for (size_t lane = 0; lane < lanes; ++lane) rows[lane * kRow + i] = state[i][lane];
}

}  // namespace

void mersenne_states(const uint64_t* seeds, size_t count, uint32_t* python, uint32_t* numpy) {
    States state;
    for (size_t first = 0; first < count; first += kLanes) {
        const size_t lanes = std::min(kLanes, count - first);
        uint64_t group[kLanes] = {};
        std::copy_n(seeds + first, lanes, group);
        by_key(group, state);
        write(state, lanes, python + first * kRow + 1);
        for (size_t lane = 0; lane < kLanes; ++lane)
            state[0][lane] = static_cast<uint32_t>(group[lane]);
        by_word(state);
        write(state, lanes, numpy + first * kRow);
    }
    for (size_t row = 0; row < count; ++row)
        python[row * kRow] = numpy[row * kRow + kWords] = kWords;
}

}  // namespace fastload
