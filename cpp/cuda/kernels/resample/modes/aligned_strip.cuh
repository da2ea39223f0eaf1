// kStrip where lines of x are aligned: a thread's elements of x are pieces of up to 16 bytes, read
// from memory into registers several rows ahead.
//
// Chosen, of the strips, where a piece begins wherever a line does. Reads: each piece of x once;
// strips of neighboring blocks overlap by the reach of a band.
//
//   Block: 128 to 224 threads. Shared memory: the tables, the columns' weights and two rows of
//   sums, 20 to 47 KB in the measured cases. Registers: 72 to 121; two or three blocks of 256 on a
//   multiprocessor. Bound: memory, and with many taps the columns' reads of shared memory.
//   Best: 1.49 times the roofline, antialiased linear downsampling in f32 with channels last.
//   Worst: 1.69, antialiased 1/32 in f32 with channels first (wide_aa).

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_ALIGNED_STRIP_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_ALIGNED_STRIP_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"
#include "cuda/kernels/resample/modes/strip.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename Element, int kRows>
struct AlignedStrip : ModeDefaults {
  using T = Element;
  using Sum = typename SumOf<T>::Type;
  // Fewer where many rows would take too many registers.
  static constexpr int kVector = kRows <= 6 ? 8 : 16 / sizeof(Sum);
  static constexpr int kPiece = kVector * sizeof(T) > 16 ? 16 / sizeof(T) : kVector;
  static constexpr int kAlign = kPiece, kReads = kVector / kPiece;
  static constexpr int kRowWords = kReads * Piece<T, kPiece>::kWords;
  static constexpr bool kFetches = true;
  // When rows of strips were copied and synchronized by twos, gradients of linear upsampling took
  // 1.5 instead of 1.4 times the memory roofline on an H100, or 1.7 instead of 1.4 where threads
  // have 12 elements; by fours, 2.4.
  static constexpr int kAhead = kRowWords <= 4 ? 4 : 2;
  static constexpr int kBlocks =
      BlocksThatHold(kAhead * kRowWords + kRows * kVector + kReads, sizeof(Sum));
  static constexpr bool kFits = false;
  static constexpr bool kAddsAsRead = sizeof(T) == sizeof(Sum);

  Line<T> line;
  StripColumns<T> columns;
  int offsets[kReads];  // in a line of x
  Piece<T, kPiece> pieces[kAhead][kReads];

  CONVGRAD_DEVICE AlignedStrip(const ResampleTask& task, char* shared)
      : line(task, shared), columns(line) {}

  CONVGRAD_DEVICE void Enter(const Tile& tile, int thread) {
    line.EnterLine(tile, thread, kVector);
    line.first_column = int64_t{tile.column} * line.tiling.columns;
    const int begin = FirstOfStrip<kPiece>(line);
    const int run = static_cast<int>(line.form.width.in) * static_cast<int>(line.form.inner);
#pragma unroll
    for (int u = 0; u < kReads; ++u) {
      const int at = begin + PlaceInStrip<kPiece>(line, u * kPiece);
      offsets[u] = at < run ? at : run - kPiece;  // read for nothing, not used
    }
    columns.Enter(line, begin, line.tiling.line_threads * kVector);
  }

  CONVGRAD_DEVICE void Prepare(int thread) const {
    columns.CopyWeights(line, FirstOfStrip<kPiece>(line), thread);
  }

  CONVGRAD_DEVICE void Fetch(int slot, const T* row) {
    const T* const at = Opaque(row);
#pragma unroll
    for (int i = 0; i < kReads; ++i) {
      pieces[slot][i].Read(at + static_cast<uint32_t>(offsets[i]));
    }
  }

  // Only of many taps, see ResampleTiling.
  CONVGRAD_DEVICE void Bring(const T* row) const {
    if constexpr (sizeof(T) >= 4) {
      if (line.tiling.rows_ahead > 0) line.Bring(row + static_cast<uint32_t>(offsets[0]));
    }
  }

  CONVGRAD_DEVICE void Combine(int slot, int64_t, Sum (&sums)[kVector]) const {
#pragma unroll
    for (int i = 0; i < kVector; ++i) sums[i] = pieces[slot][i / kPiece].At(i % kPiece);
  }

  CONVGRAD_DEVICE void Write(const Sum (&sums)[kVector]) {
    columns.Write(line, [&](Sum* to) {
      constexpr int kPack = kPiece % kSumPack<Sum> == 0 ? kSumPack<Sum> : 1;
#pragma unroll
      for (int i = 0; i < kVector; i += kPack) {
        Sum pack[kPack];
#pragma unroll
        for (int k = 0; k < kPack; ++k) pack[k] = sums[i + k];
        StoreShared(pack, to + PlaceInStrip<kPiece>(line, i));
      }
    });
  }

  CONVGRAD_DEVICE void WriteDirectly() const { columns.WriteDirectly(line); }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_ALIGNED_STRIP_CUH_
