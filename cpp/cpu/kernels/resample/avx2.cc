// The kernels of resample for AVX2, FMA and F16C.

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "cpu/kernels/resample/tile.h"
#include "cpu/kernels/shuffle.h"

#pragma GCC target("avx2,fma,f16c")

#define CONVGRAD_LANES 8
#define CONVGRAD_F16C 1

namespace jax_convgrad {
namespace resample_avx2 {

#include "cpu/kernels/resample/simd.inc"

}  // namespace resample_avx2
}  // namespace jax_convgrad
