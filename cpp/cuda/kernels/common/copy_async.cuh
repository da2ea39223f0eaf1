// Copies from global into shared memory in the background. Needs compute capability 8.0.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_COMMON_COPY_ASYNC_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_COMMON_COPY_ASYNC_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace jax_convgrad {

__device__ inline uint32_t SharedAddress(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// Begins to copy 16, 8 or 4 bytes into shared memory, or zeros where `inside` is false. Both ends
// are aligned to as many bytes. `from` is not read if `inside` is false.
template <int kBytes = 16>
__device__ inline void CopyAsync(void* to, const void* from, bool inside) {
  const int bytes = inside ? kBytes : 0;
  if constexpr (kBytes == 16) {
    // Past the first cache, which shared memory takes its room from.
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(SharedAddress(to)),
                 "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(SharedAddress(to)),
                 "l"(from), "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}

// What was begun since the last call becomes one group.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Waits until all but the last `kPending` groups of this thread have arrived.
template <int kPending>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_COMMON_COPY_ASYNC_CUH_
