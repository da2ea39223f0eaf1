// Plans for wgrad by warps (wgrad.cuh).

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_PLAN_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_PLAN_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/kernels/common/parts_sum.cuh"
#include "cuda/kernels/implicit_gemm/launch.h"
#include "cuda/kernels/implicit_gemm/plan.h"
#include "cuda/kernels/implicit_gemm/walk.h"
#include "cuda/kernels/implicit_gemm/warp/wgrad.cuh"
#include "cuda/kernels/implicit_gemm/warp/wgrad_params.h"
#include "cuda/kernels/implicit_gemm/warp/wgrad_search.h"
#include "cuda/kernels/implicit_gemm/warp/wgrad_tiling.h"
#include "ffi/integers.h"

namespace jax_convgrad {

// How blocks walk; the tile's rows and columns; a block's warps, by groups and by those that share
// positions; how many blocks share the result.
inline std::string WarpWgradName(const warp_wgrad::Tiling& t) {
  const WarpWgradParams& p = t.params;
  return std::string("wgrad_warp_") + (t.view.rows ? "rows_" : "planes_") +
         std::to_string(p.walk.rows) + "x" + std::to_string(p.walk.columns) + "_warps" +
         std::to_string(t.warps) + "_" + std::to_string(p.groups) + "x" +
         std::to_string(p.depth_warps) +
         (p.result_tiles > 1 ? "_tiles" + std::to_string(p.result_tiles) : "");
}

// How the sums of the parts, rows of taps and input channels by columns of output channels, become
// weights.
inline PartsSumParams WarpWgradSumOf(const ImplicitGemmProblem& problem, int parts) {
  const int64_t taps = GemmVolume(problem.kernel);
  PartsSumParams sum{};
  sum.parts = parts;
  sum.rows = static_cast<int>(taps * problem.in_channels);
  sum.columns = static_cast<int>(problem.out_channels);
  if (problem.weights == GemmWeights::kOutIn) {
    sum.of_column = taps * problem.in_channels;
    sum.of_inner_row = 1;
    sum.of_outer_row = problem.in_channels;
  } else {
    sum.of_column = 1;
    sum.of_inner_row = problem.out_channels;
    sum.of_outer_row = problem.in_channels * problem.out_channels;
  }
  sum.by_columns = Divider(problem.out_channels);
  sum.by_inner_rows = Divider(problem.in_channels);
  return sum;
}

template <typename T>
class WarpWgradPlan : public ImplicitGemmPlan {
 public:
  WarpWgradPlan(const ImplicitGemmProblem& problem, const warp_wgrad::Tiling& tiling)
      : name_(WarpWgradName(tiling)),
        params_(tiling.params),
        sum_(WarpWgradSumOf(problem, tiling.params.walk.blocks)),
        kernel_(tiling.fragments == 1 ? WarpWgrad<T, 1> : WarpWgrad<T, 2>),
        blocks_(tiling.blocks()),
        threads_(tiling.warps * 32),
        shared_bytes_(tiling.shared_bytes),
        count_(warp_wgrad::ResultCount(problem)),
        prepared_(PrepareGemm(kernel_, PartsSum<T>, problem.device.block_shared_bytes)) {}

  const std::string& name() const override { return name_; }
  int64_t workspace_bytes() const override {
    return sum_.parts * count_ * static_cast<int64_t>(sizeof(float));
  }
  bool ReusesSlots() const override {
    const WarpWgradParams& p = params_;
    const auto of_x = [&p](const GemmPlace& place) {
      return p.held + int64_t{place.steps - 1} * p.advance;
    };
    const auto of_y = [](const GemmPlace& place) { return int64_t{place.steps}; };
    return GemmMostOfBlock(p.walk, of_x) > p.x_slots || GemmMostOfBlock(p.walk, of_y) > p.y_slots;
  }

  cudaError_t Run(const ImplicitGemmArrays& arrays, cudaStream_t stream) const override {
    if (prepared_ != cudaSuccess) return prepared_;
    WarpWgradParams params = params_;
    params.x.from = arrays.x;
    params.y.from = arrays.y;
    params.partial = static_cast<float*>(arrays.workspace);
    const cudaError_t status =
        LaunchGemm(kernel_, blocks_, threads_, shared_bytes_, stream, params);
    if (status != cudaSuccess) return status;
    PartsSumParams sum = sum_;
    sum.partial = params.partial;
    sum.result = arrays.w;
    constexpr int64_t kThreads = kPartsSumColumns * kPartsSumSegments;
    return LaunchGemm(PartsSum<T>, CeilDivide(count_, int64_t{kPartsSumColumns}), kThreads,
                      kThreads * static_cast<int64_t>(sizeof(float)), stream, sum);
  }

 private:
  const std::string name_;
  const WarpWgradParams params_;
  const PartsSumParams sum_;
  void (*const kernel_)(WarpWgradParams);
  const int64_t blocks_, threads_, shared_bytes_, count_;
  const cudaError_t prepared_;
};

// For a problem of wgrad with elements of T: what is likely the fastest first.
template <typename T>
std::vector<std::unique_ptr<const ImplicitGemmPlan>> WarpWgradCandidates(
    const ImplicitGemmProblem& problem, GemmWanted wanted) {
  std::vector<std::unique_ptr<const ImplicitGemmPlan>> plans;
  for (const warp_wgrad::Tiling& tiling : warp_wgrad::TilingsOf(problem, wanted)) {
    plans.push_back(std::make_unique<WarpWgradPlan<T>>(problem, tiling));
  }
  return plans;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_PLAN_H_
