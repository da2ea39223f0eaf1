// The project's own kernels as one more engine beside cuDNN's.

#ifndef JAX_CONVGRAD_CUDA_NATIVE_PLAN_H_
#define JAX_CONVGRAD_CUDA_NATIVE_PLAN_H_

#include <memory>

#include "common/error.h"
#include "cuda/conv_plan.h"

namespace jax_convgrad {

// "native_depthwise" for a depthwise problem with one filter per channel and one type; null for all
// others. It is deterministic, sums in float32 (float64 for float64) and uses no TF32.
ffi::ErrorOr<std::shared_ptr<const ConvPlan>> MakeNativePlan(const ConvProblem& problem);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_NATIVE_PLAN_H_
