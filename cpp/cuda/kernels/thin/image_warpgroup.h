// Plans for windows of a thin image, multiplied by the warpgroups of a Hopper device.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_WARPGROUP_H_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_WARPGROUP_H_

#include <memory>
#include <vector>

#include "cuda/kernels/thin/plan.h"

namespace jax_convgrad {

// As MakeImages, of 16-bit elements, for a problem that HasImage.
std::vector<std::unique_ptr<const ThinPlan>> ImageWarpgroupCandidates(const ThinProblem& problem,
                                                                      bool exchanged);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_IMAGE_WARPGROUP_H_
