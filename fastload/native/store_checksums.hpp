// The checksums that stores send with objects, beside CRC-32 (checksum.hpp): CRC-32C (RFC 3720,
// appendix B.4) and CRC-64/NVME (NVM Command Set Specification 1.0, section 5.2.1.3.4). 110 kB take
// 12 us where the processor has instructions for them, else 46 and 64.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fastload {

// Of `size` bytes. `plain`: without these instructions, for tests.
uint32_t crc32c(const uint8_t* data, size_t size, bool plain = false);
uint64_t crc64nvme(const uint8_t* data, size_t size, bool plain = false);

}  // namespace fastload
