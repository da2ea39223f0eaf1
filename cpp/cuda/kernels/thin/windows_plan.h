// Plans for windows that lie side by side, whichever kernel multiplies them: windows_warp_plan.h
// has those by warps, windows_warpgroup.cu those by warpgroups.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_PLAN_H_
#define JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_PLAN_H_

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/kernels/common/parts_sum.cuh"
#include "cuda/kernels/thin/launch.h"
#include "cuda/kernels/thin/plan.h"
#include "cuda/kernels/thin/windows_copies.cuh"
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
        adder_(sum_kernel, sum) {}

  int64_t workspace_bytes() const override { return adder_.workspace_bytes(); }

  cudaError_t Run(const ThinArrays& arrays, cudaStream_t stream) const override {
    WindowsParams called = params();
    called.x = arrays.x;
    called.y = arrays.y;
    called.result = arrays.workspace;
    const int64_t blocks = int64_t{called.parts} * called.channel_tiles * called.window_tiles;
    const cudaError_t status = LaunchWith(called, blocks, stream);
    if (status != cudaSuccess) return status;
    return adder_.Run(arrays, stream);
  }

 private:
  const PartsAdder adder_;
};

// Columns of the matrix that a pass's result is.
inline int64_t WindowsColumns(const ThinProblem& p) {
  if (p.kind == ThinKind::kFprop) return p.out_channels;
  return p.kernel[0] * p.kernel[1] * p.kernel[2] * p.in_channels;
}

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

// A kernel's tile, see WindowsTile and WarpgroupTile.
struct WindowsTileShape {
  int64_t rows, columns, threads, blocks;
  int64_t depth;        // windows of a step of wgrad
  int64_t min_stages;   // of steps in shared memory
  int64_t most_stages;  // where weights do not stay there, and of wgrad
};

// fprop or dgrad by a kernel that has such a tile. The cost is in times of one tile.
inline CostedPlan MakeWindowsProduct(const ThinProblem& problem, const char* name,
                                     const WindowsTileShape& tile, WindowsKernel kernel) {
  const bool gradient = problem.kind == ThinKind::kDgrad;
  WindowsParams p = ParamsOf(problem);
  const int64_t columns = gradient ? p.image.size : p.channels;
  const int64_t steps = CeilDivide(gradient ? p.channels : p.image.size, kWindowsDepth);

  // Weights that stay are read once a block; those that do not still come from the cache. As many
  // blocks as possible, since one's stores then hide behind another's products.
  int64_t blocks = 0, shared_bytes = 0;
  const auto choose = [&](int64_t at_once, bool resident, int64_t stages) {
    const int64_t bytes = WindowsSharedBytes(tile.rows, tile.columns, steps, resident, stages);
    if (blocks != 0 || bytes > SharedBytesOf(problem.device, at_once)) return;
    blocks = at_once;
    shared_bytes = bytes;
    p.resident = resident;
    p.stages = static_cast<int>(stages);
  };
  for (int64_t at_once = tile.blocks; at_once > 0; --at_once) {
    for (const int64_t stages : {4, 3}) choose(at_once, true, stages);
    for (int64_t stages = tile.most_stages; stages >= 3; --stages) choose(at_once, false, stages);
  }
  if (tile.min_stages == 2) choose(1, false, 2);
  if (blocks == 0) return {};

  p.column_tiles = static_cast<int>(CeilDivide(columns, tile.columns));
  p.row_tiles = static_cast<int>(CeilDivide(p.image.positions, tile.rows));
  const int64_t places = problem.device.multiprocessors * blocks;
  const int64_t tiles = int64_t{p.row_tiles} * p.column_tiles;
  p.block_row_tiles = static_cast<int>(std::max<int64_t>(1, tiles / (places * kWaves)));
  const int64_t all = CeilDivide(p.row_tiles, p.block_row_tiles) * p.column_tiles;
  if (all > kMaxPositions) return {};
  return {std::make_unique<WindowsProductPlan>(name, p, kernel, gradient, all, tile.threads,
                                               shared_bytes, problem.device.block_shared_bytes),
          Waves(tiles, problem.device.multiprocessors, blocks), shared_bytes};
}

// wgrad. `sum_kernel` is PartsSum of the problem's type. The cost is in times of one step.
inline CostedPlan MakeWindowsWgrad(const ThinProblem& problem, const char* name,
                                   const WindowsTileShape& tile, WindowsKernel kernel,
                                   PartsSumKernel sum_kernel) {
  WindowsParams p = ParamsOf(problem);
  int64_t at_once = 0, shared_bytes = 0;
  for (int64_t blocks = tile.blocks; blocks > 0 && at_once == 0; --blocks) {
    for (int64_t stages = tile.most_stages; stages >= tile.min_stages && at_once == 0; --stages) {
      shared_bytes = WindowsWgradBytes(tile.rows, tile.columns, tile.depth, stages);
      if (shared_bytes > SharedBytesOf(problem.device, blocks)) continue;
      at_once = blocks;
      p.stages = static_cast<int>(stages);
    }
  }
  if (at_once == 0) return {};
  p.channel_tiles = static_cast<int>(CeilDivide(p.channels, tile.rows));
  p.window_tiles = static_cast<int>(CeilDivide(p.image.size, tile.columns));
  const int64_t tiles = int64_t{p.channel_tiles} * p.window_tiles;
  const int64_t steps = CeilDivide(p.image.positions, tile.depth);
  const int64_t part_bytes = 4 * int64_t{p.channels} * p.image.size;
  const int64_t max_parts = std::min(steps, problem.workspace_limit / part_bytes);
  if (max_parts < 1) return {};
  const int64_t parts =
      std::clamp<int64_t>(problem.device.multiprocessors * at_once / tiles, 1, max_parts);
  p.part_steps = static_cast<int>(CeilDivide(steps, parts));
  p.parts = static_cast<int>(CeilDivide(steps, p.part_steps));
  if (tiles * p.parts > kMaxPositions) return {};

  PartsSumParams sum{};
  sum.rows = p.channels;
  sum.columns = p.image.size;
  sum.parts = p.parts;
  sum.by_columns = Divider(sum.columns);
  sum.by_inner_rows = Divider(1);
  const bool in_out = problem.weights == ThinWeights::kInOut;
  sum.of_outer_row = in_out ? 1 : sum.columns;
  sum.of_column = in_out ? sum.rows : 1;
  const double waves = Waves(tiles * p.parts, problem.device.multiprocessors, at_once);
  return {std::make_unique<WindowsWgradPlan>(name, p, kernel, tile.threads, shared_bytes, sum,
                                             sum_kernel, problem.device.block_shared_bytes),
          waves * p.part_steps, shared_bytes};
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_THIN_WINDOWS_PLAN_H_
