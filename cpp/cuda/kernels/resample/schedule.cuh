// The weights that the rows of x have for the rows of y of a walk, in shared memory.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SCHEDULE_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SCHEDULE_CUH_

#include <cstdint>
#include <cstring>

#include "cuda/kernels/resample/mode.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// kRows: of y that add up at a time. kRound: rows of x that are added between checks.
template <typename T, int kRows, int kRound>
struct Schedule {
  using Sum = typename SumOf<T>::Type;
  static constexpr int kRecord = RecordSize(kRows, sizeof(Sum));
  static_assert(kRound <= kMaxRound, "the schedule has room for a round that is not full");

  Sum* const records;  // [table_rows, kRecord]
  int* const ends;     // [2 * chunk], for making the schedule, and a flag

  CONVGRAD_DEVICE explicit Schedule(const Line<T>& line)
      : records(reinterpret_cast<Sum*>(line.shared + line.tiling.weights_at)),
        ends(reinterpret_cast<int*>(records + line.tiling.table_rows * kRecord)) {}

  // The number of rows of x that are read, from `low` on, or -1 if the schedule has no room for
  // them.
  CONVGRAD_DEVICE int FindRows(const Line<T>& line, int thread, int& low) const {
    const ResampleAxis& walk = line.task.walk;
    int* const lows = ends + line.tiling.chunk;
    int* const flag = lows + line.tiling.chunk;
    const int taps = static_cast<int>(walk.taps);
    constexpr int kBatch = 8;
    if (thread == 0) *flag = 0;
#pragma unroll 1
    for (int row = thread; row < line.rows; row += line.tiling.threads) {
      const int start = ClampedStart(walk, line.first_row + row);
      int from = taps, to = -1;  // the first weight that is not zero, and the last
#pragma unroll 1
      for (int tap = 0; tap < taps; tap += kBatch) {
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          if (tap + i >= taps) continue;
          if (WeightAt<Sum>(walk, line.first_row + row, tap + i) == Sum(0)) continue;
          from = from < tap + i ? from : tap + i;
          to = tap + i;
        }
      }
      lows[row] = from < taps ? start + from : 0x7fffffff;
      ends[row] = from < taps ? start + to : -1;
    }
    __syncthreads();
    int first = 0x7fffffff, last = -1;
#pragma unroll 8
    for (int row = 0; row < line.rows; ++row) {
      first = lows[row] < first ? lows[row] : first;
      last = Max(last, ends[row]);
    }
    low = first;
    const int there = last < first ? 0 : last - first + 1;
    return there > line.tiling.table_rows - (kRound - 1) ? -1 : there;
  }

  // Makes the schedule of this many rows from `low` on, and of those that complete a round. False
  // if more rows of y than kRows are in progress at a time.
  CONVGRAD_DEVICE bool Make(const Line<T>& line, int thread, int low, int there) const {
    const ResampleAxis& walk = line.task.walk;
    const int* const lows = ends + line.tiling.chunk;
    int* const flag = ends + 2 * line.tiling.chunk;
    const int taps = static_cast<int>(walk.taps);
    const int scheduled = (there + kRound - 1) / kRound * kRound;
#pragma unroll 1
    for (int i = thread; i < scheduled; i += line.tiling.threads) {
      const int at = low + i;
      // A row of y is done once the rows before it are.
      int done = 0, done_after = 0, end = -1;
#pragma unroll 8
      for (int row = 0; row < line.rows; ++row) {
        end = Max(end, ends[row]);
        done += end < at;
        done_after += end <= at;
      }
      Sum* const record = records + i * kRecord;
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        Sum weight = 0;
        if (done + k < line.rows) {
          const int64_t row = line.first_row + done + k;
          const int tap = at - ClampedStart(walk, row);
          if (tap >= 0 && tap < taps) weight = WeightAt<Sum>(walk, row, tap);
        }
        record[k] = weight;
      }
      const int done_now = done_after - done;
      memcpy(record + kRows, &done_now, sizeof(done_now));
      bool too_many = false;
#pragma unroll 4
      for (int row = done + kRows; row < line.rows; ++row) {
        too_many |= (lows[row] <= at) & (at <= ends[row]);
      }
      if (too_many) *flag = 1;
    }
    __syncthreads();
    return *flag == 0;
  }

  // Whether a row of y reads no row of x.
  CONVGRAD_DEVICE bool IsEmpty(int row) const { return ends[row] < 0; }

  // Reads the record of a row of x: its weights, and how many rows of y are done after it.
  CONVGRAD_DEVICE int LoadRecord(int at, Sum (&weights)[kRows]) const {
    constexpr int kPack = kRecord % kSumPack<Sum> == 0 ? kSumPack<Sum> : 2;
    Sum record[kRecord];
#pragma unroll
    for (int k = 0; k < kRecord; k += kPack) {
      const auto some = Load<Sum, kPack>(records + at * kRecord + k);
#pragma unroll
      for (int i = 0; i < kPack; ++i) record[k + i] = some.at[i];
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) weights[k] = record[k];
    int done;
    memcpy(&done, &record[kRows], sizeof(done));
    return done;
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SCHEDULE_CUH_
