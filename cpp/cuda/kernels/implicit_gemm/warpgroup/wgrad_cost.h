// How long a tiling of the weight gradient is likely to take, by a count of what the kernel does.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_WGRAD_COST_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_WGRAD_COST_H_

#include <algorithm>
#include <cstdint>

#include "cuda/kernels/implicit_gemm/launch.h"
#include "cuda/kernels/implicit_gemm/plan.h"
#include "cuda/kernels/implicit_gemm/warpgroup/image.h"
#include "cuda/kernels/implicit_gemm/warpgroup/wgrad_params.h"
#include "cuda/kernels/implicit_gemm/warpgroup/wgrad_tiling.h"
#include "ffi/integers.h"

namespace jax_convgrad {
namespace wgrad_tiling {

// What a multiprocessor does in a cycle of an H100, about, and what takes how many cycles.
constexpr double kSharedBytes = 128;  // that its shared memory gives or takes
constexpr double kCachedBytes = 24;   // from the second cache
constexpr double kMemoryBytes = 13;   // from memory
constexpr double kRowBytes = 128;     // that are loaded beside a row, since it begins anywhere
constexpr double kPartBytes = 12;     // of partial sums
constexpr double kLatency = 1500;     // from a free place in a ring to what is loaded there
constexpr double kStepCycles = 300;   // of waiting
constexpr double kWaitCycles = 600;   // of waiting, that other warpgroups may fill
constexpr double kRowCycles = 100;    // of a warpgroup's instructions for a row
constexpr double kProductIssue = 20;  // and for a product
constexpr double kLaunchCycles = 3000;
// Of what is hidden behind what takes longer.
constexpr double kVisible = 0.1;

struct ProductCycles {
  double tensor_cores = 0, operands = 0;
};

inline ProductCycles CyclesOfProducts(const WgradInstance& i) {
  ProductCycles cycles;
  const auto add = [&cycles](double columns) {
    const double operands = 16 + columns / 4;
    cycles.operands += operands;
    cycles.tensor_cores += std::max(columns / 2, operands);
  };
  for (int unit = 0; unit < i.units; ++unit) add(i.columns);
  if (i.extra_columns > 0) add(i.extra_columns);
  return cycles;
}

// The cycles until the last block is done.
inline double CyclesOf(const ImplicitGemmProblem& p, const WgradTiling& t) {
  if (t.walk.steps == 0) return kLaunchCycles;
  const WgradInstance& instance = kWgradInstances[t.instance];
  const ProductCycles product = CyclesOfProducts(instance);
  const int units = instance.units + (instance.extra_columns > 0 ? 1 : 0);
  const int column_splits = t.splits / t.row_splits;
  const int64_t rows = CeilDivide(t.walk.rows, t.row_splits);  // of a warpgroup
  const int64_t columns = CeilDivide(t.walk.columns / kWgradDepth, column_splits);
  const double products = t.walk.rows * (t.walk.columns / kWgradDepth) * t.sets;
  const double loaded = t.rings.x_box_bytes + t.rings.y_box_bytes;
  const double cached = loaded + kRowBytes * (t.walk.rows + t.rings.y_rows);
  const double own = t.walk.rows * t.walk.columns * kGemmElementBytes * (t.in_line + t.out_line);
  const double multiply = std::max(
      {products * product.tensor_cores, products * product.operands + loaded / kSharedBytes,
       static_cast<double>(rows) * (kRowCycles + columns * units * kProductIssue)});
  // Groups read the same from memory at about the same time.
  const double load = std::max(
      {cached / kCachedBytes, own / (kMemoryBytes * t.groups), kLatency / (t.rings.x_slots - 1)});
  const double step = std::max(multiply, load) + kVisible * std::min(multiply, load) + kStepCycles +
                      kWaitCycles / (t.sets * t.splits);
  const int64_t steps = CeilDivide(t.walk.steps, t.walk.blocks);
  const bool cuts_strips = steps % t.walk.length != 0 && t.walk.length % steps != 0;
  const int64_t segments = CeilDivide(steps, t.walk.length) + (cuts_strips ? 1 : 0);
  const double begins =
      static_cast<double>(segments * (t.rings.planes - 1)) * t.rings.y_box_bytes / kCachedBytes;
  const double sums = static_cast<double>(PartBytes(t)) / kPartBytes;
  const double sums_added = sums * t.walk.blocks / static_cast<double>(p.device.multiprocessors);
  const int64_t waves = CeilDivide(int64_t{t.groups} * t.walk.blocks, p.device.multiprocessors);
  return kLaunchCycles + sums / t.groups + sums_added +
         static_cast<double>(waves) *
             (loaded / kMemoryBytes + begins + static_cast<double>(steps) * step + multiply);
}

}  // namespace wgrad_tiling

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_WGRAD_COST_H_
