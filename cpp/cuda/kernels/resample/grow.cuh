// The driver of walks in which rows grow, or stay as many: the block goes down the rows of y, and
// brings the ring of rows of x along.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_GROW_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_GROW_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"
#include "cuda/kernels/resample/ring.cuh"
#include "cuda/kernels/resample/rows.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// With rows of x that registers hold ahead.
template <typename ModeType, int kRows>
struct Grow {
  using Mode = ModeType;
  using Sum = typename Mode::Sum;

  Ring<Mode, kRows> ring;
  Mode mode;

  CONVGRAD_DEVICE Grow(const ResampleTask& task, char* shared)
      : ring(task.tiling, shared), mode(task, shared) {}

  CONVGRAD_DEVICE void Run(uint32_t block, int thread) {
    if (!EnterRows(mode, block, thread)) return;
    ring.MakeTables(mode.line, thread);
    const int last = static_cast<int>(mode.line.task.walk.in) - 1;
    const auto fetch = [&](int row) { mode.Fetch(0, mode.line.RowOf(row < last ? row : last)); };
    int base = 0, next = -1;  // the ring's first row, and that which was fetched
    // Starts are read a row ahead from shared memory; so are weights where registers are left.
    int following = ring.row_starts[0];
    Sum weights[kRows], following_weights[kRows];
    if constexpr (Mode::kWeightsAhead) ring.LoadWeights(0, following_weights);
#pragma unroll 1
    for (int row = 0; row < mode.line.rows; ++row) {
      const int start = following;
      following = ring.row_starts[row + 1];
      if constexpr (Mode::kWeightsAhead) {
#pragma unroll
        for (int k = 0; k < kRows; ++k) weights[k] = following_weights[k];
        ring.LoadWeights(row + 1 < mode.line.rows ? row + 1 : row, following_weights);
      }
      int steps = start - base;
      if (row == 0 || steps < 0 || steps > kRows) {
        steps = kRows;
        if (next != start) fetch(next = start);
      }
      base = start;
#pragma unroll 1
      for (int s = 0; s < steps; ++s) {
        mode.Combine(0, next < last ? next : last, ring.Push());
        ++next;
        if (s + 1 == steps && following > next) next = following;
        fetch(next);
        if constexpr (kRows == 1) break;  // it never takes more
      }
      if constexpr (!Mode::kWeightsAhead) ring.LoadWeights(row, weights);
      Sum sums[Mode::kVector];
      ring.Blend(weights, sums);
      mode.Write(sums);
    }
    mode.End();
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_GROW_CUH_
