// Plans for the weight gradient.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_WGRAD_PLAN_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_WGRAD_PLAN_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels/common/tensor_map.h"
#include "cuda/kernels/implicit_gemm/launch.h"
#include "cuda/kernels/implicit_gemm/plan.h"
#include "cuda/kernels/implicit_gemm/walk.h"
#include "cuda/kernels/implicit_gemm/warpgroup/image.h"
#include "cuda/kernels/implicit_gemm/warpgroup/wgrad.cuh"
#include "cuda/kernels/implicit_gemm/warpgroup/wgrad_params.h"
#include "cuda/kernels/implicit_gemm/warpgroup/wgrad_search.h"
#include "cuda/kernels/implicit_gemm/warpgroup/wgrad_tiling.h"
#include "ffi/integers.h"

namespace jax_convgrad {

using GemmWgradKernel = void (*)(GemmWgradParams);

// The kernels of all instances.
template <typename T, size_t... kIndices>
constexpr std::array<GemmWgradKernel, sizeof...(kIndices)> GemmWgradKernels(
    std::index_sequence<kIndices...>) {
  return {ImplicitGemmWgrad<
      T, WgradUnits<kWgradInstances[kIndices].columns, kWgradInstances[kIndices].units,
                    kWgradInstances[kIndices].extra_columns,
                    WgradMaxWarpgroups(kWgradInstances[kIndices])>>...};
}

// What the kernel is given, except the arrays.
inline GemmWgradParams GemmWgradParamsOf(const WgradTiling& tiling) {
  GemmWgradParams p{};
  p.taps = tiling.taps;
  for (int axis = 0; axis < 3; ++axis) p.first[axis] = tiling.first[axis];
  p.walk = tiling.walk;
  p.rings = tiling.rings;
  const WgradView::Axis* const axes[] = {&tiling.view.z, &tiling.view.y, &tiling.view.x};
  for (int axis = 0; axis < 3; ++axis) {
    p.padding[axis] = static_cast<int>(axes[axis]->padding);
    p.dilation[axis] = static_cast<int>(axes[axis]->dilation);
  }
  p.sets = tiling.sets;
  p.splits = tiling.splits;
  p.row_splits = tiling.row_splits;
  p.in_line = tiling.in_line;
  p.out_line = tiling.out_line;
  p.barrier_offset = static_cast<int>(tiling.barrier_offset);
  p.part_packs = static_cast<int>(wgrad_tiling::PartPacks(tiling));
  return p;
}

inline GemmWgradSumParams GemmWgradSumParamsOf(const ImplicitGemmProblem& problem,
                                               const WgradTiling& tiling) {
  const WgradInstance& instance = kWgradInstances[tiling.instance];
  GemmWgradSumParams p{};
  p.parts = tiling.walk.blocks;
  p.part_packs = static_cast<int>(wgrad_tiling::PartPacks(tiling));
  p.set_packs = WgradSums(instance) / kWgradPack;
  p.unit_packs = instance.columns / 2 / kWgradPack;
  p.taps = tiling.taps;
  p.in_channels = static_cast<int>(problem.in_channels);
  p.out_channels = static_cast<int>(problem.out_channels);
  p.in_line = tiling.in_line;
  p.out_line = tiling.out_line;
  const int64_t taps = GemmVolume(problem.kernel);
  if (problem.weights == GemmWeights::kOutIn) {
    p.of_input = 1;
    p.of_tap = problem.in_channels;
    p.of_output = taps * problem.in_channels;
  } else {
    p.of_output = 1;
    p.of_input = problem.out_channels;
    p.of_tap = problem.in_channels * problem.out_channels;
  }
  return p;
}

// The boxes of x, or of y, that are copied at once.
inline TensorShape WgradShape(const ImplicitGemmProblem& problem, const WgradTiling& tiling,
                              bool of_y) {
  const WgradView& view = tiling.view;
  const int64_t channels = of_y ? problem.out_channels : problem.in_channels;
  const int64_t line = of_y ? tiling.out_line : tiling.in_line;
  TensorShape shape;
  shape.element_bytes = kGemmElementBytes;
  shape.line_bytes = line * kGemmElementBytes;
  shape.sizes[0] = channels;
  const WgradView::Axis* const axes[] = {&view.x, &view.y, &view.z, &view.image};
  for (int axis = 1; axis < kTensorAxes; ++axis) {
    const WgradView::Axis& from = *axes[axis - 1];
    shape.sizes[axis] = of_y ? from.out : from.in;
    shape.strides[axis - 1] = (of_y ? from.out_step : from.in_step) * channels * kGemmElementBytes;
  }
  shape.box[0] = line;
  shape.box[1] = of_y ? tiling.rings.y_pitch : tiling.rings.x_pitch;
  shape.box[2] = of_y ? tiling.rings.y_rows : tiling.walk.rows;
  return shape;
}

// How blocks walk; the tile, rows and columns of a step; columns of a set's products.
inline std::string WgradName(const WgradTiling& tiling) {
  const WgradInstance& instance = kWgradInstances[tiling.instance];
  std::string name = std::string("wgrad_") + tiling.view.walk + "_" +
                     std::to_string(tiling.walk.rows) + "x" + std::to_string(tiling.walk.columns);
  for (int unit = 0; unit < instance.units; ++unit) name += "_" + std::to_string(instance.columns);
  if (instance.extra_columns > 0) name += "_" + std::to_string(instance.extra_columns);
  return name + (tiling.taps.by_pixels ? "_pixels" : "");
}

class GemmWgradPlan : public ImplicitGemmPlan {
 public:
  GemmWgradPlan(const ImplicitGemmProblem& problem, const WgradTiling& tiling)
      : name_(WgradName(tiling)),
        params_(GemmWgradParamsOf(tiling)),
        sum_params_(GemmWgradSumParamsOf(problem, tiling)),
        x_(WgradShape(problem, tiling, false)),
        y_(WgradShape(problem, tiling, true)),
        blocks_(int64_t{tiling.groups} * tiling.walk.blocks),
        threads_(tiling.threads()),
        shared_bytes_(tiling.shared_bytes),
        workspace_bytes_(tiling.walk.blocks * wgrad_tiling::PartBytes(tiling)) {
    constexpr auto kIndices = std::make_index_sequence<kWgradInstanceCount>();
    const size_t instance = static_cast<size_t>(tiling.instance);
    if (problem.type == GemmType::kF16) {
      kernel_ = GemmWgradKernels<__half>(kIndices)[instance];
      sum_kernel_ = ImplicitGemmWgradSum<__half>;
    } else {
      kernel_ = GemmWgradKernels<__nv_bfloat16>(kIndices)[instance];
      sum_kernel_ = ImplicitGemmWgradSum<__nv_bfloat16>;
    }
    prepared_ = PrepareGemm(kernel_, sum_kernel_, problem.device.block_shared_bytes);
  }

  const std::string& name() const override { return name_; }
  int64_t workspace_bytes() const override { return workspace_bytes_; }
  bool ReusesSlots() const override {
    const GemmWalk& walk = params_.walk;
    const WgradRings& rings = params_.rings;
    const auto of_x = [](const GemmPlace& place) { return int64_t{place.steps}; };
    const auto of_y = [&rings](const GemmPlace& place) {
      return int64_t{place.steps} + rings.planes - 1;
    };
    return GemmMostOfBlock(walk, of_x) > rings.x_slots ||
           GemmMostOfBlock(walk, of_y) > rings.y_slots;
  }

  cudaError_t Run(const ImplicitGemmArrays& arrays, cudaStream_t stream) const override {
    if (prepared_ != cudaSuccess) return prepared_;
    GemmWgradParams params = params_;
    params.partial = static_cast<float*>(arrays.workspace);
    cudaError_t status = EncodeTensorMap(arrays.x, x_, &params.x);
    if (status != cudaSuccess) return status;
    status = EncodeTensorMap(arrays.y, y_, &params.y);
    if (status != cudaSuccess) return status;
    status = LaunchGemm(kernel_, blocks_, threads_, shared_bytes_, stream, params);
    if (status != cudaSuccess) return status;
    GemmWgradSumParams sum = sum_params_;
    sum.partial = params.partial;
    sum.result = arrays.w;
    return LaunchGemm(sum_kernel_, CeilDivide(sum.part_packs, kWgradSumPacks), kWgradSumThreads,
                      kWgradSumThreads * sizeof(float) * kWgradPack, stream, sum);
  }

 private:
  const std::string name_;
  const GemmWgradParams params_;
  const GemmWgradSumParams sum_params_;
  const TensorShape x_, y_;
  const int64_t blocks_, threads_, shared_bytes_, workspace_bytes_;
  GemmWgradKernel kernel_;
  void (*sum_kernel_)(GemmWgradSumParams);
  cudaError_t prepared_;
};

inline std::vector<std::unique_ptr<const ImplicitGemmPlan>> WgradCandidates(
    const ImplicitGemmProblem& problem, GemmWanted wanted) {
  std::vector<std::unique_ptr<const ImplicitGemmPlan>> plans;
  for (const WgradTiling& tiling : WgradTilings(problem, wanted)) {
    plans.push_back(std::make_unique<GemmWgradPlan>(problem, tiling));
  }
  return plans;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_WGRAD_PLAN_H_
