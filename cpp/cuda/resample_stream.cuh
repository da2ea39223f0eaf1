// Like the kernel of resample_shrink.cuh, for windows that fit one pass of a block's threads: each
// thread owns one vector of a row for as long as the block lives, and works off one group after
// another. The rows of x that it will need are copied, some ahead, into a queue of its own in
// shared memory, past all that the block does meanwhile, so that memory is never waited for twice.

#ifndef JAX_CONVGRAD_CUDA_RESAMPLE_STREAM_CUH_
#define JAX_CONVGRAD_CUDA_RESAMPLE_STREAM_CUH_

#include <cstdint>

#include "cuda/resample_shrink.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// Copies a vector to shared memory; it is there after WaitForCopies.
template <int kBytes>
CONVGRAD_DEVICE void StartCopy(void* to, const void* from) {
#ifdef __CUDA_ARCH__
  const unsigned int at = static_cast<unsigned int>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(kBytes)
                 : "memory");
  }
#else
  memcpy(to, from, kBytes);
#endif
}

// Ends a batch of copies, which may be empty.
CONVGRAD_DEVICE void EndCopies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most kLeft of this thread's batches are under way.
template <int kLeft>
CONVGRAD_DEVICE void WaitForCopies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#endif
}

// kBatch rows are copied together, and kQueue batches are under way.
template <typename T, int kVector, int kParts, int kOutVector, int kPlanes, int kRows,
          int kBatch = kResampleBatch, int kQueue = kResampleQueue>
struct Stream {
  using Base = Shrink<T, kVector, kParts, kOutVector, kPlanes, kRows>;
  using Sum = typename Base::Sum;
  using GroupT = typename Base::GroupT;
  using VectorT = Vector<T, kVector>;
  static constexpr int kRowBlock = Base::kRowBlock;
  static constexpr int kBlocks = Base::kBlocks;
  static_assert(sizeof(VectorT) >= 4, "there are no shorter copies");

  // What a thread keeps from step to step: its vectors; how far its copies are, that is which row
  // of which plane of which step's group comes next; and the slots of the queue for that and to
  // read.
  struct State {
    int lane, part;
    int64_t offsets[kParts];
    int step, plane, row, copy_slot, slot;
    const T* from;
  };

  const ResampleTask& task;
  const ResampleForm& form;
  const ResampleTiling& tiling;
  Base base;             // sums: twice those of `groups` groups; groups and table: of all steps
  VectorT* const queue;  // [kQueue, kBatch, kParts, threads]
#ifdef __CUDA_ARCH__
  State state;
  CONVGRAD_DEVICE State& StateOf(int) { return state; }
#else
  State states[1024];
  State& StateOf(int thread) { return states[thread]; }
#endif
  int items, vectors;

  CONVGRAD_DEVICE Stream(const ResampleTask& the_task, char* shared)
      : task(the_task),
        form(the_task.form),
        tiling(the_task.tiling),
        base(the_task, shared),
        queue(reinterpret_cast<VectorT*>(shared + tiling.combined_at)) {}

  CONVGRAD_DEVICE void Run(uint32_t block) {
    Digits digits{block};
    const int64_t first_channel = int64_t{digits.Next(tiling.chunks)} * tiling.channels;
    const int64_t first_column = int64_t{digits.Next(tiling.strips)} * tiling.columns;
    const int all = tiling.groups * tiling.steps;
    const uint32_t first_group = digits.rest * static_cast<uint32_t>(all);
    const int channels = static_cast<int>(Least(tiling.channels, form.inner - first_channel));
    const int columns = static_cast<int>(Least(tiling.columns, form.width.out - first_column));
    const Window window(form.width, first_column, columns, tiling.span);
    const RowRun run(task, window, channels, kVector);
    vectors = run.vectors;
    items = (vectors + kParts - 1) / kParts;
    ForEachThread(tiling.threads, [&](int thread) {
      for (int g = thread; g < all; g += tiling.threads) {
        GroupT& group = base.groups[g];
        base.MakeGroup(first_group + static_cast<uint32_t>(g), group);
        if (group.rows > tiling.table_rows) {
          group.direct = true;
          group.rows = 0;
        }
      }
    });
    ForEachThread(tiling.threads, [&](int thread) {
      State& mine = StateOf(thread);
      mine = {};
      mine.lane = thread / items;
      mine.part = thread % items;
      if (mine.lane < tiling.groups) {
        CONVGRAD_UNROLL
        for (int u = 0; u < kParts; ++u) {
          int vector = mine.part + u * items;
          if (vector >= vectors) vector = vectors - 1;  // read for nothing, not kept
          mine.offsets[u] = run.Offset(form.inner, first_channel, vector, kVector);
        }
        Enter(mine);
        for (int batch = 0; batch < kQueue; ++batch) CopyBatch(thread, mine);
      }
      base.MakeTable(thread, 0, all);
      LoadWidthTable(task, first_column, columns, base.width_weights, base.width_starts, thread);
    });
    for (int step = 0; step < tiling.steps; ++step) {
      // Sums of this step and the last are apart, so that threads meet once a step only.
      const int first_row = step % 2 * tiling.groups * (kPlanes * kRows);
      ForEachThread(tiling.threads, [&](int thread) {
        State& mine = StateOf(thread);
        if (mine.lane < tiling.groups) AddGroup(thread, mine, step, first_row);
      });
      ForEachThread<false>(tiling.threads, [&](int thread) {
        const int elements = columns * channels / kOutVector;
        const int blocks = tiling.groups * (kPlanes * kRows / kRowBlock);
        for (int item = thread; item < blocks * elements; item += tiling.threads) {
          const int at = item % elements * kOutVector;
          const int row = item / elements * kRowBlock, group_rows = row / kRows;
          base.Write(base.groups[step * tiling.groups + group_rows / kPlanes], group_rows % kPlanes,
                     row % kRows, first_row + row, window, first_column, at / channels,
                     first_channel, at % channels, channels, run.shift);
        }
      });
    }
  }

 private:
  CONVGRAD_DEVICE const GroupT& GroupOf(int lane, int step) const {
    return base.groups[step * tiling.groups + lane];
  }

  // Brings the copies to the next group that reads anything.
  CONVGRAD_DEVICE void Enter(State& mine) const {
    while (mine.step < tiling.steps && GroupOf(mine.lane, mine.step).rows == 0) ++mine.step;
    if (mine.step == tiling.steps) return;
    const GroupT& group = GroupOf(mine.lane, mine.step);
    mine.plane = mine.row = 0;
    mine.from = static_cast<const T*>(task.x) + group.x +
                (form.height.resampled ? group.first_row : group.out_row) * form.x_row;
    if constexpr (kPlanes > 1) mine.from += group.first_plane * form.x_plane;
  }

  CONVGRAD_DEVICE VectorT* Slot(int thread, int slot, int row, int part) const {
    return queue + ((slot * kBatch + row) * kParts + part) * tiling.threads + thread;
  }

  CONVGRAD_DEVICE static int NextSlot(int slot) { return slot + 1 == kQueue ? 0 : slot + 1; }

  // Starts the copies of the next batch. There is one for every batch that is waited for.
  CONVGRAD_DEVICE void CopyBatch(int thread, State& mine) const {
    if (mine.step < tiling.steps) {
      const GroupT& group = GroupOf(mine.lane, mine.step);
      CONVGRAD_UNROLL
      for (int r = 0; r < kBatch; ++r) {
        if (mine.row + r >= group.rows) break;
        CONVGRAD_UNROLL
        for (int u = 0; u < kParts; ++u) {
          StartCopy<sizeof(VectorT)>(Slot(thread, mine.copy_slot, r, u),
                                     mine.from + r * form.x_row + mine.offsets[u]);
        }
      }
      mine.row += kBatch;
      mine.from += kBatch * form.x_row;
      mine.copy_slot = NextSlot(mine.copy_slot);
      if (mine.row >= group.rows) {
        mine.from += form.x_plane - mine.row * form.x_row;
        mine.row = 0;
        if (kPlanes == 1 || ++mine.plane >= group.planes) {
          ++mine.step;
          Enter(mine);
        }
      }
    }
    EndCopies();
  }

  CONVGRAD_DEVICE void AddGroup(int thread, State& mine, int step, int first_row) {
    const GroupT& group = GroupOf(mine.lane, step);
    if (group.rows == 0) return;
    const Sum* const weights =
        base.table + (step * tiling.groups + mine.lane) * tiling.table_rows * kRows;
    Sum acc[kPlanes][kRows][Base::kWidth] = {};
    if constexpr (kPlanes > 1) {
      const int taps = static_cast<int>(form.depth.taps);
      for (int p = 0; p < group.planes; ++p) {
        const int plane = group.first_plane + p;
        Sum plane_sums[kRows][Base::kWidth] = {};
        AddPlane(thread, mine, group.rows, weights, plane_sums);
        CONVGRAD_UNROLL
        for (int k = 0; k < kPlanes; ++k) {
          if (k >= group.planes_there) break;
          const int tap = plane - group.plane_starts[k];
          if (tap < 0 || tap >= taps) continue;
          const Sum weight = WeightAt<Sum>(form.depth, group.out_plane + k, tap);
          if (weight == Sum(0)) continue;
          CONVGRAD_UNROLL
          for (int g = 0; g < kRows; ++g) {
            CONVGRAD_UNROLL
            for (int i = 0; i < Base::kWidth; ++i) acc[k][g][i] += weight * plane_sums[g][i];
          }
        }
      }
    } else {
      AddPlane(thread, mine, group.rows, weights, acc[0]);
    }
    base.KeepSums(first_row + mine.lane * (kPlanes * kRows), mine.part, items, vectors, acc);
  }

  CONVGRAD_DEVICE void AddPlane(int thread, State& mine, int rows, const Sum* weights,
                                Sum (&acc)[kRows][Base::kWidth]) const {
    for (int row = 0; row < rows; row += kBatch, weights += kBatch * kRows) {
      WaitForCopies<kQueue - 1>();
      CONVGRAD_UNROLL
      for (int r = 0; r < kBatch; ++r) {
        if (row + r >= rows) break;
        VectorT now[kParts];
        CONVGRAD_UNROLL
        for (int u = 0; u < kParts; ++u) now[u] = *Slot(thread, mine.slot, r, u);
        Base::AddRow(now, weights + r * kRows, acc);
      }
      mine.slot = NextSlot(mine.slot);
      CopyBatch(thread, mine);
    }
  }
};

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_RESAMPLE_STREAM_CUH_
