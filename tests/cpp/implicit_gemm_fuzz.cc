// The implicit GEMM kernels on the processor, over random problems: exact against plain loops,
// inside their arrays, every element of the result written, the same bits again. Bulk copies,
// stores and the operands of products are emulated byte by byte.
//
//   implicit_gemm_fuzz SEED COUNT      the plans that a problem is offered
//   implicit_gemm_fuzz all SEED COUNT  some of all that fit, of smaller problems

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>

#include "conv_fuzz.h"
#include "cuda/kernels/implicit_gemm/plan.cu"
#include "cuda/kernels/implicit_gemm/warpgroup/plan.cu"

namespace {

using jax_convgrad::GemmKind;
using jax_convgrad::GemmType;
using jax_convgrad::GemmWanted;
using jax_convgrad::GemmWeights;
using jax_convgrad::ImplicitGemmArrays;
using jax_convgrad::ImplicitGemmPlan;
using jax_convgrad::ImplicitGemmProblem;

using fuzz::Between;
using fuzz::OneOf;
using fuzz::Random;

// A device of compute capability 8.0, 8.6 or 9.0, with few multiprocessors.
jax_convgrad::GemmDevice RandomDevice(Random* random) {
  const int64_t kilobytes = OneOf(random, {164, 100, 228, 228});
  return {Between(random, 1, 6), kilobytes * 1024, (kilobytes - 1) * 1024, kilobytes == 228};
}

int64_t RandomChannels(GemmType type, Random* random) {
  if (type == GemmType::kTf32 && Between(random, 0, 1)) return 4 * Between(random, 1, 17);
  return OneOf(random, {8, 16, 16, 24, 32, 32, 48, 64});
}

// Windows of three planes that lie further apart than the result has planes: of those that a walk
// reads before its first result, none follows in steps of the result.
ImplicitGemmProblem RandomShortWalk(Random* random) {
  ImplicitGemmProblem p;
  p.kind = static_cast<GemmKind>(Between(random, 0, 1));
  p.type = GemmType::kTf32;
  p.weights = static_cast<GemmWeights>(Between(random, 0, 1));
  p.batch = Between(random, 1, 3);
  p.in_channels = OneOf(random, {8, 16});
  p.out_channels = OneOf(random, {8, 16});
  p.dilation = {Between(random, 3, 5), 1, 1};
  p.in = p.out = {2, Between(random, 12, 24), Between(random, 12, 24)};
  p.kernel = {3, 3, 3};
  p.padding_low = p.dilation;
  p.workspace_limit = int64_t{1} << 24;
  p.device = RandomDevice(random);
  p.device.has_warpgroups = false;
  return p;
}

ImplicitGemmProblem RandomProblem(Random* random) {
  if (Between(random, 0, 3) == 0) return RandomShortWalk(random);
  ImplicitGemmProblem p;
  p.kind = static_cast<GemmKind>(Between(random, 0, 2));
  p.type = static_cast<GemmType>(Between(random, 0, 2));
  p.weights = static_cast<GemmWeights>(Between(random, 0, 1));
  p.batch = Between(random, 1, 3);
  p.in_channels = RandomChannels(p.type, random);
  p.out_channels = RandomChannels(p.type, random);
  // The channels of the result may be more.
  if (p.kind != GemmKind::kWgrad && Between(random, 0, 4) == 0) {
    (p.kind == GemmKind::kFprop ? p.out_channels : p.in_channels) = 8 * Between(random, 9, 16);
  }
  const int64_t axes = Between(random, 1, 3);
  const int64_t most_kernel = axes == 3 ? 5 : axes == 2 ? 7 : 15;
  const int64_t most_more = axes == 3 ? 8 : axes == 2 ? 24 : 150;
  const bool strided = Between(random, 0, 2) == 0;
  for (size_t axis = static_cast<size_t>(3 - axes); axis < 3; ++axis) {
    p.kernel[axis] = Between(random, 1, Between(random, 0, 1) ? most_kernel : 3);
    p.dilation[axis] = Between(random, 0, 2) ? 1 : Between(random, 2, 3);
    if (strided) p.strides[axis] = Between(random, 1, Between(random, 0, 2) ? 2 : 5);
    const int64_t window = (p.kernel[axis] - 1) * p.dilation[axis] + 1;
    p.padding_low[axis] = Between(random, -2, window);
    const int64_t high = Between(random, -2, window);
    const int64_t least = std::max<int64_t>(1, window - p.padding_low[axis] - high);
    p.in[axis] = least + Between(random, 0, most_more);
    p.out[axis] = (p.in[axis] + p.padding_low[axis] + high - window) / p.strides[axis] + 1;
    // As many windows as positions, most of the last ones behind the image.
    if (p.strides[axis] > 1 && p.kernel[axis] == 1 && Between(random, 0, 1)) {
      p.padding_low[axis] = 0;
      p.out[axis] = p.in[axis];
    }
  }
  p.workspace_limit = OneOf(random, {1, 4, 64}) << 18;
  p.device = RandomDevice(random);
  return p;
}

// Whether the weights that warps hold, of 16 channels, or some chunks if the workspace has room for
// the rest, do not fit into shared memory together with what a window reads of the image.
bool IsLargeForWarps(const ImplicitGemmProblem& p) {
  const bool gradient = p.kind == GemmKind::kDgrad;
  const int64_t bytes = p.type == GemmType::kTf32 ? 4 : 2;
  const int64_t line = ((gradient ? p.out_channels : p.in_channels) * bytes + 31) / 32 * 32;
  const int64_t columns = ((gradient ? p.in_channels : p.out_channels) + 15) / 16 * 16;
  const int64_t column_bytes = fuzz::Volume(p.kernel) * line;
  constexpr int64_t kChunks = 48 * 1024, kSteps = 2 * 1024;
  const int64_t weights = columns * column_bytes <= p.workspace_limit
                              ? std::min(16 * column_bytes, kChunks)
                              : 16 * column_bytes;
  int64_t pixels = 1;
  for (size_t axis = 0; axis < 3; ++axis) {
    const int64_t stride = p.strides[axis], reach = (p.kernel[axis] - 1) * p.dilation[axis];
    if (gradient && stride > 1) {
      pixels *= reach / stride + 2;
    } else if (axis == 0) {
      pixels *= stride > 1 ? 1 : p.kernel[0];
    } else {
      pixels *= (reach + stride) / stride * stride;
    }
  }
  return weights + kSteps + pixels * (line + 16) > p.device.block_shared_bytes;
}

// Whether the problem may be refused: since the weights, of which fprop and dgrad hold all, fill
// most of the shared memory; or since wgrad's sums, one for each weight, do not fit into the
// workspace, or, of warpgroups, fill most of it.
bool IsLarge(const ImplicitGemmProblem& p) {
  const auto line = [](int64_t channels) { return channels <= 16 ? 16 : channels <= 32 ? 32 : 64; };
  const int64_t taps = fuzz::Volume(p.kernel);
  const int64_t weights = taps * line(p.in_channels) * line(p.out_channels);
  const bool by_warpgroups = p.device.has_warpgroups && p.type != GemmType::kTf32 &&
                             p.strides == ImplicitGemmProblem::PerAxis{1, 1, 1};
  if (p.kind == GemmKind::kWgrad) {
    return by_warpgroups ? weights * 4 > p.workspace_limit / 8
                         : taps * p.in_channels * p.out_channels * 4 > p.workspace_limit;
  }
  if (by_warpgroups) return weights * 2 > p.device.block_shared_bytes / 2;
  return IsLargeForWarps(p);
}

// Whether warpgroups have a plan for a problem that they must have one for, and it is the first. If
// there are others for the same type, these would hide that it is missing.
bool WarpgroupsAreFirst(const ImplicitGemmProblem& p) {
  if (p.type != GemmType::kTf32 || !jax_convgrad::IsWarpgroupGemm(p)) return true;
  const bool gradient = p.kind == GemmKind::kDgrad;
  const int64_t channels = gradient ? p.out_channels : p.in_channels;
  const int64_t line = (channels <= 8 ? 8 : channels <= 16 ? 16 : channels <= 32 ? 32 : 64) * 4;
  // The weights of 16 channels, and one plane more than a step of 64 positions reads.
  int64_t pixels = p.kernel[0] + 1;
  for (size_t axis = 1; axis < 3; ++axis) pixels *= 8 + (p.kernel[axis] - 1) * p.dilation[axis];
  const bool fits = (fuzz::Volume(p.kernel) * 16 + pixels) * line + 4096 * (p.kernel[0] + 1) <=
                    p.device.block_shared_bytes;
  const auto plans = ImplicitGemmPlan::Candidates(p);
  if (!fits || (!plans.empty() && plans[0]->name().find("_warp_") == std::string::npos)) {
    return true;
  }
  fuzz::Print(p, "not by warpgroups");
  return false;
}

int64_t checked = 0;             // plans
constexpr size_t kMaxOfAll = 8;  // plans of a problem, of which hundreds may fit

template <typename T>
bool Check(const ImplicitGemmProblem& p, GemmWanted wanted, Random* random) {
  // A NaN of x is in the results of its own windows alone; other passes multiply what is around an
  // array as zeros.
  const bool with_nan = p.kind == GemmKind::kFprop && p.type == GemmType::kBF16;
  auto plans = ImplicitGemmPlan::Candidates(p, wanted);
  if (wanted == GemmWanted::kAll) {
    std::shuffle(plans.begin(), plans.end(), *random);
    if (plans.size() > kMaxOfAll) plans.resize(kMaxOfAll);
  }
  checked += static_cast<int64_t>(plans.size());
  return WarpgroupsAreFirst(p) &&
         fuzz::PlansAreExact<T, ImplicitGemmArrays>(p, plans, random, with_nan, IsLarge(p),
                                                    p.type == GemmType::kTf32);
}

bool CheckRandom(GemmWanted wanted, Random* random) {
  const int64_t most_products = wanted == GemmWanted::kAll ? 50000 : 3000000;
  ImplicitGemmProblem problem = RandomProblem(random);
  while (fuzz::Products(problem) > most_products) problem = RandomProblem(random);
  switch (problem.type) {
    case GemmType::kF16:
      return Check<__half>(problem, wanted, random);
    case GemmType::kBF16:
      return Check<__nv_bfloat16>(problem, wanted, random);
    default:
      return Check<float>(problem, wanted, random);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool all = argc == 4 && std::string(argv[1]) == "all";
  const GemmWanted wanted = all ? GemmWanted::kAll : GemmWanted::kFastest;
  const int status =
      fuzz::Main(argc - all, argv + all, all ? "implicit_gemm_fuzz all" : "implicit_gemm_fuzz",
                 [&](Random* random) { return CheckRandom(wanted, random); });
  std::printf("%lld plans\n", static_cast<long long>(checked));
  return status;
}
