// The kernels of resample for every x86-64 processor.

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "cpu/kernels/resample/tile.h"
#include "cpu/kernels/shuffle.h"

#define CONVGRAD_LANES 4
#define CONVGRAD_F16C 0

namespace jax_convgrad {
namespace resample_sse2 {

#include "cpu/kernels/resample/simd.inc"

}  // namespace resample_sse2
}  // namespace jax_convgrad
