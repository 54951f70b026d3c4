#include "checksum.hpp"

#include <isa-l/crc.h>

#include "cpu.hpp"

#if defined(FASTLOAD_X86)
#include <immintrin.h>
#endif

namespace fastload {
namespace {

#if defined(FASTLOAD_X86)
// ISA-L leaves the upper halves of the vector registers in use: it has no vzeroupper. SSE
// instructions that follow, of which code for any processor is made, then take four times as long
// (a loop in double precision 10.8 us in place of 2.5, EPYC with AVX-512), until others clear them.
__attribute__((target("avx"))) void clear_upper_halves() { _mm256_zeroupper(); }
#endif

}  // namespace

uint32_t crc32(const uint8_t* data, size_t size, uint32_t value) {
    const uint32_t found = crc32_gzip_refl(value, data, size);
#if defined(FASTLOAD_X86)
    if (this_processor().avx2) clear_upper_halves();
#endif
    return found;
}

}  // namespace fastload
