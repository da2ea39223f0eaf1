// Windows of a thin image, image.cuh has what they are, multiplied by warpgroups: their operands
// are in registers, the weights in shared memory, where only the tensor cores read them.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_WARPGROUP_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_WARPGROUP_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/tensor_core.cuh"
#include "cuda/kernels/common/warpgroup_product.cuh"
#include "cuda/kernels/thin/image.cuh"

namespace jax_convgrad {

// As ImageWarpProducts, by the four warps of a warpgroup, of 128 windows.
template <typename T, Starts kStarts>
struct ImageWarpgroupProducts {
  static constexpr int kWarps = 4;
  static constexpr bool kOverwrites = true;

  static __device__ void ShowWeights() { ShowTensorCores(); }

  static __device__ int PlaceOf(int unit, int word, int product, int column) {
    return unit / 2 * kPairWords + (product * 8 + column) * 8 +
           (unit % 2 ^ column / 4) * kImageUnitWords + word;
  }

  template <int kProducts>
  static __device__ void Multiply(const ImageStarts& starts, const uint4* table,
                                  const uint32_t* weights, int unit, int units,
                                  float (&sums)[2][8][4], bool is_first_step) {
    // While the tensor cores read the ones, the others are loaded.
    uint32_t even[2][4], odd[2][4];
    LoadImage<T, kStarts>(starts, *table, even);
    const uint32_t* of_pair = weights + unit / 2 * kPairWords;
    const int pairs = units / 2;
    if (pairs > 1) table += 4;
    uint4 next = *table;
#pragma unroll 1
    for (int i = 1; i < pairs; i += 2) {
      Begin<kProducts>(even, of_pair, i > 1 || !is_first_step, sums);
      WaitForProducts<1>();
      LoadImage<T, kStarts>(starts, next, odd);
      if (i + 1 < pairs) table += 4;  // behind the last, the last again
      next = *table;
      Begin<kProducts>(odd, of_pair + kPairWords, true, sums);
      WaitForProducts<1>();
      LoadImage<T, kStarts>(starts, next, even);
      if (i + 2 < pairs) table += 4;
      next = *table;
      of_pair += 2 * kPairWords;
    }
    if (pairs % 2 != 0) Begin<kProducts>(even, of_pair, pairs > 1 || !is_first_step, sums);
    WaitForProducts<0>();
    ShowSums(reinterpret_cast<float (&)[64]>(sums));
  }

 private:
  static constexpr int kPairWords = 2 * kImageUnitWords * kImageColumns;  // of two units

  template <int kProducts>
  static __device__ void Begin(const uint32_t (&a)[2][4], const uint32_t* weights, bool adds,
                               float (&sums)[2][8][4]) {
    const WarpgroupColumns b(weights);
    BeginProducts();
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      MultiplyAdd<kProducts * 8>(static_cast<const T*>(nullptr), a[m], b, adds, sums[m][0]);
    }
    CommitProducts();
  }
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_WARPGROUP_CUH_
