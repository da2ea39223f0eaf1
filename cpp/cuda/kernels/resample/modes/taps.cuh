// Reads of x that begin anywhere, and the taps along the width that follow each: what kVectors,
// kElements and kShifted have in common.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_TAPS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_TAPS_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// kReads: reads that begin somewhere else, of kPiece elements each. kTaps and kMid: as many taps
// along the width and along the middle axis have their weights in registers, and are read ahead if
// there is room; with kTaps of 0, there may be any number.
template <typename T, int kReads, int kPiece, int kTaps, int kMid>
struct Taps {
  using Sum = typename SumOf<T>::Type;
  static constexpr int kVector = kReads * kPiece;
  static constexpr bool kAny = kTaps == 0;
  static constexpr int kReadTaps = kAny ? 1 : kTaps, kMidReads = kAny ? 1 : kMid;
  static constexpr int kRowWords = kMidReads * kReads * kReadTaps * Piece<T, kPiece>::kWords;
  static constexpr bool kFetches = !kAny && FitsRegisters(kRowWords);
  // Numbers that a thread keeps: a row ahead, `rows` rows of sums, the weights.
  static constexpr int Held(int rows) {
    return kRowWords + rows * kVector + (kFetches ? kReads * kReadTaps : 0);
  }

  int offsets[kReads];      // in a line of x
  int64_t columns[kReads];  // of y
  Sum weights[kReads][kReadTaps];
  Sum mid_weights[kMidReads];
  Piece<T, kPiece> pieces[kFetches ? kMidReads : 1][kReads][kFetches ? kReadTaps : 1];

  CONVGRAD_DEVICE void Enter(const Line<T>& line) {
    if constexpr (!kAny) line.ReadMidWeights(mid_weights);
  }

  // A read begins at a column and an element of its inner run.
  CONVGRAD_DEVICE void ReadFrom(const Line<T>& line, int read, int64_t column, int64_t channel) {
    columns[read] = column;
    offsets[read] = static_cast<int>(line.WidthStart(column) * line.form.inner + channel);
    if constexpr (!kAny) {
#pragma unroll
      for (int t = 0; t < kReadTaps; ++t) weights[read][t] = line.WidthWeight(column, t);
    }
  }

  // Reads a row of x for later, if all of its taps have room.
  CONVGRAD_DEVICE void Fetch(const Line<T>& line, const T* row) {
    if constexpr (kFetches) {
      const T* at = Opaque(row);
      const uint32_t inner = static_cast<uint32_t>(line.form.inner);
#pragma unroll
      for (int q = 0; q < kMidReads; ++q) {
#pragma unroll
        for (int i = 0; i < kReads; ++i) {
          const T* from = at + static_cast<uint32_t>(offsets[i]);
#pragma unroll
          for (int t = 0; t < kReadTaps; ++t) {
            Piece<T, kPiece> piece{};
            if (WeightOf(q, i, t) != Sum(0)) piece.Read(from);
            pieces[q][i][t] = piece;
            if (t + 1 < kReadTaps) from = Opaque(from + inner);
          }
        }
        if (q + 1 < kMidReads) at = Opaque(at + line.task.x_mid);
      }
    }
  }

  // The thread's elements of a row, its columns and the middle axis combined.
  CONVGRAD_DEVICE void Combine(const Line<T>& line, int64_t row, Sum (&sums)[kVector]) const {
#pragma unroll
    for (int i = 0; i < kVector; ++i) sums[i] = 0;
    if constexpr (kAny) {
      CombineAny(line, row, sums);
    } else if constexpr (!kFetches) {
      CombineRead(line, row, sums);
    } else {
#pragma unroll
      for (int q = 0; q < kMidReads; ++q) {
#pragma unroll
        for (int i = 0; i < kReads; ++i) {
#pragma unroll
          for (int t = 0; t < kReadTaps; ++t) {
            AddPiece(pieces[q][i][t], i, WeightOf(q, i, t), sums);
          }
        }
      }
    }
  }

 private:
  CONVGRAD_DEVICE Sum WeightOf(int q, int i, int t) const {
    if constexpr (kMidReads == 1) return weights[i][t];
    return mid_weights[q] * weights[i][t];
  }

  CONVGRAD_DEVICE static void AddPiece(const Piece<T, kPiece>& piece, int read, Sum weight,
                                       Sum (&sums)[kVector]) {
#pragma unroll
    for (int p = 0; p < kPiece; ++p) sums[read * kPiece + p] += weight * piece.At(p);
  }

  // A row with more taps than could be fetched, which is read now.
  CONVGRAD_DEVICE void CombineRead(const Line<T>& line, int64_t row, Sum (&sums)[kVector]) const {
    const T* at = Opaque(line.x + row * line.task.x_walk);
    const uint32_t inner = static_cast<uint32_t>(line.form.inner);
#pragma unroll
    for (int q = 0; q < kMidReads; ++q) {
#pragma unroll
      for (int i = 0; i < kReads; ++i) {
        const T* from = at + static_cast<uint32_t>(offsets[i]);
        constexpr int kBatch = kReadTaps < 4 ? kReadTaps : 4;
#pragma unroll
        for (int first = 0; first < kReadTaps; first += kBatch) {
          Piece<T, kPiece> some[kBatch] = {};
#pragma unroll
          for (int t = 0; t < kBatch; ++t) {
            if (WeightOf(q, i, first + t) != Sum(0)) some[t].Read(from);
            from = Opaque(from + inner);
          }
#pragma unroll
          for (int t = 0; t < kBatch; ++t) {
            AddPiece(some[t], i, WeightOf(q, i, first + t), sums);
          }
        }
      }
      if (q + 1 < kMidReads) at = Opaque(at + line.task.x_mid);
    }
  }

  // The same for any number of taps, whose weights are read as well.
  CONVGRAD_DEVICE void CombineAny(const Line<T>& line, int64_t row, Sum (&sums)[kVector]) const {
    constexpr int kBatch = kReads > 1 ? 2 : 4;
    const ResampleAxis& mid_axis = line.task.mid;
    const T* at = Opaque(line.x + row * line.task.x_walk);
    const uint32_t inner = static_cast<uint32_t>(line.form.inner);
    const int mid_taps = mid_axis.resampled ? static_cast<int>(mid_axis.taps) : 1;
    const int taps = line.WidthTaps();
#pragma unroll 1
    for (int q = 0; q < mid_taps; ++q, at = Opaque(at + line.task.x_mid)) {
      const Sum mid_weight = mid_axis.resampled ? WeightAt<Sum>(mid_axis, line.mid, q) : Sum(1);
      if (mid_weight == Sum(0)) continue;
#pragma unroll 1
      for (int first = 0; first < taps; first += kBatch) {
        Sum some_weights[kReads][kBatch];
        Piece<T, kPiece> some[kReads][kBatch];
#pragma unroll
        for (int i = 0; i < kReads; ++i) {
#pragma unroll
          for (int t = 0; t < kBatch; ++t) {
            some_weights[i][t] = line.WidthWeight(columns[i], first + t);
          }
        }
        // All weights are tested before the first read, so that no read is waited for together with
        // a weight.
        int there = 0;
#pragma unroll
        for (int i = 0; i < kReads * kBatch; ++i) {
          there |= (some_weights[i / kBatch][i % kBatch] != Sum(0) ? 1 : 0) << i;
        }
        there = Opaque(there);
#pragma unroll
        for (int i = 0; i < kReads; ++i) {
          const T* from =
              at + static_cast<uint32_t>(offsets[i]) + static_cast<uint32_t>(first) * inner;
#pragma unroll
          for (int t = 0; t < kBatch; ++t) {
            some[i][t] = {};
            if ((there >> (i * kBatch + t) & 1) != 0) some[i][t].Read(from);
            if (t + 1 < kBatch) from = Opaque(from + inner);
          }
        }
#pragma unroll
        for (int i = 0; i < kReads; ++i) {
#pragma unroll
          for (int t = 0; t < kBatch; ++t) {
            AddPiece(some[i][t], i, mid_weight * some_weights[i][t], sums);
          }
        }
      }
    }
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_TAPS_CUH_
