// kSpread: columns of x that each become as many of y. A thread reads the vector that its columns
// lie on and one element on either side, and writes a vector.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SPREAD_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SPREAD_CUH_

#include <cstdint>

#include "cuda/kernels/resample/elements.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// The first column of x, counted from kBeside in front of the thread's first, that its k-th
// output may reach with kTaps: with an even number, those of the second half of a column's
// outputs reach further on.
template <typename Lines>
CONVGRAD_DEVICE constexpr int SpreadFirst(int k) {
  return k / Lines::kStep + (Lines::kTaps % 2 == 0 && k % Lines::kStep >= Lines::kStep / 2 ? 1 : 0);
}

template <typename Lines>
CONVGRAD_DEVICE void EnterSpread(const Lines& lines, typename Lines::State& mine, int column) {
  using Sum = typename Lines::Sum;
  const int begin = column / Lines::kStep, in = static_cast<int>(lines.form.width.in);
  const int taps = static_cast<int>(lines.form.width.taps);
  mine.offsets[0] = begin;
  mine.there[0] = begin > 0;
  mine.there[1] = begin + Lines::kBase < in;
  mine.y += column;
  CONVGRAD_UNROLL
  for (int k = 0; k < Lines::kVector; ++k) {
    const int start = ClampedStart(lines.form.width, column + k);
    const int shift = begin - Lines::kBeside + SpreadFirst<Lines>(k) - start;
    int left = CountWeights<Sum>(lines.form.width, column + k);
    CONVGRAD_UNROLL
    for (int t = 0; t < Lines::kTaps; ++t) {
      const int tap = shift + t;
      const Sum weight =
          tap >= 0 && tap < taps ? WeightAt<Sum>(lines.form.width, column + k, tap) : Sum(0);
      mine.weights[k][t] = weight;
      left -= weight != Sum(0);
    }
    if (left != 0) mine.misfit = true;
  }
}

template <typename Lines>
CONVGRAD_DEVICE void FetchSpread(const Lines& lines, typename Lines::State& mine,
                                 const typename Lines::T* line) {
  using T = typename Lines::T;
  using Sum = typename Lines::Sum;
  constexpr int kBase = Lines::kBase, kBeside = Lines::kBeside;
  const T* at = line + mine.offsets[0];
  CONVGRAD_UNROLL
  for (int q = 0; q < Lines::kMidReads; ++q) {
    at = Opaque(at);
    const bool there = Lines::kMidReads == 1 || mine.mid_weights[q] != Sum(0);
    Piece<T, kBase> base{};
    if (there) base.Read(at);
    mine.base[q] = base;
    CONVGRAD_UNROLL
    for (int i = 0; i < 2 * kBeside; ++i) {
      Piece<T, 1> piece{};
      if (there && mine.there[i < kBeside ? 0 : 1]) {
        piece.Read(at + (i < kBeside ? i - kBeside : kBase + i - kBeside));
      }
      mine.beside[q][i] = piece;
    }
    at += lines.task.x_mid;
  }
}

template <typename Lines>
CONVGRAD_DEVICE void CombineSpread(const typename Lines::State& mine,
                                   typename Lines::Sum (&sums)[Lines::kVector]) {
  using Sum = typename Lines::Sum;
  constexpr int kBase = Lines::kBase, kBeside = Lines::kBeside, kValues = kBase + 2 * kBeside;
  Sum values[kValues];
  Sum probe = 0;  // not a number if a value is not finite
  CONVGRAD_UNROLL
  for (int i = 0; i < kValues; ++i) {
    values[i] = 0;
    CONVGRAD_UNROLL
    for (int q = 0; q < Lines::kMidReads; ++q) {
      Sum value;
      if (i < kBeside) {
        value = mine.beside[q][i].At(0);
      } else if (i < kBeside + kBase) {
        value = mine.base[q].At(i - kBeside);
      } else {
        value = mine.beside[q][i - kBase].At(0);
      }
      values[i] = Lines::kMidReads == 1 ? value : values[i] + mine.mid_weights[q] * value;
    }
    probe += Sum(0) * values[i];
  }
  CONVGRAD_UNROLL
  for (int k = 0; k < Lines::kVector; ++k) {
    sums[k] = 0;
    CONVGRAD_UNROLL
    for (int t = 0; t < Lines::kTaps; ++t) {
      sums[k] += mine.weights[k][t] * values[SpreadFirst<Lines>(k) + t];
    }
  }
  if (probe == Sum(0)) return;
  // A zero weight may be the cause: once more without zero weights.
  CONVGRAD_UNROLL
  for (int k = 0; k < Lines::kVector; ++k) {
    sums[k] = 0;
    CONVGRAD_UNROLL
    for (int t = 0; t < Lines::kTaps; ++t) {
      if (mine.weights[k][t] == Sum(0)) continue;
      sums[k] += mine.weights[k][t] * values[SpreadFirst<Lines>(k) + t];
    }
  }
}

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_SPREAD_CUH_
