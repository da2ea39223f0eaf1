// The compiled kernels, one set per instruction set. All give a tile of y by the same steps, in
// vectors of as many bytes as their registers have.

#ifndef JAX_CONVGRAD_CPU_KERNELS_RESAMPLE_TILE_H_
#define JAX_CONVGRAD_CPU_KERNELS_RESAMPLE_TILE_H_

#include <cstdint>

#include "cpu/kernels/resample/plan.h"
#include "xla/ffi/api/ffi.h"

namespace jax_convgrad {

struct ResampleKernels {
  int64_t lanes;  // floats in a vector
  // Works off one tile. `scratch` has plan.scratch_bytes() and is aligned to a cache line.
  void (*run_tile)(const ResamplePlan& plan, ::xla::ffi::DataType type, int64_t tile,
                   char* scratch);
};

// The best set that this processor runs.
const ResampleKernels& FindResampleKernels();

// Each set by itself; not to be called where the processor lacks its instructions.
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
