// What a kernel needs of its compiler: NVRTC, which compiles it for a GPU, or g++ or Clang, which
// run one block of it on the host. The kernels use nothing else of either.
//
// A kernel is a sequence of loops over the threads of its block, with barriers between them:
//
//     FASTLOAD_KERNEL(name, Arguments, kThreads) {
//         FASTLOAD_SHARED(Memory, memory);
//         FASTLOAD_THREADS(t) memory.first[t] = ...;
//         FASTLOAD_BARRIER();
//         FASTLOAD_THREADS(t) ... = memory.first[other];
//     }
//
// On a GPU each loop runs once, for the thread that runs it. On the host it runs for all threads of
// the block, one after the other, or for every n-th of them where n threads of the host share a
// block (host.hpp): then a missing barrier is a race that ThreadSanitizer sees.
#pragma once

#ifdef __CUDACC__

// NVRTC has no headers.
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;

#define FASTLOAD_KERNEL(name, Arguments, threads) \
    extern "C" __global__ void __launch_bounds__(threads) name(const Arguments arguments)
#define FASTLOAD_DEVICE __device__ __forceinline__
#define FASTLOAD_CONSTANT __device__ const
#define FASTLOAD_SHARED(Type, name) __shared__ Type name
#define FASTLOAD_THREADS(t) for (uint32_t t = threadIdx.x, once = 0; once == 0; ++once)
#define FASTLOAD_BARRIER() __syncthreads()
#define FASTLOAD_BLOCK (blockIdx.x)
#define FASTLOAD_COUNT_TURN(segment)

namespace fastload::device {

// The 32 bits of `high` and `low`, one after the other, from bit `shift` (0 to 31) on.
FASTLOAD_DEVICE uint32_t bits_from(uint32_t high, uint32_t low, uint32_t shift) {
    return __funnelshift_l(low, high, shift);
}
FASTLOAD_DEVICE uint32_t reversed_bytes(uint32_t word) { return __byte_perm(word, 0, 0x0123); }
FASTLOAD_DEVICE void set_flag(uint32_t* flag) { atomicOr(flag, 1u); }

}  // namespace fastload::device

#else

#include "cuda/host.hpp"

#define FASTLOAD_KERNEL(name, Arguments, threads) \
    void name([[maybe_unused]] const HostBlock& host, const Arguments& arguments)
#define FASTLOAD_DEVICE inline
#define FASTLOAD_CONSTANT constexpr
#define FASTLOAD_SHARED(Type, name) Type& name = *static_cast<Type*>(host.shared)
#define FASTLOAD_THREADS(t) for (uint32_t t = host.first; t < host.threads; t += host.step)
#define FASTLOAD_BARRIER() host.barrier()
#define FASTLOAD_BLOCK (host.index)
#define FASTLOAD_COUNT_TURN(segment) \
    if (arguments.turns != nullptr) ++arguments.turns[segment]

namespace fastload::device {

inline uint32_t bits_from(uint32_t high, uint32_t low, uint32_t shift) {
    return static_cast<uint32_t>(((uint64_t{high} << 32 | low) << shift) >> 32);
}
inline uint32_t reversed_bytes(uint32_t word) { return __builtin_bswap32(word); }
inline void set_flag(uint32_t* flag) { __atomic_fetch_or(flag, 1u, __ATOMIC_RELAXED); }

}  // namespace fastload::device

#endif
