// cuda/kernels/common/tensor_core.cuh on the processor. Products of floats are done at once, those
// of warpgroup_product.cuh when they are waited for, and not before.

#ifndef JAX_CONVGRAD_TESTS_EMULATED_CUDA_TENSOR_CORE_CUH_
#define JAX_CONVGRAD_TESTS_EMULATED_CUDA_TENSOR_CORE_CUH_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/tf32.cuh"

namespace emulated_cuda {

// What the threads of a block tell each other. A thread writes the half that it does not read, so
// that it may write again before the others have read.
inline float told[2][1024][4];
inline unsigned char half_of[1024];

// Of one thread: the groups of products under way and what belongs to none yet.
struct Products {
  std::deque<std::vector<std::function<void()>>> groups;
  std::vector<std::function<void()>> begun;
};

inline Products products[1024];

}  // namespace emulated_cuda

namespace jax_convgrad {

inline void ShowTensorCores() {}

constexpr int kProductColumns = 128;
constexpr int kSwizzled = 32;
constexpr int kSwizzleBytes = 1024;

inline int Swizzled(int n, int k) { return n * kSwizzled + ((k / 4 ^ n % 8) * 4); }

inline void BeginProducts() {}

inline void CommitProducts() {
  emulated_cuda::Products& products = emulated_cuda::products[threadIdx.x];
  products.groups.push_back(std::move(products.begun));
  products.begun.clear();
}

template <int kPending>
void WaitForProducts() {
  auto& groups = emulated_cuda::products[threadIdx.x].groups;
  for (; groups.size() > kPending; groups.pop_front()) {
    for (const auto& product : groups.front()) product();
  }
}

// All threads of a block must call it together.
inline void MultiplyAdd(const float (&a)[4], const float* b, int depth,
                        float (&sums)[kProductColumns / 2]) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x - lane;
  unsigned char& half = emulated_cuda::half_of[threadIdx.x];
  half ^= 1;
  for (int i = 0; i < 4; ++i) emulated_cuda::told[half][threadIdx.x][i] = emulated_cuda::Tf32(a[i]);
  __syncthreads();
  const auto told = emulated_cuda::told[half] + warp;
  for (int i = 0; i < kProductColumns / 2; ++i) {
    const unsigned row = lane / 4 + static_cast<unsigned>(i) % 4 / 2 * 8;
    const int column = i / 4 * 8 + static_cast<int>(lane % 4) * 2 + i % 2;
    for (int k = 0; k < 8; ++k) {
      const float of_a = told[row % 8 * 4 + static_cast<unsigned>(k) % 4]
                             [row / 8 + static_cast<unsigned>(k) / 4 * 2];
      sums[i] += of_a * emulated_cuda::Tf32(b[Swizzled(column, (depth + k) / 4 * 4) + k % 4]);
    }
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_TESTS_EMULATED_CUDA_TENSOR_CORE_CUH_
