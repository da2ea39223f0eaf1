// Plans for fprop and dgrad with a thin result. Their kernel is in few_outputs.cuh.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_FEW_OUTPUTS_PLAN_H_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_FEW_OUTPUTS_PLAN_H_

#include <algorithm>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels/thin/few_outputs.cuh"
#include "cuda/kernels/thin/launch.h"
#include "cuda/kernels/thin/plan.h"
#include "ffi/integers.h"

namespace jax_convgrad {

using FewKernel = void (*)(FewParams);

class FewPlan : public KernelPlan<FewParams> {
 public:
  FewPlan(std::string name, const FewParams& params, Kernel kernel, bool gradient, int64_t blocks,
          int64_t shared_bytes, int64_t block_shared_bytes, const TensorShape& source)
      : KernelPlan(std::move(name), params, kernel,
                   {kFewThreads, shared_bytes, block_shared_bytes}),
        gradient_(gradient),
        blocks_(blocks),
        source_(source),
        map_status_(NeedsTensorMap(kernel, &needs_map_)) {}

  cudaError_t Run(const ThinArrays& arrays, cudaStream_t stream) const override {
    FewParams called = params();
    called.source = gradient_ ? arrays.y : arrays.x;
    called.w = arrays.w;
    called.result = gradient_ ? arrays.x : arrays.y;
    if (map_status_ != cudaSuccess) return map_status_;
    if (needs_map_) {
      const cudaError_t status = EncodeTensorMap(called.source, source_, &called.map);
      if (status != cudaSuccess) return status;
    }
    return LaunchWith(called, blocks_, stream);
  }

 private:
  const bool gradient_;
  const int64_t blocks_;
  const TensorShape source_;
  bool needs_map_ = false;
  const cudaError_t map_status_;  // of the question whether it does
};

constexpr int64_t kFewMaxColumns = 32;
constexpr int64_t kFewMaxStages = 4;
constexpr int64_t kFewMaxBox = 256;  // pixels
constexpr int64_t kFewBarrierBytes = kFewMaxStages * static_cast<int64_t>(sizeof(BulkBarrier));
// With one block alone on a multiprocessor instead of two, more time is spent waiting.
constexpr double kFewCostOfOneBlock = 1.3;

// Elements of a row of the result in which the taps that read repeat.
inline int64_t FewPeriod(const ThinProblem& p) {
  return p.kind == ThinKind::kDgrad ? p.in_channels * p.strides[2] : p.out_channels;
}

inline bool HasFewOutputs(const ThinProblem& p) {
  const bool gradient = p.kind == ThinKind::kDgrad;
  const int64_t few = gradient ? p.in_channels : p.out_channels;
  const int64_t channels = gradient ? p.out_channels : p.in_channels;
  return IsCountable(p) && p.kind != ThinKind::kWgrad && IsThin(p, few) &&
         few * p.kernel[2] <= kFewMaxColumns && Multiple(channels, 8) && channels <= kMaxWindow &&
         FewPeriod(p) <= kFewThreads;
}

// Positions of the source that `results` neighbors read along an axis.
inline int64_t ReadBy(const ThinProblem& p, size_t axis, int64_t results) {
  const int64_t last_tap = (p.kernel[axis] - 1) * p.dilation[axis];
  if (p.kind == ThinKind::kFprop) return (results - 1) * p.strides[axis] + last_tap + 1;
  return (results - 1 + last_tap) / p.strides[axis] + 1;
}

// The largest number of neighbors that read no more than `source` positions, at least 0.
inline int64_t ResultsOf(const ThinProblem& p, size_t axis, int64_t source) {
  const int64_t last_tap = (p.kernel[axis] - 1) * p.dilation[axis];
  if (last_tap >= source * (p.kind == ThinKind::kFprop ? 1 : p.strides[axis])) return 0;
  if (p.kind == ThinKind::kFprop) return (source - 1 - last_tap) / p.strides[axis] + 1;
  return source * p.strides[axis] - last_tap;
}

// Whether dgrad counts to what it takes along an axis.
inline bool SetFewAxis(const ThinProblem& problem, size_t axis, FewAxis* a) {
  const int64_t common = std::gcd(problem.strides[axis], problem.dilation[axis]);
  const int64_t stride = problem.strides[axis] / common;
  const int64_t dilation = problem.dilation[axis] / common;
  if (dilation != 1 && (stride > kMaxKernel || stride * dilation > kMaxSize)) return false;
  int64_t inverse = 1;
  while (dilation != 1 && stride != 1 && inverse * dilation % stride != 1) ++inverse;
  const int64_t padding = problem.padding_low[axis];
  const int64_t below = std::max<int64_t>(0, -padding) / common + 1 + (stride - 1) * dilation;
  const int64_t shift_strides = dilation == 1 && padding >= 0 ? 0 : CeilDivide(below, stride);
  a->common = static_cast<int>(common);
  a->stride = static_cast<int>(stride);
  a->dilation = static_cast<int>(dilation);
  a->inverse = static_cast<int>(inverse);
  a->shift = static_cast<int>(padding + shift_strides * stride * common);
  a->shift_strides = static_cast<int>(shift_strides);
  const int64_t first =
      padding - (problem.kernel[axis] - 1) * problem.dilation[axis] + problem.strides[axis] - 1;
  const int64_t first_strides = CeilDivide(std::max<int64_t>(0, -first), problem.strides[axis]);
  a->first_shift = static_cast<int>(first + first_strides * problem.strides[axis]);
  a->first_strides = static_cast<int>(first_strides);
  a->by_whole_stride = Divider(problem.strides[axis]);
  a->by_common = Divider(common);
  a->by_stride = Divider(stride);
  return true;
}

// A plan with so many blocks on a multiprocessor, kFewBlocks or one alone.
template <typename T, int kColumns>
CostedPlan MakeFewOf(const ThinProblem& problem, const FewParams& common, int64_t at_once) {
  FewParams p = common;
  const bool is_alone = at_once < kFewBlocks<kColumns>;
  const bool gradient = problem.kind == ThinKind::kDgrad;
  const ThinProblem::PerAxis& result = gradient ? problem.in : problem.out;
  const int64_t rows_of_taps = problem.kernel[0] * problem.kernel[1];
  // With the barriers, as FewBarriersOf has them.
  const int64_t weight_bytes =
      rows_of_taps * p.steps * kColumns * kFewPart * static_cast<int64_t>(sizeof(uint2)) +
      (p.columns < kColumns * 8 ? 0 : kFewBarrierBytes);

  // Instructions of a warp for a tile. Wanted are the fewest in all, those of a last wave that is
  // not full included.
  const double planes = std::max(1.0, static_cast<double>(problem.kernel[0]) /
                                          static_cast<double>(gradient ? problem.strides[0] : 1));
  const int64_t stride_y = gradient ? problem.strides[1] : 1;
  const double taps_y = static_cast<double>(problem.kernel[1]) / static_cast<double>(stride_y);
  const double taps_x = static_cast<double>(problem.kernel[2]) /
                        static_cast<double>(gradient ? problem.strides[2] : 1);
  const auto cost_of = [&](int64_t x, int64_t y, int64_t rows, int64_t result_x) {
    const double copies = static_cast<double>(CeilDivide(rows * x, kFewCopied));
    // Of a warp. Two read their weights once if they take the same taps.
    const double units = static_cast<double>(CeilDivide(x * y, kFewThreads));
    const bool together = units == kFewUnits && (y == 1 || Multiple(y / 2, stride_y));
    const double tap = together ? 16 + 12 * kColumns : units * (14 + 6 * kColumns);
    const double elements = static_cast<double>(CeilDivide(y * result_x * p.few, kFewThreads));
    return 400 + planes * p.steps * (50 + copies * 9 + units * 20 + taps_y * tap) + units * 30 +
           elements * (taps_x * 4 + 8);
  };
  struct Choice {
    int64_t x = 0, y = 0, result_x = 0, rows = 0, stages = 0, bytes = 0;
    double cost = 0;
  } best;
  for (int64_t x = 32; x <= 32 * kFewTileUnits; x *= 2) {
    const int64_t max_x = std::min(ResultsOf(problem, 2, x), result[2]);
    if (max_x < 1) continue;
    for (int64_t y = 1; y <= 32 * kFewTileUnits / x && (y == 1 || y < 2 * result[1]); y *= 2) {
      Choice choice;
      choice.x = x;
      choice.y = y;
      choice.result_x = CeilDivide(result[2], CeilDivide(result[2], max_x));
      choice.rows = ReadBy(problem, 1, y);
      const int64_t stage_bytes = choice.rows * x * kFewPixelBytes;
      if (stage_bytes > problem.device.block_shared_bytes) continue;
      for (int64_t stages = kFewMaxStages; stages > 1 && choice.stages == 0; --stages) {
        choice.bytes = stages * stage_bytes + y * x * kFewPitch<kColumns> * 4 + weight_bytes;
        if (choice.bytes <= SharedBytesOf(problem.device, at_once)) choice.stages = stages;
      }
      if (choice.stages == 0) continue;
      choice.cost = cost_of(x, y, choice.rows, choice.result_x) *
                    Waves(problem.batch * result[0] * CeilDivide(result[2], choice.result_x) *
                              CeilDivide(result[1], y),
                          problem.device.multiprocessors, at_once) *
                    (is_alone ? kFewCostOfOneBlock : 1);
      if (best.stages == 0 || choice.cost < best.cost) best = choice;
    }
  }
  if (best.stages == 0) return {};

  p.stages = static_cast<int>(best.stages);
  p.tile_x = static_cast<int>(best.x);
  p.tile_y = static_cast<int>(best.y);
  p.result_x = static_cast<int>(best.result_x);
  p.source_rows = static_cast<int>(best.rows);
  const int64_t across = std::min<int64_t>(best.x, kFewCopied), copy_rows = kFewCopied / across;
  p.across = static_cast<int>(across);
  p.copy_rows = static_cast<int>(copy_rows);
  p.source_jump = copy_rows * p.source_size[2] * p.channels;
  // Boxes of whole rows if these are no longer than a box may be.
  const int64_t boxes_x = CeilDivide(best.x, kFewMaxBox);
  TensorShape source;
  source.element_bytes = sizeof(T);
  const int64_t sizes[] = {p.channels, p.source_size[2], p.source_size[1], p.source_size[0],
                           problem.batch};
  const int64_t box[] = {kFewDepth<T>, best.x / boxes_x, boxes_x == 1 ? best.rows : 1, 1, 1};
  std::copy(std::begin(sizes), std::end(sizes), source.sizes);
  std::copy(std::begin(box), std::end(box), source.box);
  if (!HasTensorMap(source)) return {};
  p.box_x = static_cast<int>(box[1]);
  p.box_rows = static_cast<int>(box[2]);
  p.boxes = static_cast<int>(boxes_x * (best.rows / box[2]));
  p.by_boxes_x = Divider(boxes_x);
  const int64_t tiles_x = CeilDivide(result[2], best.result_x);
  const int64_t tiles_y = CeilDivide(result[1], best.y);
  p.tiles = static_cast<int>(problem.batch * result[0] * tiles_y * tiles_x);
  const int64_t period = FewPeriod(problem), elements = best.result_x * p.few;
  const int64_t add_lanes = elements <= kFewThreads ? elements : kFewThreads / period * period;
  const int64_t add_rows = std::min(kFewThreads / add_lanes, best.y);
  p.add_lanes = static_cast<int>(add_lanes);
  p.add_rows = static_cast<int>(add_rows);
  p.add_pixels =
      static_cast<int>(gradient ? add_lanes / period : add_lanes / period * problem.strides[2]);
  p.add_along_x = best.y < kFewAdded * add_rows;
  // Instructions of a warp to stage the weights.
  const double staging = 200 + static_cast<double>(rows_of_taps * p.steps) * kColumns * 20;
  p.tile_step = static_cast<int>(
      TileBlocks(p.tiles, problem.device.multiprocessors * at_once,
                 /*columns=*/1, staging / cost_of(best.x, best.y, best.rows, best.result_x)));
  p.by_units_x = Divider(best.x / 32);
  p.by_steps = Divider(p.steps);
  p.by_add_lanes = Divider(add_lanes);
  p.by_add_rows = Divider(add_rows);
  p.by_few = Divider(p.few);
  p.by_tiles_x = Divider(tiles_x);
  p.by_tiles_y = Divider(tiles_y);
  p.by_planes = Divider(result[0]);
  const FewKernel kernel =
      gradient ? FewOutputs<T, true, kColumns> : FewOutputs<T, false, kColumns>;
  return {
      std::make_unique<FewPlan>(is_alone ? "few_outputs_alone" : "few_outputs", p, kernel, gradient,
                                p.tile_step, best.bytes, problem.device.block_shared_bytes, source),
      best.cost, best.bytes};
}

template <typename T, int kColumns>
std::vector<std::unique_ptr<const ThinPlan>> MakeFewPlans(const ThinProblem& problem,
                                                          const FewParams& common) {
  CostedPlan of_most = MakeFewOf<T, kColumns>(problem, common, kFewBlocks<kColumns>);
  if (kFewBlocks<kColumns> == 1) return FastestFirst(std::move(of_most), {});
  CostedPlan alone = MakeFewOf<T, kColumns>(problem, common, 1);
  // What leaves room for a second block is no other way.
  if (alone.bytes <= SharedBytesOf(problem.device, 2)) alone = {};
  return FastestFirst(std::move(of_most), std::move(alone));
}

// What is likely the fastest first.
template <typename T>
std::vector<std::unique_ptr<const ThinPlan>> MakeFew(const ThinProblem& problem) {
  const bool gradient = problem.kind == ThinKind::kDgrad;
  FewParams p{};
  for (size_t axis = 0; axis < 3; ++axis) {
    p.source_size[axis] = static_cast<int>(gradient ? problem.out[axis] : problem.in[axis]);
    p.result_size[axis] = static_cast<int>(gradient ? problem.in[axis] : problem.out[axis]);
    p.kernel[axis] = static_cast<int>(problem.kernel[axis]);
    p.strides[axis] = static_cast<int>(problem.strides[axis]);
    p.padding[axis] = static_cast<int>(problem.padding_low[axis]);
    p.dilation[axis] = static_cast<int>(problem.dilation[axis]);
    if (gradient && !SetFewAxis(problem, axis, &p.axes[axis])) return {};
  }
  const int64_t in = problem.in_channels, out = problem.out_channels;
  const bool in_out = problem.weights == ThinWeights::kInOut;
  const int64_t taps = problem.kernel[0] * problem.kernel[1] * problem.kernel[2];
  const int64_t of_in = in_out ? out : 1, of_out = in_out ? 1 : taps * in;
  p.w_tap = in_out ? in * out : in;
  p.w_channel = gradient ? of_out : of_in;
  p.w_few = gradient ? of_in : of_out;
  p.channels = static_cast<int>(gradient ? out : in);
  p.few = static_cast<int>(gradient ? in : out);
  p.columns = static_cast<int>(p.few * problem.kernel[2]);
  p.steps = static_cast<int>(CeilDivide(p.channels, kFewDepth<T>));
  const int last_channels = p.channels - (p.steps - 1) * kFewDepth<T>;
  p.last_depths = static_cast<int>(CeilDivide(last_channels, kFewDepth<T> / kFewDepths));
  switch (CeilDivide(p.columns, 8)) {
    case 1:
      return MakeFewPlans<T, 1>(problem, p);
    case 2:
      return MakeFewPlans<T, 2>(problem, p);
    case 3:
      return MakeFewPlans<T, 3>(problem, p);
    default:
      return MakeFewPlans<T, 4>(problem, p);
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_FEW_OUTPUTS_PLAN_H_
