#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/kernels/thin/launch.h"
#include "cuda/kernels/thin/plan.h"
#include "cuda/kernels/thin/windows_plan.h"
#include "cuda/kernels/thin/windows_warpgroup.cuh"
#include "cuda/kernels/thin/windows_warpgroup.h"

namespace jax_convgrad {
namespace {

// Of windows of one tap, of which networks have many, and for which libraries have products as
// fast.
constexpr size_t kMaxPointwise = 2;
// Of fewer columns, a tile is mostly empty. Copied by 4 bytes, there is only a tile of 256.
constexpr int64_t kMinColumns = 65, kMinColumnsByFour = 129;

// Cycles of a multiprocessor, as on an H200, for a column of a tile of 128 rows: to multiply a step
// of its depth, and to write it, where the stores of one block hide behind the products of another
// and where they do not. Bytes that the cache gives it in a cycle. Cycles to begin and end a block
// that is alone. Only ratios matter here.
constexpr double kColumnCycles = 4, kHiddenWriteCycles = 12, kWriteCycles = 24, kCacheBytes = 44;
constexpr double kBlockCycles = 3000;

template <typename Tile>
constexpr WindowsTileShape kWarpgroupTile{Tile::kRows,
                                          Tile::kColumns,
                                          Tile::kThreads,
                                          Tile::kBlocks,
                                          Tile::kDepth,
                                          2 + Tile::kPending,
                                          4};

using Costed = std::vector<CostedPlan>;

double StepCycles(const WindowsTileShape& tile) {
  const double columns = static_cast<double>(tile.columns * tile.rows) / 128;
  const double bytes = static_cast<double>((tile.rows + tile.columns) * kWindowsDepth * 2);
  return std::max(kColumnCycles * columns, bytes / kCacheBytes);
}

double EndCycles(const WindowsTileShape& tile) {
  const double columns = static_cast<double>(tile.columns * tile.rows) / 128;
  return tile.blocks > 1 ? kHiddenWriteCycles * columns : kWriteCycles * columns + kBlockCycles;
}

template <typename T, int kWarpgroups, int kColumns, int kBlocks, int kPiece>
void AddProduct(const ThinProblem& problem, const char* name, Costed* plans) {
  using Tile = WarpgroupTile<kWarpgroups, kColumns, kBlocks>;
  const bool in_out = problem.weights == ThinWeights::kInOut;
  const bool gradient = problem.kind == ThinKind::kDgrad;
  const WindowsKernel kernel = gradient
                                   ? (in_out ? WarpgroupProduct<T, Tile, true, true, kPiece>
                                             : WarpgroupProduct<T, Tile, true, false, kPiece>)
                                   : (in_out ? WarpgroupProduct<T, Tile, false, true, kPiece>
                                             : WarpgroupProduct<T, Tile, false, false, kPiece>);
  const WindowsTileShape tile = kWarpgroupTile<Tile>;
  CostedPlan plan = MakeWindowsProduct(problem, name, tile, kernel);
  if (plan.plan == nullptr) return;
  const WindowsImage image = ImageOf(problem);
  const int64_t depth = gradient ? problem.out_channels : image.size;
  const double steps = static_cast<double>(CeilDivide(depth, kWindowsDepth));
  plan.cost *= steps * StepCycles(tile) + EndCycles(tile);
  plans->push_back(std::move(plan));
}

template <typename T, int kWarpgroups, int kColumns, int kBlocks, int kPiece>
void AddWgrad(const ThinProblem& problem, const char* name, PartsSumKernel sum_kernel,
              Costed* plans) {
  using Tile = WarpgroupTile<kWarpgroups, kColumns, kBlocks>;
  const WindowsTileShape tile = kWarpgroupTile<Tile>;
  CostedPlan plan =
      MakeWindowsWgrad(problem, name, tile, WarpgroupWgrad<T, Tile, kPiece>, sum_kernel);
  if (plan.plan == nullptr) return;
  plan.cost *= StepCycles(tile);
  plans->push_back(std::move(plan));
}

template <typename T>
Costed CandidatesOf(const ThinProblem& p, PartsSumKernel sum_kernel) {
  Costed plans;
  if (p.kind == ThinKind::kWgrad) {
    if (CopiesSixteen(p)) {
      AddWgrad<T, 2, 256, 1, 8>(p, "windows_wgrad_warpgroup_128x256", sum_kernel, &plans);
      AddWgrad<T, 2, 128, 2, 8>(p, "windows_wgrad_warpgroup_128x128", sum_kernel, &plans);
    } else {
      AddWgrad<T, 2, 256, 1, 2>(p, "windows_wgrad_warpgroup_128x256_by_4", sum_kernel, &plans);
    }
  } else if (CopiesSixteen(p)) {
    AddProduct<T, 2, 256, 1, 8>(p, "windows_warpgroup_128x256", &plans);
    AddProduct<T, 3, 192, 1, 8>(p, "windows_warpgroup_192x192", &plans);
    AddProduct<T, 2, 192, 1, 8>(p, "windows_warpgroup_128x192", &plans);
    AddProduct<T, 2, 128, 2, 8>(p, "windows_warpgroup_128x128", &plans);
  } else {
    AddProduct<T, 2, 256, 1, 2>(p, "windows_warpgroup_128x256_by_4", &plans);
  }
  return plans;
}

}  // namespace

std::vector<std::unique_ptr<const ThinPlan>> WarpgroupCandidates(const ThinProblem& problem,
                                                                 PartsSumKernel sum_kernel) {
  if (WindowsColumns(problem) < (CopiesSixteen(problem) ? kMinColumns : kMinColumnsByFour)) {
    return {};
  }
  Costed plans = problem.type == ThinType::kF16 ? CandidatesOf<__half>(problem, sum_kernel)
                                                : CandidatesOf<__nv_bfloat16>(problem, sum_kernel);
  std::sort(plans.begin(), plans.end(),
            [](const CostedPlan& a, const CostedPlan& b) { return a.cost < b.cost; });
  const bool pointwise = problem.kernel == ThinProblem::PerAxis{1, 1, 1};
  if (pointwise && plans.size() > kMaxPointwise) plans.resize(kMaxPointwise);
  std::vector<std::unique_ptr<const ThinPlan>> fastest;
  for (CostedPlan& costed : plans) fastest.push_back(std::move(costed.plan));
  return fastest;
}

}  // namespace jax_convgrad
