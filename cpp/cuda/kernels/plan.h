// The project's own kernels as more engines beside cuDNN's.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_PLAN_H_
#define JAX_CONVGRAD_CUDA_KERNELS_PLAN_H_

#include <memory>
#include <vector>

#include "cuda/conv_plan.h"
#include "ffi/error.h"

namespace jax_convgrad {

// The project's engines for a problem: those that are likely to be faster than cuDNN's, which go
// before them, and the others, which go behind. A search that times any engine times all of these.
struct NativePlans {
  std::vector<std::shared_ptr<const ConvPlan>> before, behind;
};

// "native_depthwise", one filter per channel and one type. It sums in float32 (float64 for float64)
// and uses no TF32.
//
// "native_dilated", the gradients of dilated convolutions with stride 1 and without groups, float32
// as TF32, with channels that are multiples of 4 and at most 64 kernel elements, on a Hopper
// device. It leaves out the products with the padding.
//
// "native_thin_...", convolutions without groups that memory bounds, in 16 bits or float32 as TF32,
// with sums in float32. thin/plan.h has the names and what each serves.
//
// "native_implicit_gemm_...", convolutions of 8 to 64 channels without groups, in 16 bits or
// float32 as TF32. implicit_gemm/plan.h has what each serves.
//
// The last two read the weights in either order, the others as kOXI (reordered.h). All are
// deterministic. The current device is the problem's.
ffi::ErrorOr<NativePlans> MakeNativePlans(const ConvProblem& problem);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_PLAN_H_
