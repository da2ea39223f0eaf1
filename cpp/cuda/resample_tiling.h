#ifndef JAX_CONVGRAD_CUDA_RESAMPLE_TILING_H_
#define JAX_CONVGRAD_CUDA_RESAMPLE_TILING_H_

#include <cstdint>

#include "common/resample_form.h"

namespace jax_convgrad {

// What one instance of the kernel is compiled for; see resample_tile.cuh.
struct ResampleShape {
  int vector;      // elements of x that a load takes
  int parts;       // such vectors that a thread works on at once
  int out_vector;  // elements of y that a store writes
  int planes;      // output planes of a group, 1 where the depth is not resampled
  int rows;        // output rows of a group
  int element_bytes;
  int sum_bytes;  // 4, or 8 for double
};

inline constexpr int kResampleScalarParts = 4;       // where the vectors are single elements
inline constexpr int kMostResampleGroupBytes = 160;  // see Group in resample_tile.cuh

// How the blocks divide a problem. A tile is `groups` groups of output rows, `columns` output
// columns and `channels` elements of the inner run.
struct ResampleTiling {
  int columns = 1;
  int channels = 1;
  int groups = 1;
  int span = 1;          // columns of x that a tile's buffer holds
  int row_elements = 1;  // elements of one row of that buffer
  int table_rows = 1;    // rows of x whose weights are at hand at once
  int threads = 32;
  int64_t strips = 1;       // tiles along the columns
  int64_t chunks = 1;       // along the inner run
  int64_t group_tiles = 1;  // along the groups
  int64_t group_rows = 1;   // groups along the height
  int64_t group_planes = 1;
  // Offsets into a block's shared memory.
  int table_at = 0, width_weights_at = 0, width_starts_at = 0, groups_at = 0, flags_at = 0;
  int shared_bytes = 0;

  int64_t blocks() const { return strips * chunks * group_tiles; }
};

// Sums of a tile that a tile keeps in shared memory, and other bounds that decide its size. The
// defaults were measured; a benchmark may try others.
struct ResampleLimits {
  int64_t sum_bytes = 40 << 10;
  int64_t wide_sum_bytes = 72 << 10;  // where a narrow tile would read too much of x twice
  int64_t chunk_bytes = 128;          // of the inner run
  int threads = 256;
  int64_t few_blocks = 4 * 132;  // fewer than a few per multiprocessor leave some idle
};

// The instance for a problem and the alignment of its arrays.
ResampleShape ChooseResampleShape(const ResampleForm& form, int element_bytes, const void* x,
                                  const void* y);

// The tiling of a problem, or one with no shared memory where a band is too long for any tile.
ResampleTiling ChooseResampleTiling(const ResampleForm& form, const ResampleShape& shape,
                                    const ResampleLimits& limits);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_RESAMPLE_TILING_H_
