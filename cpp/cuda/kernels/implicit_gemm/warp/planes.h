// Planes of images in shared memory, as the kernels for warps have them. Plain arithmetic, for the
// host and the device.
//
// Of a plane a tile needs a box of rows and columns. A pixel is its channels, padded with zeros to
// 32 bytes, the depth of a product, and 16 bytes more, so that 8 neighboring pixels begin in other
// banks. With a stride along x, columns lie sorted by their remainder, so that the pixels which one
// tap of neighboring windows reads are neighbors, too.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_PLANES_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_PLANES_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/elements.cuh"
#include "ffi/integers.h"

namespace jax_convgrad {

constexpr int kWarpDepthBytes = 32;  // of the depth of a product
constexpr int kWarpPieceBytes = 16;  // that are copied at once

struct WarpPlanes {
  const void* from;   // image, z, y, x, channel; set at each launch
  int sizes[3];       // z, y, x
  int channel_bytes;  // of a pixel in memory, a multiple of 16; a box may have a part of them

  int rows, columns;      // of the box
  int stride;             // along x
  int remainder_columns;  // of one remainder
  int pieces;             // of a pixel, with the padding that is multiplied
  int pixel_bytes;        // from one pixel to the next
  int row_bytes;
  Divider by_pieces, by_columns, by_stride;
};

// Where a pixel of the box lies.
__host__ __device__ inline int WarpPixel(const WarpPlanes& p, int row, int column) {
  return row * p.row_bytes +
         (column % p.stride * p.remainder_columns + column / p.stride) * p.pixel_bytes;
}

inline int64_t WarpPixelBytes(int64_t channel_bytes) {
  return RoundUp(channel_bytes, int64_t{kWarpDepthBytes}) + kWarpPieceBytes;
}

// Of a box in shared memory.
inline int64_t WarpPlaneBytes(int64_t rows, int64_t columns, int64_t stride,
                              int64_t channel_bytes) {
  return rows * CeilDivide(columns, stride) * stride * WarpPixelBytes(channel_bytes);
}

// The numbers are small enough for WarpPlaneBytes of `staged_bytes` to fit into shared memory.
inline WarpPlanes MakeWarpPlanes(const int (&sizes)[3], int64_t channel_bytes, int64_t rows,
                                 int64_t columns, int64_t stride, int64_t staged_bytes) {
  WarpPlanes p{};
  for (int axis = 0; axis < 3; ++axis) p.sizes[axis] = sizes[axis];
  p.channel_bytes = static_cast<int>(channel_bytes);
  p.rows = static_cast<int>(rows);
  p.columns = static_cast<int>(columns);
  p.stride = static_cast<int>(stride);
  p.remainder_columns = static_cast<int>(CeilDivide(columns, stride));
  p.pixel_bytes = static_cast<int>(WarpPixelBytes(staged_bytes));
  p.pieces = p.pixel_bytes / kWarpPieceBytes - 1;
  p.row_bytes = p.remainder_columns * p.stride * p.pixel_bytes;
  p.by_pieces = Divider(p.pieces);
  p.by_columns = Divider(columns);
  p.by_stride = Divider(stride);
  return p;
}
inline WarpPlanes MakeWarpPlanes(const int (&sizes)[3], int64_t channel_bytes, int64_t rows,
                                 int64_t columns, int64_t stride) {
  return MakeWarpPlanes(sizes, channel_bytes, rows, columns, stride, channel_bytes);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_PLANES_H_
