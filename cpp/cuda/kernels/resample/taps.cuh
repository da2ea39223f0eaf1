// kVectors, kElements, kStaged and the elements of x in strips: reads that begin anywhere, and the
// taps that follow them.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_TAPS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_TAPS_CUH_

#include <cstdint>

#include "cuda/kernels/resample/stage.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// A read begins at a column and an element of its inner run.
template <typename Lines>
CONVGRAD_DEVICE void ReadFrom(const Lines& lines, typename Lines::State& mine, int read,
                              int64_t column, int64_t channel) {
  mine.columns[read] = column;
  mine.offsets[read] = static_cast<int>(lines.WidthStart(column) * lines.form.inner + channel);
  if constexpr (Lines::kStaged) {
    const int inner = static_cast<int>(lines.form.inner), reach = (lines.WidthTaps() - 1) * inner;
    mine.offsets[read] -= mine.stage_begin;
    if (mine.offsets[read] < 0 || mine.offsets[read] + reach >= StageRoom(lines)) {
      mine.misfit = true;
      mine.offsets[read] = 0;
    }
  }
  if constexpr (!Lines::kAny) {
    CONVGRAD_UNROLL
    for (int t = 0; t < Lines::kReadTaps; ++t) mine.weights[read][t] = lines.WidthWeight(column, t);
  }
}

// Elements of the stage with their weights, without testing for zero weights.
template <int kInner, typename Lines>
CONVGRAD_DEVICE void AddStaged(const Lines& lines, const typename Lines::State& mine,
                               const typename Lines::T* from,
                               typename Lines::Sum (&sums)[Lines::kVector]) {
  using T = typename Lines::T;
  const int inner = kInner > 0 ? kInner : static_cast<int>(lines.form.inner);
  CONVGRAD_UNROLL
  for (int i = 0; i < Lines::kVector; ++i) sums[i] = 0;
  CONVGRAD_UNROLL
  for (int i = 0; i < Lines::kVector; ++i) {
    const T* const first = from + mine.offsets[i];
    CONVGRAD_UNROLL
    for (int t = 0; t < Lines::kTaps; ++t) sums[i] += mine.weights[i][t] * ToSum(first[t * inner]);
  }
}

// The thread's elements of the next row in the stage, with its columns combined.
template <typename Lines>
CONVGRAD_DEVICE void CombineStagedTaps(const Lines& lines, typename Lines::State& mine, int slot,
                                       typename Lines::Sum (&sums)[Lines::kVector]) {
  using T = typename Lines::T;
  using Sum = typename Lines::Sum;
  const T* const from = NextStaged(lines, mine, slot);
  switch (lines.form.inner) {
    case 1:
      AddStaged<1>(lines, mine, from, sums);
      break;
    case 3:
      AddStaged<3>(lines, mine, from, sums);
      break;
    default:
      AddStaged<0>(lines, mine, from, sums);
  }
  bool number = true;
  CONVGRAD_UNROLL
  for (int i = 0; i < Lines::kVector; ++i) number = number && sums[i] == sums[i];
  if (number) return;
  // A zero weight may be the cause: once more without zero weights.
  const T* const again = Opaque(from);
  const int inner = static_cast<int>(lines.form.inner);
  CONVGRAD_UNROLL
  for (int i = 0; i < Lines::kVector; ++i) {
    sums[i] = 0;
    CONVGRAD_UNROLL
    for (int t = 0; t < Lines::kTaps; ++t) {
      if (mine.weights[i][t] == Sum(0)) continue;
      sums[i] += mine.weights[i][t] * ToSum(again[mine.offsets[i] + t * inner]);
    }
  }
}

template <typename Lines>
CONVGRAD_DEVICE typename Lines::Sum WeightOf(const typename Lines::State& mine, int q, int i,
                                             int t) {
  if constexpr (Lines::kStrip) return mine.mid_weights[q];
  if constexpr (Lines::kMidReads == 1) return mine.weights[i][t];
  return mine.mid_weights[q] * mine.weights[i][t];
}

template <typename Lines>
CONVGRAD_DEVICE void AddPiece(const Piece<typename Lines::T, Lines::kPiece>& piece, int read,
                              typename Lines::Sum weight,
                              typename Lines::Sum (&sums)[Lines::kVector]) {
  CONVGRAD_UNROLL
  for (int p = 0; p < Lines::kPiece; ++p) sums[read * Lines::kPiece + p] += weight * piece.At(p);
}

// Reads a row of x for later.
template <typename Lines>
CONVGRAD_DEVICE void FetchTaps(const Lines& lines, typename Lines::State& mine, int slot,
                               const typename Lines::T* row) {
  using T = typename Lines::T;
  using Sum = typename Lines::Sum;
  const T* line = Opaque(row);
  const uint32_t inner = static_cast<uint32_t>(lines.form.inner);
  CONVGRAD_UNROLL
  for (int q = 0; q < Lines::kMidReads; ++q) {
    CONVGRAD_UNROLL
    for (int i = 0; i < Lines::kReads; ++i) {
      const T* from = line + static_cast<uint32_t>(mine.offsets[i]);
      CONVGRAD_UNROLL
      for (int t = 0; t < Lines::kReadTaps; ++t) {
        Piece<T, Lines::kPiece> piece{};
        const bool one = Lines::kStrip && Lines::kMid == 1;  // without a weight
        if (one || WeightOf<Lines>(mine, q, i, t) != Sum(0)) piece.Read(from);
        mine.pieces[slot][q][i][t] = piece;
        if (t + 1 < Lines::kReadTaps) from = Opaque(from + inner);
      }
    }
    if (q + 1 < Lines::kMidReads) line = Opaque(line + lines.task.x_mid);
  }
}

// The columns of a fetched row, combined.
template <typename Lines>
CONVGRAD_DEVICE void CombineFetched(const typename Lines::State& mine, int slot,
                                    typename Lines::Sum (&sums)[Lines::kVector]) {
  CONVGRAD_UNROLL
  for (int i = 0; i < Lines::kVector; ++i) sums[i] = 0;
  CONVGRAD_UNROLL
  for (int q = 0; q < Lines::kMidReads; ++q) {
    CONVGRAD_UNROLL
    for (int i = 0; i < Lines::kReads; ++i) {
      CONVGRAD_UNROLL
      for (int t = 0; t < Lines::kReadTaps; ++t) {
        AddPiece<Lines>(mine.pieces[slot][q][i][t], i, WeightOf<Lines>(mine, q, i, t), sums);
      }
    }
  }
}

// The same for a row with more taps than could be fetched, which is read now.
template <typename Lines>
CONVGRAD_DEVICE void CombineRead(const Lines& lines, const typename Lines::State& mine, int64_t row,
                                 typename Lines::Sum (&sums)[Lines::kVector]) {
  using T = typename Lines::T;
  using Sum = typename Lines::Sum;
  CONVGRAD_UNROLL
  for (int i = 0; i < Lines::kVector; ++i) sums[i] = 0;
  const T* line = Opaque(mine.x + row * lines.task.x_walk);
  const uint32_t inner = static_cast<uint32_t>(lines.form.inner);
  CONVGRAD_UNROLL
  for (int q = 0; q < Lines::kMidReads; ++q) {
    CONVGRAD_UNROLL
    for (int i = 0; i < Lines::kReads; ++i) {
      const T* from = line + static_cast<uint32_t>(mine.offsets[i]);
      constexpr int kBatch = Lines::kReadTaps < 4 ? Lines::kReadTaps : 4;
      CONVGRAD_UNROLL
      for (int first = 0; first < Lines::kReadTaps; first += kBatch) {
        Piece<T, Lines::kPiece> pieces[kBatch] = {};
        CONVGRAD_UNROLL
        for (int t = 0; t < kBatch; ++t) {
          if (WeightOf<Lines>(mine, q, i, first + t) != Sum(0)) pieces[t].Read(from);
          from = Opaque(from + inner);
        }
        CONVGRAD_UNROLL
        for (int t = 0; t < kBatch; ++t) {
          AddPiece<Lines>(pieces[t], i, WeightOf<Lines>(mine, q, i, first + t), sums);
        }
      }
    }
    if (q + 1 < Lines::kMidReads) line = Opaque(line + lines.task.x_mid);
  }
}

// The same for any number of taps, whose weights are read as well.
template <typename Lines>
CONVGRAD_DEVICE void CombineAny(const Lines& lines, const typename Lines::State& mine, int64_t row,
                                typename Lines::Sum (&sums)[Lines::kVector]) {
  using T = typename Lines::T;
  using Sum = typename Lines::Sum;
  CONVGRAD_UNROLL
  for (int i = 0; i < Lines::kVector; ++i) sums[i] = 0;
  constexpr int kBatch = Lines::kStrip ? 1 : Lines::kReads > 1 ? 2 : 4;
  const T* line = Opaque(mine.x + row * lines.task.x_walk);
  const uint32_t inner = static_cast<uint32_t>(lines.form.inner);
  const int mid_taps = lines.task.mid.resampled ? static_cast<int>(lines.task.mid.taps) : 1;
  const int taps = Lines::kStrip ? 1 : lines.WidthTaps();
  CONVGRAD_ROLLED
  for (int q = 0; q < mid_taps; ++q, line = Opaque(line + lines.task.x_mid)) {
    const Sum mid_weight =
        lines.task.mid.resampled ? WeightAt<Sum>(lines.task.mid, mine.mid, q) : Sum(1);
    if (mid_weight == Sum(0)) continue;
    CONVGRAD_ROLLED
    for (int first = 0; first < taps; first += kBatch) {
      Sum weights[Lines::kReads][kBatch];
      Piece<T, Lines::kPiece> pieces[Lines::kReads][kBatch];
      CONVGRAD_UNROLL
      for (int i = 0; i < Lines::kReads; ++i) {
        CONVGRAD_UNROLL
        for (int t = 0; t < kBatch; ++t) {
          weights[i][t] = Lines::kStrip ? Sum(1) : lines.WidthWeight(mine.columns[i], first + t);
        }
      }
      // All weights are tested before the first read, so that no read is waited for together with a
      // weight.
      int there = 0;
      CONVGRAD_UNROLL
      for (int i = 0; i < Lines::kReads * kBatch; ++i) {
        there |= (weights[i / kBatch][i % kBatch] != Sum(0) ? 1 : 0) << i;
      }
      there = Opaque(there);
      CONVGRAD_UNROLL
      for (int i = 0; i < Lines::kReads; ++i) {
        const T* from =
            line + static_cast<uint32_t>(mine.offsets[i]) + static_cast<uint32_t>(first) * inner;
        CONVGRAD_UNROLL
        for (int t = 0; t < kBatch; ++t) {
          pieces[i][t] = {};
          if ((there >> (i * kBatch + t) & 1) != 0) pieces[i][t].Read(from);
          if (t + 1 < kBatch) from = Opaque(from + inner);
        }
      }
      CONVGRAD_UNROLL
      for (int i = 0; i < Lines::kReads; ++i) {
        CONVGRAD_UNROLL
        for (int t = 0; t < kBatch; ++t) {
          AddPiece<Lines>(pieces[i][t], i, mid_weight * weights[i][t], sums);
        }
      }
    }
  }
}

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_TAPS_CUH_
