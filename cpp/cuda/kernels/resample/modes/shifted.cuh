// kShifted: elements of y whose lines are not aligned. A thread makes as many as a vector has, and
// passes on those that lie in the vector of the thread behind it, so that all are written as
// vectors.
//
// Chosen where rows become four times as many or more: then writes are what counts. Reads: as
// kElements.
//
//   Block: 128 to 256 threads, one in 32 of which only passes on. Shared memory: the tables.
//   Registers: 54 to 63, of 16 bits 67 to 96; two to four blocks of 256 on a multiprocessor. Bound:
//   writes.
//   Best: 1.21 times the roofline, deeplab forward in f32. Worst: 1.39, the same in bf16.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_SHIFTED_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_SHIFTED_CUH_

#include <cstdint>
#include <cstring>

#include "cuda/kernels/resample/mode.cuh"
#include "cuda/kernels/resample/modes/taps.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename Element, int kRows, int kTaps>
struct Shifted : ModeDefaults {
  using T = Element;
  using Sum = typename SumOf<T>::Type;
  static constexpr int kVector = 16 / sizeof(T), kAlign = 1;
  using Reads = Taps<T, kVector, 1, kTaps, 1>;
  static_assert(Reads::kFetches, "rows are read ahead");
  static constexpr bool kFetches = true;
  static constexpr int kAhead = 1;
  // With 16 bits a thread keeps twice as many sums, and fewer threads are at work.
  static constexpr int kBlocks = sizeof(T) == 2 ? 2 : BlocksThatHold(Reads::Held(kRows), 4);
  static constexpr bool kWeightsAhead = sizeof(T) >= 4;
  static constexpr int kWords = 4;  // of a vector as it is written

  Line<T> line;
  Reads reads;
  int first;  // the thread's first element, counted in the line

  CONVGRAD_DEVICE Shifted(const ResampleTask& task, char* shared) : line(task, shared) {}

  // The first thread of a warp repeats the last one of the warp before, and passes it on.
  CONVGRAD_DEVICE void Enter(const Tile& tile, int thread) {
    const int place = thread / 32 * 31 + thread % 32 - 1;
    line.EnterLine(tile, place < 0 ? 0 : place, kVector);
    if (thread == 0 && tile.column > 0) line.lane = -1;
    reads.Enter(line);
    const int inner = static_cast<int>(line.form.inner);
    const int run = static_cast<int>(line.form.width.out) * inner;
    first = (tile.column * line.tiling.line_threads + line.lane) * kVector;
    line.y += first;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const int element = first + i < run ? first + i : run - 1;
      reads.ReadFrom(line, i, element / inner, element % inner);
    }
    // A thread may write even if it owns nothing, because the vector in front may end in its own.
    line.owned = line.owned == 0 || thread % 32 == 0 ? 0 : run;
  }

  CONVGRAD_DEVICE void Fetch(int, const T* row) { reads.Fetch(line, row); }

  CONVGRAD_DEVICE void Combine(int, int64_t row, Sum (&sums)[kVector]) const {
    reads.Combine(line, row, sums);
  }

  // In vectors aligned in memory: each begins in the vector of the thread in front.
  CONVGRAD_DEVICE void Write(const Sum (&sums)[kVector]) {
    T values[kVector];
    PackSums(sums, values);
    uint32_t mine[kWords];
    memcpy(mine, values, sizeof(values));
    const uintptr_t at = reinterpret_cast<uintptr_t>(line.NextRow());
    const uint32_t shift = static_cast<uint32_t>(at) & 15;
    uint32_t both[2 * kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      both[i] = __shfl_up_sync(0xffffffffu, mine[i], 1);
      both[kWords + i] = mine[i];
    }
    const uint32_t from = 16 - shift;
#pragma unroll
    for (int i = 0; i < 6; ++i) both[i] = (from & 8) != 0 ? both[i + 2] : both[i];
#pragma unroll
    for (int i = 0; i < 5; ++i) both[i] = (from & 4) != 0 ? both[i + 1] : both[i];
    uint32_t words[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      words[i] = shift == 0      ? mine[i]
                 : sizeof(T) < 4 ? __funnelshift_r(both[i], both[i + 1], (from & 2) * 8)
                                 : both[i];
    }
    // The first of these elements, counted in the line: some may lie in front of it or behind.
    const int start = first - static_cast<int>(shift / sizeof(T));
    if (line.owned == 0) return;
    if (start >= 0 && start + kVector <= line.owned) {
      WriteWords(words, reinterpret_cast<T*>(at - shift));
      return;
    }
    memcpy(values, words, sizeof(values));
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (start + i >= 0 && start + i < line.owned) {
        reinterpret_cast<T*>(at - shift)[i] = values[i];
      }
    }
  }
};

template <typename T, int kRow>
struct ModeOf<ResampleLoad::kShifted, T, kRow> {
  using Type = Shifted<T, kResampleRows[kRow].rows, kResampleRows[kRow].taps>;
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_SHIFTED_CUH_
