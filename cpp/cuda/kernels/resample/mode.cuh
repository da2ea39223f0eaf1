// What every load mode builds on. A mode is a struct in modes/ with what a thread keeps for it and
// these members, of which ModeDefaults has those that most modes do without:
//
//   T, Sum, kVector  elements of x and y, their sums, and how many of these a thread makes of a row
//   kAlign           elements by which lines of y are aligned, of x for strips; 1: not at all
//   kAhead           rows of x that are read ahead
//   kFetches         whether registers have room for them; not with stages
//   kStages          rows of x in shared memory, kAhead + 1, and `stage` (stage.cuh); 0: none
//   kBlocks          blocks on a multiprocessor at a time, which limits a thread's registers
//   line             Line<T>: the thread's part of the problem (line.cuh)
//
//   Enter(tile, thread)
//     finds what the thread owns and reads
//   Fetch(slot, row)
//     reads a row of x for later; not with stages
//   Combine(slot, row, sums)
//     the thread's elements of a row of x, with its columns and the middle axis combined
//   Write(sums)
//     writes the thread's elements of the next row of y
//   WriteDirectly()
//     writes all rows, each element from x alone, for columns that do not fit (kFits)
//
// The drivers (grow.cuh, shrink.cuh and their staged twins) call these and know no mode.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODE_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODE_CUH_

#include "cuda/kernels/resample/elements.cuh"
#include "cuda/kernels/resample/instances.h"
#include "cuda/kernels/resample/line.cuh"
#include "cuda/kernels/resample/tiling.h"

namespace jax_convgrad {
namespace resample_kernels {

struct ModeDefaults {
  static constexpr int kStages = 0;
  static constexpr bool kPlain = false;       // adds rows without testing for zero weights
  static constexpr bool kFits = true;         // no column reads beyond the thread's part of x
  static constexpr bool kAddsAsRead = false;  // adds elements from where they were read to
  static constexpr bool kGathers = false;     // makes rows of y one by one if there is no schedule
  static constexpr bool kWeightsAhead = false;  // has registers for the weights of the next row

  CONVGRAD_DEVICE void Prepare(int) const {}        // not kFits: shared memory, by all threads
  CONVGRAD_DEVICE void Bring(const void*) const {}  // prefetches a row that is read ahead later
  CONVGRAD_DEVICE void End() const {}               // after the last row
};

// The kernel's mode for an instance: each mode's file says which template arguments a row of the
// table stands for.
template <ResampleLoad kLoad, typename T, int kRow>
struct ModeOf;

// Sums that 16 bytes hold.
template <typename Sum>
constexpr int kSumPack = 16 / static_cast<int>(sizeof(Sum));

// Registers hold a row of x ahead if it has at most so many words.
constexpr bool FitsRegisters(int row_words) { return row_words <= 32; }

// Blocks of 256 threads that should be on a multiprocessor at a time, where a thread keeps so many
// numbers from row to row: four or three if these are few, up to `most_of_four` for four.
constexpr int BlocksThatHold(int numbers, int sum_bytes, int most_of_four = 24) {
  if (sum_bytes == 8 || numbers > 48) return 2;
  return numbers <= most_of_four ? 4 : 3;
}

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_MODE_CUH_
