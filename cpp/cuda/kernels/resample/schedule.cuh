// The weights that the rows of x have for the rows of y of a walk, in shared memory: see walk.cuh.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SCHEDULE_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SCHEDULE_CUH_

#include <cstdint>

#include "cuda/kernels/resample/elements.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// For rows of y that are made from a ring: where each begins in x, and its weights. The last start
// is repeated once, so that threads can look ahead.
template <typename Walk>
CONVGRAD_DEVICE void MakeRing(const Walk& walk) {
  using Sum = typename Walk::Sum;
  ForEachThread(walk.tiling.threads, [&](int thread) {
    CONVGRAD_ROLLED
    for (int i = thread; i < walk.rows * Walk::kRows; i += walk.tiling.threads) {
      const int row = i / Walk::kRows, tap = i % Walk::kRows;
      int start = static_cast<int>(walk.first_row) + row;
      if (walk.task.walk.resampled) {
        walk.row_weights[i] = tap < walk.task.walk.taps
                                  ? WeightAt<Sum>(walk.task.walk, walk.first_row + row, tap)
                                  : Sum(0);
        start = ClampedStart(walk.task.walk, walk.first_row + row);
      } else {
        walk.row_weights[i] = tap == 0 ? 1 : 0;
      }
      if (tap != 0) continue;
      walk.row_starts[row] = start;
      if (row + 1 == walk.rows) walk.row_starts[walk.rows] = start;
    }
  });
}

// The number of rows of x that are read, from `low` on, or -1 if the schedule has no room for them.
template <typename Walk>
CONVGRAD_DEVICE int FindRows(const Walk& walk, int& low) {
  using Sum = typename Walk::Sum;
  int* const lows = walk.ends + walk.tiling.chunk;
  int* const flag = lows + walk.tiling.chunk;
  const int taps = static_cast<int>(walk.task.walk.taps);
  constexpr int kBatch = 8;
  ForEachThread(walk.tiling.threads, [&](int thread) {
    if (thread == 0) *flag = 0;
    CONVGRAD_ROLLED
    for (int row = thread; row < walk.rows; row += walk.tiling.threads) {
      const int start = ClampedStart(walk.task.walk, walk.first_row + row);
      int from = taps, to = -1;  // the first weight that is not zero, and the last
      CONVGRAD_ROLLED
      for (int tap = 0; tap < taps; tap += kBatch) {
        CONVGRAD_UNROLL
        for (int i = 0; i < kBatch; ++i) {
          if (tap + i >= taps) continue;
          if (WeightAt<Sum>(walk.task.walk, walk.first_row + row, tap + i) == Sum(0)) continue;
          from = from < tap + i ? from : tap + i;
          to = tap + i;
        }
      }
      lows[row] = from < taps ? start + from : 0x7fffffff;
      walk.ends[row] = from < taps ? start + to : -1;
    }
  });
  int first = 0x7fffffff, last = -1;
  CONVGRAD_UNROLL_BY(8)
  for (int row = 0; row < walk.rows; ++row) {
    first = lows[row] < first ? lows[row] : first;
    last = Max(last, walk.ends[row]);
  }
  low = first;
  const int there = last < first ? 0 : last - first + 1;
  return there > walk.tiling.table_rows - (Walk::kRound - 1) ? -1 : there;
}

// Reads the record of a row of x: its weights, and how many rows of y are done after it.
template <typename Walk>
CONVGRAD_DEVICE int LoadRecord(const Walk& walk, int at,
                               typename Walk::Sum (&weights)[Walk::kRows]) {
  using Sum = typename Walk::Sum;
  constexpr int kPack = Walk::kRecord % Walk::kSumPack == 0 ? Walk::kSumPack : 2;
  Sum record[Walk::kRecord];
  CONVGRAD_UNROLL
  for (int k = 0; k < Walk::kRecord; k += kPack) {
    const auto some = Load<Sum, kPack>(walk.row_weights + at * Walk::kRecord + k);
    CONVGRAD_UNROLL
    for (int i = 0; i < kPack; ++i) record[k + i] = some.at[i];
  }
  CONVGRAD_UNROLL
  for (int k = 0; k < Walk::kRows; ++k) weights[k] = record[k];
  int done;
  memcpy(&done, &record[Walk::kRows], sizeof(done));
  return done;
}

// Makes the schedule of this many rows from `low` on, and of those that complete a round. False if
// more rows of y than kRows are in progress at a time.
template <typename Walk>
CONVGRAD_DEVICE bool MakeSchedule(const Walk& walk, int low, int there) {
  using Sum = typename Walk::Sum;
  const int* const lows = walk.ends + walk.tiling.chunk;
  int* const flag = walk.ends + 2 * walk.tiling.chunk;
  const int taps = static_cast<int>(walk.task.walk.taps);
  const int scheduled = (there + Walk::kRound - 1) / Walk::kRound * Walk::kRound;
  ForEachThread(walk.tiling.threads, [&](int thread) {
    CONVGRAD_ROLLED
    for (int i = thread; i < scheduled; i += walk.tiling.threads) {
      const int at = low + i;
      // A row of y is done once the rows before it are.
      int done = 0, done_after = 0, end = -1;
      CONVGRAD_UNROLL_BY(8)
      for (int row = 0; row < walk.rows; ++row) {
        end = Max(end, walk.ends[row]);
        done += end < at;
        done_after += end <= at;
      }
      Sum* const record = walk.row_weights + i * Walk::kRecord;
      CONVGRAD_UNROLL
      for (int k = 0; k < Walk::kRows; ++k) {
        Sum weight = 0;
        if (done + k < walk.rows) {
          const int64_t row = walk.first_row + done + k;
          const int tap = at - ClampedStart(walk.task.walk, row);
          if (tap >= 0 && tap < taps) weight = WeightAt<Sum>(walk.task.walk, row, tap);
        }
        record[k] = weight;
      }
      const int done_now = done_after - done;
      memcpy(record + Walk::kRows, &done_now, sizeof(done_now));
      bool too_many = false;
      CONVGRAD_UNROLL_BY(4)
      for (int row = done + Walk::kRows; row < walk.rows; ++row) {
        too_many |= (lows[row] <= at) & (at <= walk.ends[row]);
      }
      if (too_many) *flag = 1;
    }
  });
  return *flag == 0;
}

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SCHEDULE_CUH_
