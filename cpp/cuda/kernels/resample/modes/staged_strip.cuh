// kStrip where lines of x may begin anywhere: rows of x go through shared memory.
//
// Chosen, of the strips, where lines are not aligned, or of types that have no aligned ones. Reads:
// each row of x once, in pieces of 16 bytes; a thread's elements from the stage, 16 apart.
//
//   Block: 128 to 256 threads. Shared memory: the tables, the columns' weights, two rows of sums
//   and three rows of x (four of 16 bits), 25 to 46 KB in the measured cases. Registers: 64 to 126;
//   two or three blocks of 256 on a multiprocessor. Bound: memory, and with many taps the columns'
//   reads of shared memory. Best: 1.28 times the roofline, the gradient of deeplab in f32.
//   Worst: 1.76, the gradient of odd_scale in bf16 with channels first.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_STAGED_STRIP_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_STAGED_STRIP_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"
#include "cuda/kernels/resample/modes/strip.cuh"
#include "cuda/kernels/resample/stage.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// kStep: columns of x from one column of y to the next, at most; 0 for any.
template <typename Element, int kRows, int kStep>
struct StagedStrip : ModeDefaults {
  using T = Element;
  using Sum = typename SumOf<T>::Type;
  // Where a few columns become one, large strips have fewer ends that overlap. But where eight do,
  // 12 elements of 16 bits took 1.7 to 1.8 times the roofline instead of 1.6; of 32 bits, 1.4 as
  // well.
  static constexpr int kVector = kStep > 0                     ? 12
                                 : kRows <= 4 && sizeof(T) < 8 ? 8
                                                               : 16 / sizeof(Sum);
  static constexpr int kAlign = 1;
  static constexpr int kAhead = sizeof(T) > 2 ? 2 : 3, kStages = kAhead + 1;
  static constexpr int kBlocks = BlocksThatHold(kRows * kVector + 13, sizeof(Sum));
  static constexpr bool kFits = false;

  Line<T> line;
  StripColumns<T> columns;
  Stage<T, kStages, StageRows::kOwned, kVector> stage;

  CONVGRAD_DEVICE StagedStrip(const ResampleTask& task, char* shared)
      : line(task, shared), columns(line), stage(line) {}

  CONVGRAD_DEVICE void Enter(const Tile& tile, int thread) {
    line.EnterLine(tile, thread, kVector);
    line.first_column = int64_t{tile.column} * line.tiling.columns;
    const int begin = FirstOfStrip<1>(line);
    stage.Enter(line, begin, FirstPlace());
    columns.Enter(line, begin, stage.Room(line));
  }

  CONVGRAD_DEVICE void Prepare(int thread) const {
    columns.CopyWeights(line, FirstOfStrip<1>(line), thread);
  }

  CONVGRAD_DEVICE void Combine(int slot, int64_t, Sum (&sums)[kVector]) {
    const T* const even = stage.Next(line, slot);
    const T* const odd = even - 2 * OddHalf() * 16;
#pragma unroll
    for (int i = 0; i < kVector; ++i) sums[i] = ToSum((i % 2 == 0 ? even : odd)[i * 16]);
  }

  CONVGRAD_DEVICE void Write(const Sum (&sums)[kVector]) {
    columns.Write(line, [&](Sum* to) {
      Sum* const even = to + FirstPlace();
#pragma unroll
      for (int i = 0; i < kVector; ++i) {
        (i % 2 == 0 ? even : even - OddHalf() * 32)[i * 16] = sums[i];
      }
    });
  }

  CONVGRAD_DEVICE void WriteDirectly() const { columns.WriteDirectly(line); }

 private:
  // A thread's elements are 16 apart, by half warps: every other half swaps the order of its even
  // and odd elements, so the two do not use the same bank.
  CONVGRAD_DEVICE int OddHalf() const { return line.lane >> 4 & 1; }
  CONVGRAD_DEVICE int FirstPlace() const {
    return (line.lane >> 4) * 16 * kVector + OddHalf() * 16 + (line.lane & 15);
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_STAGED_STRIP_CUH_
