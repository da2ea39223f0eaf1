// The implicit GEMM kernels on the processor, over random problems: exact against plain loops,
// inside their arrays, every element of the result written, the same bits again. Every plan for a
// problem. Bulk copies, stores and the operands of products are emulated byte by byte.
//
//   implicit_gemm_fuzz SEED COUNT

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "conv_fuzz.h"
#include "cuda/kernels/implicit_gemm/plan.cu"

namespace {

using jax_convgrad::GemmKind;
using jax_convgrad::GemmType;
using jax_convgrad::GemmWeights;
using jax_convgrad::ImplicitGemmArrays;
using jax_convgrad::ImplicitGemmPlan;
using jax_convgrad::ImplicitGemmProblem;

using fuzz::Between;
using fuzz::OneOf;
using fuzz::Random;

ImplicitGemmProblem RandomProblem(Random* random) {
  ImplicitGemmProblem p;
  p.kind = static_cast<GemmKind>(Between(random, 0, 2));
  p.type = static_cast<GemmType>(Between(random, 0, 1));
  p.weights = static_cast<GemmWeights>(Between(random, 0, 1));
  p.batch = Between(random, 1, 3);
  p.in_channels = OneOf(random, {8, 16, 16, 24, 32, 32, 48, 64});
  p.out_channels = OneOf(random, {8, 16, 16, 24, 32, 32, 48, 64});
  // The channels of the result may be more.
  if (p.kind != GemmKind::kWgrad && Between(random, 0, 4) == 0) {
    (p.kind == GemmKind::kFprop ? p.out_channels : p.in_channels) = 8 * Between(random, 9, 16);
  }
  const int64_t axes = Between(random, 1, 3);
  const int64_t most_kernel = axes == 3 ? 5 : axes == 2 ? 7 : 15;
  const int64_t most_more = axes == 3 ? 8 : axes == 2 ? 24 : 150;
  for (size_t axis = static_cast<size_t>(3 - axes); axis < 3; ++axis) {
    p.kernel[axis] = Between(random, 1, Between(random, 0, 1) ? most_kernel : 3);
    p.dilation[axis] = Between(random, 0, 2) ? 1 : Between(random, 2, 3);
    const int64_t window = (p.kernel[axis] - 1) * p.dilation[axis] + 1;
    p.padding_low[axis] = Between(random, -2, window);
    const int64_t high = Between(random, -2, window);
    const int64_t least = std::max<int64_t>(1, window - p.padding_low[axis] - high);
    p.in[axis] = least + Between(random, 0, most_more);
    p.out[axis] = p.in[axis] + p.padding_low[axis] + high - window + 1;
  }
  p.workspace_limit = OneOf(random, {1, 4, 64}) << 18;
  p.device = {Between(random, 1, 6), 228 * 1024, 227 * 1024};
  return p;
}

// Whether the problem may be refused: since the weights, of which fprop and dgrad hold all, fill
// most of the shared memory; or since wgrad's sums fill most of the workspace.
bool IsLarge(const ImplicitGemmProblem& p) {
  const auto line = [](int64_t channels) { return channels <= 16 ? 16 : channels <= 32 ? 32 : 64; };
  const int64_t weights = fuzz::Volume(p.kernel) * line(p.in_channels) * line(p.out_channels);
  if (p.kind == GemmKind::kWgrad) return weights * 4 > p.workspace_limit / 8;
  return weights * 2 > p.device.block_shared_bytes / 2;
}

template <typename T>
bool Check(const ImplicitGemmProblem& p, Random* random) {
  // A NaN of x is in the results of its own windows alone; other passes multiply what is around an
  // array as zeros.
  const bool with_nan = p.kind == GemmKind::kFprop && p.type == GemmType::kBF16;
  return fuzz::PlansAreExact<T, ImplicitGemmPlan, ImplicitGemmArrays>(p, random, with_nan,
                                                                      IsLarge(p));
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::Main(argc, argv, "implicit_gemm_fuzz", [](Random* random) {
    constexpr int64_t kMaxProducts = 3000000;
    ImplicitGemmProblem problem = RandomProblem(random);
    while (fuzz::Products(problem) > kMaxProducts) problem = RandomProblem(random);
    return problem.type == GemmType::kF16 ? Check<__half>(problem, random)
                                          : Check<__nv_bfloat16>(problem, random);
  });
}
