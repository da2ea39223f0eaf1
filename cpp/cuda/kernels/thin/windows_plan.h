// Plans for windows that lie side by side. Their kernels are in windows.cuh.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_PLAN_H_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_PLAN_H_

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels/thin/launch.h"
#include "cuda/kernels/thin/parts_sum.cuh"
#include "cuda/kernels/thin/plan.h"
#include "cuda/kernels/thin/windows.cuh"
#include "ffi/integers.h"

namespace jax_convgrad {

using WindowsKernel = void (*)(WindowsParams);

class WindowsProductPlan : public KernelPlan<WindowsParams> {
 public:
  WindowsProductPlan(std::string name, const WindowsParams& params, Kernel kernel, bool gradient,
                     int64_t blocks, int64_t threads, int64_t shared_bytes,
                     int64_t block_shared_bytes)
      : KernelPlan(std::move(name), params, kernel, {threads, shared_bytes, block_shared_bytes}),
        gradient_(gradient),
        blocks_(blocks) {}

  cudaError_t Run(const ThinArrays& arrays, cudaStream_t stream) const override {
    WindowsParams called = params();
    called.x = arrays.x;
    called.y = arrays.y;
    called.w = arrays.w;
    called.result = gradient_ ? arrays.x : arrays.y;
    return LaunchWith(called, blocks_, stream);
  }

 private:
  const bool gradient_;
  const int64_t blocks_;
};

class WindowsWgradPlan : public KernelPlan<WindowsParams> {
 public:
  WindowsWgradPlan(std::string name, const WindowsParams& params, Kernel kernel, int64_t threads,
                   int64_t shared_bytes, const PartsSumParams& sum, PartsSumKernel sum_kernel,
                   int64_t block_shared_bytes)
      : KernelPlan(std::move(name), params, kernel, {threads, shared_bytes, block_shared_bytes}),
        sum_(sum),
        sum_kernel_(sum_kernel) {}

  int64_t workspace_bytes() const override { return PartsSumBytes(sum_); }

  cudaError_t Run(const ThinArrays& arrays, cudaStream_t stream) const override {
    WindowsParams called = params();
    called.x = arrays.x;
    called.y = arrays.y;
    called.result = arrays.workspace;
    const int64_t blocks = int64_t{called.parts} * called.channel_tiles * called.window_tiles;
    const cudaError_t status = LaunchWith(called, blocks, stream);
    if (status != cudaSuccess) return status;
    return LaunchPartsSum(sum_kernel_, sum_, arrays, stream);
  }

 private:
  const PartsSumParams sum_;
  const PartsSumKernel sum_kernel_;
};

// Windows that lie side by side, of sizes that the kernels count to.
inline bool HasWindows(const ThinProblem& p) {
  int64_t window = p.in_channels, positions = p.batch;
  for (size_t axis = 0; axis < 3; ++axis) {
    const int64_t covered = p.out[axis] * p.kernel[axis];
    if (p.strides[axis] != p.kernel[axis] || p.dilation[axis] != 1 || p.padding_low[axis] != 0) {
      return false;
    }
    // What no window reads has the gradient zero, and the kernel writes windows alone.
    if (covered > p.in[axis] || (p.kind == ThinKind::kDgrad && covered != p.in[axis])) return false;
    if (std::max({p.in[axis], p.kernel[axis], p.out[axis]}) > kMaxPositions) return false;
    window *= p.kernel[axis];
    positions *= p.out[axis];
    if (window > kMaxWindow || positions > kMaxPositions) return false;
  }
  return p.alignment >= 16 && Multiple(p.out_channels, 8) && p.out_channels <= kMaxWindow &&
         window * p.out_channels <= kMaxWeights && Multiple(p.kernel[2] * p.in_channels, 2) &&
         Multiple(p.in[2] * p.in_channels, 2);
}

// Whether runs are copied 16 bytes at a time, else 4.
inline bool CopiesSixteen(const ThinProblem& p) {
  return Multiple(p.kernel[2] * p.in_channels, 8) && Multiple(p.in[2] * p.in_channels, 8);
}

inline WindowsImage ImageOf(const ThinProblem& p) {
  WindowsImage image{};
  const int64_t line = p.in[2] * p.in_channels, plane = p.in[1] * line;
  const int64_t run = p.kernel[2] * p.in_channels;
  image.positions = static_cast<int>(p.batch * p.out[0] * p.out[1] * p.out[2]);
  image.size = static_cast<int>(p.kernel[0] * p.kernel[1] * run);
  image.run = static_cast<int>(run);
  image.by_x = Divider(p.out[2]);
  image.by_y = Divider(p.out[1]);
  image.by_z = Divider(p.out[0]);
  image.by_run = Divider(run);
  image.by_rows = Divider(p.kernel[1]);
  image.image = p.in[0] * plane;
  image.plane = p.kernel[0] * plane;
  image.row = p.kernel[1] * line;
  image.tap_plane = plane;
  image.tap_row = line;
  return image;
}

inline WindowsParams ParamsOf(const ThinProblem& problem) {
  WindowsParams params{};
  params.image = ImageOf(problem);
  params.channels = static_cast<int>(problem.out_channels);
  return params;
}

using WideTile = WindowsTile<4, 2, 2>;    // 128 by 128
using NarrowTile = WindowsTile<4, 1, 4>;  // 128 by 64
using FineTile = WindowsTile<4, 2, 1>;    // 128 by 128, copied by 4 bytes, with more registers
using LowTile = WindowsTile<2, 2, 3>;     // 64 by 128

template <typename T, typename Tile, bool kDgrad, int kPiece>
WindowsKernel ProductKernel(ThinWeights weights) {
  return weights == ThinWeights::kInOut ? WindowsProduct<T, Tile, kDgrad, true, kPiece>
                                        : WindowsProduct<T, Tile, kDgrad, false, kPiece>;
}

template <typename T, typename Tile, int kPiece>
std::unique_ptr<const ThinPlan> MakeProduct(const ThinProblem& problem, const char* name) {
  using Shared = WindowsProductShared<Tile>;
  const bool gradient = problem.kind == ThinKind::kDgrad;
  WindowsParams p = ParamsOf(problem);
  const int64_t columns = gradient ? p.image.size : p.channels;
  const int64_t steps = CeilDivide(gradient ? p.channels : p.image.size, kWindowsDepth);

  // Weights that stay are read once a block; those that do not still come from the cache. As many
  // blocks as possible, since one's stores then hide behind another's products.
  int64_t blocks = 0, shared_bytes = 0;
  const auto choose = [&](int64_t at_once, bool resident, int64_t stages) {
    const int64_t bytes = Shared::Bytes(steps, resident, stages);
    if (blocks != 0 || bytes > SharedBytesOf(problem.device, at_once)) return;
    blocks = at_once;
    shared_bytes = bytes;
    p.resident = resident;
    p.stages = static_cast<int>(stages);
  };
  for (int64_t at_once = Tile::kBlocks; at_once > 0; --at_once) {
    for (const int64_t stages : {4, 3}) choose(at_once, true, stages);
    choose(at_once, false, 3);
  }
  choose(1, false, 2);
  if (blocks == 0) return nullptr;

  p.column_tiles = static_cast<int>(CeilDivide(columns, Tile::kColumns));
  p.row_tiles = static_cast<int>(CeilDivide(p.image.positions, Tile::kRows));
  const int64_t places = problem.device.multiprocessors * blocks;
  const int64_t tiles = int64_t{p.row_tiles} * p.column_tiles;
  p.block_row_tiles = static_cast<int>(std::max<int64_t>(1, tiles / (places * kWaves)));
  const int64_t all = CeilDivide(p.row_tiles, p.block_row_tiles) * p.column_tiles;
  if (all > kMaxPositions) return nullptr;
  const WindowsKernel kernel = gradient ? ProductKernel<T, Tile, true, kPiece>(problem.weights)
                                        : ProductKernel<T, Tile, false, kPiece>(problem.weights);
  return std::make_unique<WindowsProductPlan>(name, p, kernel, gradient, all, Tile::kThreads,
                                              shared_bytes, problem.device.block_shared_bytes);
}

template <typename T, typename Tile, int kPiece>
std::unique_ptr<const ThinPlan> MakeWgrad(const ThinProblem& problem, const char* name) {
  WindowsParams p = ParamsOf(problem);
  constexpr int64_t kBytes = kWindowsWgradBytes<Tile>;
  int64_t at_once = Tile::kBlocks;
  while (at_once > 0 && kBytes > SharedBytesOf(problem.device, at_once)) --at_once;
  if (at_once == 0) return nullptr;
  p.channel_tiles = static_cast<int>(CeilDivide(p.channels, Tile::kRows));
  p.window_tiles = static_cast<int>(CeilDivide(p.image.size, Tile::kColumns));
  const int64_t tiles = int64_t{p.channel_tiles} * p.window_tiles;
  const int64_t steps = CeilDivide(p.image.positions, kWindowsWgradDepth);
  const int64_t part_bytes = 4 * int64_t{p.channels} * p.image.size;
  const int64_t max_parts = std::min(steps, problem.workspace_limit / part_bytes);
  if (max_parts < 1) return nullptr;
  const int64_t parts =
      std::clamp<int64_t>(problem.device.multiprocessors * at_once / tiles, 1, max_parts);
  p.part_steps = static_cast<int>(CeilDivide(steps, parts));
  p.parts = static_cast<int>(CeilDivide(steps, p.part_steps));
  if (tiles * p.parts > kMaxPositions) return nullptr;

  PartsSumParams sum{};
  sum.rows = p.channels;
  sum.columns = p.image.size;
  sum.parts = p.parts;
  sum.by_columns = Divider(sum.columns);
  sum.by_inner_rows = Divider(1);
  const bool in_out = problem.weights == ThinWeights::kInOut;
  sum.of_outer_row = in_out ? 1 : sum.columns;
  sum.of_column = in_out ? sum.rows : 1;
  return std::make_unique<WindowsWgradPlan>(name, p, WindowsWgrad<T, Tile, kPiece>, Tile::kThreads,
                                            kBytes, sum, PartsSum<T>,
                                            problem.device.block_shared_bytes);
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
  const int64_t columns = p.kind == ThinKind::kDgrad
                              ? p.kernel[0] * p.kernel[1] * p.kernel[2] * p.in_channels
                              : p.out_channels;
  const int64_t rest = columns % WideTile::kColumns;
  if (rest > 0 && rest <= NarrowTile::kColumns) std::reverse(plans.begin(), plans.end());
  return plans;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_PLAN_H_
