// Copies of boxes of an array into shared memory that one thread begins and the device makes by
// itself: it finds the addresses, and fills with zeros what is outside. Needs compute capability
// 9.0.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_COMMON_BULK_COPY_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_COMMON_BULK_COPY_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/tensor_map.h"

namespace jax_convgrad {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
constexpr bool kHasBulkCopies = true;
#else
constexpr bool kHasBulkCopies = false;
#endif

// Tells threads that copies have arrived, over and over. It lies in shared memory.
class BulkBarrier {
 public:
  // By one thread, before the block's next barrier, and before it begins to copy.
  __device__ void Init() {
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;\n"
        "fence.proxy.async.shared::cta;\n" ::"r"(SharedAddress(this))
        : "memory");
  }

  // By one thread, before the copies of a round: how many bytes arrive in it.
  __device__ void Expect(int bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(SharedAddress(this)),
        "r"(bytes)
        : "memory");
  }

  // By every thread: until the copies of a round are here. `odd` says whether the number of the
  // round is odd, the first being 0.
  __device__ void Wait(uint32_t odd) {
    uint32_t done = 0;
    while (done == 0) {
      asm volatile(
          "{\n"
          ".reg .pred done;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
          "selp.u32 %0, 1, 0, done;\n"
          "}\n"
          : "=r"(done)
          : "r"(SharedAddress(this)), "r"(odd)
          : "memory");
    }
  }

 private:
  uint64_t state_;
};

// Begins to copy the box at a place of an array: channel, x, y, z, image. `to` is aligned to 512
// bytes.
__device__ inline void BulkCopy(void* to, const TensorMap& map, int channel, int x, int y, int z,
                                int image, BulkBarrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];\n" ::"r"(SharedAddress(to)),
      "l"(&map), "r"(SharedAddress(barrier)), "r"(channel), "r"(x), "r"(y), "r"(z), "r"(image)
      : "memory");
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_COMMON_BULK_COPY_CUH_
