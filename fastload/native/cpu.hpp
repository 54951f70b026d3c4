// Which instructions this processor has, and its system lets programs use.
#pragma once

#if defined(FASTLOAD_X86)
#include <cpuid.h>

namespace fastload {

struct Processor {
    bool sse41 = false, sse42 = false, pclmul = false, bmi = false, bmi2 = false, avx2 = false,
         fma = false;
    bool avx512f = false, avx512bw = false, avx512dq = false, avx512vl = false, avx512vnni = false,
         avx512vbmi = false, avx512vbmi2 = false;
};

// By CPUID, and by XGETBV, which says whose registers the system keeps for each thread (Intel SDM,
// volume 1, sections 13.3, 14.3 and 15.2). Not by __builtin_cpu_supports: under Zig's compiler,
// whose runtime does not fill in what that reads, it says no to everything.
static inline Processor read_processor() {
    Processor has;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return has;
    const auto bit = [](unsigned word, int number) { return (word >> number & 1) != 0; };
    has.sse41 = bit(c, 19);
    has.sse42 = bit(c, 20);
    has.pclmul = has.sse41 && bit(c, 1);
    const bool fma = bit(c, 12);
    unsigned kept = 0, upper = 0;
    if (bit(c, 27)) __asm__("xgetbv" : "=a"(kept), "=d"(upper) : "c"(0));
    const bool vectors = (kept & 0x06) == 0x06, wide_vectors = (kept & 0xE6) == 0xE6;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return has;
    has.bmi = bit(b, 3);
    has.bmi2 = bit(b, 8);
    has.avx2 = vectors && bit(b, 5);
    has.fma = vectors && fma;
    has.avx512f = wide_vectors && bit(b, 16);
    has.avx512dq = wide_vectors && bit(b, 17);
    has.avx512bw = wide_vectors && bit(b, 30);
    has.avx512vl = wide_vectors && bit(b, 31);
    has.avx512vbmi = wide_vectors && bit(c, 1);
    has.avx512vbmi2 = wide_vectors && bit(c, 6);
    has.avx512vnni = wide_vectors && bit(c, 11);
    return has;
}

// The same, read once: on a virtual machine a CPUID takes microseconds, as the hypervisor answers.
static inline const Processor& this_processor() {
    static const Processor has = read_processor();
    return has;
}

}  // namespace fastload
#endif
