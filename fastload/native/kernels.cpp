#include "kernels.hpp"

#include <cstring>

namespace fastload {

const Kernels* find_kernels(const char* name) {
    const bool any = std::strcmp(name, "auto") == 0;
    auto wanted = [&](const Kernels& kernels) { return any || std::strcmp(name, kernels.name) == 0; };
#if defined(FASTLOAD_X86)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    if (wanted(kAvx512Kernels) && avx2 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni")) {
        return &kAvx512Kernels;
    }
    if (wanted(kAvx2Kernels) && avx2) return &kAvx2Kernels;
    if (wanted(kSse41Kernels) && __builtin_cpu_supports("sse4.1")) return &kSse41Kernels;
#elif defined(FASTLOAD_ARM64)
    if (wanted(kNeonKernels)) return &kNeonKernels;  // every 64-bit ARM processor has them
#endif
    return wanted(kPlainKernels) ? &kPlainKernels : nullptr;
}

}  // namespace fastload
