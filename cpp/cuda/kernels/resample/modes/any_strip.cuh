// kStrip where the middle axis is resampled as well: a thread's elements of x are single ones, read
// when they are added, in as many lines as there are taps along the middle axis.
//
// Chosen, of the strips, where no other serves: three axes of which the last two shrink. Reads:
// each element of x once for each row of the middle axis that it has a weight in, from the caches.
//
//   Block: 128 to 256 threads. Shared memory: the tables, the columns' weights and two rows of
//   sums. Registers: 64, with many rows 116 to 119; four or two blocks of 256 on a multiprocessor.
//   Bound: the issue of reads. Not among the measured cases.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_ANY_STRIP_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_ANY_STRIP_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"
#include "cuda/kernels/resample/modes/strip.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename Element, int kRows>
struct AnyStrip : ModeDefaults {
  using T = Element;
  using Sum = typename SumOf<T>::Type;
  static constexpr int kVector = kRows <= 4 && sizeof(T) < 8 ? 8 : 16 / sizeof(Sum);
  static constexpr int kAlign = 1;
  static constexpr bool kFetches = false;
  static constexpr int kAhead = 1;
  static constexpr int kBlocks =
      BlocksThatHold(kVector * Piece<T, 1>::kWords + kRows * kVector, sizeof(Sum));
  static constexpr bool kFits = false;

  Line<T> line;
  StripColumns<T> columns;
  int begin;  // the strip's first element, in a line of x

  CONVGRAD_DEVICE AnyStrip(const ResampleTask& task, char* shared)
      : line(task, shared), columns(line) {}

  CONVGRAD_DEVICE void Enter(const Tile& tile, int thread) {
    line.EnterLine(tile, thread, kVector);
    line.first_column = int64_t{tile.column} * line.tiling.columns;
    begin = FirstOfStrip<1>(line);
    columns.Enter(line, begin, line.tiling.line_threads * kVector);
  }

  CONVGRAD_DEVICE void Prepare(int thread) const { columns.CopyWeights(line, begin, thread); }

  CONVGRAD_DEVICE void Combine(int, int64_t row, Sum (&sums)[kVector]) const {
    const ResampleAxis& mid = line.task.mid;
#pragma unroll
    for (int i = 0; i < kVector; ++i) sums[i] = 0;
    const T* at = Opaque(line.RowOf(row));
    const int taps = mid.resampled ? static_cast<int>(mid.taps) : 1;
#pragma unroll 1
    for (int q = 0; q < taps; ++q, at = Opaque(at + line.task.x_mid)) {
      const Sum weight = mid.resampled ? WeightAt<Sum>(mid, line.mid, q) : Sum(1);
      if (weight == Sum(0)) continue;
      // Positions are computed for every line: there are no registers to keep them in.
      const int first = Opaque(begin), run = static_cast<int>(line.form.width.in * line.form.inner);
      Piece<T, 1> pieces[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        const int place = first + PlaceInStrip<1>(line, i);
        // Behind the line it is read for nothing, and not used.
        pieces[i].Read(at + static_cast<uint32_t>(place < run ? place : run - 1));
      }
#pragma unroll
      for (int i = 0; i < kVector; ++i) sums[i] += weight * pieces[i].At(0);
    }
  }

  CONVGRAD_DEVICE void Write(const Sum (&sums)[kVector]) {
    columns.Write(line, [&](Sum* to) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) to[PlaceInStrip<1>(line, i)] = sums[i];
    });
  }

  CONVGRAD_DEVICE void WriteDirectly() const { columns.WriteDirectly(line); }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_ANY_STRIP_CUH_
