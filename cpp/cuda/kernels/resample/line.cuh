// What a thread of every load mode knows: the block's part of the problem, and the thread's line.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_LINE_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_LINE_CUH_

#include <cstdint>

#include "cuda/kernels/resample/direct.cuh"
#include "cuda/kernels/resample/elements.cuh"
#include "cuda/kernels/resample/tiling.h"

namespace jax_convgrad {
namespace resample_kernels {

// The part of y that a block makes: its numbers in each direction of ResampleTiling.
struct Tile {
  int channel, column, mid;
  int64_t batch;
};

template <typename Element>
struct Line {
  using T = Element;
  using Sum = typename SumOf<T>::Type;

  const ResampleTask& task;
  const ResampleForm& form;
  const ResampleTiling& tiling;
  char* const shared;
  const int line_in_warp;    // whether all threads of a line belong to one warp
  int64_t first_row = 0;     // of y, that the block makes
  int rows = 0;              // of y
  int64_t first_column = 0;  // of y, of modes whose blocks have whole columns
  const T* x = nullptr;      // the line's
  T* y = nullptr;            // the row that is written next
  int64_t mid = 0;
  int number = 0, lane = 0;  // of the line in the block, of the thread in the line
  int owned = 0;             // elements; 0: the thread does what others do, but writes nothing
  bool misfit = false;       // a column reads what is not in the strip, window or stage

  CONVGRAD_DEVICE Line(const ResampleTask& the_task, char* the_shared)
      : task(the_task),
        form(the_task.form),
        tiling(the_task.tiling),
        shared(the_shared),
        line_in_warp(Opaque(tiling.line_threads <= 32 && 32 % tiling.line_threads == 0 ? 1 : 0)) {}

  // `at`, or the last number below `size`, of which the thread owns nothing.
  CONVGRAD_DEVICE int64_t Clamp(int64_t at, int64_t size) {
    if (at < size) return at;
    owned = 0;
    return size - 1;
  }

  // Finds the thread's line, from its place among the threads of all lines.
  CONVGRAD_DEVICE void EnterLine(const Tile& tile, int place, int elements) {
    number = place / tiling.line_threads;
    lane = place % tiling.line_threads;
    owned = elements;
    const int64_t inside = Clamp(number, tiling.lines);
    const bool many_mids = task.mid.out > 1;
    mid = many_mids ? Clamp(int64_t{tile.mid} * tiling.lines + inside, task.mid.out) : 0;
    const int64_t batch = many_mids ? tile.batch
                                    : Clamp(tile.batch * tiling.lines + inside,
                                            form.batch[0] * form.batch[1] * form.batch[2]);
    const BatchAt at = BatchAt::Of(form, Digits{static_cast<uint32_t>(batch)});
    const int64_t mid_start = task.mid.resampled ? ClampedStart(task.mid, mid) : mid;
    x = static_cast<const T*>(task.x) + at.x + mid_start * task.x_mid;
    y = static_cast<T*>(task.y) + at.y + mid * task.y_mid;
  }

  // The weights along the middle axis.
  template <int kMid>
  CONVGRAD_DEVICE void ReadMidWeights(Sum (&weights)[kMid]) const {
#pragma unroll
    for (int q = 0; q < kMid; ++q) {
      weights[q] = !task.mid.resampled ? Sum(q == 0 ? 1 : 0)
                   : q < task.mid.taps ? WeightAt<Sum>(task.mid, mid, q)
                                       : Sum(0);
    }
  }

  CONVGRAD_DEVICE int ColumnsHere() const {
    return static_cast<int>(Min(tiling.columns, form.width.out - first_column));
  }
  CONVGRAD_DEVICE int64_t WidthStart(int64_t column) const {
    return form.width.resampled ? ClampedStart(form.width, column) : column;
  }
  CONVGRAD_DEVICE int WidthTaps() const {
    return form.width.resampled ? static_cast<int>(form.width.taps) : 1;
  }
  CONVGRAD_DEVICE Sum WidthWeight(int64_t column, int tap) const {
    if (!form.width.resampled) return tap == 0 ? Sum(1) : Sum(0);
    return tap < form.width.taps ? WeightAt<Sum>(form.width, column, tap) : Sum(0);
  }

  CONVGRAD_DEVICE const T* RowOf(int64_t row) const { return x + row * task.x_walk; }

  // Prefetches an element of x, if there is one.
  CONVGRAD_DEVICE void Bring(const T* from) const {
    if (from < task.x_end) BringCloser(from);
  }

  // The position at which the next row of y is written.
  CONVGRAD_DEVICE T* NextRow() {
    T* const row = y;
    y = Opaque(row + task.y_walk);
    return row;
  }

  // Waits for all threads of the line.
  CONVGRAD_DEVICE void MeetInLine() const {
    if (line_in_warp != 0) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  // The elements of the thread's part of every row, each directly from x: every `step`th from
  // `first` to before `end`, counted from an element of the inner run of a column.
  CONVGRAD_DEVICE void WriteEach(int64_t column, int element, int first, int step, int end) const {
    const bool deep = form.depth.resampled;
    const int64_t mid_start = task.mid.resampled ? ClampedStart(task.mid, mid) : 0;
    const T* const from = x - mid_start * task.x_mid;
    const int inner = static_cast<int>(form.inner);
#pragma unroll 1
    for (int64_t at = 0; at < rows; ++at) {
      const int64_t row = first_row + at;
#pragma unroll 1
      for (int result = first; result < end; result += step) {
        FromSum(Directly<T>(form, from, deep ? row : 0, deep ? mid : row,
                            column + (element + result) / inner, (element + result) % inner),
                y[at * task.y_walk + result]);
      }
    }
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_LINE_CUH_
