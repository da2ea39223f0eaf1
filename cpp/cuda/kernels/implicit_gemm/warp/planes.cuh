// Copies planes of images into shared memory (planes.h), in the background.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_PLANES_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_PLANES_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/implicit_gemm/warp/planes.h"

namespace jax_convgrad {

// Groups of copies that a thread may leave on their way while it waits for older ones.
constexpr int kWarpMaxPending = 7;

// Waits until all but the last `pending` groups of this thread have arrived.
__device__ inline void WaitForPendingCopies(int pending) {
  static_assert(kWarpMaxPending == 7, "the cases");
  switch (pending) {
    case 0:
      return WaitForCopies<0>();
    case 1:
      return WaitForCopies<1>();
    case 2:
      return WaitForCopies<2>();
    case 3:
      return WaitForCopies<3>();
    case 4:
      return WaitForCopies<4>();
    case 5:
      return WaitForCopies<5>();
    case 6:
      return WaitForCopies<6>();
    default:
      return WaitForCopies<7>();
  }
}

// Which part of a plane a box has.
struct WarpBox {
  int image, z, y, x;   // its first pixel
  int first_byte = 0;   // of a pixel's channels
  int rows_before = 0;  // that are zeros
  int columns_before = 0;
};

// By all threads: begins to copy a box of a plane, zeros where it reaches out of the image, behind
// its last channel, and if there is no such plane.
__device__ inline void CopyWarpPlane(const WarpPlanes& p, unsigned char* to, const WarpBox& box) {
  const bool exists = Inside(box.z, p.sizes[0]);
  // Of a pixel outside, an address that is not read.
  const int64_t first =
      ((static_cast<int64_t>(box.image) * p.sizes[0] + box.z) * p.sizes[1] + box.y) * p.sizes[2] +
      box.x;
  const unsigned char* const from =
      static_cast<const unsigned char*>(p.from) + first * p.channel_bytes + box.first_byte;
  // As many threads as are a whole number of pixels copy the same piece of others each time, so
  // that rows and columns are counted on without a division.
  const int threads = static_cast<int>(blockDim.x);
  int row = static_cast<int>(threadIdx.x);
  const int piece_bytes = p.by_pieces.Split(&row) * kWarpPieceBytes;
  int next_row = p.by_pieces.Quotient(threads);
  if (row >= next_row) return;
  const int next_column = p.by_columns.Split(&next_row);
  int column = p.by_columns.Split(&row);
  const bool has_piece = exists & (piece_bytes < p.channel_bytes - box.first_byte);
  while (row < p.rows) {
    int of_remainder = column, remainder = 0;
    if (p.stride > 1) remainder = p.by_stride.Split(&of_remainder);
    const bool inside = has_piece & Inside(box.y + row, p.sizes[1]) &
                        Inside(box.x + column, p.sizes[2]) & (row >= box.rows_before) &
                        (column >= box.columns_before);
    const int64_t pixel = static_cast<int64_t>(row) * p.sizes[2] + column;
    CopyAsync(to + row * p.row_bytes +
                  (remainder * p.remainder_columns + of_remainder) * p.pixel_bytes + piece_bytes,
              from + pixel * p.channel_bytes + piece_bytes, inside);
    row += next_row;
    column += next_column;
    if (column >= p.columns) {
      column -= p.columns;
      ++row;
    }
  }
}

// The box whose first pixel is at (y, x), with all channels.
__device__ inline void CopyWarpPlane(const WarpPlanes& p, unsigned char* to, int image, int z,
                                     int y, int x) {
  CopyWarpPlane(p, to, {image, z, y, x});
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_PLANES_CUH_
