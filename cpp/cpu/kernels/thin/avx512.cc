// The kernels of thin convolutions for AVX-512.

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "cpu/kernels/shuffle.h"
#include "cpu/kernels/thin/kernels.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")

#define CONVGRAD_LANES 16

namespace jax_convgrad {
namespace thin_avx512 {

#include "cpu/kernels/thin/simd.inc"

}  // namespace thin_avx512
}  // namespace jax_convgrad
