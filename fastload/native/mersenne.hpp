// States of Mersenne twisters that were given a seed (MT19937; Matsumoto, Nishimura: "Mersenne
// Twister", 1998): those that the random modules of Python and numpy then have.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// Words of a state, and the place of the next one.
constexpr size_t kMersenneRow = 624 + 1;

// Rows of kMersenneRow words. `python`: the place, which is the end, and the words after
// random.seed(seed). `numpy`: the words after numpy.random.seed(seed % 2^32), and the place.
void mersenne_states(const uint64_t* seeds, size_t count, uint32_t* python, uint32_t* numpy);

}  // namespace fastload
