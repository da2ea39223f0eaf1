// The kernels of few_channels for AVX-512.

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "cpu/kernels/thin/kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")

#define CONVGRAD_LANES 16

namespace jax_convgrad {
namespace few_channels_avx512 {

#include "cpu/kernels/thin/simd.inc"

}  // namespace few_channels_avx512
}  // namespace jax_convgrad
