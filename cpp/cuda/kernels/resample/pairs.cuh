// kPairs: a thread owns elements of x, and combines two columns once their rows are combined, with
// weights that it keeps: the two columns together read little more than one does, as vectors.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_PAIRS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_PAIRS_CUH_

#include <cstdint>

#include "cuda/kernels/resample/elements.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename Lines>
CONVGRAD_DEVICE void EnterPairs(const Lines& lines, typename Lines::State& mine) {
  using Sum = typename Lines::Sum;
  const int inner = static_cast<int>(lines.form.inner), columns = lines.ColumnsHere();
  const int taps = static_cast<int>(lines.form.width.taps);
  const int a = ClampedStart(lines.form.width, lines.first_column);
  const int b = ClampedStart(lines.form.width, lines.first_column + columns - 1);
  const int begin = (a < b ? a : b) * inner / Lines::kVector * Lines::kVector,
            origin = begin / inner;
  const int run = static_cast<int>(lines.form.width.in) * inner;
  const int at = begin + mine.lane * Lines::kVector;
  mine.offsets[0] = at < run ? at : run - Lines::kVector;  // read for nothing, not used
  mine.results = mine.owned == 0 ? 0 : columns * inner;
  const int line_at = mine.line * lines.tiling.strip_pitch;
  mine.y += lines.first_column * inner;
  CONVGRAD_UNROLL
  for (int i = 0; i < Lines::kVector; ++i) {
    mine.places[i] =
        line_at + (at + i) % inner * lines.tiling.channel_pitch + (at + i) / inner - origin;
  }
  const int first = mine.lane / inner * 2, channel = mine.lane % inner;
  const int left = mine.owned == 0 ? 0 : columns - first;
  mine.pair_columns = left < 0 ? 0 : left > 2 ? 2 : left;
  mine.pair_to = first * inner + channel;
  mine.numbers = true;
  int starts[2];
  CONVGRAD_UNROLL
  for (int k = 0; k < 2; ++k) {
    const int column = first + k < columns ? first + k : columns - 1;
    starts[k] = ClampedStart(lines.form.width, lines.first_column + column) - origin;
  }
  const int low = (starts[0] < starts[1] ? starts[0] : starts[1]) & ~3;
  const int max_from = lines.tiling.channel_pitch - Lines::kTaps;
  const int from = low < 0 ? 0 : low < max_from ? low : max_from;
  mine.pair_from = line_at + channel * lines.tiling.channel_pitch + from;
  const int room = (lines.tiling.line_threads * Lines::kVector - (begin - origin * inner)) / inner;
  CONVGRAD_UNROLL
  for (int k = 0; k < 2; ++k) {
    const int shift = starts[k] - from;
    if (shift < 0 || shift + taps > Lines::kTaps || starts[k] + taps > room) mine.misfit = true;
    const int64_t column = lines.first_column + Min(first + k, columns - 1);
    CONVGRAD_UNROLL
    for (int t = 0; t < Lines::kTaps; ++t) {
      const int tap = t - shift;
      mine.pair_weights[k][t] =
          tap >= 0 && tap < taps ? WeightAt<Sum>(lines.form.width, column, tap) : Sum(0);
    }
  }
}

// Elements that no thread writes exist for zero weights only.
template <typename Lines>
CONVGRAD_DEVICE void ClearPairs(const Lines& lines, int thread) {
  CONVGRAD_ROLLED
  for (int i = thread; i < 2 * lines.tiling.strip_half; i += lines.tiling.threads) {
    lines.strip_sums[i] = 0;
  }
}

// A thread's elements of a finished row, with each channel's side by side.
template <typename Lines>
CONVGRAD_DEVICE void StorePairs(const Lines& lines, const typename Lines::State& mine,
                                typename Lines::Sum* sums) {
  if (lines.form.inner == 1) {
    StoreShared(mine.sum, sums + mine.places[0]);
    return;
  }
  CONVGRAD_UNROLL
  for (int i = 0; i < Lines::kVector; ++i) sums[mine.places[i]] = mine.sum[i];
}

// A thread's two columns of y from one window.
template <typename Lines>
CONVGRAD_DEVICE void WritePairs(const Lines& lines, typename Lines::State& mine,
                                const typename Lines::Sum* sums) {
  using T = typename Lines::T;
  using Sum = typename Lines::Sum;
  T* const to = lines.NextRow(mine) + mine.pair_to;
  if (mine.pair_columns == 0) return;
  const Sum* const from = sums + mine.pair_from;
  Sum parts[2][2] = {};  // so that not all threads wait for each other
  CONVGRAD_UNROLL
  for (int first = 0; first < Lines::kTaps; first += Lines::kSumPack) {
    const auto some = Load<Sum, Lines::kSumPack>(from + first);
    CONVGRAD_UNROLL
    for (int k = 0; k < 2; ++k) {
      CONVGRAD_UNROLL
      for (int i = 0; i < Lines::kSumPack; ++i) {
        parts[k][i % 2] += mine.pair_weights[k][first + i] * some.at[i];
      }
    }
  }
  const Sum results[2] = {parts[0][0] + parts[0][1], parts[1][0] + parts[1][1]};
  mine.numbers = mine.numbers && results[0] == results[0] && results[1] == results[1];
  FromSum(results[0], to[0]);
  if (mine.pair_columns == 2) FromSum(results[1], to[lines.form.inner]);
}

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_PAIRS_CUH_
