// The driver of walks in which rows shrink, of modes that read x from the stage (stage.cuh).

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SHRINK_STAGED_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SHRINK_STAGED_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"
#include "cuda/kernels/resample/rows.cuh"
#include "cuda/kernels/resample/schedule.cuh"
#include "cuda/kernels/resample/stage.cuh"
#include "cuda/kernels/resample/sums.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename ModeType, int kRows>
struct ShrinkStaged {
  using Mode = ModeType;
  using T = typename Mode::T;
  using Sum = typename Mode::Sum;
  static constexpr int kAhead = Mode::kAhead;

  Sums<Mode, kRows> sums;
  Mode mode;
  Schedule<T, kRows, 1> schedule;

  CONVGRAD_DEVICE ShrinkStaged(const ResampleTask& task, char* shared)
      : mode(task, shared), schedule(mode.line) {}

  CONVGRAD_DEVICE void Run(uint32_t block, int thread) {
    if (!EnterRows(mode, block, thread)) return;
    int low = 0;
    const int there =
        mode.line.tiling.table_rows == 0 ? -1 : schedule.FindRows(mode.line, thread, low);
    if (there > 0) mode.stage.Begin(mode.line, low, 0, low + there);
    if (there >= 0 && schedule.Make(mode.line, thread, low, there)) {
      AddRows(low, there);
    } else {
      WriteUnscheduled(mode);
    }
    mode.End();
  }

 private:
  struct Position {
    int row, end;      // of x: that which is next, and that behind the last
    int slot, before;  // its slot, and that of the row before
  };

  CONVGRAD_DEVICE void AddRows(int low, int there) {
    const ResampleTiling& tiling = mode.line.tiling;
    sums.Clear();
    if (there > 0) {
#pragma unroll 1
      while (schedule.IsEmpty(sums.done)) sums.Finish(mode);
    }
    Position at{low, low + there, 0, kAhead * tiling.stage_slot_bytes};
    if (there > 0 && low + kAhead >= tiling.stage_from) {
      AddUntil<true>(at, low, static_cast<int>(Min(at.end, tiling.stage_to)) - kAhead);
    }
    AddUntil<false>(at, low, at.end);
    sums.FinishAll(mode);
  }

  // Adds rows of x up to `end`. With kInside, those that are copied meanwhile lie inside x.
  template <bool kInside>
  CONVGRAD_DEVICE void AddUntil(Position& at, int low, int end) {
    const Line<T>& line = mode.line;
#pragma unroll 1
    for (; at.row < end; ++at.row) {
      Sum weights[kRows];
      const int done_now = schedule.LoadRecord(at.row - low, weights);
      mode.stage.template Await<kAhead - 1>(line);
      // To the slot of the row before, which all threads have read.
      if constexpr (kInside) {
        mode.stage.CopyRow(line, at.before);
      } else {
        mode.stage.CopyAnyRow(line, at.before, at.row + kAhead, at.end);
      }
      mode.stage.EndRow(line);
      Sum some[Mode::kVector];
      mode.Combine(at.slot, at.row, some);
      sums.Add(weights, some);
      at.before = at.slot;
      at.slot = mode.stage.NextSlot(line, at.slot);
      sums.Finish(mode, done_now);
    }
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SHRINK_STAGED_CUH_
