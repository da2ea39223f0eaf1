// kStaged: kElements, from rows of x in shared memory.
//
// Chosen where bands have more than four taps, or rings more than four rows, and the inner run is
// short: then a thread reads the same elements many times, at addresses that caches serve slowly.
// Reads: each row of x once, in pieces of 16 bytes; its elements as often as they have weights from
// shared memory.
//
//   Block: 128 threads. Shared memory: the tables and three rows of x (four of 16 bits), 5 to 7 KB
//   in the measured cases. Registers: 116 to 126; two blocks of 256 on a multiprocessor. Bound:
//   reads of shared memory.
//   Best: 0.97 times the roofline, the gradient of an antialiased 1/32 in f32 (wide_aa). Worst:
//   2.55, the gradient of Lanczos downsampling in bf16 with channels first.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_STAGED_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_STAGED_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"
#include "cuda/kernels/resample/modes/elements.cuh"
#include "cuda/kernels/resample/stage.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename Element, bool kPacked, int kRows, int kTaps>
struct Staged : ModeDefaults {
  using T = Element;
  using Sum = typename SumOf<T>::Type;
  using Mine = Spots<T, kPacked>;
  static constexpr int kVector = Mine::kVector, kAlign = kPacked ? kVector : 1;
  static constexpr int kAhead = sizeof(T) > 2 ? 2 : 3;
  static constexpr int kStages = kAhead + 1;
  static constexpr int kBlocks = BlocksThatHold(kRows * kVector + 2 * kVector * kTaps, sizeof(Sum));
  static constexpr bool kFits = false;

  Line<T> line;
  Stage<T, kStages, StageRows::kAnywhere> stage;
  int first;             // the thread's first element, counted in a line of y
  int offsets[kVector];  // in the stage
  Sum weights[kVector][kTaps];

  CONVGRAD_DEVICE Staged(const ResampleTask& task, char* shared)
      : line(task, shared), stage(line) {}

  CONVGRAD_DEVICE void Enter(const Tile& tile, int thread) {
    line.EnterLine(tile, thread, kVector);
    const ResampleForm& form = line.form;
    const int inner = static_cast<int>(form.inner);
    const int64_t begin = int64_t{tile.column} * line.tiling.line_threads * kVector;
    const int64_t end =
        Min(begin + int64_t{line.tiling.line_threads} * kVector, form.width.out * form.inner);
    const int64_t a = line.WidthStart(begin / inner), b = line.WidthStart((end - 1) / inner);
    stage.Enter(line, static_cast<int>((a < b ? a : b) * inner));
    const int reach = (line.WidthTaps() - 1) * inner, room = stage.Room(line);
    first = Mine::Enter(line, tile, [&](int i, int column, int channel) {
      offsets[i] = static_cast<int>(line.WidthStart(column) * form.inner + channel) - stage.begin;
      if (offsets[i] < 0 || offsets[i] + reach >= room) {
        line.misfit = true;
        offsets[i] = 0;
      }
#pragma unroll
      for (int t = 0; t < kTaps; ++t) weights[i][t] = line.WidthWeight(column, t);
    });
  }

  CONVGRAD_DEVICE void Combine(int slot, int64_t, Sum (&sums)[kVector]) {
    const T* const from = stage.Next(line, slot);
    switch (line.form.inner) {
      case 1:
        Add<1>(from, sums);
        break;
      case 3:
        Add<3>(from, sums);
        break;
      default:
        Add<0>(from, sums);
    }
    bool number = true;
#pragma unroll
    for (int i = 0; i < kVector; ++i) number = number && sums[i] == sums[i];
    if (number) return;
    // A zero weight may be the cause: once more without zero weights.
    const T* const again = Opaque(from);
    const int inner = static_cast<int>(line.form.inner);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      sums[i] = 0;
#pragma unroll
      for (int t = 0; t < kTaps; ++t) {
        if (weights[i][t] == Sum(0)) continue;
        sums[i] += weights[i][t] * ToSum(again[offsets[i] + t * inner]);
      }
    }
  }

  CONVGRAD_DEVICE void Write(const Sum (&sums)[kVector]) { Mine::template Write<true>(line, sums); }

  CONVGRAD_DEVICE void WriteDirectly() const {
    const int step = kPacked ? 1 : line.tiling.line_threads;
    line.WriteEach(0, first, 0, step, line.owned * step);
  }

 private:
  // Without testing for zero weights.
  template <int kInner>
  CONVGRAD_DEVICE void Add(const T* from, Sum (&sums)[kVector]) const {
    const int inner = kInner > 0 ? kInner : static_cast<int>(line.form.inner);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sums[i] = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const T* const at = from + offsets[i];
#pragma unroll
      for (int t = 0; t < kTaps; ++t) sums[i] += weights[i][t] * ToSum(at[t * inner]);
    }
  }
};

template <typename T, int kRow>
struct ModeOf<ResampleLoad::kStaged, T, kRow> {
  static constexpr ResampleRow kOf = kResampleRows[kRow];
  using Type = Staged<T, kOf.aligned, kOf.rows, kOf.taps>;
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_STAGED_CUH_
