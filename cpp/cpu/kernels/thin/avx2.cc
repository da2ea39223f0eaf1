// The kernels of thin convolutions for AVX2 and FMA.

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "cpu/kernels/shuffle.h"
#include "cpu/kernels/thin/kernels.h"

#pragma GCC target("avx2,fma")

#define CONVGRAD_LANES 8

namespace jax_convgrad {
namespace thin_avx2 {

#include "cpu/kernels/thin/simd.inc"

}  // namespace thin_avx2
}  // namespace jax_convgrad
