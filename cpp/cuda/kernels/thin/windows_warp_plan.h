// Plans for windows that lie side by side, multiplied by warps. Their kernels are in windows.cuh.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_WARP_PLAN_H_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_WARP_PLAN_H_

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/kernels/common/parts_sum.cuh"
#include "cuda/kernels/thin/launch.h"
#include "cuda/kernels/thin/plan.h"
#include "cuda/kernels/thin/windows.cuh"
#include "cuda/kernels/thin/windows_plan.h"

namespace jax_convgrad {

using WideTile = WindowsTile<4, 2, 2>;    // 128 by 128
using NarrowTile = WindowsTile<4, 1, 4>;  // 128 by 64
using FineTile = WindowsTile<4, 2, 1>;    // 128 by 128, copied by 4 bytes, with more registers
using LowTile = WindowsTile<2, 2, 3>;     // 64 by 128

template <typename Tile>
constexpr WindowsTileShape kWarpTile{
    Tile::kRows, Tile::kColumns, Tile::kThreads, Tile::kBlocks, Tile::kDepth, 2, 3};

template <typename T, typename Tile, bool kDgrad, int kPiece>
WindowsKernel ProductKernel(ThinWeights weights) {
  return weights == ThinWeights::kInOut ? WindowsProduct<T, Tile, kDgrad, true, kPiece>
                                        : WindowsProduct<T, Tile, kDgrad, false, kPiece>;
}

template <typename T, typename Tile, int kPiece>
std::unique_ptr<const ThinPlan> MakeProduct(const ThinProblem& problem, const char* name) {
  const WindowsKernel kernel = problem.kind == ThinKind::kDgrad
                                   ? ProductKernel<T, Tile, true, kPiece>(problem.weights)
                                   : ProductKernel<T, Tile, false, kPiece>(problem.weights);
  return MakeWindowsProduct(problem, name, kWarpTile<Tile>, kernel).plan;
}

template <typename T, typename Tile, int kPiece>
std::unique_ptr<const ThinPlan> MakeWgrad(const ThinProblem& problem, const char* name) {
  WindowsTileShape tile = kWarpTile<Tile>;
  tile.min_stages = tile.most_stages = kWindowsWgradStages;
  return MakeWindowsWgrad(problem, name, tile, WindowsWgrad<T, Tile, kPiece>, PartsSum<T>).plan;
}

template <typename T>
std::vector<std::unique_ptr<const ThinPlan>> WindowsCandidates(const ThinProblem& p) {
  std::vector<std::unique_ptr<const ThinPlan>> plans;
  const auto add = [&](std::unique_ptr<const ThinPlan> plan) {
    if (plan != nullptr) plans.push_back(std::move(plan));
  };
  const bool sixteen = CopiesSixteen(p);
  if (p.kind == ThinKind::kWgrad) {
    add(sixteen ? MakeWgrad<T, WideTile, 8>(p, "windows_wgrad_128x128")
                : MakeWgrad<T, FineTile, 2>(p, "windows_wgrad_128x128_by_4"));
    if (sixteen) add(MakeWgrad<T, LowTile, 8>(p, "windows_wgrad_64x128"));
    const int64_t rest = p.out_channels % WideTile::kRows;
    if (rest > 0 && rest <= LowTile::kRows) std::reverse(plans.begin(), plans.end());
    return plans;
  }
  add(sixteen ? MakeProduct<T, WideTile, 8>(p, "windows_128x128")
              : MakeProduct<T, FineTile, 2>(p, "windows_128x128_by_4"));
  if (sixteen) add(MakeProduct<T, NarrowTile, 8>(p, "windows_128x64"));
  const int64_t rest = WindowsColumns(p) % WideTile::kColumns;
  if (rest > 0 && rest <= NarrowTile::kColumns) std::reverse(plans.begin(), plans.end());
  return plans;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_WARP_PLAN_H_
