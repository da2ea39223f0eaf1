// The driver of walks in which rows shrink: the block goes down the rows of x, and adds each to the
// rows of y in progress.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SHRINK_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SHRINK_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"
#include "cuda/kernels/resample/rows.cuh"
#include "cuda/kernels/resample/schedule.cuh"
#include "cuda/kernels/resample/sums.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// With rows of x that registers hold ahead.
template <typename ModeType, int kRows>
struct Shrink {
  using Mode = ModeType;
  using T = typename Mode::T;
  using Sum = typename Mode::Sum;
  static constexpr int kAhead = Mode::kAhead;

  Sums<Mode, kRows> sums;
  Mode mode;
  Schedule<T, kRows, kAhead> schedule;
  const T* next = nullptr;  // the row of x that is read next

  CONVGRAD_DEVICE Shrink(const ResampleTask& task, char* shared)
      : mode(task, shared), schedule(mode.line) {}

  CONVGRAD_DEVICE void Run(uint32_t block, int thread) {
    if (!EnterRows(mode, block, thread)) return;
    int low = 0;
    const int there =
        mode.line.tiling.table_rows == 0 ? -1 : schedule.FindRows(mode.line, thread, low);
    if (there > 0) BeginReading(low, there);
    if (there >= 0 && schedule.Make(mode.line, thread, low, there)) {
      AddRows(low, there);
    } else {
      WriteUnscheduled(mode);
    }
    mode.End();
  }

 private:
  CONVGRAD_DEVICE void BeginReading(int low, int there) {
#pragma unroll
    for (int slot = 0; slot < kAhead; ++slot) {
      if (slot == 0) next = mode.line.RowOf(low);
      FetchNext(slot, there - slot);
    }
  }

  // Reads the next row of x for later. If none is left, it reads nothing; or the last row again
  // where a row takes several reads, which would all wait behind a branch.
  CONVGRAD_DEVICE void FetchNext(int slot, int left) {
    if constexpr (Mode::kAddsAsRead) {
      if (left > 0) mode.Fetch(slot, next);
      next = Opaque(next + mode.line.task.x_walk);
    } else if constexpr (Mode::kFetches) {
      mode.Fetch(slot, next);
      next = Opaque(next + (left > 1 ? mode.line.task.x_walk : 0));
    }
  }

  CONVGRAD_DEVICE void AddRows(int low, int there) {
    sums.Clear();
    if (there > 0) {
#pragma unroll 1
      while (schedule.IsEmpty(sums.done)) sums.Finish(mode);
    }
    const int64_t ahead = mode.line.tiling.rows_ahead * mode.line.task.x_walk;
    // The schedule extends to the end of the last round, where rows have no weights.
#pragma unroll 1
    for (int first = 0; first < there; first += kAhead) {
#pragma unroll
      for (int slot = 0; slot < kAhead; ++slot) {
        const int row = first + slot;
        Sum weights[kRows];
        const int done_now = schedule.LoadRecord(row, weights);
        Sum some[Mode::kVector];
        mode.Combine(slot, low + row, some);
        mode.Bring(next + ahead);
        // Elements that are added directly stay where they were read to until then.
        if constexpr (Mode::kAddsAsRead) sums.Add(weights, some);
        FetchNext(slot, there - row - kAhead);
        if constexpr (!Mode::kAddsAsRead) sums.Add(weights, some);
        sums.Finish(mode, done_now);
      }
    }
    sums.FinishAll(mode);
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SHRINK_CUH_
