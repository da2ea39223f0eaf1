// Strips: a thread owns elements of x. When a row of y is done, the sums of a line are collected in
// shared memory, where its columns are combined. How the elements of x are read differs: aligned,
// through the stage, or any (aligned_strip.cuh, staged_strip.cuh, any_strip.cuh). kPairs has strips
// too, and columns of its own.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_STRIP_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_STRIP_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// The strip's first element, counted in a line of x, that is a multiple of a piece.
template <int kPiece, typename T>
CONVGRAD_DEVICE int FirstOfStrip(const Line<T>& line) {
  const ResampleAxis& width = line.form.width;
  const int a = ClampedStart(width, line.first_column);
  const int b = ClampedStart(width, line.first_column + line.ColumnsHere() - 1);
  const int inner = static_cast<int>(line.form.inner);
  return (a < b ? a : b) * inner / kPiece * kPiece;
}

// The position in its strip of a thread's element, of those that are read in pieces: the threads'
// first pieces, then their second ones.
template <int kPiece, typename T>
CONVGRAD_DEVICE int PlaceInStrip(const Line<T>& line, int i) {
  return (i / kPiece * line.tiling.line_threads + line.lane) * kPiece + i % kPiece;
}

// The sums of finished rows, two halves by turns: [2, lines, strip_pitch].
template <typename T>
struct StripSums {
  using Sum = typename SumOf<T>::Type;

  Sum* const sums;
  int at = 0;  // where the half is that is written next

  CONVGRAD_DEVICE explicit StripSums(const Line<T>& line)
      : sums(reinterpret_cast<Sum*>(line.shared + line.tiling.strip_at)) {}

  // The threads that read a half synchronize before its turn comes again.
  CONVGRAD_DEVICE Sum* NextHalf(const Line<T>& line) {
    Sum* const half = sums + at;
    at = line.tiling.strip_half - at;
    return half;
  }
};

// Columns of y, each from the sums of its line.
template <typename T>
struct StripColumns {
  using Sum = typename SumOf<T>::Type;
  static constexpr int kPack = kSumPack<Sum>;

  StripSums<T> strip;
  int* const starts;   // for each element of y, where it begins to read a line's sums
  Sum* const weights;  // [columns, width_pitch]
  int results;         // elements of y of the block's columns

  CONVGRAD_DEVICE explicit StripColumns(const Line<T>& line)
      : strip(line),
        starts(reinterpret_cast<int*>(line.shared + line.tiling.results_at)),
        weights(reinterpret_cast<Sum*>(line.shared + line.tiling.width_weights_at)) {}

  // Of a strip that begins with some element of a line and has room for others.
  CONVGRAD_DEVICE void Enter(Line<T>& line, int begin, int room) {
    const ResampleAxis& width = line.form.width;
    const int inner = static_cast<int>(line.form.inner), all = line.ColumnsHere() * inner;
    results = line.owned == 0 ? 0 : all;
    line.y += line.first_column * inner;
    if (line.number != 0) return;
#pragma unroll 1
    for (int result = line.lane; result < all; result += line.tiling.line_threads) {
      const int from =
          ClampedStart(width, line.first_column + result / inner) * inner - begin + result % inner;
      starts[result] = (from & 0xffff) | (result / inner) << 16;
      if (from < 0 || from + (static_cast<int>(width.taps) - 1) * inner >= room) {
        line.misfit = true;
      }
    }
  }

  // A thread's part of the columns' weights, which it prepares for all threads. With one channel
  // they are the weights of whole packs of sums, of which the first may lie in front of the
  // column's first tap.
  CONVGRAD_DEVICE void CopyWeights(const Line<T>& line, int begin, int thread) const {
    const ResampleAxis& width = line.form.width;
    const int taps = static_cast<int>(width.taps), pitch = line.tiling.width_pitch;
    const int columns = line.ColumnsHere();
#pragma unroll 1
    for (int i = thread; i < columns * pitch; i += line.tiling.threads) {
      const int64_t column = line.first_column + i / pitch;
      const int before =
          line.form.inner > 1 ? 0 : (ClampedStart(width, column) - begin) & (kPack - 1);
      const int tap = i % pitch - before;
      weights[i] = tap >= 0 && tap < taps ? WeightAt<Sum>(width, column, tap) : Sum(0);
    }
  }

  // The next row of y. store(sums of the line) leaves a thread's own there.
  template <typename Store>
  CONVGRAD_DEVICE void Write(Line<T>& line, const Store& store) {
    Sum* const half = strip.NextHalf(line);
    if (line.owned != 0) store(half + line.number * line.tiling.strip_pitch);
    line.MeetInLine();
    T* const to = line.NextRow();
    const Sum* const sums = half + line.number * line.tiling.strip_pitch;
    if (line.form.inner == 1) {
      WriteResults<true>(line, sums, to);
    } else {
      WriteResults<false>(line, sums, to);
    }
  }

  CONVGRAD_DEVICE void WriteDirectly(const Line<T>& line) const {
    line.WriteEach(line.first_column, 0, line.lane, line.tiling.line_threads, results);
  }

 private:
  template <bool kPacks>
  CONVGRAD_DEVICE void WriteResults(const Line<T>& line, const Sum* sums, T* to) const {
#pragma unroll 1
    for (int result = line.lane; result < results; result += line.tiling.line_threads) {
      const int packed = starts[result];
      const int from = packed & 0xffff;
      const Sum* const of_column = weights + (packed >> 16) * line.tiling.width_pitch;
      FromSum(
          kPacks ? PackedResult(line, sums, from, of_column) : Result(line, sums + from, of_column),
          to[result]);
    }
  }

  // One element of y from the sums of its strip, by whole packs of weights without testing for
  // zeros; the last pack may read behind the strip. If the result is NaN, it is computed once more
  // without the zero weights.
  CONVGRAD_DEVICE static Sum Result(const Line<T>& line, const Sum* from, const Sum* of_column) {
    const int inner = static_cast<int>(line.form.inner);
    const int taps = static_cast<int>(line.form.width.taps);
    const Sum* at = from;
    Sum sum = 0;
#pragma unroll 4
    for (int tap = 0; tap < taps; tap += kPack) {
      const auto some = Load<Sum, kPack>(of_column + tap);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum += some.at[i] * at[i * inner];
      at += kPack * inner;
    }
    if (sum == sum) return sum;
    sum = 0;
#pragma unroll 1
    for (int tap = 0; tap < taps; ++tap) {
      const Sum weight = of_column[tap];
      if (weight != Sum(0)) sum += weight * from[tap * inner];
    }
    return sum;
  }

  // The same where there is one channel: sums are read as packs, too.
  CONVGRAD_DEVICE static Sum PackedResult(const Line<T>& line, const Sum* all, int from,
                                          const Sum* of_column) {
    const int before = from & (kPack - 1);  // whose weights are zero
    const int taps = static_cast<int>(line.form.width.taps) + before;
    const Sum* const sums = all + (from - before);
    Sum sum = 0;
    // More at a time would need registers that are not left.
#pragma unroll 2
    for (int tap = 0; tap < taps; tap += kPack) {
      const auto some = Load<Sum, kPack>(of_column + tap);
      const auto pack = Load<Sum, kPack>(sums + tap);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum += some.at[i] * pack.at[i];
    }
    if (sum == sum) return sum;
    sum = 0;
#pragma unroll 1
    for (int tap = before; tap < taps; ++tap) {
      const Sum weight = of_column[tap];
      if (weight != Sum(0)) sum += weight * sums[tap];
    }
    return sum;
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_STRIP_CUH_
