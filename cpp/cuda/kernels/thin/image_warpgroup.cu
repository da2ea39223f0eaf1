#include <memory>
#include <vector>

#include "cuda/kernels/thin/image_plan.h"
#include "cuda/kernels/thin/image_warpgroup.cuh"
#include "cuda/kernels/thin/image_warpgroup.h"
#include "cuda/kernels/thin/plan.h"

namespace jax_convgrad {

std::vector<std::unique_ptr<const ThinPlan>> ImageWarpgroupCandidates(const ThinProblem& problem,
                                                                      bool exchanged) {
  return problem.type == ThinType::kF16
             ? MakeImages<__half, ImageWarpgroupProducts>(problem, exchanged)
             : MakeImages<__nv_bfloat16, ImageWarpgroupProducts>(problem, exchanged);
}

}  // namespace jax_convgrad
