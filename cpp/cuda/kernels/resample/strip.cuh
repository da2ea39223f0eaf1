// kStrip: a thread owns elements of x. When a row of y is done, the sums of a line are collected in
// shared memory, where its columns are combined.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_STRIP_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_STRIP_CUH_

#include <cstdint>

#include "cuda/kernels/resample/stage.cuh"

namespace jax_convgrad {
namespace resample_kernels {

CONVGRAD_DEVICE int OddHalf(int lane) { return lane >> 4 & 1; }

// The position of a thread's element in its strip.
template <typename Lines>
CONVGRAD_DEVICE int StripPlace(const Lines& lines, int lane, int i) {
  if constexpr (Lines::kStaged) {
    // By half warps: every other one swaps the order of its even and odd elements, so the two do
    // not use the same bank.
    return (lane >> 4) * 16 * Lines::kVector + (i ^ OddHalf(lane)) * 16 + (lane & 15);
  }
  return (i / Lines::kPiece * lines.tiling.line_threads + lane) * Lines::kPiece + i % Lines::kPiece;
}

// The strip's first element, counted in a line of x.
template <typename Lines>
CONVGRAD_DEVICE int StripBegin(const Lines& lines) {
  const int a = ClampedStart(lines.form.width, lines.first_column);
  const int b = ClampedStart(lines.form.width, lines.first_column + lines.ColumnsHere() - 1);
  const int inner = static_cast<int>(lines.form.inner);
  return (a < b ? a : b) * inner / Lines::kPiece * Lines::kPiece;
}

template <typename Lines>
CONVGRAD_DEVICE void EnterStrip(const Lines& lines, typename Lines::State& mine) {
  const int inner = static_cast<int>(lines.form.inner), columns = lines.ColumnsHere();
  const int begin = StripBegin(lines);
  const int run = static_cast<int>(lines.form.width.in) * inner;
  if constexpr (Lines::kStaged) EnterStage(lines, mine, begin, StripPlace(lines, mine.lane, 0));
  CONVGRAD_UNROLL
  for (int u = 0; u < (Lines::kStaged ? 0 : Lines::kReads); ++u) {
    const int at = begin + StripPlace(lines, mine.lane, u * Lines::kPiece);
    mine.offsets[u] = at < run ? at : run - Lines::kPiece;  // read for nothing, not used
  }
  mine.results = mine.owned == 0 ? 0 : columns * inner;
  mine.y += lines.first_column * inner;
  if (mine.line != 0) return;
  const int room = Lines::kStaged ? StageRoom(lines) : lines.tiling.line_threads * Lines::kVector;
  CONVGRAD_ROLLED
  for (int result = mine.lane; result < columns * inner; result += lines.tiling.line_threads) {
    const int from = ClampedStart(lines.form.width, lines.first_column + result / inner) * inner -
                     begin + result % inner;
    lines.strip_results[result] = (from & 0xffff) | (result / inner) << 16;
    if (from < 0 || from + (static_cast<int>(lines.form.width.taps) - 1) * inner >= room) {
      mine.misfit = true;
    }
  }
}

// A thread's part of the columns' weights, which it prepares for all threads. With one channel they
// are the weights of whole packs of sums, of which the first may lie in front of the column's first
// tap.
template <typename Lines>
CONVGRAD_DEVICE void CopyWeights(const Lines& lines, int thread) {
  using Sum = typename Lines::Sum;
  const int taps = static_cast<int>(lines.form.width.taps), pitch = lines.tiling.width_pitch;
  const int columns = lines.ColumnsHere();
  const int begin = StripBegin(lines);
  CONVGRAD_ROLLED
  for (int i = thread; i < columns * pitch; i += lines.tiling.threads) {
    const int64_t column = lines.first_column + i / pitch;
    const int before = lines.form.inner > 1 ? 0
                                            : (ClampedStart(lines.form.width, column) - begin) &
                                                  (Lines::kSumPack - 1);
    const int tap = i % pitch - before;
    lines.width_weights[i] =
        tap >= 0 && tap < taps ? WeightAt<Sum>(lines.form.width, column, tap) : Sum(0);
  }
}

// The elements of the next row of x in the stage.
template <typename Lines>
CONVGRAD_DEVICE void CombineStagedStrip(const Lines& lines, typename Lines::State& mine, int slot,
                                        typename Lines::Sum (&sums)[Lines::kVector]) {
  using T = typename Lines::T;
  const T* const from = NextStaged(lines, mine, slot);
  const T* const odd = from - 2 * OddHalf(mine.lane) * 16;
  CONVGRAD_UNROLL
  for (int i = 0; i < Lines::kVector; ++i) sums[i] = ToSum((i % 2 == 0 ? from : odd)[i * 16]);
}

// A thread's elements of a finished row.
template <typename Lines>
CONVGRAD_DEVICE void StoreStrip(const Lines& lines, const typename Lines::State& mine,
                                typename Lines::Sum* line) {
  using Sum = typename Lines::Sum;
  if constexpr (Lines::kStaged) {
    Sum* const even = line + StripPlace(lines, mine.lane, 0);
    CONVGRAD_UNROLL
    for (int i = 0; i < Lines::kVector; ++i) {
      (i % 2 == 0 ? even : even - OddHalf(mine.lane) * 32)[i * 16] = mine.sum[i];
    }
  } else {
    constexpr int kPack = Lines::kPiece % Lines::kSumPack == 0 ? Lines::kSumPack : 1;
    CONVGRAD_UNROLL
    for (int i = 0; i < Lines::kVector; i += kPack) {
      Sum pack[kPack];
      CONVGRAD_UNROLL
      for (int k = 0; k < kPack; ++k) pack[k] = mine.sum[i + k];
      StoreShared(pack, line + StripPlace(lines, mine.lane, i));
    }
  }
}

// One element of y from the sums of its strip, by whole packs of weights without testing for zeros;
// the last pack may read behind the strip. If the result is NaN, it is computed once more without
// the zero weights.
template <typename Lines>
CONVGRAD_DEVICE typename Lines::Sum StripResult(const Lines& lines, const typename Lines::Sum* from,
                                                const typename Lines::Sum* weights) {
  using Sum = typename Lines::Sum;
  const int inner = static_cast<int>(lines.form.inner);
  const int taps = static_cast<int>(lines.form.width.taps);
  const Sum* at = from;
  Sum sum = 0;
  CONVGRAD_UNROLL_BY(4)
  for (int tap = 0; tap < taps; tap += Lines::kSumPack) {
    const auto some = Load<Sum, Lines::kSumPack>(weights + tap);
    CONVGRAD_UNROLL
    for (int i = 0; i < Lines::kSumPack; ++i) sum += some.at[i] * at[i * inner];
    at += Lines::kSumPack * inner;
  }
  if (sum == sum) return sum;
  sum = 0;
  CONVGRAD_ROLLED
  for (int tap = 0; tap < taps; ++tap) {
    const Sum weight = weights[tap];
    if (weight != Sum(0)) sum += weight * from[tap * inner];
  }
  return sum;
}

// The same where there is one channel: sums are read as packs, too.
template <typename Lines>
CONVGRAD_DEVICE typename Lines::Sum PackedResult(const Lines& lines,
                                                 const typename Lines::Sum* line, int from,
                                                 const typename Lines::Sum* weights) {
  using Sum = typename Lines::Sum;
  constexpr int kPack = Lines::kSumPack;
  const int before = from & (kPack - 1);  // whose weights are zero
  const int taps = static_cast<int>(lines.form.width.taps) + before;
  const Sum* const sums = line + (from - before);
  Sum sum = 0;
  // More at a time would need registers that are not left.
  CONVGRAD_UNROLL_BY(2)
  for (int tap = 0; tap < taps; tap += kPack) {
    const auto some = Load<Sum, kPack>(weights + tap);
    const auto pack = Load<Sum, kPack>(sums + tap);
    CONVGRAD_UNROLL
    for (int i = 0; i < kPack; ++i) sum += some.at[i] * pack.at[i];
  }
  if (sum == sum) return sum;
  sum = 0;
  CONVGRAD_ROLLED
  for (int tap = before; tap < taps; ++tap) {
    const Sum weight = weights[tap];
    if (weight != Sum(0)) sum += weight * sums[tap];
  }
  return sum;
}

template <bool kPacks, typename Lines>
CONVGRAD_DEVICE void WriteResults(const Lines& lines, const typename Lines::State& mine,
                                  const typename Lines::Sum* line, typename Lines::T* to) {
  CONVGRAD_ROLLED
  for (int result = mine.lane; result < mine.results; result += lines.tiling.line_threads) {
    const int packed = lines.strip_results[result];
    const int from = packed & 0xffff;
    const typename Lines::Sum* const weights =
        lines.width_weights + (packed >> 16) * lines.tiling.width_pitch;
    FromSum(kPacks ? PackedResult(lines, line, from, weights)
                   : StripResult(lines, line + from, weights),
            to[result]);
  }
}

template <typename Lines>
CONVGRAD_DEVICE void WriteStrip(const Lines& lines, typename Lines::State& mine,
                                const typename Lines::Sum* sums) {
  using T = typename Lines::T;
  using Sum = typename Lines::Sum;
  T* const to = lines.NextRow(mine);
  const Sum* const line = sums + mine.line * lines.tiling.strip_pitch;
  if (lines.form.inner == 1) {
    WriteResults<true>(lines, mine, line, to);
  } else {
    WriteResults<false>(lines, mine, line, to);
  }
}

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_STRIP_CUH_
