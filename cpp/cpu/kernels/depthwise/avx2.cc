// The kernels of depthwise convolutions for AVX2 and FMA.

#include <cstdint>
#include <cstring>

#include "cpu/kernels/depthwise/kernels.h"
#include "cpu/kernels/lanes.h"

#pragma GCC target("avx2,fma")

#define CONVGRAD_LANES 8

namespace jax_convgrad {
namespace depthwise_avx2 {

// clang-format off: the others use what is in the first
#include "cpu/kernels/depthwise/simd.inc"
#include "cpu/kernels/depthwise/conv.inc"
#include "cpu/kernels/depthwise/sweep.inc"
#include "cpu/kernels/depthwise/wgrad.inc"
// clang-format on

const DepthwiseKernels<float> kFloat = {kLanes, Conv<float>, Wgrad<float>, Sweep<float>};
const DepthwiseKernels<BFloat16> kBFloat16 = {kLanes, Conv<BFloat16>, Wgrad<BFloat16>,
                                              Sweep<BFloat16>};

}  // namespace depthwise_avx2
}  // namespace jax_convgrad
