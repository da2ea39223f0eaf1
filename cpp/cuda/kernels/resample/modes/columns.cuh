// kColumns: a thread makes two neighboring columns of y, in lines of one channel. The two columns
// together read little more than one does: a window of a row in the stage, in packs, with weights
// that the thread keeps. The width is combined first, so a finished row of y is simply written.
//
// Chosen for floats in aligned lines of one channel, where columns become half as many or fewer and
// are each made of several. Reads: each row once, in pieces of 16 bytes; windows from shared
// memory.
//
//   Block: 128 threads. Shared memory: the tables and seven rows of x, 19 and 21 KB in the measured
//   cases. Registers: 88 to 114; two blocks of 256 on a multiprocessor. Bound: reads of shared
//   memory.
//   Best: 1.31 times the roofline, antialiased linear downsampling in f32. Worst: 1.43, the same
//   with Lanczos.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_COLUMNS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_COLUMNS_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"
#include "cuda/kernels/resample/modes/pair.cuh"
#include "cuda/kernels/resample/stage.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename Element, int kRows, int kTaps>
struct Columns : ModeDefaults {
  using T = Element;
  using Sum = typename SumOf<T>::Type;
  static_assert(kTaps % kSumPack<Sum> == 0 && sizeof(T) == 4, "windows are read as packs");
  static constexpr int kVector = 2, kAlign = 1;
  static constexpr int kAhead = 6, kStages = kAhead + 1;
  static constexpr int kBlocks = 2;  // the weights of a pair are twice its taps
  static constexpr bool kPlain = true, kFits = false;

  Line<T> line;
  Stage<T, kStages, StageRows::kAligned> stage;
  Pair<T, kTaps> pair;
  int results;  // columns of y of the block

  CONVGRAD_DEVICE Columns(const ResampleTask& task, char* shared)
      : line(task, shared), stage(line) {}

  CONVGRAD_DEVICE void Enter(const Tile& tile, int thread) {
    line.EnterLine(tile, thread, kVector);
    const ResampleAxis& width = line.form.width;
    const ResampleTiling& tiling = line.tiling;
    line.first_column = int64_t{tile.column} * tiling.columns;
    const int columns = line.ColumnsHere();
    const int a = ClampedStart(width, line.first_column);
    const int b = ClampedStart(width, line.first_column + columns - 1);
    const int origin = (a < b ? a : b) & ~(kSumPack<Sum> - 1);
    // Of eight lanes some may repeat the work of the lane in front of them, without writing it.
    const int in_eight = line.lane % 8, writers = tiling.column_lanes;
    const int first = 2 * (line.lane / 8 * writers + (in_eight < writers ? in_eight : writers - 1));
    const bool writes = line.owned > 0 && in_eight < writers && first < columns;
    pair.columns = !writes ? 0 : columns - first == 1 ? 1 : 2;
    pair.to = first;
    results = line.owned == 0 ? 0 : columns;
    line.y += line.first_column;
    const int from = pair.Enter(line, first, origin, tiling.stage_columns, 1 << 30);
    stage.Enter(line, origin, from);
  }

  // Elements that no copy reaches exist for zero weights only.
  CONVGRAD_DEVICE void Prepare(int thread) const {
    const int words = kStages * line.tiling.stage_slot_bytes / 4;
#pragma unroll 1
    for (int i = thread; i < words; i += line.tiling.threads) {
      reinterpret_cast<uint32_t*>(line.shared + line.tiling.stage_at)[i] = 0;
    }
  }

  CONVGRAD_DEVICE void Combine(int slot, int64_t, Sum (&sums)[kVector]) {
    pair.Combine(stage.Next(line, slot), sums);
  }

  CONVGRAD_DEVICE void Write(const Sum (&sums)[kVector]) {
    T* const to = line.NextRow() + pair.to;
    pair.numbers = pair.numbers && sums[0] == sums[0] && sums[1] == sums[1];
    if (pair.columns == 2 && reinterpret_cast<uintptr_t>(to) % (2 * sizeof(T)) == 0) {
      StoreSums<false>(sums, to);
    } else {
      if (pair.columns > 0) FromSum(sums[0], to[0]);
      if (pair.columns > 1) FromSum(sums[1], to[1]);
    }
  }

  CONVGRAD_DEVICE void End() const { pair.WriteNumbers(line); }

  CONVGRAD_DEVICE void WriteDirectly() const {
    line.WriteEach(line.first_column, 0, line.lane, line.tiling.line_threads, results);
  }
};

template <typename T, int kRow>
struct ModeOf<ResampleLoad::kColumns, T, kRow> {
  using Type = Columns<T, kResampleRows[kRow].rows, kResampleRows[kRow].taps>;
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_COLUMNS_CUH_
