// The kernels of resample for AVX-512.

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "cpu/kernels/resample/tile.h"
#include "cpu/kernels/shuffle.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")

#define CONVGRAD_LANES 16
#define CONVGRAD_F16C 1

namespace jax_convgrad {
namespace resample_avx512 {

#include "cpu/kernels/resample/simd.inc"

}  // namespace resample_avx512
}  // namespace jax_convgrad
