#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_TILING_H_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_TILING_H_

#include <cstdint>

#include "cuda/kernels/resample/instances.h"
#include "ffi/resample_form.h"

namespace jax_convgrad {

inline constexpr int kMaxThreads = 256;  // of a block, except for kFlat
// Shared memory of a block, at most. Every GPU since compute capability 8.0 has it.
inline constexpr int kMaxSharedBytes = 96 << 10;
inline constexpr int kFlatThreads = 288;  // kFlat: of a block, at most
inline constexpr int kFlatVector = 4;     // kFlat: elements of a thread in a row of y

// Taps along the width from which on a column is made of many.
inline constexpr int64_t kManyTaps = 9;

// The bytes that are copied to a stage at once; see stage.cuh.
inline constexpr int kStagePieceBytes = 16;
// A cache line, which shared memory serves at once if its pieces keep their distances there.
inline constexpr int kStageLineBytes = 128;

// Rows of x that a thread adds between checks, at most.
inline constexpr int kMaxRound = 4;

// The numbers that decide the size of blocks and the length of walks.
struct ResampleLimits {
  int threads;          // of a block
  int64_t all_threads;  // at most this many, if walks need not be shorter than 128 rows for that
  double overlap;       // the most that short walks may add to what is read
  int64_t wave = 0;     // threads that run at a time, if blocks should end together; else 0
  int64_t multiprocessors = 1;  // of the device
};

// As measured on an H100, scaled to a device with this many multiprocessors; a benchmark may try
// others.
ResampleLimits GetResampleLimits(const ResampleNeeds& needs, const ResampleInstance& instance,
                                 int element_bytes, int64_t multiprocessors);

// shrink: the record of a row of x in the schedule, its weights and how many rows of y are done
// after it. In packs of 16 bytes where there are several weights; counted in sums.
constexpr int RecordSize(int rows, int sum_bytes) {
  const int pack = rows > 1 ? 16 / sum_bytes : 2;
  return (rows + pack) / pack * pack;
}

// How blocks divide y. A block walks over `chunk` rows of y along the first axis that is resampled;
// for each it makes `lines` lines of `columns` columns and `vectors` threads' parts of the inner
// run.
struct ResampleTiling {
  int threads = 32;
  int lines = 1;
  int line_threads = 1;
  int columns = 1;  // of y; not for kElements
  int vectors = 1;  // kVectors
  int chunk = 1;
  // Rows of x whose weights fit, including the last round's; with 0, y is gathered without sums.
  int table_rows = 0;
  // Strips: how many rows prefetching is ahead of reading ahead; with 0, nothing is prefetched.
  int rows_ahead = 0;
  int64_t channel_tiles = 1, column_tiles = 1, mid_tiles = 1, chunks = 1, batch_tiles = 1;
  int64_t blocks = 0;
  // Offsets into a block's shared memory.
  int weights_at = 0, width_weights_at = 0, strip_at = 0, results_at = 0, flag_at = 0, stage_at = 0;
  // strip: elements of a column's weights, of a line, of all lines.
  int width_pitch = 0, strip_pitch = 0, strip_half = 0;
  // kFlat: rows of x in shared memory, rows of y on a sheet, elements of it, and where runs are.
  int slab_rows = 0, sheet_rows = 0, sheet_pitch = 0, runs_at = 0;
  int channel_pitch = 0;  // kPairs: of one of the inner run's elements in a line
  // kColumns: of eight threads, those that have two columns, and columns of x that are staged.
  int column_lanes = 8, stage_columns = 0;
  int stage_pieces = 0, stage_pitch = 0, stage_slot_bytes = 0;  // of a line, of a line, of all
  // Rows of x whose pieces lie inside x, though they may begin before the row and end behind it.
  int stage_from = 0, stage_to = 0;
  int shared_bytes = 0;
};

// A problem as the kernel sees it: lines, whose columns are `width`, along the axes `walk` and
// `mid`.
struct ResampleTask {
  ResampleForm form;
  ResampleAxis walk, mid;  // mid is not resampled and 1 if there are fewer than three axes
  int64_t x_walk = 0, y_walk = 0, x_mid = 0, y_mid = 0;  // strides
  int64_t x_walk_bytes = 0, x_bytes = 0;
  ResampleTiling tiling;
  const void* x = nullptr;
  const void* x_end = nullptr;
  void* y = nullptr;
};

// Columns, or rows, of x from one of y to the next.
inline double StepOf(const ResampleAxis& axis) {
  return static_cast<double>(axis.in) / static_cast<double>(axis.out);
}

inline bool IsAligned(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
}

ResampleTask MakeResampleTask(const ResampleForm& form, int element_bytes, const void* x, void* y);

// Has no blocks if nothing fits.
ResampleTiling ChooseResampleTiling(const ResampleTask& task, const ResampleNeeds& needs,
                                    const ResampleInstance& instance, int element_bytes,
                                    const ResampleLimits& limits);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_TILING_H_
