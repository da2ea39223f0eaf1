// The plans for a problem, of all families that serve it.

#include <memory>
#include <utility>
#include <vector>

#include "cuda/kernels/thin/few_outputs_plan.h"
#include "cuda/kernels/thin/image_plan.h"
#include "cuda/kernels/thin/image_warpgroup.h"
#include "cuda/kernels/thin/image_wgrad_plan.h"
#include "cuda/kernels/thin/launch.h"
#include "cuda/kernels/thin/plan.h"
#include "cuda/kernels/thin/windows_plan.h"
#include "cuda/kernels/thin/windows_warp_plan.h"
#include "cuda/kernels/thin/windows_warpgroup.h"

namespace jax_convgrad {
namespace {

constexpr int64_t kMaxFloatsSideBySide = 256;
// Windows side by side whose products memory bounds: elements of a window times output channels.
constexpr int64_t kMaxBoundByMemory = 256 * 128, kMaxBoundByMemoryOnHopper = 512 * 128;

template <typename T>
std::vector<std::unique_ptr<const ThinPlan>> CandidatesOf(const ThinProblem& problem) {
  std::vector<std::unique_ptr<const ThinPlan>> plans;
  const auto add = [&](std::unique_ptr<const ThinPlan> plan) {
    if (plan != nullptr) plans.push_back(std::move(plan));
  };
  const auto add_all = [&](std::vector<std::unique_ptr<const ThinPlan>> more) {
    for (auto& plan : more) plans.push_back(std::move(plan));
  };
  if constexpr (sizeof(T) == 2) {
    if (HasWindows(problem)) {
      if (problem.device.has_warpgroups) plans = WarpgroupCandidates(problem, PartsSum<T>);
      if (plans.empty()) plans = WindowsCandidates<T>(problem);
    }
  }
  // Of two thin sides, the thinner one says how, except that windows far apart are an image's.
  const bool fewer_x = problem.in_channels < problem.out_channels;
  const bool few_first =
      problem.kind == ThinKind::kDgrad ? fewer_x : !fewer_x && !HasStrides(problem);
  const auto add_few = [&] {
    if (HasFewOutputs(problem)) add_all(MakeFew<T>(problem));
  };
  if (few_first) add_few();
  const auto add_images = [&](const ThinProblem& image, bool exchanged) {
    if (!HasImage(image)) return;
    const bool by_warpgroups = sizeof(T) == 2 && image.device.has_warpgroups;
    add_all(by_warpgroups ? ImageWarpgroupCandidates(image, exchanged)
                          : MakeImages<T, ImageWarpProducts>(image, exchanged));
  };
  add_images(problem, /*exchanged=*/false);
  if (problem.kind == ThinKind::kDgrad && !HasStrides(problem)) {
    add_images(Exchanged(problem), /*exchanged=*/true);
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
  if (!few_first) add_few();
  return plans;
}

}  // namespace

std::vector<std::unique_ptr<const ThinPlan>> ThinPlan::Candidates(const ThinProblem& problem) {
  switch (problem.type) {
    case ThinType::kF16:
      return CandidatesOf<__half>(problem);
    case ThinType::kBF16:
      return CandidatesOf<__nv_bfloat16>(problem);
    default:
      return CandidatesOf<float>(problem);
  }
}

bool ThinPlan::IsFast(const ThinProblem& problem) {
  const bool gradient = problem.kind == ThinKind::kDgrad, floats = problem.type == ThinType::kTf32;
  const auto window_of = [&](int64_t channels) {
    for (const int64_t size : problem.kernel) channels *= size;
    return channels;
  };
  if (!floats && HasWindows(problem)) {
    // Thin, or a product that memory bounds. Of one tap, libraries have fast products too.
    const int64_t window = window_of(problem.in_channels);
    const int64_t most = problem.device.has_warpgroups && window > problem.in_channels
                             ? kMaxBoundByMemoryOnHopper
                             : kMaxBoundByMemory;
    return IsThin(problem, problem.in_channels) || window * problem.out_channels <= most;
  }
  const int64_t channels = gradient ? problem.out_channels : problem.in_channels;
  const bool is_image = IsThin(problem, channels) && problem.dilation[2] == 1;
  if (is_image && !(gradient && HasStrides(problem))) {
    // Of floats, the weights of large windows side by side take all shared memory.
    const bool beside = problem.kernel == problem.strides;
    return !(floats && beside && window_of(channels) > kMaxFloatsSideBySide);
  }
  if (problem.kind == ThinKind::kWgrad) return true;
  // Of fprop, one window a pixel; of dgrad, windows that are not far apart.
  const int64_t stride = problem.strides[0] * problem.strides[1] * problem.strides[2];
  return gradient ? stride < 16 : stride == 1;
}

}  // namespace jax_convgrad
