// The plans for a problem, of all families that serve it.

#include <memory>
#include <utility>
#include <vector>

#include "cuda/kernels/thin/few_outputs_plan.h"
#include "cuda/kernels/thin/image_plan.h"
#include "cuda/kernels/thin/image_wgrad_plan.h"
#include "cuda/kernels/thin/launch.h"
#include "cuda/kernels/thin/plan.h"
#include "cuda/kernels/thin/windows_plan.h"

namespace jax_convgrad {
namespace {

template <typename T>
std::vector<std::unique_ptr<const ThinPlan>> CandidatesOf(const ThinProblem& problem) {
  std::vector<std::unique_ptr<const ThinPlan>> plans;
  if (HasWindows(problem)) plans = WindowsCandidates<T>(problem);
  const auto add = [&](std::unique_ptr<const ThinPlan> plan) {
    if (plan != nullptr) plans.push_back(std::move(plan));
  };
  if (HasImage(problem)) add(MakeImage<T>(problem, /*exchanged=*/false));
  if (problem.kind == ThinKind::kDgrad && !HasStrides(problem)) {
    const ThinProblem image = Exchanged(problem);
    if (HasImage(image)) add(MakeImage<T>(image, /*exchanged=*/true));
  }
  if (problem.kind == ThinKind::kWgrad) {
    // The image with fewer channels has fewer rows of the result: y's gradient is read less often.
    const bool fewer = problem.out_channels < problem.in_channels;
    for (const bool exchanged : {fewer, !fewer}) {
      if (exchanged && HasStrides(problem)) continue;
      const ThinProblem image = exchanged ? Exchanged(problem) : problem;
      if (HasImageWgrad(image)) add(MakeImageWgrad<T>(image, exchanged));
    }
  }
  if (HasFewOutputs(problem)) add(MakeFew<T>(problem));
  return plans;
}

}  // namespace

std::vector<std::unique_ptr<const ThinPlan>> ThinPlan::Candidates(const ThinProblem& problem) {
  return problem.type == ThinType::kF16 ? CandidatesOf<__half>(problem)
                                        : CandidatesOf<__nv_bfloat16>(problem);
}

}  // namespace jax_convgrad
