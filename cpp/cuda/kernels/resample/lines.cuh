// The part of a line of y that a thread owns, and how it reads x for that: the paths of
// ResampleLoad under one name each.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_LINES_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_LINES_CUH_

#include <cstdint>

#include "cuda/kernels/resample/columns.cuh"
#include "cuda/kernels/resample/elements.cuh"
#include "cuda/kernels/resample/pairs.cuh"
#include "cuda/kernels/resample/shifted.cuh"
#include "cuda/kernels/resample/spread.cuh"
#include "cuda/kernels/resample/stage.cuh"
#include "cuda/kernels/resample/strip.cuh"
#include "cuda/kernels/resample/taps.cuh"
#include "cuda/kernels/resample/window.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// A block's lines.
template <typename ShapeType>
struct Lines : ShapeType {
  using ShapeType::kAny;
  using ShapeType::kColumns;
  using ShapeType::kFetches;
  using ShapeType::kMid;
  using ShapeType::kMidReads;
  using ShapeType::kPairs;
  using ShapeType::kPiece;
  using ShapeType::kShifted;
  using ShapeType::kSideBySide;
  using ShapeType::kSpread;
  using ShapeType::kStaged;
  using ShapeType::kStagedElements;
  using ShapeType::kStages;
  using ShapeType::kStrip;
  using ShapeType::kVector;
  using ShapeType::kVectors;
  using ShapeType::kWindow;
  using typename ShapeType::State;
  using typename ShapeType::Sum;
  using typename ShapeType::T;

  const ResampleTask& task;
  const ResampleForm& form;
  const ResampleTiling& tiling;
  int* const strip_results;  // kStrip: where each element of y begins to read a line's sums
  Sum* const strip_sums;     // kStrip: [2, lines, strip_pitch]
  Sum* const width_weights;  // kStrip: [columns, width_pitch]
  char* const shared;        // kStaged: from stage_at on, [kStages, lines, stage_pitch]
  int64_t first_column = 0;
#ifdef __CUDA_ARCH__
  State state;
  CONVGRAD_DEVICE State& StateOf(int) { return state; }
#else
  State states[1024];
  State& StateOf(int thread) { return states[thread]; }
#endif

  CONVGRAD_DEVICE Lines(const ResampleTask& the_task, char* the_shared)
      : task(the_task),
        form(the_task.form),
        tiling(the_task.tiling),
        strip_results(reinterpret_cast<int*>(the_shared + tiling.results_at)),
        strip_sums(reinterpret_cast<Sum*>(the_shared + tiling.strip_at)),
        width_weights(reinterpret_cast<Sum*>(the_shared + tiling.width_weights_at)),
        shared(the_shared) {}

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

  // Finds what a thread owns and reads, in the first row of x of its line.
  CONVGRAD_DEVICE void Enter(int thread, State& mine, int channel_tile, int column_tile,
                             int mid_tile, int64_t batch_tile) {
    const int place = kShifted ? ShiftedPlace(thread) : thread;
    mine.line = place / tiling.line_threads;
    mine.lane = place % tiling.line_threads;
    if (kShifted && thread == 0 && column_tile > 0) mine.lane = -1;
    mine.owned = kVector;
    // Threads that own nothing do the same as others, but write nothing.
    const auto clamp = [&mine](int64_t at, int64_t size) {
      if (at < size) return at;
      mine.owned = 0;
      return size - 1;
    };
    const int64_t line = clamp(mine.line, tiling.lines);
    const bool many_mids = task.mid.out > 1;
    mine.mid = many_mids ? clamp(int64_t{mid_tile} * tiling.lines + line, task.mid.out) : 0;
    const int64_t batch = many_mids ? batch_tile
                                    : clamp(batch_tile * tiling.lines + line,
                                            form.batch[0] * form.batch[1] * form.batch[2]);
    const BatchAt at = BatchAt::Of(form, Digits{static_cast<uint32_t>(batch)});
    const int64_t mid_start = task.mid.resampled ? ClampedStart(task.mid, mine.mid) : mine.mid;
    mine.x = static_cast<const T*>(task.x) + at.x + mid_start * task.x_mid;
    mine.y = static_cast<T*>(task.y) + at.y + mine.mid * task.y_mid;
    if constexpr (!kAny) {
      CONVGRAD_UNROLL
      for (int q = 0; q < kMidReads; ++q) {
        mine.mid_weights[q] = !task.mid.resampled ? Sum(q == 0 ? 1 : 0)
                              : q < task.mid.taps ? WeightAt<Sum>(task.mid, mine.mid, q)
                                                  : Sum(0);
      }
    }
    if constexpr (kStrip || kColumns || kVectors)
      first_column = int64_t{column_tile} * tiling.columns;
    mine.misfit = false;
    if constexpr (kWindow) {
      const int first = (column_tile * tiling.line_threads + mine.lane) * kVector;
      EnterWindow(*this, mine, static_cast<int>(clamp(first, form.width.out) / kVector * kVector));
    } else if constexpr (kSpread) {
      const int first = (column_tile * tiling.line_threads + mine.lane) * kVector;
      EnterSpread(*this, mine, static_cast<int>(clamp(first, form.width.out) / kVector * kVector));
    } else if constexpr (kColumns) {
      EnterColumns(*this, mine);
    } else if constexpr (kPairs) {
      EnterPairs(*this, mine);
    } else if constexpr (kStrip) {
      EnterStrip(*this, mine);
    } else if constexpr (kVectors) {
      const int inner = static_cast<int>(form.inner);
      const int64_t column = clamp(first_column + mine.lane / tiling.vectors, form.width.out);
      const int64_t channel =
          clamp(int64_t{channel_tile} * tiling.vectors + mine.lane % tiling.vectors,
                inner / kVector) *
          kVector;
      ReadFrom(*this, mine, 0, column, channel);
      mine.y += column * inner + channel;
    } else {
      EnterElements(thread, mine, column_tile);
    }
  }

  // The same for elements that each have their own reads.
  CONVGRAD_DEVICE void EnterElements(int thread, State& mine, int column_tile) const {
    const int inner = static_cast<int>(form.inner);
    if constexpr (kStaged) {
      const int64_t begin = int64_t{column_tile} * tiling.line_threads * kVector;
      const int64_t end =
          Min(begin + int64_t{tiling.line_threads} * kVector, form.width.out * form.inner);
      const int64_t a = WidthStart(begin / inner), b = WidthStart((end - 1) / inner);
      EnterStage(*this, mine, static_cast<int>((a < b ? a : b) * inner));
    }
    const int run = static_cast<int>(form.width.out) * inner;
    const int first =
        (column_tile * tiling.line_threads + (kSideBySide ? mine.lane : 0)) * kVector +
        (kSideBySide ? 0 : mine.lane);
    mine.y += first;
    mine.first = first;
    int owned = 0;
    CONVGRAD_UNROLL
    for (int u = 0; u < kVector; ++u) {
      int element = first + (kSideBySide ? u : u * tiling.line_threads);
      if (element < run) {
        ++owned;
      } else {
        element = run - 1;
      }
      ReadFrom(*this, mine, u, element / inner, element % inner);
    }
    if constexpr (kShifted) {
      // A thread may write even if it owns nothing, because the vector in front may end in its own.
      mine.owned = mine.owned == 0 || thread % 32 == 0 ? 0 : run;
    } else {
      mine.owned = mine.owned == 0 ? 0 : owned;
    }
  }

  CONVGRAD_DEVICE const T* RowOf(const State& mine, int64_t row) const {
    return mine.x + row * task.x_walk;
  }

  // Reads a row of x for later, if all of its taps have room.
  CONVGRAD_DEVICE void Fetch(State& mine, int slot, const T* row) const {
    if constexpr (kFetches && kWindow) {
      FetchWindow(*this, mine, slot, row);
    } else if constexpr (kSpread) {
      FetchSpread(*this, mine, row);
    } else if constexpr (kFetches) {
      FetchTaps(*this, mine, slot, row);
    }
  }

  // Prefetches the thread's first element of a row of x, while it does something else.
  CONVGRAD_DEVICE void Bring(const State& mine, const T* row) const {
    const T* const from = row + static_cast<uint32_t>(mine.offsets[0]);
    if (from < task.x_end) BringCloser(from);
  }

  // The thread's elements of a row of x, with its columns and the middle axis combined: from
  // fetched or staged elements, or read now.
  CONVGRAD_DEVICE void Combine(State& mine, int slot, int64_t row, Sum (&sums)[kVector]) const {
    (void)row;
    if constexpr (kStagedElements) {
      CombineStagedTaps(*this, mine, slot, sums);
    } else if constexpr (kColumns) {
      CombineColumns(*this, mine, slot, sums);
    } else if constexpr (kStaged) {
      CombineStagedStrip(*this, mine, slot, sums);
    } else if constexpr (kWindow) {
      if constexpr (!kFetches) FetchWindow(*this, mine, slot, mine.x + row * task.x_walk);
      CombineWindow<Lines>(mine, slot, sums);
    } else if constexpr (kSpread) {
      CombineSpread<Lines>(mine, sums);
    } else if constexpr (kAny) {
      CombineAny(*this, mine, row, sums);
    } else if constexpr (!kFetches) {
      CombineRead(*this, mine, row, sums);
    } else if constexpr (kStrip && kMid == 1) {
      CONVGRAD_UNROLL
      for (int i = 0; i < kVector; ++i) {
        sums[i] = mine.pieces[slot][0][i / kPiece][0].At(i % kPiece);
      }
    } else {
      CombineFetched<Lines>(mine, slot, sums);
    }
  }

  // The position at which the next row of y is written.
  CONVGRAD_DEVICE T* NextRow(State& mine) const {
    T* const row = mine.y;
    mine.y = Opaque(row + task.y_walk);
    return row;
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_LINES_CUH_
