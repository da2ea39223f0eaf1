// The compiled kernels, one set per instruction set. All compute a tile of y in the same steps,
// with vectors as wide as their registers.

#ifndef JAX_CONVGRAD_CPU_KERNELS_RESAMPLE_TILE_H_
#define JAX_CONVGRAD_CPU_KERNELS_RESAMPLE_TILE_H_

#include <cstdint>

#include "cpu/kernels/resample/plan.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

struct ResampleKernels {
  int64_t lanes;  // floats in a vector
  // Computes one tile. `scratch` has plan.scratch_bytes() and is aligned to a cache line.
  void (*run_tile)(const ResamplePlan& plan, ::xla::ffi::DataType type, int64_t tile,
                   char* scratch);
};

// The best set that this processor supports.
const ResampleKernels& FindResampleKernels();

// The individual sets; not to be called on a processor that lacks their instructions.
namespace resample_avx512 {
void RunTile(const ResamplePlan&, ::xla::ffi::DataType, int64_t, char*);
}
namespace resample_avx2 {
void RunTile(const ResamplePlan&, ::xla::ffi::DataType, int64_t, char*);
}
namespace resample_sse2 {
void RunTile(const ResamplePlan&, ::xla::ffi::DataType, int64_t, char*);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CPU_KERNELS_RESAMPLE_TILE_H_
