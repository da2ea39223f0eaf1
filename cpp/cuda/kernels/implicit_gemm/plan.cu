// The plans for a problem, of the kernels that serve it.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/kernels/implicit_gemm/launch.h"
#include "cuda/kernels/implicit_gemm/plan.h"
#include "cuda/kernels/implicit_gemm/warp/fprop_plan.h"
#include "cuda/kernels/implicit_gemm/warp/wgrad_plan.h"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_tiling.h"
#include "cuda/kernels/implicit_gemm/warpgroup/image.h"
#include "cuda/kernels/implicit_gemm/warpgroup/plan.h"
#include "cuda/kernels/implicit_gemm/warpgroup/wgrad_tiling.h"

namespace jax_convgrad {

template <typename T>
std::vector<std::unique_ptr<const ImplicitGemmPlan>> WarpCandidates(
    const ImplicitGemmProblem& problem, GemmWanted wanted) {
  return problem.kind == GemmKind::kWgrad ? WarpWgradCandidates<T>(problem, wanted)
                                          : WarpFpropCandidates<T>(problem, wanted);
}

std::vector<std::unique_ptr<const ImplicitGemmPlan>> ImplicitGemmPlan::Candidates(
    const ImplicitGemmProblem& problem, GemmWanted wanted) {
  if (IsWarpgroupGemm(problem)) {
    auto plans = WarpgroupGemmCandidates(problem, wanted);
    if (problem.type != GemmType::kTf32) return plans;
    // Floats may not fit into shared memory, or be rounded too slowly there.
    auto by_warps = WarpCandidates<float>(problem, wanted);
    const size_t added = plans.empty() || wanted == GemmWanted::kAll
                             ? by_warps.size()
                             : std::min<size_t>(1, by_warps.size());
    for (size_t i = 0; i < added; ++i) plans.push_back(std::move(by_warps[i]));
    return plans;
  }
  switch (problem.type) {
    case GemmType::kF16:
      return WarpCandidates<__half>(problem, wanted);
    case GemmType::kBF16:
      return WarpCandidates<__nv_bfloat16>(problem, wanted);
    default:
      return WarpCandidates<float>(problem, wanted);
  }
}

// Whether warpgroups have plans for a problem of 16-bit elements on a device with enough memory.
static bool IsWithinWarpgroupLimits(const ImplicitGemmProblem& p) {
  if (p.kind == GemmKind::kWgrad) return wgrad_tiling::IsWithinLimits(p);
  return FpropIsWithinLimits(p.kind == GemmKind::kDgrad ? GemmExchanged(p) : p);
}

bool ImplicitGemmPlan::IsFast(const ImplicitGemmProblem& p) {
  // Of floats, the weights of 16 output channels, which a block of fprop or dgrad has at least:
  // with more, its shared memory has no room for planes that warpgroups need.
  constexpr int64_t kMaxFloatWeights = 32 * 1024;
  const int64_t taps = GemmVolume(p.kernel);
  const bool has_few_weights =
      p.type != GemmType::kTf32 || p.kind == GemmKind::kWgrad ||
      16 * taps * (p.kind == GemmKind::kFprop ? p.in_channels : p.out_channels) <= kMaxFloatWeights;
  const auto serves = [](int64_t channels) {
    return channels >= 8 && channels % 8 == 0 && channels <= kGemmMaxChannels;
  };
  // Of one tap it is a plain product of matrices, which libraries have. Of more channels, some
  // blocks read again what others have read.
  return p.device.has_warpgroups && p.strides == ImplicitGemmProblem::PerAxis{1, 1, 1} &&
         taps > 1 && has_few_weights && serves(p.in_channels) && serves(p.out_channels) &&
         IsCountableGemm(p) && (p.type == GemmType::kTf32 || IsWithinWarpgroupLimits(p));
}

}  // namespace jax_convgrad
