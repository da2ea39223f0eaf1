// kPairs: a thread owns elements of x, and combines two columns once their rows are combined, with
// weights that it keeps: the two columns together read little more than one does, as vectors.
//
// Chosen where columns become half as many or fewer, each is made of many, and lines are aligned
// and have at most four channels. Reads: each vector of x once.
//
//   Block: 128 or 224 threads. Shared memory: the tables and two rows of sums, 8 and 13 KB in the
//   measured cases. Registers: 128, 40 of them for weights; two blocks of 256 on a multiprocessor.
//   Bound: registers, which leave few rows ahead; with elements of 2 bytes arithmetic.
//   Best: 1.51 times the roofline, Lanczos downsampling in f32 with channels last. Worst: 2.91, the
//   same in bf16.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_PAIRS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_PAIRS_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"
#include "cuda/kernels/resample/modes/pair.cuh"
#include "cuda/kernels/resample/modes/strip.cuh"

namespace jax_convgrad {
namespace resample_kernels {

template <typename Element, int kRows, int kTaps>
struct Pairs : ModeDefaults {
  using T = Element;
  using Sum = typename SumOf<T>::Type;
  static constexpr int kVector = 16 / sizeof(Sum), kAlign = kVector;
  static constexpr bool kFetches = true;
  // Times the roofline, Lanczos downsampling: 1.50 with three rows ahead, 1.56 with two, and 1.53
  // with four, because some registers were spilled to memory.
  static constexpr int kAhead = 3;
  static constexpr int kBlocks = 2;  // the weights of a pair are twice its taps
  static constexpr bool kPlain = true, kFits = false;
  static constexpr bool kAddsAsRead = sizeof(T) == sizeof(Sum);

  Piece<T, kVector> pieces[kAhead];
  Line<T> line;
  StripSums<T> strip;
  Pair<T, kTaps> pair;
  int offset;           // of its elements in a line of x
  int places[kVector];  // where each is in the strip
  int from;             // where the pair's window begins there
  int results;          // elements of y of the block's columns

  CONVGRAD_DEVICE Pairs(const ResampleTask& task, char* shared) : line(task, shared), strip(line) {}

  CONVGRAD_DEVICE void Enter(const Tile& tile, int thread) {
    line.EnterLine(tile, thread, kVector);
    const ResampleForm& form = line.form;
    const ResampleTiling& tiling = line.tiling;
    line.first_column = int64_t{tile.column} * tiling.columns;
    const int inner = static_cast<int>(form.inner), columns = line.ColumnsHere();
    const int begin = FirstOfStrip<kVector>(line), origin = begin / inner;
    const int run = static_cast<int>(form.width.in) * inner;
    const int at = begin + line.lane * kVector;
    offset = at < run ? at : run - kVector;  // read for nothing, not used
    results = line.owned == 0 ? 0 : columns * inner;
    const int line_at = line.number * tiling.strip_pitch;
    line.y += line.first_column * inner;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      places[i] = line_at + (at + i) % inner * tiling.channel_pitch + (at + i) / inner - origin;
    }
    const int first = line.lane / inner * 2, channel = line.lane % inner;
    const int left = line.owned == 0 ? 0 : columns - first;
    pair.columns = left < 0 ? 0 : left > 2 ? 2 : left;
    pair.to = first * inner + channel;
    const int room = (tiling.line_threads * kVector - (begin - origin * inner)) / inner;
    from = line_at + channel * tiling.channel_pitch +
           pair.Enter(line, first, origin, tiling.channel_pitch - kTaps, room);
  }

  // Elements that no thread writes exist for zero weights only.
  CONVGRAD_DEVICE void Prepare(int thread) const {
#pragma unroll 1
    for (int i = thread; i < 2 * line.tiling.strip_half; i += line.tiling.threads) {
      strip.sums[i] = 0;
    }
  }

  CONVGRAD_DEVICE void Fetch(int slot, const T* row) {
    pieces[slot].Read(Opaque(row) + static_cast<uint32_t>(offset));
  }

  // Always, without a look at the tiling.
  CONVGRAD_DEVICE void Bring(const T* row) const {
    if constexpr (sizeof(T) >= 4) line.Bring(row + static_cast<uint32_t>(offset));
  }

  CONVGRAD_DEVICE void Combine(int slot, int64_t, Sum (&sums)[kVector]) const {
#pragma unroll
    for (int i = 0; i < kVector; ++i) sums[i] = pieces[slot].At(i);
  }

  CONVGRAD_DEVICE void Write(const Sum (&sums)[kVector]) {
    Sum* const half = strip.NextHalf(line);
    if (line.owned != 0) Store(sums, half);
    line.MeetInLine();
    T* const to = line.NextRow() + pair.to;
    if (pair.columns == 0) return;
    Sum both[2];
    pair.Combine(half + from, both);
    pair.numbers = pair.numbers && both[0] == both[0] && both[1] == both[1];
    FromSum(both[0], to[0]);
    if (pair.columns == 2) FromSum(both[1], to[line.form.inner]);
  }

  CONVGRAD_DEVICE void End() const { pair.WriteNumbers(line); }

  CONVGRAD_DEVICE void WriteDirectly() const {
    line.WriteEach(line.first_column, 0, line.lane, line.tiling.line_threads, results);
  }

 private:
  // A thread's elements of a finished row, with each channel's side by side.
  CONVGRAD_DEVICE void Store(const Sum (&sums)[kVector], Sum* half) const {
    if (line.form.inner == 1) {
      StoreShared(sums, half + places[0]);
      return;
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) half[places[i]] = sums[i];
  }
};

template <typename T, int kRow>
struct ModeOf<ResampleLoad::kPairs, T, kRow> {
  using Type = Pairs<T, kResampleRows[kRow].rows, kResampleRows[kRow].taps>;
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODES_PAIRS_CUH_
