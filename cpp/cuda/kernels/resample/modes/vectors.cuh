// kVectors: a thread makes a vector of the inner run of one column, 16 bytes, from whole vectors of
// x, one for each tap.
//
// Chosen where x and y lie in vectors along the inner run: channels last, or axes in front of
// others that stay. Reads: each vector of x once for each column of y that it has a weight in; all
// but the first come from the caches, because a block is as wide as high in columns and lines.
//
//   Block: 128 threads, 256 where rows and columns are only repeated. Shared memory: the tables.
//   Registers: 32 to 128; two to four blocks of 256 on a multiprocessor. Bound: memory; the issue
//   of reads from the caches where bands are long.
//   Best: 0.99 times the roofline, the gradient of an antialiased 1/32 in f32 (wide_aa); of those
//   with weights in registers 1.04, the gradient of nearest 2x in f32. Worst: 8.85, wide_aa forward
//   in f32 with channels last, whose bands have 192 taps; with weights in registers 1.47, the
//   gradient of cubic 4x in bf16.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_VECTORS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_VECTORS_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"
#include "cuda/kernels/resample/modes/taps.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename Element, bool kGrow, int kRows, int kTaps, int kMid>
struct Vectors : ModeDefaults {
  using T = Element;
  using Sum = typename SumOf<T>::Type;
  static constexpr int kVector = 16 / sizeof(T), kAlign = kVector;
  using Reads = Taps<T, 1, kVector, kTaps, kMid>;
  static constexpr bool kGathers = true, kFetches = Reads::kFetches;
  static constexpr int kAhead = 1;
  static constexpr int kBlocks =
      BlocksThatHold(Reads::Held(kRows), sizeof(Sum), sizeof(T) == 4 ? 28 : 24);

  Line<T> line;
  Reads reads;

  CONVGRAD_DEVICE Vectors(const ResampleTask& task, char* shared) : line(task, shared) {}

  CONVGRAD_DEVICE void Enter(const Tile& tile, int thread) {
    line.EnterLine(tile, thread, kVector);
    reads.Enter(line);
    const ResampleTiling& tiling = line.tiling;
    const int inner = static_cast<int>(line.form.inner);
    line.first_column = int64_t{tile.column} * tiling.columns;
    const int64_t column =
        line.Clamp(line.first_column + line.lane / tiling.vectors, line.form.width.out);
    const int64_t channel =
        line.Clamp(int64_t{tile.channel} * tiling.vectors + line.lane % tiling.vectors,
                   inner / kVector) *
        kVector;
    reads.ReadFrom(line, 0, column, channel);
    line.y += column * inner + channel;
  }

  CONVGRAD_DEVICE void Fetch(int, const T* row) { reads.Fetch(line, row); }

  CONVGRAD_DEVICE void Combine(int, int64_t row, Sum (&sums)[kVector]) const {
    reads.Combine(line, row, sums);
  }

  CONVGRAD_DEVICE void Write(const Sum (&sums)[kVector]) {
    T* const to = line.NextRow();
    if (line.owned > 0) StoreSums<kGrow>(sums, to);
  }
};

template <typename T, int kRow>
struct ModeOf<ResampleLoad::kVectors, T, kRow> {
  static constexpr ResampleRow kOf = kResampleRows[kRow];
  using Type = Vectors<T, kOf.grow, kOf.rows, kOf.taps, kOf.mid>;
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_VECTORS_CUH_
