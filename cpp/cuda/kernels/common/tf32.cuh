// Floats as the tensor cores take them.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_COMMON_TF32_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_COMMON_TF32_CUH_

#include <cuda_runtime.h>

namespace jax_convgrad {

// What the tensor core, which leaves out the last 13 bits, takes for the nearest TF32 number. There
// is no instruction for it on a Hopper device, and what replaces it takes two: this takes one. A
// TF32 number stays what it is, since less than the value of the last bit that counts is added to
// it; others are rounded up from 0.64 of that value on if the significand is near 1, and from 0.28
// on if near 2, such that the errors cancel on average. Infinities and NaNs stay what they are.
__device__ inline float ToTf32(float value) {
  constexpr float kHalf = 1.0f / 2048;
  return __fmul_rn(value, 1 + 0.7213f * kHalf);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_COMMON_TF32_CUH_
