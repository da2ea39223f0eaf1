// kWindow: columns that each start the same number of columns of x further on. A thread reads the
// vectors that contain its columns' starts, eight elements, and the few elements beside them that
// its taps reach.
//
// Chosen where the columns of x are a whole multiple of those of y, in aligned lines of one
// channel: gradients of upsampling by whole numbers. Bands that are not alike, or reach further
// than kTaps, are made directly. Reads: each vector once, the elements beside it from the caches.
//
//   Block: 128 or 256 threads. Shared memory: the tables. Registers: 78 to 104; two or three blocks
//   of 256 on a multiprocessor. Bound: memory.
//   Best: 1.05 times the roofline, the gradient of nearest 2x in f32. Worst: 1.60, the gradient of
//   cubic 4x in bf16.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_WINDOW_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_WINDOW_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename Element, bool kGrow, int kRows, int kStep, int kTaps, int kMid>
struct Window : ModeDefaults {
  using T = Element;
  using Sum = typename SumOf<T>::Type;
  // The columns of x of all of a thread's outputs, which are aligned; and those in front of them,
  // and behind, that its taps reach as well.
  static constexpr int kCore = 8, kMargin = (kTaps - kStep) / 2;
  static constexpr int kVector = kCore / kStep, kAlign = kVector;
  static constexpr int kPiece = 16 / sizeof(T), kCorePieces = kCore / kPiece;
  // Wide margins are read like the cores that they belong to.
  static constexpr bool kWide = kMargin > 2;
  static constexpr int kSingles = kWide ? 0 : kMargin;
  static constexpr int kPieces = kWide ? 3 * kCorePieces : kCorePieces;
  static constexpr int kBefore = kWide ? kCore : 0;
  static constexpr int kRowWords = kMid * (4 * kPieces + 2 * kSingles);
  static constexpr bool kFetches = FitsRegisters(kRowWords);
  static constexpr int kAhead = !kFetches || kRowWords > 16 ? 1 : kRowWords <= 4 ? 4 : 2;
  static constexpr int kBlocks =
      BlocksThatHold(kAhead * kRowWords + kRows * kVector + kVector * kTaps, sizeof(Sum));
  // Rows are not prefetched: the gradient of 2x linear upsampling took 1.6 instead of 1.2 times the
  // roofline.
  static constexpr bool kFits = false;

  Line<T> line;
  int begin;        // the first column of x of its core
  bool margins[2];  // whether there are columns in front, and behind
  Sum weights[kVector][kTaps];
  Sum mid_weights[kMid];
  Piece<T, kPiece> core[kAhead][kMid][kPieces];
  Piece<T, 1> margin[kAhead][kMid][2 * kSingles + 1];

  CONVGRAD_DEVICE Window(const ResampleTask& task, char* shared) : line(task, shared) {}

  CONVGRAD_DEVICE void Enter(const Tile& tile, int thread) {
    line.EnterLine(tile, thread, kVector);
    line.ReadMidWeights(mid_weights);
    const ResampleAxis& width = line.form.width;
    const int first = (tile.column * line.tiling.line_threads + line.lane) * kVector;
    const int column = static_cast<int>(line.Clamp(first, width.out) / kVector * kVector);
    begin = column * kStep;
    const int in = static_cast<int>(width.in), taps = static_cast<int>(width.taps);
    margins[0] = begin > 0;
    margins[1] = begin + kCore < in;
    line.y += column;
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      // The first column of x that has a weight here, counted from where the band begins.
      const int start = ClampedStart(width, column + k);
      const int shift = begin + k * kStep - kMargin - start;
      int left = CountWeights<Sum>(width, column + k);
#pragma unroll
      for (int t = 0; t < kTaps; ++t) {
        const int tap = shift + t, at = start + tap;
        const Sum weight = tap >= 0 && tap < taps ? WeightAt<Sum>(width, column + k, tap) : Sum(0);
        weights[k][t] = weight;
        left -= weight != Sum(0);
        // Elements without a weight must not be read, but here all of them are.
        if (weight == Sum(0) && at >= 0 && at < in) line.misfit = true;
      }
      if (left != 0) line.misfit = true;
    }
  }

  CONVGRAD_DEVICE void Fetch(int slot, const T* row) {
    if constexpr (kFetches) Read(slot, row);
  }

  CONVGRAD_DEVICE void Combine(int slot, int64_t row, Sum (&sums)[kVector]) {
    if constexpr (!kFetches) Read(slot, line.RowOf(row));
    // The middle axis first, because this makes fewer sums: the gradient of 2x upsampling along
    // three axes took 1.32 instead of 1.36 times the memory roofline on an H100.
    Sum values[kCore + 2 * kMargin];
#pragma unroll
    for (int i = 0; i < kCore + 2 * kMargin; ++i) {
      const int at = i - kMargin + kBefore;  // in the pieces
      values[i] = 0;
#pragma unroll
      for (int q = 0; q < kMid; ++q) {
        Sum value;
        if (kWide || (i >= kMargin && i < kMargin + kCore)) {
          value = core[slot][q][at / kPiece].At(at % kPiece);
        } else {
          value = margin[slot][q][i < kMargin ? i : i - kCore].At(0);
        }
        values[i] = kMid == 1 ? value : values[i] + mid_weights[q] * value;
      }
    }
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      sums[k] = 0;
#pragma unroll
      for (int t = 0; t < kTaps; ++t) sums[k] += weights[k][t] * values[k * kStep + t];
    }
  }

  CONVGRAD_DEVICE void Write(const Sum (&sums)[kVector]) {
    T* const to = line.NextRow();
    if (line.owned > 0) StoreSums<kGrow>(sums, to);
  }

  CONVGRAD_DEVICE void WriteDirectly() const { line.WriteEach(begin / kStep, 0, 0, 1, line.owned); }

 private:
  CONVGRAD_DEVICE void Read(int slot, const T* row) {
    const T* at = row + begin;
#pragma unroll
    for (int q = 0; q < kMid; ++q) {
      at = Opaque(at);
      const bool there = kMid == 1 || mid_weights[q] != Sum(0);
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        const int from = i * kPiece - kBefore;
        Piece<T, kPiece> piece{};
        if (there && (from >= 0 || margins[0]) && (from < kCore || margins[1])) {
          piece.Read(at + from);
        }
        core[slot][q][i] = piece;
      }
#pragma unroll
      for (int side = 0; side < 2; ++side) {
#pragma unroll
        for (int i = 0; i < kSingles; ++i) {
          Piece<T, 1> piece{};
          const int from = side == 0 ? i - kMargin : kCore + i;
          if (there && margins[side]) piece.Read(at + from);
          margin[slot][q][side * kSingles + i] = piece;
        }
      }
      at += line.task.x_mid;
    }
  }
};

template <typename T, int kRow>
struct ModeOf<ResampleLoad::kWindow, T, kRow> {
  static constexpr ResampleRow kOf = kResampleRows[kRow];
  using Type = Window<T, kOf.grow, kOf.rows, kOf.step, kOf.taps, kOf.mid>;
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_WINDOW_CUH_
