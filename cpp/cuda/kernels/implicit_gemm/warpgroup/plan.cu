// A unit of its own: its kernels use instructions that only Hopper has.

#include <memory>
#include <vector>

#include "cuda/kernels/implicit_gemm/plan.h"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_plan.h"
#include "cuda/kernels/implicit_gemm/warpgroup/plan.h"
#include "cuda/kernels/implicit_gemm/warpgroup/wgrad_plan.h"

namespace jax_convgrad {

std::vector<std::unique_ptr<const ImplicitGemmPlan>> WarpgroupGemmCandidates(
    const ImplicitGemmProblem& problem, GemmWanted wanted) {
  if (problem.kind == GemmKind::kWgrad) return WgradCandidates(problem, wanted);
  return FpropCandidates(problem, wanted);
}

}  // namespace jax_convgrad
