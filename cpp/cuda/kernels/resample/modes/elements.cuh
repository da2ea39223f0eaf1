// kElements: a thread makes a few elements, 16 bytes of sums, each from reads of its own.
//
// Chosen where a few elements of x become many of y and nothing better serves: short inner runs,
// lines that no other mode is made for. Aligned lines of y are written as vectors, of neighboring
// elements; elsewhere a thread's elements are a line's threads apart, so that a warp writes
// neighbors. Reads: each element of x once for each of y that it has a weight in, nearly all from
// the caches.
//
//   Block: 96 or 128 threads. Shared memory: the tables. Registers: 45 to 128; two to four blocks
//   of 256 on a multiprocessor. Bound: the issue of reads, and of writes of single elements.
//   Best: 1.04 times the roofline, the gradient of an antialiased 1/32 of 3 channels in f32
//   (wide_aa3). Worst: 2.13, odd_scale forward in bf16 with channels first, lines of 301.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_ELEMENTS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_ELEMENTS_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"
#include "cuda/kernels/resample/modes/taps.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// What kElements and kStaged have in common: where a thread's elements are in a line of y.
template <typename T, bool kPacked>
struct Spots {
  using Sum = typename SumOf<T>::Type;
  static constexpr int kVector = 16 / sizeof(Sum);

  // Calls read(i, column, channel) of each; those behind the line repeat its last one.
  template <typename Read>
  CONVGRAD_DEVICE static int Enter(Line<T>& line, const Tile& tile, const Read& read) {
    const int inner = static_cast<int>(line.form.inner);
    const int run = static_cast<int>(line.form.width.out) * inner;
    const int first =
        (tile.column * line.tiling.line_threads + (kPacked ? line.lane : 0)) * kVector +
        (kPacked ? 0 : line.lane);
    line.y += first;
    int owned = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      int element = first + (kPacked ? i : i * line.tiling.line_threads);
      if (element < run) {
        ++owned;
      } else {
        element = run - 1;
      }
      read(i, element / inner, element % inner);
    }
    line.owned = line.owned == 0 ? 0 : owned;
    return first;
  }

  template <bool kPast>
  CONVGRAD_DEVICE static void Write(Line<T>& line, const Sum (&sums)[kVector]) {
    T* const to = line.NextRow();
    if constexpr (kPacked) {
      if (line.owned > 0) StoreSums<kPast>(sums, to);
    } else {
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        if (i < line.owned) FromSum(sums[i], to[i * line.tiling.line_threads]);
      }
    }
  }
};

template <typename Element, bool kPacked, bool kGrow, int kRows, int kTaps, int kMid>
struct Elements : ModeDefaults {
  using T = Element;
  using Sum = typename SumOf<T>::Type;
  using Mine = Spots<T, kPacked>;
  static constexpr int kVector = Mine::kVector, kAlign = kPacked ? kVector : 1;
  using Reads = Taps<T, kVector, 1, kTaps, kMid>;
  static constexpr bool kGathers = true, kFetches = Reads::kFetches;
  static constexpr int kAhead = 1;
  static constexpr int kBlocks = BlocksThatHold(Reads::Held(kRows), sizeof(Sum));

  Line<T> line;
  Reads reads;

  CONVGRAD_DEVICE Elements(const ResampleTask& task, char* shared) : line(task, shared) {}

  CONVGRAD_DEVICE void Enter(const Tile& tile, int thread) {
    line.EnterLine(tile, thread, kVector);
    reads.Enter(line);
    Mine::Enter(line, tile,
                [&](int i, int column, int channel) { reads.ReadFrom(line, i, column, channel); });
  }

  CONVGRAD_DEVICE void Fetch(int, const T* row) { reads.Fetch(line, row); }

  CONVGRAD_DEVICE void Combine(int, int64_t row, Sum (&sums)[kVector]) const {
    reads.Combine(line, row, sums);
  }

  CONVGRAD_DEVICE void Write(const Sum (&sums)[kVector]) {
    Mine::template Write<kGrow>(line, sums);
  }
};

template <typename T, int kRow>
struct ModeOf<ResampleLoad::kElements, T, kRow> {
  static constexpr ResampleRow kOf = kResampleRows[kRow];
  using Type = Elements<T, kOf.aligned, kOf.grow, kOf.rows, kOf.taps, kOf.mid>;
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_ELEMENTS_CUH_
