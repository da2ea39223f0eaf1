// kColumns: a thread owns two neighboring columns of y, in lines of one channel. The two columns
// together read little more than one does: a window of a row in the stage, in packs, with weights
// that the thread keeps. The width is combined first, so a finished row of y is simply written.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_COLUMNS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_COLUMNS_CUH_

#include <cstdint>

#include "cuda/kernels/resample/elements.cuh"
#include "cuda/kernels/resample/stage.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename Lines>
CONVGRAD_DEVICE void EnterColumns(const Lines& lines, typename Lines::State& mine) {
  using Sum = typename Lines::Sum;
  const ResampleAxis& width = lines.form.width;
  const ResampleTiling& tiling = lines.tiling;
  const int columns = lines.ColumnsHere(), taps = static_cast<int>(width.taps);
  const int a = ClampedStart(width, lines.first_column);
  const int b = ClampedStart(width, lines.first_column + columns - 1);
  const int origin = (a < b ? a : b) & ~(Lines::kSumPack - 1);
  // Of eight lanes some may repeat the work of the lane in front of them, without writing it.
  const int in_eight = mine.lane % 8, writers = tiling.column_lanes;
  const int first = 2 * (mine.lane / 8 * writers + (in_eight < writers ? in_eight : writers - 1));
  const bool writes = mine.owned > 0 && in_eight < writers && first < columns;
  mine.pair_columns = !writes ? 0 : columns - first == 1 ? 1 : 2;
  mine.pair_to = first;
  mine.numbers = true;
  mine.results = mine.owned == 0 ? 0 : columns;
  mine.y += lines.first_column;
  int starts[2];
  CONVGRAD_UNROLL
  for (int k = 0; k < 2; ++k) {
    starts[k] = ClampedStart(width, lines.first_column + Min(first + k, columns - 1)) - origin;
  }
  const int low = (starts[0] < starts[1] ? starts[0] : starts[1]) & ~(Lines::kSumPack - 1);
  const int max_from = tiling.stage_columns - Lines::kTaps;
  const int from = low < 0 ? 0 : low < max_from ? low : max_from;
  CONVGRAD_UNROLL
  for (int k = 0; k < 2; ++k) {
    const int shift = starts[k] - from;
    if (shift < 0 || shift + taps > Lines::kTaps) mine.misfit = true;
    const int64_t column = lines.first_column + Min(first + k, columns - 1);
    CONVGRAD_UNROLL
    for (int t = 0; t < Lines::kTaps; ++t) {
      const int tap = t - shift;
      mine.pair_weights[k][t] = tap >= 0 && tap < taps ? WeightAt<Sum>(width, column, tap) : Sum(0);
    }
  }
  EnterStage(lines, mine, origin, from);
}

// Elements that no copy reaches exist for zero weights only.
template <typename Lines>
CONVGRAD_DEVICE void ClearStage(const Lines& lines, int thread) {
  const int words = Lines::kStages * lines.tiling.stage_slot_bytes / 4;
  CONVGRAD_ROLLED
  for (int i = thread; i < words; i += lines.tiling.threads) {
    reinterpret_cast<uint32_t*>(lines.shared + lines.tiling.stage_at)[i] = 0;
  }
}

// The thread's columns of the next row of x in the stage.
template <typename Lines>
CONVGRAD_DEVICE void CombineColumns(const Lines& lines, typename Lines::State& mine, int slot,
                                    typename Lines::Sum (&sums)[Lines::kVector]) {
  using Sum = typename Lines::Sum;
  const Sum* const from = NextStaged(lines, mine, slot);
  Sum parts[2][2] = {};  // so that not all threads wait for each other
  CONVGRAD_UNROLL
  for (int first = 0; first < Lines::kTaps; first += Lines::kSumPack) {
    const auto pack = Load<Sum, Lines::kSumPack>(from + first);
    CONVGRAD_UNROLL
    for (int k = 0; k < 2; ++k) {
      CONVGRAD_UNROLL
      for (int i = 0; i < Lines::kSumPack; ++i) {
        parts[k][i % 2] += mine.pair_weights[k][first + i] * pack.at[i];
      }
    }
  }
  CONVGRAD_UNROLL
  for (int k = 0; k < 2; ++k) sums[k] = parts[k][0] + parts[k][1];
}

template <typename Lines>
CONVGRAD_DEVICE void WriteColumns(const Lines& lines, typename Lines::State& mine) {
  using T = typename Lines::T;
  T* const to = lines.NextRow(mine) + mine.pair_to;
  mine.numbers = mine.numbers && mine.sum[0] == mine.sum[0] && mine.sum[1] == mine.sum[1];
  if (mine.pair_columns == 2 && reinterpret_cast<uintptr_t>(to) % (2 * sizeof(T)) == 0) {
    StoreSums<false>(mine.sum, to);
  } else {
    if (mine.pair_columns > 0) FromSum(mine.sum[0], to[0]);
    if (mine.pair_columns > 1) FromSum(mine.sum[1], to[1]);
  }
}

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_COLUMNS_CUH_
