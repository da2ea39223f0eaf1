// Plans for fprop and dgrad by warps (fprop.cuh): which of the tilings (fprop_tiling.h)
// may be the fastest, and all numbers that the kernel needs of these.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_FPROP_PLAN_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_FPROP_PLAN_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels/implicit_gemm/launch.h"
#include "cuda/kernels/implicit_gemm/plan.h"
#include "cuda/kernels/implicit_gemm/walk.h"
#include "cuda/kernels/implicit_gemm/warp/fprop.cuh"
#include "cuda/kernels/implicit_gemm/warp/fprop_axes.h"
#include "cuda/kernels/implicit_gemm/warp/fprop_params.h"
#include "cuda/kernels/implicit_gemm/warp/fprop_tiling.h"
#include "cuda/kernels/implicit_gemm/warp/planes.h"
#include "ffi/integers.h"

namespace jax_convgrad {

using WarpFpropKernel = void (*)(WarpFpropParams);
using WarpArrangeKernel = void (*)(WarpArrangeParams);

// A kernel, and the one that lays weights out for it, if it needs that.
struct WarpFpropLaunch {
  WarpFpropKernel kernel;
  WarpArrangeKernel arrange;
  int64_t threads, shared_bytes, workspace_bytes;
};

class WarpFpropPlan : public ImplicitGemmPlan {
 public:
  WarpFpropPlan(std::string name, bool gradient, const WarpFpropParams& params,
                const WarpArrangeParams& arrange, const WarpFpropLaunch& launch,
                int64_t block_shared_bytes)
      : name_(std::move(name)),
        gradient_(gradient),
        params_(params),
        arrange_(arrange),
        launch_(launch),
        prepared_(PrepareGemm(launch.kernel, launch.arrange, block_shared_bytes)) {}

  const std::string& name() const override { return name_; }
  int64_t workspace_bytes() const override { return launch_.workspace_bytes; }
  bool ReusesSlots() const override {
    const WarpFpropParams& p = params_;
    return GemmMostOfBlock(p.walk, [&p](const GemmPlace& place) {
             return p.held + (int64_t{place.steps} * p.parts + p.lead - 1) * p.advance;
           }) > p.slots;
  }

  cudaError_t Run(const ImplicitGemmArrays& arrays, cudaStream_t stream) const override {
    if (prepared_ != cudaSuccess) return prepared_;
    WarpFpropParams params = params_;
    params.image.from = gradient_ ? arrays.y : arrays.x;
    params.weights.from = arrays.w;
    params.result = gradient_ ? arrays.x : arrays.y;
    if (launch_.workspace_bytes > 0) {
      WarpArrangeParams arrange = arrange_;
      arrange.weights.from = arrays.w;
      params.arranged = arrange.to = arrays.workspace;
      const cudaError_t status =
          LaunchGemm(launch_.arrange, int64_t{arrange.blocks} * arrange.column_tiles,
                     kWarpArrangeThreads, 0, stream, arrange);
      if (status != cudaSuccess) return status;
    }
    return LaunchGemm(launch_.kernel, int64_t{params.walk.blocks} * params.column_tiles,
                      launch_.threads, launch_.shared_bytes, stream, params);
  }

 private:
  const std::string name_;
  const bool gradient_;
  const WarpFpropParams params_;
  const WarpArrangeParams arrange_;
  const WarpFpropLaunch launch_;
  const cudaError_t prepared_;
};

constexpr int64_t kWarpMaxImageChannels = 128, kWarpMaxResultChannels = 256;

struct WarpFpropChoice {
  const WarpView* view;
  WarpFpropTiling tiling;
  GemmWalk walk;
  int64_t column_tiles;
  double cost;  // in cycles
};

inline GemmWalk WarpFpropWalk(const WarpView& view, const WarpFpropTiling& t) {
  const int64_t phases = t.planes.walk_phases;
  const int64_t tiles_y = CeilDivide(view.axes[1].groups(), t.rows);
  const int64_t tiles_x = CeilDivide(view.axes[2].groups(), t.columns);
  const int64_t groups = view.axes[0].groups(), length = CeilDivide(groups, phases);
  GemmWalk walk{};
  walk.rows = static_cast<int>(t.rows);
  walk.columns = static_cast<int>(t.columns);
  walk.tiles_y = static_cast<int>(tiles_y);
  walk.tiles_x = static_cast<int>(tiles_x);
  // No more phases than there are groups, all of which have planes then.
  walk.phases = static_cast<int>(phases);
  walk.length = static_cast<int>(length);
  const int64_t strips = view.batch * std::min(phases, groups) * tiles_y * tiles_x;
  walk.steps = static_cast<int>(strips * length);
  return walk;
}

// Into how many steps of a plane each those of a strided walk may be cut. Planes that two of them
// read are loaded twice then, but fewer are held.
inline std::vector<int64_t> WarpFpropParts(const WarpView& view, const WarpFpropForm& form) {
  const WarpAxis& z = view.axes[0];
  if (z.step == 1 || z.kernel == 1 || form.planes > 1) return {1};
  return {1, z.kernel};
}

// All that fit, of tiles of up to a block's positions divided by `divisor`.
inline std::vector<WarpFpropChoice> WarpFpropChoices(const std::vector<WarpView>& views,
                                                     const WarpFpropChannels& channels,
                                                     const GemmDevice& device,
                                                     int64_t workspace_limit, int64_t divisor) {
  std::vector<WarpFpropChoice> choices;
  const auto choose = [&](const WarpView& view, bool streams, WarpFpropTiling tiling) {
    const int64_t column_tiles = CeilDivide(channels.result, tiling.form.columns);
    if (!FitWarpFprop(view, channels, device, streams, &tiling) ||
        (streams && column_tiles * tiling.column_tile_bytes() > workspace_limit)) {
      return;
    }
    GemmWalk walk = WarpFpropWalk(view, tiling);
    const double cost = WarpFpropCost(view, channels, device, tiling, column_tiles, &walk);
    choices.push_back({&view, tiling, walk, column_tiles, cost});
  };
  for (const WarpView& view : views) {
    for (const WarpFpropForm& form : WarpFpropForms(channels.element_bytes == 4)) {
      // The narrowest form may be the only one that fits; else half of the columns are in use.
      if (!WarpFpropFormServes(view, form) ||
          (form.columns > 16 && form.columns / 2 >= channels.result)) {
        continue;
      }
      for (int64_t threads = 128; threads <= kWarpFpropThreads; threads += 64) {
        const int64_t positions = threads / 32 * form.fragments * kWarpFragmentRows / divisor;
        if (positions == 0) continue;
        for (const int64_t columns : WarpFpropColumns(view.axes[2].groups(), positions)) {
          const int64_t rows = std::min(positions / columns, view.axes[1].groups());
          for (int64_t blocks = kWarpFpropThreads / threads; blocks >= 1; --blocks) {
            WarpFpropTiling tiling{};
            tiling.form = form;
            tiling.threads = threads;
            tiling.blocks = blocks;
            tiling.rows = rows;
            tiling.columns = columns;
            for (const int64_t parts : WarpFpropParts(view, form)) {
              tiling.parts = parts;
              for (const bool streams : {false, true}) choose(view, streams, tiling);
            }
          }
        }
      }
    }
  }
  std::stable_sort(
      choices.begin(), choices.end(),
      [](const WarpFpropChoice& a, const WarpFpropChoice& b) { return a.cost < b.cost; });
  return choices;
}

// The taps of all phases, and where they are.
inline void SetWarpFpropTaps(const WarpView& view, const WarpFpropTiling& t,
                             WarpFpropParams* params) {
  const auto& [z, y, x] = view.axes;
  const int64_t phases = z.phases * y.phases * x.phases;
  struct Tap {
    int64_t phase, place, bytes;
  };
  std::vector<Tap> taps;
  const bool planes = t.form.planes > 1, one_plane = planes || t.parts > 1;
  for (int64_t i = 0; i < z.kernel * y.kernel * x.kernel; ++i) {
    // Along z last for the form that multiplies a pixel for all planes: the plane that a step reads
    // is the last of the first result's, and the first of the last one's.
    int64_t tap[3] = {i / (y.kernel * x.kernel), i / x.kernel % y.kernel, i % x.kernel};
    if (planes) {
      const int64_t plane = z.kernel - 1 - i % z.kernel;
      tap[0] = z.gradient ? z.kernel - 1 - plane : plane;
      tap[1] = i / z.kernel / x.kernel;
      tap[2] = i / z.kernel % x.kernel;
    }
    const int64_t plane =
        one_plane ? 0
                  : (z.DistanceOf(tap[0]) - z.first()) / (t.planes.by_tap ? t.planes.spacing : 1);
    const int row = static_cast<int>(y.DistanceOf(tap[1]) - y.first());
    const int column = static_cast<int>(x.DistanceOf(tap[2]) - x.first());
    taps.push_back(
        {(z.PhaseOf(tap[0]) * y.phases + y.PhaseOf(tap[1])) * x.phases + x.PhaseOf(tap[2]),
         (tap[0] * y.kernel + tap[1]) * x.kernel + tap[2],
         plane * t.slot_bytes + WarpPixel(params->image, row, column)});
  }
  std::stable_sort(taps.begin(), taps.end(),
                   [](const Tap& a, const Tap& b) { return a.phase < b.phase; });
  size_t next = 0;
  for (int64_t phase = 0; phase < phases; ++phase) {
    params->phase_taps[phase] = static_cast<uint16_t>(next);
    for (; next < taps.size() && taps[next].phase == phase; ++next) {
      params->weights.places[next] = static_cast<uint16_t>(taps[next].place);
      params->taps[next] = static_cast<int>(taps[next].bytes);
    }
  }
  params->phase_taps[phases] = static_cast<uint16_t>(next);
}

inline WarpFpropParams WarpFpropParamsOf(const WarpFpropChoice& choice,
                                         const WarpFpropChannels& channels,
                                         const ImplicitGemmProblem& problem) {
  const WarpView& view = *choice.view;
  const WarpFpropTiling& t = choice.tiling;
  WarpFpropParams params{};
  int sizes[3];
  for (size_t axis = 0; axis < 3; ++axis) {
    const WarpAxis& of = view.axes[axis];
    sizes[axis] = static_cast<int>(of.image);
    params.groups[axis] = static_cast<int>(of.groups());
    params.sizes[axis] = static_cast<int>(of.result);
    params.phases[axis] = static_cast<int>(of.phases);
    params.steps[axis] = static_cast<int>(of.step);
    params.first[axis] = static_cast<int>(of.first());
  }
  params.image =
      MakeWarpPlanes(sizes, channels.image_bytes(), t.box_rows, t.box_columns, view.axes[2].step);
  params.walk = choice.walk;
  // Of phases without groups there are no strips.
  params.walk.phases = static_cast<int>(std::min<int64_t>(t.planes.walk_phases, params.groups[0]));
  params.by_phases_x = Divider(params.phases[2]);
  params.by_phases_y = Divider(params.phases[1]);
  params.by_tile_columns = Divider(t.columns);
  params.column_tiles = static_cast<int>(choice.column_tiles);
  params.held = static_cast<int>(t.planes.held);
  params.spacing = static_cast<int>(t.planes.spacing);
  params.advance = static_cast<int>(t.planes.advance);
  params.next_z = static_cast<int>(t.planes.walk_phases);
  params.lead = static_cast<int>(t.form.planes - 1);
  params.parts = static_cast<int>(t.parts);
  params.products = static_cast<int>(t.products);
  params.product_weights = static_cast<int>(t.product_weights());
  params.by_units = Divider(channels.units());
  params.chunks = static_cast<int>(t.chunks);
  params.chunk_products = static_cast<int>(t.chunk_products);
  params.chunk_slots = static_cast<int>(t.chunk_slots);
  params.arranged_tile = t.column_tile_bytes();
  params.ring_at = static_cast<int>(t.weights_bytes());
  params.ring_bytes = static_cast<int>(t.slots * t.slot_bytes);
  params.slots = static_cast<int>(t.slots);
  params.slot_bytes = static_cast<int>(t.slot_bytes);
  params.row_step_bytes = params.image.row_bytes * params.steps[1];

  WarpWeights& weights = params.weights;
  const int64_t taps = WarpFpropTaps(view);
  const bool out_in = problem.weights == GemmWeights::kOutIn;
  const int64_t in = out_in ? 1 : problem.out_channels;
  const int64_t out = out_in ? taps * problem.in_channels : 1;
  weights.tap = problem.in_channels * (out_in ? 1 : problem.out_channels);
  weights.depth = problem.kind == GemmKind::kDgrad ? out : in;
  weights.column = problem.kind == GemmKind::kDgrad ? in : out;
  weights.depths = static_cast<int>(channels.image);
  weights.columns = static_cast<int>(channels.result);
  weights.units = static_cast<int>(channels.units());
  weights.taps = static_cast<int>(taps);
  weights.by_taps = Divider(taps);
  weights.by_pieces = Divider(2 * channels.units());
  SetWarpFpropTaps(view, t, &params);
  return params;
}

inline WarpArrangeParams WarpArrangeParamsOf(const WarpFpropTiling& t,
                                             const WarpFpropParams& params) {
  constexpr int64_t kThreadPieces = 4;
  WarpArrangeParams arrange{};
  arrange.weights = params.weights;
  arrange.columns = static_cast<int>(t.form.columns);
  arrange.taps = static_cast<int>(t.form.planes);
  arrange.column_tiles = params.column_tiles;
  arrange.tile_words = static_cast<int>(t.column_tile_bytes() / 4);
  arrange.blocks = static_cast<int>(CeilDivide(
      t.column_tile_bytes(), kThreadPieces * kWarpPieceBytes * int64_t{kWarpArrangeThreads}));
  return arrange;
}

template <typename T>
WarpFpropKernel WarpFpropKernelOf(const WarpFpropForm& form) {
  if constexpr (sizeof(T) == 4) {
    if (form.planes == 3) {
      return form.columns == 16 ? WarpFprop<T, 4, 16, 3> : WarpFprop<T, 2, 32, 3>;
    }
  }
  return form.columns == 16   ? WarpFprop<T, 4, 16, 1>
         : form.columns == 32 ? WarpFprop<T, 4, 32, 1>
                              : WarpFprop<T, 2, 64, 1>;
}

inline std::string WarpFpropName(const WarpFpropChoice& choice, bool gradient) {
  const WarpFpropTiling& t = choice.tiling;
  return std::string(gradient ? "dgrad" : "fprop") + "_warp" +
         (choice.view->rows ? "_rows_" : "_planes_" + std::to_string(t.rows) + "x") +
         std::to_string(t.columns) + "_columns" + std::to_string(t.form.columns) +
         (t.form.planes > 1 ? "_taps" + std::to_string(t.form.planes) : "") +
         (t.parts > 1 ? "_parts" : "") + (t.streams() ? "_chunks" : "") + "_threads" +
         std::to_string(t.threads) + "x" + std::to_string(t.blocks);
}

// Whether there are kernels for the channels, taps and strides.
inline bool IsWarpFprop(const ImplicitGemmProblem& p, const WarpFpropChannels& channels) {
  constexpr int64_t kPiece = kWarpPieceBytes;
  const int64_t phases = p.kind == GemmKind::kDgrad ? GemmVolume(p.strides) : 1;
  return IsCountableGemm(p) && channels.image_bytes() % kPiece == 0 &&
         channels.result * channels.element_bytes % kPiece == 0 &&
         channels.image <= kWarpMaxImageChannels && channels.result <= kWarpMaxResultChannels &&
         GemmVolume(p.kernel) <= kWarpFpropMaxTaps && phases <= kWarpFpropMaxPhases;
}

// Of choices in order of their cost, up to three that differ in more than their tile's shape and
// may be the fastest; or all.
inline std::vector<const WarpFpropChoice*> WarpFpropBest(
    const std::vector<WarpFpropChoice>& choices, GemmWanted wanted) {
  constexpr double kWorthTrying = 1.4;
  constexpr size_t kMaxChoices = 3;
  std::vector<const WarpFpropChoice*> best;
  std::vector<std::array<int64_t, 5>> tried;
  for (const WarpFpropChoice& choice : choices) {
    if (wanted == GemmWanted::kFastest) {
      if (best.size() == kMaxChoices || choice.cost > kWorthTrying * choices[0].cost) break;
      // What differs by the tile's shape alone, or by the blocks that share a multiprocessor, is
      // about as fast.
      const WarpFpropTiling& t = choice.tiling;
      const std::array<int64_t, 5> kind{choice.view->rows, t.form.columns, t.form.planes, t.threads,
                                        t.streams()};
      if (std::find(tried.begin(), tried.end(), kind) != tried.end()) continue;
      tried.push_back(kind);
    }
    best.push_back(&choice);
  }
  return best;
}

// What is likely the fastest first; none if the weights of 16 channels and the planes that a step
// reads do not fit into shared memory.
template <typename T>
std::vector<std::unique_ptr<const ImplicitGemmPlan>> WarpFpropCandidates(
    const ImplicitGemmProblem& problem, GemmWanted wanted) {
  const bool gradient = problem.kind == GemmKind::kDgrad;
  const WarpFpropChannels channels{gradient ? problem.out_channels : problem.in_channels,
                                   gradient ? problem.in_channels : problem.out_channels,
                                   static_cast<int64_t>(sizeof(T))};
  std::vector<std::unique_ptr<const ImplicitGemmPlan>> plans;
  if (!IsWarpFprop(problem, channels)) return plans;
  const std::vector<WarpView> views = WarpViews(problem);
  std::vector<WarpFpropChoice> choices;
  // Smaller tiles leave warps idle, and are for planes of which no others fit.
  constexpr int64_t kMaxDivisor = 1024;
  for (int64_t divisor = 1; choices.empty() && divisor <= kMaxDivisor; divisor *= 2) {
    choices = WarpFpropChoices(views, channels, problem.device, problem.workspace_limit, divisor);
  }
  for (const WarpFpropChoice* choice : WarpFpropBest(choices, wanted)) {
    const WarpFpropTiling& t = choice->tiling;
    const WarpFpropLaunch launch{WarpFpropKernelOf<T>(t.form), WarpArrange<T>, t.threads,
                                 t.shared_bytes(),
                                 t.streams() ? choice->column_tiles * t.column_tile_bytes() : 0};
    const WarpFpropParams params = WarpFpropParamsOf(*choice, channels, problem);
    plans.push_back(std::make_unique<WarpFpropPlan>(WarpFpropName(*choice, gradient), gradient,
                                                    params, WarpArrangeParamsOf(t, params), launch,
                                                    problem.device.block_shared_bytes));
  }
  return plans;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_FPROP_PLAN_H_
