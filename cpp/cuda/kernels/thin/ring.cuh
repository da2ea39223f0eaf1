// A ring of steps in shared memory: while a block multiplies one, others are on their way.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_RING_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_RING_CUH_

#include <cuda_runtime.h>

#include "cuda/kernels/common/copy_async.cuh"

namespace jax_convgrad {

template <int kPending>
__device__ inline void WaitForStage() {
  WaitForCopies<kPending>();
  __syncthreads();
}

// Waits for the oldest of `stages` - 1 groups, and for all threads.
__device__ inline void WaitForOldest(int stages) {
  if (stages == 2) WaitForStage<0>();
  if (stages == 3) WaitForStage<1>();
  if (stages == 4) WaitForStage<2>();
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_RING_CUH_
