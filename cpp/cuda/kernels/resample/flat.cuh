// kFlat: lines of one channel with an odd number of 16-bit elements, whose rows grow many times,
// and are written as one. A kernel of its own, with neither mode nor driver.
//
// Rows of y follow each other without a gap, so a batch of them is one run of
// memory. They are made in shared memory, on a sheet, and copied from there in whole cache lines,
// regardless of rows. Written line by line, as vectors that a thread passes on to its neighbor
// (modes/shifted.cuh), the same took 1.71 instead of 1.43 times the memory roofline on an H100,
// and 1.8 as words.
//
// Every other row is aligned to a word of two elements, those between to the next element. Of its
// elements, the columns combined, a thread makes all but the first in one row and all but the last
// in the next, as words.
//
// The elements of x that a block reads are in shared memory from the beginning, as sums, beside a
// row and a column of zeros that replace the elements with a zero weight.
//
// Chosen where rows become four times as many or more, bands have one tap or two, and lines have
// 192 to 1150 elements.
//
//   Block: as many threads as make a line, four elements each, at most 288. Shared memory: the
//   tables, the block's part of x and two sheets of up to 20 KB, 44 KB in the measured case.
//   Registers: 64; two blocks of 288 on a multiprocessor. Bound: the making of rows in shared
//   memory, then writes.
//   Measured: 1.42 times the roofline, deeplab forward in bf16 with channels first.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_FLAT_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_FLAT_CUH_

#include <cstdint>

#include "cuda/kernels/resample/direct.cuh"
#include "cuda/kernels/resample/elements.cuh"
#include "cuda/kernels/resample/mode.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename Element>
struct Flat {
  using T = Element;
  using Sum = typename SumOf<T>::Type;
  static constexpr int kRows = 2, kTaps = 2;
  static constexpr int kVector = kFlatVector;  // elements of a thread in a row
  static constexpr int kOwned = kVector + 1;   // in any row
  static constexpr int kBlocks = 2;
  static constexpr int kPiece = kStagePieceBytes / sizeof(T);  // elements that are copied at once
  static constexpr int kAlign = kStageLineBytes / sizeof(T);   // elements of a line of the cache
  static_assert(sizeof(T) == 2 && kVector % 2 == 0, "words of two elements");

  // Rows of y that read the same rows of x: the data of the first of them.
  struct alignas(16) Stretch {
    int rows[kRows];  // of x: where they begin in the slab
    int length;       // from this row on, in its batch
    int unused;
  };

  const ResampleTask& task;
  const ResampleForm& form;
  const ResampleTiling& tiling;
  Sum* const row_weights;  // [chunk, kRows]
  Stretch* const runs;     // [chunk]
  Sum* const slab;         // [slab_rows + 1, strip_pitch]
  T* const sheets;         // [2, sheet_pitch]
  int* const misfit;       // whether something is read that is not in the slab
  int64_t first_row = 0;
  int rows = 0;  // of y
  int low = 0;   // the row of x that the slab begins with
  int line = 0;  // elements of a line of y
  // Of the thread:
  int first = 0;            // its first element, counted in the line
  bool whole = false;       // whether all of them are in the line
  T* to = nullptr;          // where the second is on the sheet, in the row that is next
  int from[kOwned][kTaps];  // in a row of the slab
  Sum weights[kOwned][kTaps];
  Sum near_rows[kRows][kOwned];

  CONVGRAD_DEVICE Flat(const ResampleTask& the_task, char* shared)
      : task(the_task),
        form(the_task.form),
        tiling(the_task.tiling),
        row_weights(reinterpret_cast<Sum*>(shared + tiling.weights_at)),
        runs(reinterpret_cast<Stretch*>(shared + tiling.runs_at)),
        slab(reinterpret_cast<Sum*>(shared + tiling.strip_at)),
        sheets(reinterpret_cast<T*>(shared + tiling.stage_at)),
        misfit(reinterpret_cast<int*>(shared + tiling.flag_at)) {}

  CONVGRAD_DEVICE void Run(uint32_t block, int thread) {
    Digits digits{block};
    first_row = int64_t{digits.Next(tiling.chunks)} * tiling.chunk;
    rows = static_cast<int>(Min(tiling.chunk, task.walk.out - first_row));
    const BatchAt at = BatchAt::Of(form, digits);
    const T* const x = static_cast<const T*>(task.x) + at.x;
    T* y = static_cast<T*>(task.y) + at.y + first_row * task.y_walk;
    line = static_cast<int>(form.width.out);
    low = ClampedStart(task.walk, first_row);
    if (thread == 0) *misfit = 0;
    const bool fits = MakeRows(thread);
    Enter(thread, PlaceInCache(y) % 2);
    __syncthreads();
    if (!fits) *misfit = 1;
    MakeRuns(thread);
    FillSlab(thread, x);
    __syncthreads();
    if (*misfit != 0) {
      WriteDirectly(thread, x, y);
      return;
    }
    int near = -1, far = -1;  // the rows of x that the rows in the making read
    int sheet_at = 0;         // the sheet that they are made on
#pragma unroll 1
    for (int batch = 0; batch < rows; batch += tiling.sheet_rows) {
      const int end = static_cast<int>(Min(rows, batch + tiling.sheet_rows));
      // A sheet begins at the position of its first row in a cache line.
      const int begin = PlaceInCache(y);
      to = sheets + sheet_at + begin + first + 1;
#pragma unroll 1
      for (int row = batch; row < end;) {
        const Stretch run = Load<Stretch, 1>(runs + row).at[0];
        if (run.rows[0] != near || run.rows[1] != far) {
          ReadRows(run, run.rows[0] == far);
          near = run.rows[0];
          far = run.rows[1];
        }
        const int run_end = row + run.length;
        if (row % 2 != 0) {
          MakeRow<true>(row);
          ++row;
        }
#pragma unroll 1
        for (; row + 1 < run_end; row += 2) MakeTwo(row);
        if (row < run_end) {
          MakeRow<false>(row);
          ++row;
        }
      }
      // The other sheet is made next. It has been copied by then, and all threads know it.
      AwaitLastCopy(thread);
      __syncthreads();
      const int count = (end - batch) * line;
      CopySheet(thread, sheets + sheet_at, y - begin, begin, begin + count);
      y += count;
      sheet_at = tiling.sheet_pitch - sheet_at;
    }
    if constexpr (kHasBulkCopies) {
      if (thread == 0) FinishBulkStores();
    }
  }

 private:
  // The position in a cache line, counted in elements.
  CONVGRAD_DEVICE static int PlaceInCache(const T* at) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(at) / sizeof(T)) & (kAlign - 1);
  }

  // The elements behind x repeat its last one.
  CONVGRAD_DEVICE void FillSlab(int thread, const T* x) const {
    const int pitch = tiling.strip_pitch, zero_row = tiling.slab_rows;
    const int last_row = static_cast<int>(task.walk.in) - 1 - low;
    const int row_step = tiling.threads / pitch, step = tiling.threads % pitch;
    const T* const begin = x + low * task.x_walk;
    Sum* sum = slab + thread;
    int row = thread / pitch, column = thread % pitch;
#pragma unroll 4
    while (row <= zero_row) {
      const bool zero = row == zero_row || column == pitch - 1;
      Piece<T, 1> piece;
      piece.Read(begin + (zero ? 0 : (row < last_row ? row : last_row) * task.x_walk + column));
      *sum = zero ? Sum(0) : piece.At(0);
      sum += tiling.threads;
      row += row_step;
      column += step;
      if (column >= pitch) {
        column -= pitch;
        ++row;
      }
    }
  }

  // `odd`: whether the block's first row begins between two words.
  CONVGRAD_DEVICE void Enter(int thread, int odd) {
    const int zeros = tiling.strip_pitch - 1;
    first = kVector * thread - odd - 1;
    whole = first >= 0 && first + kOwned <= line;
    // All reads are issued before any is waited for.
    int starts[kOwned];
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const int column = first + i;
      const int inside = column < 0 ? 0 : column < line ? column : line - 1;
      starts[i] = inside;
      weights[i][0] = 1;
      weights[i][1] = 0;
      if (!form.width.resampled) continue;
      starts[i] = ClampedStart(form.width, inside);
      weights[i][0] = WeightAt<Sum>(form.width, inside, 0);
      if (form.width.taps > 1) weights[i][1] = WeightAt<Sum>(form.width, inside, 1);
    }
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      const int column = first + i;
      const bool inside = column >= 0 && column < line;
#pragma unroll
      for (int k = 0; k < kTaps; ++k) {
        from[i][k] = inside && weights[i][k] != Sum(0) ? starts[i] + k : zeros;
      }
    }
  }

  CONVGRAD_DEVICE bool MakeRows(int thread) const {
    const int taps = static_cast<int>(task.walk.taps);
    bool fit = true;
#pragma unroll 1
    for (int row = thread; row < rows; row += tiling.threads) {
      const int start = ClampedStart(task.walk, first_row + row) - low;
      if (start < 0 || start + taps > tiling.slab_rows) fit = false;
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        const Sum weight = k < taps ? WeightAt<Sum>(task.walk, first_row + row, k) : Sum(0);
        row_weights[row * kRows + k] = weight;
        runs[row].rows[k] = (weight != Sum(0) ? start + k : tiling.slab_rows) * tiling.strip_pitch;
      }
    }
    return fit;
  }

  CONVGRAD_DEVICE void MakeRuns(int thread) const {
#pragma unroll 1
    for (int row = thread; row < rows; row += tiling.threads) {
      const Stretch& mine = runs[row];
      const int max_end =
          static_cast<int>(Min(rows, (row / tiling.sheet_rows + 1) * tiling.sheet_rows));
      int end = row + 1;
#pragma unroll 1
      while (end < max_end && runs[end].rows[0] == mine.rows[0] &&
             runs[end].rows[1] == mine.rows[1]) {
        ++end;
      }
      runs[row].length = end - row;
    }
  }

  CONVGRAD_DEVICE void ReadRow(int at, Sum (&sums)[kOwned]) const {
    const Sum* const row = slab + at;
#pragma unroll
    for (int i = 0; i < kOwned; ++i) {
      sums[i] = weights[i][0] * row[from[i][0]] + weights[i][1] * row[from[i][1]];
    }
  }

  CONVGRAD_DEVICE void ReadRows(const Stretch& run, bool follows) {
    if (follows) {
#pragma unroll
      for (int i = 0; i < kOwned; ++i) near_rows[0][i] = near_rows[1][i];
    } else {
      ReadRow(run.rows[0], near_rows[0]);
    }
    ReadRow(run.rows[1], near_rows[1]);
  }

  // The elements from the `kFrom`-th on, in a row of y with these weights.
  template <int kFrom>
  CONVGRAD_DEVICE void Blend(Sum near, Sum far, Sum (&sums)[kVector]) const {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      sums[i] = near * near_rows[0][kFrom + i] + far * near_rows[1][kFrom + i];
    }
  }

  // To where the second of the thread's elements is.
  template <int kFrom>
  CONVGRAD_DEVICE static void StoreWords(const Sum (&sums)[kVector], T* at) {
    T values[kVector];
    PackSums(sums, values);
#pragma unroll
    for (int i = 0; i < kVector; i += 2) {
      *reinterpret_cast<Vector<T, 2>*>(at + (kFrom - 1 + i)) = {{values[i], values[i + 1]}};
    }
  }

  // The same at an end of a line. Rare, so it does not deserve registers for its bounds.
  template <int kFrom>
  CONVGRAD_DEVICE void StoreSome(const Sum (&sums)[kVector], T* at) const {
    const int start = Opaque(first) + kFrom;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (start + i >= 0 && start + i < line) FromSum(sums[i], at[kFrom - 1 + i]);
    }
  }

  // A row of y alone. Rows with an odd number begin an element later.
  template <bool kOdd>
  CONVGRAD_DEVICE void MakeRow(int row) {
    constexpr int kFrom = kOdd ? 0 : 1;
    const auto near_far = Load<Sum, kRows>(row_weights + row * kRows);
    Sum sums[kVector];
    Blend<kFrom>(near_far.at[0], near_far.at[1], sums);
    if (whole) {
      StoreWords<kFrom>(sums, to);
    } else {
      StoreSome<kFrom>(sums, to);
    }
    to += line;
  }

  CONVGRAD_DEVICE void MakeTwo(int row) {
    const auto near_far = Load<Sum, 2 * kRows>(row_weights + row * kRows);
    Sum sums[kVector], next_sums[kVector];
    Blend<1>(near_far.at[0], near_far.at[1], sums);
    Blend<0>(near_far.at[2], near_far.at[3], next_sums);
    T* const next = to + line;
    if (whole) {
      StoreWords<1>(sums, to);
      StoreWords<0>(next_sums, next);
    } else {
      StoreSome<1>(sums, to);
      StoreSome<0>(next_sums, next);
    }
    to = next + line;
  }

  // Waits until the sheet before has been read, and until the writes of all threads to this one are
  // visible.
  CONVGRAD_DEVICE static void AwaitLastCopy([[maybe_unused]] int thread) {
    if constexpr (kHasBulkCopies) {
      if (thread == 0) WaitForBulkStores<0>();
      ShowBulkCopies();
    }
  }

  // Copies a sheet's elements from `begin` to `end`; y is where element 0 would be.
  CONVGRAD_DEVICE void CopySheet(int thread, const T* sheet, T* y, int begin, int end) const {
    const int whole_from = (begin + kPiece - 1) / kPiece * kPiece, whole_to = end / kPiece * kPiece;
    if constexpr (kHasBulkCopies) {
      if (thread == 0 && whole_from < whole_to) {
        BulkStoreRun(y + whole_from, sheet + whole_from,
                     (whole_to - whole_from) * static_cast<int>(sizeof(T)));
        CommitBulkStores();
      }
    } else {
#pragma unroll 4
      for (int at = whole_from + thread * kPiece; at < whole_to; at += tiling.threads * kPiece) {
        WriteWords(Load<uint32_t, 4>(reinterpret_cast<const uint32_t*>(sheet + at)).at, y + at);
      }
    }
    // The elements in front of whole pieces, and behind them.
    if (thread < whole_from - begin && begin + thread < end) {
      y[begin + thread] = sheet[begin + thread];
    }
    if (thread < end - whole_to && whole_to >= whole_from) {
      y[whole_to + thread] = sheet[whole_to + thread];
    }
  }

  // For rows whose starts are not ascending.
  CONVGRAD_DEVICE void WriteDirectly(int thread, const T* x, T* y) const {
    const bool deep = form.depth.resampled;
#pragma unroll 1
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = first_row + i;
#pragma unroll 1
      for (int column = thread; column < line; column += tiling.threads) {
        FromSum(Directly<T>(form, x, deep ? row : 0, deep ? 0 : row, column, 0),
                y[i * task.y_walk + column]);
      }
    }
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_FLAT_CUH_
