#include "cpu/kernels/depthwise/kernels.h"

#include "cpu/runtime/processor.h"

namespace jax_convgrad {

namespace {

// The widest of the processor's sets whose vectors the channels fill, or else the narrowest.
template <typename T>
const DepthwiseKernels<T>& Find(int64_t channels, const DepthwiseKernels<T>& avx512,
                                const DepthwiseKernels<T>& avx2, const DepthwiseKernels<T>& sse2) {
  if (HasAvx512() && channels >= avx512.lanes) return avx512;
  return HasAvx2() && channels >= avx2.lanes ? avx2 : sse2;
}

}  // namespace

template <>
const DepthwiseKernels<float>& FindDepthwiseKernels<float>(int64_t channels) {
  return Find(channels, depthwise_avx512::kFloat, depthwise_avx2::kFloat, depthwise_sse2::kFloat);
}

template <>
const DepthwiseKernels<BFloat16>& FindDepthwiseKernels<BFloat16>(int64_t channels) {
  return Find(channels, depthwise_avx512::kBFloat16, depthwise_avx2::kBFloat16,
              depthwise_sse2::kBFloat16);
}

}  // namespace jax_convgrad
