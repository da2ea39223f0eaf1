#include "cpu/kernels/depthwise/kernels.h"

#include "cpu/runtime/processor.h"

namespace jax_convgrad {

template <>
const DepthwiseKernels<float>& FindDepthwiseKernels<float>() {
  if (HasAvx512()) return depthwise_avx512::kFloat;
  return HasAvx2() ? depthwise_avx2::kFloat : depthwise_sse2::kFloat;
}

template <>
const DepthwiseKernels<BFloat16>& FindDepthwiseKernels<BFloat16>() {
  if (HasAvx512()) return depthwise_avx512::kBFloat16;
  return HasAvx2() ? depthwise_avx2::kBFloat16 : depthwise_sse2::kBFloat16;
}

}  // namespace jax_convgrad
