// What the drivers have in common: where a block is in y, and the end of columns that do not
// fit the block's part of x.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_ROWS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_ROWS_CUH_

#include <cstdint>

#include "cuda/kernels/resample/mode.cuh"

namespace jax_convgrad {
namespace resample_kernels {

// Finds the block's rows and the thread's part of them. False if all threads have written theirs
// directly, because some column reads what is not in its strip, window or stage.
template <typename Mode>
CONVGRAD_DEVICE bool EnterRows(Mode& mode, uint32_t block, int thread) {
  auto& line = mode.line;
  const ResampleTiling& tiling = line.tiling;
  Digits digits{block};
  Tile tile;
  tile.channel = digits.Next(tiling.channel_tiles);
  tile.column = digits.Next(tiling.column_tiles);
  tile.mid = digits.Next(tiling.mid_tiles);
  line.first_row = int64_t{digits.Next(tiling.chunks)} * tiling.chunk;
  line.rows = static_cast<int>(Min(tiling.chunk, line.task.walk.out - line.first_row));
  tile.batch = digits.rest;
  mode.Enter(tile, thread);
  line.y += line.first_row * line.task.y_walk;
  if constexpr (!Mode::kFits) {
    int* const misfit = reinterpret_cast<int*>(line.shared + tiling.flag_at);
    if (thread == 0) *misfit = 0;
    mode.Prepare(thread);
    __syncthreads();
    if (line.misfit) *misfit = 1;
    __syncthreads();
    if (*misfit) {
      mode.WriteDirectly();
      return false;
    }
  }
  return true;
}

}  // namespace resample_kernels
}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_RESAMPLE_ROWS_CUH_
