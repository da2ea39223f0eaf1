// The plans for a problem, of the kernel that serves it.

#include <algorithm>
#include <memory>
#include <vector>

#include "cuda/kernels/implicit_gemm/fprop_plan.h"
#include "cuda/kernels/implicit_gemm/launch.h"
#include "cuda/kernels/implicit_gemm/plan.h"
#include "cuda/kernels/implicit_gemm/wgrad_plan.h"

namespace jax_convgrad {

std::vector<std::unique_ptr<const ImplicitGemmPlan>> ImplicitGemmPlan::Candidates(
    const ImplicitGemmProblem& problem) {
  if (!IsGemm(problem)) return {};
  if (problem.kind == GemmKind::kWgrad) return WgradCandidates(problem);
  return FpropCandidates(problem);
}

bool ImplicitGemmPlan::IsFast(const ImplicitGemmProblem& problem) {
  // Of one tap it is a plain product of matrices, which libraries have. Of more channels on one
  // side, some blocks read again what others have read.
  return GemmVolume(problem.kernel) > 1 &&
         std::max(problem.in_channels, problem.out_channels) <= kGemmMaxChannels;
}

}  // namespace jax_convgrad
