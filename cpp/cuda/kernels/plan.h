// The project's own kernels as one more engine beside cuDNN's.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_PLAN_H_
#define JAX_CONVGRAD_CUDA_KERNELS_PLAN_H_

#include <memory>

#include "cuda/cudnn/plan.h"
#include "ffi/error.h"

namespace jax_convgrad {

// The engine for a problem, null if there is none:
//
// "native_depthwise", one filter per channel and one type. It sums in float32 (float64 for float64)
// and uses no TF32.
//
// "native_dilated", the gradients of dilated convolutions with stride 1 and without groups, float32
// as TF32, with channels that are multiples of 4 and at most 64 kernel elements, on a Hopper
// device. It leaves out the products with the padding.
//
// Both are deterministic. The current device is the problem's.
ffi::ErrorOr<std::shared_ptr<const ConvPlan>> MakeNativePlan(const ConvProblem& problem);

// Whether that engine is likely to be faster than those of cuDNN: it goes before them then, and
// behind them otherwise.
bool NativeIsFast(const ConvProblem& problem);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_PLAN_H_
