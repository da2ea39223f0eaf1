// Which tilings of wgrad by warps a problem is offered.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_SEARCH_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_SEARCH_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "cuda/kernels/implicit_gemm/launch.h"
#include "cuda/kernels/implicit_gemm/plan.h"
#include "cuda/kernels/implicit_gemm/warp/wgrad_cost.h"
#include "cuda/kernels/implicit_gemm/warp/wgrad_params.h"
#include "cuda/kernels/implicit_gemm/warp/wgrad_tiling.h"
#include "ffi/integers.h"

namespace jax_convgrad {
namespace warp_wgrad {

constexpr int64_t kMaxChannels = 128;

// The best tiling with a view, numbers of warps and units of a block; none if none fits.
inline std::optional<Tiling> BestOf(const Tiling& with, int64_t element_bytes) {
  std::optional<Tiling> best;
  const ImplicitGemmProblem& p = with.view.problem;
  for (const int64_t columns : SizesOf(p.out[2], kWarpWgradMaxPositions)) {
    for (const int64_t rows : SizesOf(p.out[1], kWarpWgradMaxPositions / columns)) {
      Tiling t = with;
      if (!SetRings(element_bytes, rows, columns, &t)) break;  // nor will more rows fit
      if (!SetWalk(rows, columns, &t)) continue;
      t.cycles = CyclesOf(t, element_bytes);
      if (!best.has_value() || t.cycles < best->cycles) best = t;
    }
  }
  return best;
}

// The fragments of output channels of a unit: two, or one if the last of them would be in vain.
inline std::vector<int64_t> FragmentsOf(int64_t out_channels) {
  const int64_t all = CeilDivide(out_channels, kWarpWgradOutputs);
  if (all == 1) return {1};
  if (all % 2 == 0) return {2};
  return {1, 2};
}

// The best tilings of each view, numbers of warps and of groups.
inline std::vector<Tiling> AllOf(const ImplicitGemmProblem& problem, int64_t element_bytes) {
  constexpr int64_t kTiles = 3;  // that fit, of each kind: those of larger ones read less
  std::vector<Tiling> all;
  for (const View& view : ViewsOf(problem)) {
    for (const int64_t fragments : FragmentsOf(problem.out_channels)) {
      const int64_t outputs = CeilDivide(problem.out_channels, fragments * kWarpWgradOutputs);
      const std::vector<Tile> tiles = TilesOf(view.problem, outputs);
      for (const int64_t warps : {16, 8, 4}) {
        int64_t fit = 0;
        for (const Tile& tile : tiles) {
          if (tile.count() > kGemmMaxPositions || fit == kTiles) break;
          bool fits = false;
          for (const Warps& shared : WarpsOf(tile, warps, fragments)) {
            Tiling with;
            with.view = view;
            SetTile(tile, shared, fragments, &with);
            const std::optional<Tiling> best = BestOf(with, element_bytes);
            if (!best.has_value()) continue;
            all.push_back(*best);
            fits = true;
          }
          if (fits) ++fit;
        }
      }
    }
  }
  return all;
}

// Whether two tilings differ in what a model may be wrong about.
inline bool Differ(const Tiling& a, const Tiling& b) {
  return a.view.rows != b.view.rows || a.warps != b.warps || a.params.groups != b.params.groups ||
         a.params.result_tiles != b.params.result_tiles;
}

// The tilings of a problem, what is likely the fastest first: those that may be it, or all. None if
// the kernel does not serve it, a size is beyond what it counts to, or the workspace limit is too
// low.
inline std::vector<Tiling> TilingsOf(const ImplicitGemmProblem& p, GemmWanted wanted) {
  constexpr double kWorthTrying = 1.3;
  constexpr size_t kMost = 3;
  const int64_t element_bytes = p.type == GemmType::kTf32 ? 4 : 2;
  const auto serves = [element_bytes](int64_t channels) {
    return channels > 0 && channels <= kMaxChannels &&
           channels * element_bytes % kWarpPieceBytes == 0;
  };
  std::vector<Tiling> chosen;
  if (p.kind != GemmKind::kWgrad || !serves(p.in_channels) || !serves(p.out_channels) ||
      !IsCountableGemm(p) || ResultCount(p) > kGemmMaxPositions) {
    return chosen;
  }
  std::vector<Tiling> all = AllOf(p, element_bytes);
  std::stable_sort(all.begin(), all.end(),
                   [](const Tiling& a, const Tiling& b) { return a.cycles < b.cycles; });
  if (wanted == GemmWanted::kAll) return all;
  for (const Tiling& tiling : all) {
    if (chosen.size() == kMost || tiling.cycles > kWorthTrying * all.front().cycles) break;
    const bool differs = std::all_of(chosen.begin(), chosen.end(),
                                     [&](const Tiling& other) { return Differ(tiling, other); });
    if (differs) chosen.push_back(tiling);
  }
  return chosen;
}

}  // namespace warp_wgrad
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_SEARCH_H_
