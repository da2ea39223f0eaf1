// Rings of slots in shared memory, which one warp fills and others empty, each guarded by barriers.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_RING_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_RING_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/bulk_copy.cuh"

namespace jax_convgrad {

// A place in a ring.
struct RingPlace {
  int slot = 0;
  uint32_t odd = 0;  // whether it has gone around an odd number of times

  __device__ void Next(int slots) {
    if (++slot == slots) {
      slot = 0;
      odd ^= 1;
    }
  }
};

// By all lanes of a warp, of which one tells a barrier that they are done with what it guards. Each
// warp says so for itself: were it said for others, these could still wait when the barrier's next
// round is over, too.
__device__ inline void ArriveWarp(BulkBarrier* barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier->Arrive();
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_RING_CUH_
