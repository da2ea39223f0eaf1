// cuda/kernels/resample/instructions.cuh on the processor. What a bulk store reads is read when it
// is waited for, and not before.

#ifndef JAX_CONVGRAD_TESTS_EMULATED_CUDA_RESAMPLE_INSTRUCTIONS_CUH_
#define JAX_CONVGRAD_TESTS_EMULATED_CUDA_RESAMPLE_INSTRUCTIONS_CUH_

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "cuda/kernels/common/bulk_copy.cuh"
#include "cuda/kernels/common/copy_async.cuh"

namespace jax_convgrad {
namespace resample_kernels {

inline void BringCloser(const void*) {}

template <typename T>
T* Opaque(T* pointer) {
  return pointer;
}

inline int Opaque(int value) { return value; }

template <typename Sum, int kCount>
void StoreShared(const Sum (&sums)[kCount], Sum* to) {
  static_assert(kCount == 1 || kCount * sizeof(Sum) == 16, "as a device stores");
  if (reinterpret_cast<uintptr_t>(to) % (kCount * sizeof(Sum)) != 0) {
    emulated_cuda::Fail("it stores what is not aligned");
  }
  std::memcpy(to, sums, sizeof(sums));
}

inline void CopyPiece(char* to, uintptr_t piece) {
  CopyAsync(to, reinterpret_cast<const void*>(piece), true);
}

inline void BulkStoreRun(void* to, const void* from, int bytes) {
  const uintptr_t ends = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  if ((ends | static_cast<uintptr_t>(bytes)) % 16 != 0 || bytes <= 0) {
    emulated_cuda::Fail("a run is not aligned");
  }
  emulated_cuda::bulk_stores[threadIdx.x].begun.push_back(
      {[=] { std::memcpy(to, from, static_cast<size_t>(bytes)); }});
}

inline void FinishBulkStores() { WaitForBulkStores<0>(); }

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_TESTS_EMULATED_CUDA_RESAMPLE_INSTRUCTIONS_CUH_
