// Copies of boxes of an array into shared memory, and back, that one thread begins and the device
// makes by itself: it finds the addresses, fills with zeros what is outside, and does not write
// there. Needs compute capability 9.0.

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

// Tells threads that copies have arrived, or that other threads have, over and over. It lies in
// shared memory.
class BulkBarrier {
 public:
  // By one thread, before the block's next barrier, and before it begins to copy. A round is over
  // when Expect and Arrive have been called `arrivals` times and what is expected is here.
  __device__ void Init(int arrivals = 1) {
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], %1;\n"
        "fence.proxy.async.shared::cta;\n" ::"r"(SharedAddress(this)),
        "r"(arrivals)
        : "memory");
  }

  // By one thread, before the copies of a round: how many bytes arrive in it, zeros included.
  __device__ void Expect(int bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(SharedAddress(this)),
        "r"(bytes)
        : "memory");
  }

  // By one thread, for itself or for others that it has waited for.
  __device__ void Arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(SharedAddress(this))
                 : "memory");
  }

  // By every thread: until a round is over, its copies here. `odd` says whether the number of the
  // round is odd, the first being 0. The round before it must be over.
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

// Begins to copy the box at a place of an array: channel, x, y, z, image. `to` is aligned to 256
// bytes, 512 or 1024 if lines have 32 bytes, 64 or 128.
__device__ inline void BulkCopy(void* to, const TensorMap& map, int channel, int x, int y, int z,
                                int image, BulkBarrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];\n" ::"r"(SharedAddress(to)),
      "l"(&map), "r"(SharedAddress(barrier)), "r"(channel), "r"(x), "r"(y), "r"(z), "r"(image)
      : "memory");
}

// Makes what this thread has written to shared memory visible to copies that are begun later.
__device__ inline void ShowBulkCopies() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// Begins to copy a box back to a place of an array. `from` is aligned as for BulkCopy.
__device__ inline void BulkStore(const TensorMap& map, const void* from, int channel, int x, int y,
                                 int z, int image) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group "
      "[%0, {%2, %3, %4, %5, %6}], [%1];\n" ::"l"(&map),
      "r"(SharedAddress(from)), "r"(channel), "r"(x), "r"(y), "r"(z), "r"(image)
      : "memory");
}

// What this thread has begun to store since the last call becomes one group.
__device__ inline void CommitBulkStores() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}

// Waits until all but the last `kPending` groups of this thread have been read from shared memory.
template <int kPending>
__device__ inline void WaitForBulkStores() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_COMMON_BULK_COPY_CUH_
