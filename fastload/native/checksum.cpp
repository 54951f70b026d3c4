#include "checksum.hpp"

#include <isa-l/crc.h>

namespace fastload {

uint32_t crc32(const uint8_t* data, size_t size, uint32_t value) {
    return crc32_gzip_refl(value, data, size);
}

}  // namespace fastload
