// Plans for fprop and dgrad of stride 1 (fprop.cuh): where everything lies in shared
// memory, how many planes are there at once, and which of the tilings (fprop_tiling.h)
// may be the fastest.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_PLAN_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_PLAN_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels/common/tensor_map.h"
#include "cuda/kernels/implicit_gemm/launch.h"
#include "cuda/kernels/implicit_gemm/plan.h"
#include "cuda/kernels/implicit_gemm/walk.h"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop.cuh"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_params.h"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_tiling.h"
#include "cuda/kernels/implicit_gemm/warpgroup/image.h"
#include "ffi/integers.h"

namespace jax_convgrad {

using FpropKernel = void (*)(FpropParams);

// The arrays' shapes for the device's copies. Of floats, the image is all that is copied so.
struct FpropShapes {
  TensorShape image, weights, result;
};

// Those that there are kernels for.
template <typename T, int kDepth, Lines kWeights>
FpropKernel FpropKernelOf(const FpropColumns& of) {
  if (of.taps == 3) {
    if (of.columns == 16) return ImplicitGemmFprop<T, kDepth, 16, 3, kWeights>;
    return ImplicitGemmFprop<T, kDepth, 32, 3, kWeights>;
  }
  if (of.taps == 5) {
    if (of.columns == 16) return ImplicitGemmFprop<T, kDepth, 16, 5, kWeights>;
    return ImplicitGemmFprop<T, kDepth, 32, 5, kWeights>;
  }
  if (of.taps == 7) return ImplicitGemmFprop<T, kDepth, 16, 7, kWeights>;
  if (of.columns == 16) return ImplicitGemmFprop<T, kDepth, 16, 1, kWeights>;
  if (of.columns == 32) return ImplicitGemmFprop<T, kDepth, 32, 1, kWeights>;
  return ImplicitGemmFprop<T, kDepth, 64, 1, kWeights>;
}

template <typename T, int kDepth>
FpropKernel FpropKernelOf(const FpropColumns& of, bool along_depth) {
  return along_depth ? FpropKernelOf<T, kDepth, Lines::kAlongDepth>(of)
                     : FpropKernelOf<T, kDepth, Lines::kAcrossDepth>(of);
}

template <typename T>
FpropKernel FpropKernelOf(int64_t depth, const FpropColumns& of, bool along_depth) {
  if (depth == 16) return FpropKernelOf<T, 16>(of, along_depth);
  if (depth == 32) return FpropKernelOf<T, 32>(of, along_depth);
  if (depth == 48) return FpropKernelOf<T, 48>(of, along_depth);
  return FpropKernelOf<T, 64>(of, along_depth);
}

// The same of floats, whose weights' order is not the kernel's (FpropMostColumns).
template <int kDepth>
FpropKernel FpropFloatKernelOf(const FpropColumns& of) {
  constexpr Lines kLines = Lines::kAlongDepth;
  if (of.taps == 3) {
    if (of.columns == 16) return ImplicitGemmFprop<float, kDepth, 16, 3, kLines>;
    return ImplicitGemmFprop<float, kDepth, 32, 3, kLines>;
  }
  if constexpr (kDepth == 16 || kDepth == 32) {
    if (of.taps == 5) return ImplicitGemmFprop<float, kDepth, 16, 5, kLines>;
    if (of.taps == 7) return ImplicitGemmFprop<float, kDepth, 16, 7, kLines>;
  }
  if (of.columns == 16) return ImplicitGemmFprop<float, kDepth, 16, 1, kLines>;
  if (of.columns == 32) return ImplicitGemmFprop<float, kDepth, 32, 1, kLines>;
  return ImplicitGemmFprop<float, kDepth, 64, 1, kLines>;
}

inline FpropKernel FpropFloatKernelOf(int64_t depth, const FpropColumns& of) {
  if (depth == 8) return FpropFloatKernelOf<8>(of);
  if (depth == 16) return FpropFloatKernelOf<16>(of);
  if (depth == 32) return FpropFloatKernelOf<32>(of);
  return FpropFloatKernelOf<64>(of);
}

inline FpropKernel FpropKernelOf(GemmType type, int64_t depth, const FpropColumns& of,
                                 bool along_depth) {
  if (type == GemmType::kTf32) return FpropFloatKernelOf(depth, of);
  if (type == GemmType::kF16) return FpropKernelOf<__half>(depth, of, along_depth);
  return FpropKernelOf<__nv_bfloat16>(depth, of, along_depth);
}

struct FpropChoice {
  std::string name;
  FpropColumns columns{};
  FpropParams params{};
  FpropShapes shapes;
  int64_t shared_bytes = 0;
  double cost = 0;  // in cycles
};

class FpropPlan : public ImplicitGemmPlan {
 public:
  FpropPlan(const FpropChoice& choice, bool gradient, bool floats, FpropKernel kernel,
            int64_t block_shared_bytes)
      : choice_(choice),
        gradient_(gradient),
        floats_(floats),
        kernel_(kernel),
        prepared_(AllowGemmBytes(kernel, block_shared_bytes)) {}

  const std::string& name() const override { return choice_.name; }
  int64_t workspace_bytes() const override { return 0; }
  bool ReusesSlots() const override {
    const FpropParams& p = choice_.params;
    const bool by_planes = choice_.columns.taps > 1;
    return GemmMostOfBlock(p.walk, [&](const GemmPlace& place) {
             const FpropPlanes planes = FpropPlanesOf(p, place, by_planes);
             return int64_t{planes.end - planes.begin};
           }) > p.stages;
  }

  cudaError_t Run(const ImplicitGemmArrays& arrays, cudaStream_t stream) const override {
    if (prepared_ != cudaSuccess) return prepared_;
    const FpropShapes& shapes = choice_.shapes;
    FpropParams params = choice_.params;
    cudaError_t status =
        EncodeTensorMap(gradient_ ? arrays.y : arrays.x, shapes.image, &params.image);
    void* const result = gradient_ ? arrays.x : arrays.y;
    if (floats_) {
      params.floats.weights = static_cast<const float*>(arrays.w);
      params.floats.result = static_cast<float*>(result);
    } else {
      if (status == cudaSuccess) {
        status = EncodeTensorMap(arrays.w, shapes.weights, &params.weights);
      }
      if (status == cudaSuccess) {
        status = EncodeTensorMap(result, shapes.result, &params.result);
      }
    }
    if (status != cudaSuccess) return status;
    return LaunchGemm(kernel_, int64_t{params.walk.blocks} * params.column_tiles,
                      128 * int64_t{params.warpgroups} + FpropHelpers(floats_),
                      choice_.shared_bytes, stream, params);
  }

 private:
  const FpropChoice choice_;
  const bool gradient_, floats_;
  const FpropKernel kernel_;
  const cudaError_t prepared_;
};

// The weights, seen as inner channels of rows of taps. `along_depth` says whether inner channels
// are the depth.
inline TensorShape FpropWeightsShape(const ImplicitGemmProblem& p, bool along_depth, int64_t depth,
                                     int64_t columns) {
  // `p` has the roles exchanged if it was dgrad, and weights lie as they did: outer channels of
  // taps, or taps of outer channels.
  const bool out_in = p.weights == GemmWeights::kOutIn;
  const int64_t inner = along_depth ? p.in_channels : p.out_channels;
  const int64_t rows = along_depth ? p.out_channels : p.in_channels;
  const int64_t taps = GemmVolume(p.kernel);
  TensorShape shape;
  shape.element_bytes = kGemmElementBytes;
  const int64_t sizes[] = {inner, rows, taps, 1, 1};
  std::copy(sizes, sizes + kTensorAxes, shape.sizes);
  shape.box[0] = along_depth ? GemmLine(depth) : columns;
  shape.box[1] = along_depth ? columns : depth;
  shape.line_bytes = shape.box[0] * kGemmElementBytes;
  const int64_t inner_bytes = inner * kGemmElementBytes;
  shape.strides[0] = out_in ? taps * inner_bytes : inner_bytes;
  shape.strides[1] = out_in ? inner_bytes : rows * inner_bytes;
  shape.strides[2] = shape.strides[3] = taps * rows * inner_bytes;
  return shape;
}

// How floats of the weights follow each other. `p` as for FpropWeightsShape.
inline FpropFloats FpropFloatsOf(const ImplicitGemmProblem& p, bool along_depth) {
  const bool out_in = p.weights == GemmWeights::kOutIn;
  const int64_t inner = along_depth ? p.in_channels : p.out_channels;
  const int64_t rows = along_depth ? p.out_channels : p.in_channels;
  const int row_step = static_cast<int>(out_in ? GemmVolume(p.kernel) * inner : inner);
  FpropFloats floats{};
  floats.tap_step = static_cast<int>(out_in ? inner : rows * inner);
  floats.depth_step = along_depth ? 1 : row_step;
  floats.column_step = along_depth ? row_step : 1;
  floats.in_channels = static_cast<int>(p.in_channels);
  floats.out_channels = static_cast<int>(p.out_channels);
  floats.out_planes = static_cast<int>(p.out[0]);
  return floats;
}

// Whether all fits into shared memory and is countable; then what it costs.
inline bool ChooseFprop(const FpropView& view, bool gradient, const FpropColumns& of,
                        const FpropTile& tile, FpropChoice* choice) {
  const ImplicitGemmProblem& p = view.problem;
  const bool floats = FpropIsOfFloats(p);
  const int64_t depth = FpropDepth(p), line = FpropLine(p), element = FpropElementBytes(p);
  const int64_t columns = of.columns, pixel = line * element;
  const int64_t column_tiles = CeilDivide(p.out_channels, columns);
  if (tile.warpgroups() > FpropMaxWarpgroups(of.product())) return false;
  const int64_t taps = GemmVolume(p.kernel);
  const bool along_depth = gradient == (p.weights == GemmWeights::kInOut);
  FpropParams& params = choice->params;

  // A slot: what all taps of a plane read.
  const int64_t slot_rows = tile.rows() + (p.kernel[1] - 1) * p.dilation[1];
  const int64_t slot_columns = tile.columns() + (p.kernel[2] - 1) * p.dilation[2];
  const int64_t boxes = CeilDivide(slot_columns, kTensorMaxBox);
  if (slot_rows > kTensorMaxBox || (boxes > 1 && slot_rows > 1)) return false;
  // Where a box begins, the pattern of swizzles does.
  const int64_t box_columns =
      boxes > 1 ? RoundUp(CeilDivide(slot_columns, boxes), int64_t{8}) : slot_columns;
  const int64_t box_bytes = box_columns * slot_rows * pixel;
  const int64_t half_bytes = RoundUp(boxes * box_bytes, int64_t{kSwizzleBytes});
  const int64_t slot_bytes = FpropHalves(p) * half_bytes;

  choice->shapes.image =
      GemmImage(p.in, p.batch, p.in_channels, element, line, box_columns, slot_rows);
  int64_t tap_bytes = columns * depth * element;
  if (!floats) {
    choice->shapes.result = GemmImage(p.out, p.batch, p.out_channels, element, columns,
                                      std::min(tile.part.columns, kFpropWarpRows),
                                      kFpropWarpRows / std::min(tile.part.columns, kFpropWarpRows));
    choice->shapes.weights = FpropWeightsShape(p, along_depth, depth, columns);
    const TensorShape& weights = choice->shapes.weights;
    tap_bytes = weights.box[1] * weights.line_bytes;
  }

  // As many slots as there is room for. A step reads one, or those of all taps of the walk, and
  // frees one; at least one more is on its way.
  const int64_t weights_bytes = RoundUp(taps * tap_bytes, int64_t{kSwizzleBytes});
  const int64_t results_bytes = floats ? 0 : tile.warpgroups() * 64 * columns * element;
  const int64_t barriers_bytes =
      ((floats ? 3 : 2) * kFpropMaxStages + 1) * int64_t{sizeof(BulkBarrier)};
  const int64_t room = p.device.block_shared_bytes - weights_bytes - results_bytes - barriers_bytes;
  const int64_t stages = std::min<int64_t>(kFpropMaxStages, room / slot_bytes);
  if (room < 0 || stages < FpropHeld(p, of) + 1) return false;
  choice->shared_bytes = weights_bytes + stages * slot_bytes + results_bytes + barriers_bytes;

  GemmWalk& walk = params.walk;
  const int64_t tiles_y = CeilDivide(p.out[1], tile.rows());
  const int64_t tiles_x = CeilDivide(p.out[2], tile.columns());
  const int64_t phases = std::min(p.dilation[0], p.out[0]);
  const int64_t length = CeilDivide(p.out[0], p.dilation[0]);
  // Each step has a position of the result, or is the last of a phase that has one.
  const int64_t steps = p.batch * tiles_y * tiles_x * phases * length;
  if (steps > kGemmMaxPositions) return false;
  walk.rows = static_cast<int>(tile.rows());
  walk.columns = static_cast<int>(tile.columns());
  walk.tiles_y = static_cast<int>(tiles_y);
  walk.tiles_x = static_cast<int>(tiles_x);
  walk.phases = static_cast<int>(phases);
  walk.length = static_cast<int>(length);
  walk.steps = static_cast<int>(steps);

  params.part = tile.part;
  params.part.along_x = static_cast<int>(tile.along_x);
  params.warpgroups = static_cast<int>(tile.warpgroups());
  params.planes_in = static_cast<int>(p.in[0]);
  params.column_tiles = static_cast<int>(column_tiles);
  params.out_rows = static_cast<int>(p.out[1]);
  params.out_columns = static_cast<int>(p.out[2]);
  for (size_t axis = 0; axis < 3; ++axis) {
    params.kernel[axis] = static_cast<int>(p.kernel[axis]);
    params.padding[axis] = static_cast<int>(p.padding_low[axis]);
    params.dilation[axis] = static_cast<int>(p.dilation[axis]);
  }
  params.taps = static_cast<int>(taps);
  params.reversed = gradient;
  params.tap_bytes = static_cast<int>(tap_bytes);
  params.ring_at = static_cast<int>(weights_bytes);
  params.results_at = static_cast<int>(weights_bytes + stages * slot_bytes);
  params.barriers_at = static_cast<int>(params.results_at + results_bytes);
  params.stages = static_cast<int>(stages);
  params.slot_bytes = static_cast<int>(slot_bytes);
  params.boxes = static_cast<int>(boxes);
  params.box_columns = static_cast<int>(box_columns);
  params.box_bytes = static_cast<int>(box_bytes);
  const int64_t row_bytes = box_columns * pixel;  // unused in a slot of one row
  params.tap_column_bytes = static_cast<int>(p.dilation[2] * pixel);
  params.tap_row_bytes = static_cast<int>(p.dilation[1] * row_bytes);
  params.part_column_bytes = static_cast<int>(tile.part.columns * pixel);
  params.part_row_bytes = static_cast<int>(tile.part.rows * row_bytes);
  params.group_bytes = static_cast<int>(tile.part.rows > 1 ? row_bytes : 8 * pixel);
  params.half_bytes = static_cast<int>(half_bytes);
  if (floats) params.floats = FpropFloatsOf(p, along_depth);

  choice->cost = FpropCost(p, tile, of, &params);
  choice->columns = of;
  choice->name = std::string(gradient ? "dgrad" : "fprop") + (view.rows ? "_rows_" : "_planes_") +
                 (view.rows ? "" : std::to_string(tile.rows()) + "x") +
                 std::to_string(tile.columns()) +
                 (of.taps > 1 ? "_taps" + std::to_string(of.taps) : "") +
                 (column_tiles > 1 ? "_columns" + std::to_string(columns) : "");
  return true;
}

// Of choices in order of their cost: the first, the next with its form, and the first with the
// other, which differs most from it, as far as they may be the fastest; or all.
inline std::vector<const FpropChoice*> FpropBest(const std::vector<FpropChoice>& choices,
                                                 GemmWanted wanted) {
  constexpr double kWorthTrying = 1.25;
  std::vector<const FpropChoice*> best;
  int64_t left_of_form = 2, left_of_other = 1;
  for (const FpropChoice& choice : choices) {
    if (wanted == GemmWanted::kAll) {
      best.push_back(&choice);
      continue;
    }
    if (choice.cost > kWorthTrying * choices[0].cost) break;
    // What differs by the order of its parts alone is as fast.
    const auto parts = [](const FpropChoice& of) {
      return std::array<int64_t, 4>{of.params.part.rows, of.params.warpgroups, of.columns.columns,
                                    of.columns.taps};
    };
    if (!best.empty() && parts(choice) == parts(choices[0])) continue;
    const bool other_form = choice.columns.taps != choices[0].columns.taps;
    if ((other_form ? left_of_other : left_of_form)-- > 0) best.push_back(&choice);
  }
  return best;
}

// What is likely the fastest first; none if the weights and the planes that a step reads do not fit
// into shared memory.
inline std::vector<std::unique_ptr<const ImplicitGemmPlan>> FpropCandidates(
    const ImplicitGemmProblem& problem, GemmWanted wanted) {
  const bool gradient = problem.kind == GemmKind::kDgrad;
  const ImplicitGemmProblem fprop = gradient ? GemmExchanged(problem) : problem;
  std::vector<FpropChoice> choices;
  for (const FpropView& view : FpropViews(fprop)) {
    for (const FpropColumns& columns : FpropColumnsOf(view.problem)) {
      for (const FpropTile& tile : FpropTiles(view.rows)) {
        FpropChoice choice;
        if (ChooseFprop(view, gradient, columns, tile, &choice)) {
          choices.push_back(std::move(choice));
        }
      }
    }
  }
  std::stable_sort(choices.begin(), choices.end(),
                   [](const FpropChoice& a, const FpropChoice& b) { return a.cost < b.cost; });
  const bool along_depth = gradient == (problem.weights == GemmWeights::kInOut);
  const int64_t depth = FpropDepth(fprop);
  std::vector<std::unique_ptr<const ImplicitGemmPlan>> plans;
  for (const FpropChoice* choice : FpropBest(choices, wanted)) {
    const FpropKernel kernel = FpropKernelOf(problem.type, depth, choice->columns, along_depth);
    plans.push_back(std::make_unique<FpropPlan>(*choice, gradient, FpropIsOfFloats(problem), kernel,
                                                problem.device.block_shared_bytes));
  }
  return plans;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_PLAN_H_
