// Which tilings of the weight gradient a problem is offered.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_WGRAD_SEARCH_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_WGRAD_SEARCH_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "cuda/kernels/implicit_gemm/launch.h"
#include "cuda/kernels/implicit_gemm/plan.h"
#include "cuda/kernels/implicit_gemm/walk.h"
#include "cuda/kernels/implicit_gemm/warpgroup/image.h"
#include "cuda/kernels/implicit_gemm/warpgroup/wgrad_cost.h"
#include "cuda/kernels/implicit_gemm/warpgroup/wgrad_params.h"
#include "cuda/kernels/implicit_gemm/warpgroup/wgrad_tiling.h"
#include "ffi/integers.h"

namespace jax_convgrad {
namespace wgrad_tiling {

// How many warpgroups share rows, of all that share a tile; the others share columns.
inline int RowSplitsOf(const GemmWalk& walk, int splits) {
  const int columns = walk.columns / kWgradDepth;
  return walk.rows % splits == 0 || columns < splits ? splits : 1;
}

// Of a way to share taps, the best tiling with each number of columns.
inline std::vector<WgradTiling> BestOf(const ImplicitGemmProblem& p, const WgradTiling& with) {
  const WgradView& view = with.view;
  const Range range[] = {RangeOfSource(view.z), RangeOfSource(view.y),
                         RangeOfColumns(view.x, with.taps)};
  const auto extent = [&range](int axis) {
    return range[axis].begin < range[axis].end ? range[axis].end - range[axis].begin : 1;
  };
  std::vector<WgradTiling> tilings;
  const int most = WgradMaxWarpgroups(kWgradInstances[with.instance]);
  const int64_t most_columns = std::min(kTensorMaxBox, RoundUp(extent(2), kWgradDepth));
  for (int64_t columns = kWgradDepth; columns <= most_columns; columns += kWgradDepth) {
    std::optional<WgradTiling> best;
    for (int sets = 1; sets <= std::min(most, WgradSets(with.taps)); ++sets) {
      const int planes = PlanesOf(with.taps, sets);
      for (const int rows : {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64}) {
        WgradTiling t = with;
        t.sets = sets;
        t.rings.planes = planes;
        t.walk.rows = static_cast<int>(std::min<int64_t>(rows, extent(1)));
        t.walk.columns = static_cast<int>(columns);
        // As many warpgroups as there can be: they hide each other's waiting.
        t.splits = std::min(most / sets, std::max(t.walk.rows, t.walk.columns / kWgradDepth));
        t.row_splits = RowSplitsOf(t.walk, t.splits);
        if (ShareSteps(p, range, &t) && FillRings(p, &t)) {
          t.cycles = CyclesOf(p, t);
          if (!best.has_value() || t.cycles < best->cycles) best = t;
        }
        if (t.walk.rows == extent(1)) break;
      }
    }
    if (best.has_value()) tilings.push_back(*best);
  }
  return tilings;
}

inline bool WalksOtherwise(const WgradTiling& a, const WgradTiling& b) {
  return std::strcmp(a.view.walk, b.view.walk) != 0;
}

inline bool IsTwiceAsWide(const WgradTiling& a, const WgradTiling& b) {
  return std::max(a.walk.columns, b.walk.columns) >= 2 * std::min(a.walk.columns, b.walk.columns);
}

}  // namespace wgrad_tiling

// The tilings of a problem, what is likely the fastest first, and one that walks or whose tile
// differs from it if there is such a one that may be as fast, or all; none if the kernel does not
// serve the problem, or the workspace limit is too low.
inline std::vector<WgradTiling> WgradTilings(const ImplicitGemmProblem& p, GemmWanted wanted) {
  constexpr double kWorthTrying = 1.25;
  std::vector<WgradTiling> all, tilings;
  if (GemmVolume(p.kernel) > wgrad_tiling::kMaxTaps) return tilings;
  WgradTiling with;
  with.in_line = static_cast<int>(GemmLine(p.in_channels));
  with.out_line = static_cast<int>(GemmLine(p.out_channels));
  for (const WgradView& view : wgrad_tiling::ViewsOf(p)) {
    with.view = view;
    for (with.instance = 0; with.instance < kWgradInstanceCount; ++with.instance) {
      const WgradInstance& instance = kWgradInstances[with.instance];
      for (const WgradTaps& taps :
           wgrad_tiling::TapsOf(view, instance, with.in_line, with.out_line)) {
        with.taps = taps;
        for (const WgradTiling& tiling : wgrad_tiling::BestOf(p, with)) all.push_back(tiling);
      }
    }
  }
  const auto faster = [](const WgradTiling& a, const WgradTiling& b) {
    return a.cycles < b.cycles;
  };
  std::stable_sort(all.begin(), all.end(), faster);
  if (all.empty() || wanted == GemmWanted::kAll) return all;
  tilings.push_back(all.front());
  for (const auto differs : {wgrad_tiling::WalksOtherwise, wgrad_tiling::IsTwiceAsWide}) {
    const auto other = std::find_if(all.begin(), all.end(), [&](const WgradTiling& tiling) {
      return differs(tiling, all.front());
    });
    if (other == all.end() || other->cycles > kWorthTrying * all.front().cycles) continue;
    tilings.push_back(*other);
    break;
  }
  return tilings;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_WGRAD_SEARCH_H_
