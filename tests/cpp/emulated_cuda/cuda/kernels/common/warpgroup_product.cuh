// cuda/kernels/common/warpgroup_product.cuh on the processor. A thread does what its lane gets.

#ifndef JAX_CONVGRAD_TESTS_EMULATED_CUDA_WARPGROUP_PRODUCT_CUH_
#define JAX_CONVGRAD_TESTS_EMULATED_CUDA_WARPGROUP_PRODUCT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/tensor_core.cuh"

namespace jax_convgrad {

enum class Lines { kAlongDepth, kAcrossDepth };

template <Lines kLines>
class WarpgroupOperand {
 public:
  WarpgroupOperand(const void* first, uint32_t panel_bytes)
      : first_(static_cast<const unsigned char*>(first)), panel_bytes_(panel_bytes) {
    if ((first_ - shared_memory) % 1024 != 0) emulated_cuda::Fail("an operand is not aligned");
  }

  // Of a row of a, or a column of b.
  template <typename T>
  float At(int row, int depth) const {
    const bool along = kLines == Lines::kAlongDepth;
    const int line = along ? row : depth, element = along ? depth : row;
    const unsigned char* const panel = first_ + element / 64 * static_cast<int64_t>(panel_bytes_);
    T value;
    std::memcpy(&value, panel + line * 128 + (element % 64 / 8 ^ line % 8) * 16 + element % 8 * 2,
                sizeof value);
    return Widen(value);
  }

 private:
  const unsigned char* first_;
  uint32_t panel_bytes_;
};

template <int kColumns, typename T, Lines kA, Lines kB>
void MultiplyAdd(const T*, const WarpgroupOperand<kA>& a, const WarpgroupOperand<kB>& b, int depth,
                 float* sums) {
  static_assert(kColumns == 128 || kColumns == 64, "as there are instructions for");
  if (depth % 16 != 0) emulated_cuda::Fail("a depth is no multiple of 16");
  emulated_cuda::products[threadIdx.x].begun.push_back([=] {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    for (int i = 0; i < kColumns / 2; ++i) {
      const int row = warp % 4 * 16 + lane / 4 + i % 4 / 2 * 8;
      const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      for (int k = depth; k < depth + 16; ++k) {
        sums[i] += a.template At<T>(row, k) * b.template At<T>(column, k);
      }
    }
  });
}

template <int kCount>
void ShowSums(float (&)[kCount]) {}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_TESTS_EMULATED_CUDA_WARPGROUP_PRODUCT_CUH_
