// What the kernels of resample do by instructions of their own. The tests have a file of the same
// name for the processor (tests/cpp/emulated_cuda).

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_INSTRUCTIONS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_INSTRUCTIONS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/bulk_copy.cuh"
#include "cuda/kernels/common/copy_async.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// Prefetches an address. Does nothing if the address is invalid.
__device__ __forceinline__ void BringCloser(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

// A pointer whose origin is hidden from the compiler, so that it increments the pointer and does
// not compute each address from the beginning.
template <typename T>
__device__ __forceinline__ T* Opaque(T* pointer) {
  asm("" : "+l"(pointer));
  return pointer;
}

// The value itself, but the compiler does not recompute it at each use.
__device__ __forceinline__ int Opaque(int value) {
  asm("" : "+r"(value));
  return value;
}

// One store to shared memory of as many sums as 16 bytes hold, or of one. By itself the compiler
// makes single stores of sums that are not adjacent, and threads that are a vector apart then store
// to the same banks.
template <typename Sum, int kCount>
__device__ __forceinline__ void StoreShared(const Sum (&sums)[kCount], Sum* to) {
  [[maybe_unused]] const uint32_t at = SharedAddress(to);
  if constexpr (kCount == 4 && sizeof(Sum) == 4) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(sums[0]), "f"(sums[1]),
                 "f"(sums[2]), "f"(sums[3])
                 : "memory");
  } else if constexpr (kCount == 2 && sizeof(Sum) == 8) {
    asm volatile("st.shared.v2.f64 [%0], {%1, %2};" ::"r"(at), "d"(sums[0]), "d"(sums[1])
                 : "memory");
  } else {
    static_assert(kCount == 1, "no such store");
    *to = sums[0];
  }
}

// Begins to copy 16 bytes into shared memory. Both ends are aligned. Waited for as CopyAsync is
// (common/copy_async.cuh), which can copy zeros as well.
__device__ __forceinline__ void CopyPiece(char* to, uintptr_t piece) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(to)), "l"(piece)
               : "memory");
}

// Begins to copy bytes from shared memory to an array, by one instruction. Both ends are aligned to
// 16 bytes, as is their number. Belongs to the groups of BulkStore (common/bulk_copy.cuh).
__device__ __forceinline__ void BulkStoreRun(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(SharedAddress(from)), "r"(bytes)
               : "memory");
}

// Waits until all that this thread has begun to store is in its arrays.
__device__ __forceinline__ void FinishBulkStores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_INSTRUCTIONS_CUH_
