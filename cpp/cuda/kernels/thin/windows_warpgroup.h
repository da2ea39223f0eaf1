// Plans for windows that lie side by side, multiplied by the warpgroups of a Hopper device.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_WARPGROUP_H_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_WARPGROUP_H_

#include <memory>
#include <vector>

#include "cuda/kernels/thin/launch.h"
#include "cuda/kernels/thin/plan.h"

namespace jax_convgrad {

// What is likely the fastest first, for a problem that HasWindows, of 16-bit elements; none if the
// result has few columns. `sum_kernel` is PartsSum of the problem's type: kernels for all devices
// are not compiled with those for one.
std::vector<std::unique_ptr<const ThinPlan>> WarpgroupCandidates(const ThinProblem& problem,
                                                                 PartsSumKernel sum_kernel);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_WARPGROUP_H_
