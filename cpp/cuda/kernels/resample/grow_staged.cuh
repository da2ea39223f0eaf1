// The driver of walks in which rows grow, of modes that read x from the stage (stage.cuh).

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_GROW_STAGED_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_GROW_STAGED_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"
#include "cuda/kernels/resample/ring.cuh"
#include "cuda/kernels/resample/rows.cuh"
#include "cuda/kernels/resample/stage.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename ModeType, int kRows>
struct GrowStaged {
  using Mode = ModeType;
  using Sum = typename Mode::Sum;
  static constexpr int kAhead = Mode::kAhead;

  Ring<Mode, kRows> ring;
  Mode mode;

  CONVGRAD_DEVICE GrowStaged(const ResampleTask& task, char* shared)
      : ring(task.tiling, shared), mode(task, shared) {}

  CONVGRAD_DEVICE void Run(uint32_t block, int thread) {
    if (!EnterRows(mode, block, thread)) return;
    auto& line = mode.line;
    auto& stage = mode.stage;
    ring.MakeTables(line, thread);
    const int in = static_cast<int>(line.task.walk.in);
    // Copies of rows of x end with the last row's, unless starts are not ascending.
    int end = ring.row_starts[line.rows - 1] + kRows;
    end = end < in ? end : in;
    int base = 0, next = -1;  // the ring's first row; the next one in the stage
    int slot = 0, before = kAhead * line.tiling.stage_slot_bytes;  // its slot, and that before
#pragma unroll 1
    for (int row = 0; row < line.rows; ++row) {
      const int start = ring.row_starts[row];
      int steps = start - base, until = start + kRows;
      until = until < in ? until : in;
      const bool anew = row == 0 || steps < 0 || steps > kRows;
      if (anew) {
        steps = kRows;
        next = start;
      }
      if (anew || until > end) {
        if (until > end) end = in;
        stage.template Await<0>(line);
        stage.Begin(line, next, slot, end);
      }
      base = start;
#pragma unroll 1
      for (int s = 0; s < steps; ++s) {
        stage.template Await<kAhead - 1>(line);
        // To the slot of the row before, which all threads have read.
        stage.CopyAnyRow(line, before, next + kAhead, end);
        stage.EndRow(line);
        Sum(&newest)[Mode::kVector] = ring.Push();
        if (next < in) {
          mode.Combine(slot, next, newest);
        } else {
#pragma unroll
          for (int i = 0; i < Mode::kVector; ++i) newest[i] = 0;
        }
        ++next;
        before = slot;
        slot = stage.NextSlot(line, slot);
      }
      Sum weights[kRows], sums[Mode::kVector];
      ring.LoadWeights(row, weights);
      ring.Blend(weights, sums);
      mode.Write(sums);
    }
    mode.End();
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_GROW_STAGED_CUH_
