#ifndef JAX_CONVGRAD_CUDA_RESAMPLE_TILING_H_
#define JAX_CONVGRAD_CUDA_RESAMPLE_TILING_H_

#include <cstdint>

#include "common/resample_form.h"

namespace jax_convgrad {

// See resample_shrink.cuh, resample_stream.cuh and resample_grow.cuh.
enum class ResampleKernel { kShrink, kStream, kGrow };

// Which kernel, and what it is compiled for.
struct ResampleShape {
  ResampleKernel kernel;
  int vector;      // elements of x that a load takes
  int parts;       // such vectors that a thread works on at once
  int out_vector;  // elements of y that a store writes
  bool along;      // grow: columns are combined along the inner run
  int planes;      // but grow: output planes of a group, 1 where the depth is not resampled
  int rows;        // but grow: output rows of a group
  int element_bytes;
  int sum_bytes;  // 4, or 8 for double
};

inline constexpr int kResampleScalarParts = 4;  // but grow: where vectors are single elements
// stream: rows of a batch that are copied together, and batches that are under way.
inline constexpr int kResampleBatch = 2;
inline constexpr int kResampleQueue = 4;
inline constexpr int kMostResampleGroupBytes = 160;  // see Group in resample_shrink.cuh

// How the blocks divide a problem. A tile is `columns` output columns, `channels` elements of the
// inner run, and `groups` groups of output rows or `tile_rows` output rows.
struct ResampleTiling {
  int columns = 1;
  int channels = 1;
  int groups = 1;        // but grow: at work at once
  int steps = 1;         // stream: one after another
  int tile_rows = 1;     // grow
  int span = 1;          // columns of x that a tile has room for
  int row_elements = 1;  // of the room for one row of x, or of its sums
  int out_elements = 1;  // grow: of one row of y
  int table_rows = 1;    // rows of x: grow: that are at hand; else: whose weights are
  int threads = 32;
  int64_t strips = 1;      // tiles along the columns
  int64_t chunks = 1;      // along the inner run
  int64_t group_rows = 1;  // groups, or tiles, along the height
  int64_t group_planes = 1;
  int64_t all_groups = 1;
  int64_t blocks = 0;
  // Offsets into a block's shared memory.
  int combined_at = 0, table_at = 0, width_weights_at = 0, width_starts_at = 0, groups_at = 0;
  int flag_at = 0;
  int shared_bytes = 0;
};

// Bounds that decide a tile's size. The defaults of shrink and grow were measured on an H100, those
// of stream follow from them and are yet to be; a benchmark may try others.
struct ResampleLimits {
  int threads = 256;
  int64_t chunk_bytes = 128;          // of the inner run
  int64_t sum_bytes = 5 << 10;        // shrink: of a tile's sums in shared memory
  int64_t wide_sum_bytes = 40 << 10;  // where a narrow tile would read too much of x twice
  int64_t stream_blocks = 8 * 132;    // stream: about as many blocks
  int64_t queue_rows = kResampleQueue * kResampleBatch;
  int grow_threads = 128;
  int64_t out_row_elements = 128;  // grow: of a tile's row of y
  int64_t out_elements = 8 << 10;  // grow: of a tile of y
  int64_t few_blocks = 4 * 132;    // fewer than a few per multiprocessor leave some idle
};

// The instance of a kernel for a problem and the alignment of its arrays.
ResampleShape ChooseResampleShape(ResampleKernel kernel, const ResampleForm& form,
                                  int element_bytes, const void* x, const void* y);

// The kernel to try first, and second where its tiling has no blocks.
struct ResampleKernelOrder {
  ResampleKernel first, second;
};
ResampleKernelOrder ChooseResampleKernels(const ResampleForm& form);

// The tiling of a problem; with no blocks where a band is too long for any tile of the shape.
ResampleTiling ChooseResampleTiling(const ResampleForm& form, const ResampleShape& shape,
                                    const ResampleLimits& limits);

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_RESAMPLE_TILING_H_
