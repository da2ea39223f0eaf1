// cuda/kernels/common/warpgroup_product.cuh on the processor. A thread does what its lane gets.

#ifndef JAX_CONVGRAD_TESTS_EMULATED_CUDA_WARPGROUP_PRODUCT_CUH_
#define JAX_CONVGRAD_TESTS_EMULATED_CUDA_WARPGROUP_PRODUCT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/tensor_core.cuh"
#include "cuda/kernels/common/warp_product.cuh"

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

class WarpgroupColumns {
 public:
  explicit WarpgroupColumns(const void* first) : first_(static_cast<const unsigned char*>(first)) {
    if ((first_ - shared_memory) % 256 != 0) emulated_cuda::Fail("an operand is not aligned");
  }

  template <typename T>
  float At(int column, int depth) const {
    T value;
    std::memcpy(&value, first_ + column * 32 + (depth / 8 ^ column / 4 % 2) * 16 + depth % 8 * 2,
                sizeof value);
    return Widen(value);
  }

 private:
  const unsigned char* first_;
};

template <int kColumns, typename T>
void MultiplyAdd(const T*, const uint32_t (&a)[4], const WarpgroupColumns& b, bool adds,
                 float* sums) {
  static_assert(kColumns == 64 || kColumns == 32, "as there are instructions for");
  // A lane's own two rows, of which four lanes have parts.
  struct Rows {
    float at[2][16];
  } rows;
  emulated_cuda::TogetherWithWarp(
      {emulated_cuda::WarpCall::kRows, a, &rows}, [](const emulated_cuda::LaneCall* lanes) {
        for (unsigned i = 0; i < emulated_cuda::kWarpThreads; ++i) {
          Rows* const out = static_cast<Rows*>(lanes[i].out);
          for (unsigned r = 0; r < 4; ++r) {
            for (unsigned t = 0; t < 4; ++t) {
              const uint32_t word = static_cast<const uint32_t*>(lanes[i / 4 * 4 + t].in)[r];
              for (unsigned which = 0; which < 2; ++which) {
                const uint16_t bits = emulated_cuda::HalfOf(word, which);
                T value;
                std::memcpy(&value, &bits, sizeof value);
                out->at[r % 2][r / 2 * 8 + t * 2 + which] = Widen(value);
              }
            }
          }
        }
      });
  std::array<uint32_t, 4> begun_with;
  std::copy(a, a + 4, begun_with.begin());
  emulated_cuda::products[threadIdx.x].begun.push_back([=, &a] {
    if (!std::equal(begun_with.begin(), begun_with.end(), a)) {
      emulated_cuda::Fail("an operand in registers was overwritten");
    }
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int i = 0; i < kColumns / 2; ++i) {
      const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      float sum = adds ? sums[i] : 0;
      for (int k = 0; k < 16; ++k) sum += rows.at[i % 4 / 2][k] * b.At<T>(column, k);
      sums[i] = sum;
    }
  });
}

template <int kCount>
void ShowSums(float (&)[kCount]) {}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_TESTS_EMULATED_CUDA_WARPGROUP_PRODUCT_CUH_
