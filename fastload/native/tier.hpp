// Files of the local tier (fastload/stores/tier.py). A file holds the bytes of some ranges, then a
// table with a line for each, then a mark and the number of lines; it has a name for each of its
// ranges. Only where ISA-L is (FASTLOAD_PNG).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "jobs.hpp"

namespace fastload {

constexpr int64_t kDigestBytes = 16;

// Where the bytes of a range are in a file, their CRC-32, and when its use was noted [s, of the
// clock].
struct TierSpan {
    int64_t offset = 0;
    int64_t length = 0;
    uint32_t crc = 0;
    int64_t used = 0;

    bool is_of(const Bytes& data) const;
};

// The name of the file of a range: the folder, then its digest in hexadecimal digits, the first two
// a folder.
std::string tier_path(const std::string& folder, const uint8_t* digest);

// The line of a range in the table of an open file; false, and `span` untouched, where there is
// none, or one of length 0, as a line of zeros has.
bool find_in_tier(int file, const uint8_t* digest, TierSpan& span);

// Whether a range has a file that is not empty. It may be damaged, or gone a moment later.
bool is_in_tier(const std::string& folder, const uint8_t* digest);

// Notes that a file is in use, as the time of its last change, if the last note is not of the last
// ten minutes. `span`: of any range in it.
void note_use(int file, const TierSpan& span);

// Writes ranges, several to a file; each has its name when the file is whole. `digests` are
// kDigestBytes each; `beside` ends the name of an unfinished file, and is nobody else's. The folder
// must exist. Returns 0, or the error number at which it stopped.
int write_tier(const std::string& folder, const uint8_t* digests, const std::vector<Bytes>& data,
               const std::string& beside);

}  // namespace fastload
