// kSpread: columns of x that each become as many of y. A thread reads the vector that its columns
// lie on and one element on either side, and writes a vector.
//
// Chosen in aligned lines of one channel with elements of 2 bytes, where rows and columns grow by a
// whole factor. Reads: each vector once, the elements beside it from the caches.
//
//   Block: 128 threads. Shared memory: the tables. Registers: 64 to 80; three or four blocks of 256
//   on a multiprocessor. Bound: memory, once the first rows are there (BringFirst).
//   Best: 1.16 times the roofline, nearest 2x forward in bf16. Worst: 1.52, unet2x forward in bf16.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_SPREAD_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_SPREAD_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename Element, int kRows, int kStep, int kTaps, int kMid>
struct Spread : ModeDefaults {
  using T = Element;
  using Sum = typename SumOf<T>::Type;
  static constexpr int kVector = 16 / sizeof(T), kAlign = kVector;
  // Columns of x that a thread's outputs lie on, and those beside them that taps reach.
  static constexpr int kBase = kVector / kStep, kBeside = kTaps / 2;
  static_assert(kBase > 0 && kBeside <= 1, "one column beside is read");
  static constexpr int kValues = kBase + 2 * kBeside;
  static constexpr int kRowWords = kMid * (Piece<T, kBase>::kWords + 2 * kBeside);
  static_assert(FitsRegisters(kRowWords), "rows are read ahead");
  static constexpr bool kFetches = true;
  static constexpr int kAhead = 1;
  static constexpr int kBlocks =
      BlocksThatHold(kRowWords + kRows * kVector + kVector * kTaps, sizeof(Sum));
  static constexpr bool kFits = false;
  static constexpr bool kWeightsAhead = kTaps == 2 && kMid == 1;

  Line<T> line;
  int begin;      // its first column of x
  bool there[2];  // whether there are columns in front, and behind
  Sum weights[kVector][kTaps];
  Sum mid_weights[kMid];
  Piece<T, kBase> base[kMid];
  Piece<T, 1> beside[kMid][2 * kBeside + 1];

  CONVGRAD_DEVICE Spread(const ResampleTask& task, char* shared) : line(task, shared) {}

  CONVGRAD_DEVICE void Enter(const Tile& tile, int thread) {
    line.EnterLine(tile, thread, kVector);
    line.ReadMidWeights(mid_weights);
    const ResampleAxis& width = line.form.width;
    const int first = (tile.column * line.tiling.line_threads + line.lane) * kVector;
    const int column = static_cast<int>(line.Clamp(first, width.out) / kVector * kVector);
    begin = column / kStep;
    const int in = static_cast<int>(width.in), taps = static_cast<int>(width.taps);
    there[0] = begin > 0;
    there[1] = begin + kBase < in;
    line.y += column;
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      const int start = ClampedStart(width, column + k);
      const int shift = begin - kBeside + First(k) - start;
      int left = CountWeights<Sum>(width, column + k);
#pragma unroll
      for (int t = 0; t < kTaps; ++t) {
        const int tap = shift + t;
        const Sum weight = tap >= 0 && tap < taps ? WeightAt<Sum>(width, column + k, tap) : Sum(0);
        weights[k][t] = weight;
        left -= weight != Sum(0);
      }
      if (left != 0) line.misfit = true;
    }
    BringFirst(tile.column);
  }

  CONVGRAD_DEVICE void Fetch(int, const T* row) {
    const T* at = row + begin;
#pragma unroll
    for (int q = 0; q < kMid; ++q) {
      at = Opaque(at);
      const bool read = kMid == 1 || mid_weights[q] != Sum(0);
      Piece<T, kBase> some{};
      if (read) some.Read(at);
      base[q] = some;
#pragma unroll
      for (int i = 0; i < 2 * kBeside; ++i) {
        Piece<T, 1> piece{};
        if (read && there[i < kBeside ? 0 : 1]) {
          piece.Read(at + (i < kBeside ? i - kBeside : kBase + i - kBeside));
        }
        beside[q][i] = piece;
      }
      at += line.task.x_mid;
    }
  }

  CONVGRAD_DEVICE void Combine(int, int64_t, Sum (&sums)[kVector]) const {
    Sum values[kValues];
    Sum probe = 0;  // not a number if a value is not finite
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      values[i] = 0;
#pragma unroll
      for (int q = 0; q < kMid; ++q) {
        Sum value;
        if (i < kBeside) {
          value = beside[q][i].At(0);
        } else if (i < kBeside + kBase) {
          value = base[q].At(i - kBeside);
        } else {
          value = beside[q][i - kBase].At(0);
        }
        values[i] = kMid == 1 ? value : values[i] + mid_weights[q] * value;
      }
      probe += Sum(0) * values[i];
    }
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      sums[k] = 0;
#pragma unroll
      for (int t = 0; t < kTaps; ++t) sums[k] += weights[k][t] * values[First(k) + t];
    }
    if (probe == Sum(0)) return;
    // A zero weight may be the cause: once more without zero weights.
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      sums[k] = 0;
#pragma unroll
      for (int t = 0; t < kTaps; ++t) {
        if (weights[k][t] == Sum(0)) continue;
        sums[k] += weights[k][t] * values[First(k) + t];
      }
    }
  }

  CONVGRAD_DEVICE void Write(const Sum (&sums)[kVector]) {
    T* const to = line.NextRow();
    if (line.owned > 0) StoreSums<true>(sums, to);
  }

  CONVGRAD_DEVICE void WriteDirectly() const {
    line.WriteEach(begin * int64_t{kStep}, 0, 0, 1, line.owned);
  }

 private:
  // The first column of x, counted from kBeside in front of the thread's first, that its k-th
  // output may reach with kTaps: with an even number, those of the second half of a column's
  // outputs reach further on.
  CONVGRAD_DEVICE static constexpr int First(int k) {
    return k / kStep + (kTaps % 2 == 0 && k % kStep >= kStep / 2 ? 1 : 0);
  }

  // Prefetches the rows of x that the walk begins with while tables are read: as many as there are
  // threads for, a cache line each. All blocks may begin at once, and would leave memory idle until
  // they have their tables. Times the memory roofline on an H100: 1.18 instead of 1.35.
  CONVGRAD_DEVICE void BringFirst(int column_tile) const {
    constexpr int kCacheLine = 128 / static_cast<int>(sizeof(T));
    const int columns = line.tiling.line_threads * kBase, from = column_tile * columns;
    const int here = static_cast<int>(Min(columns, line.form.width.in - from));
    const int pieces = (here + kCacheLine - 1) / kCacheLine;
    const int64_t in = line.task.walk.in, out = line.task.walk.out;
    const int first = Max(0, static_cast<int>(line.first_row * in / out) - 1);
    const int64_t end = Min(in, (line.first_row + line.rows) * in / out + 2);
    const int row = first + line.lane / pieces;
    if (row < end) BringCloser(line.RowOf(row) + from + line.lane % pieces * kCacheLine);
  }
};

template <typename T, int kRow>
struct ModeOf<ResampleLoad::kSpread, T, kRow> {
  static constexpr ResampleRow kOf = kResampleRows[kRow];
  using Type = Spread<T, kOf.rows, kOf.step, kOf.taps, kOf.mid>;
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_SPREAD_CUH_
