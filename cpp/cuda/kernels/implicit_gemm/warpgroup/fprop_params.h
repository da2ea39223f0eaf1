// What the kernel of fprop and dgrad and its plan agree on: which positions a block computes, and
// where everything lies in shared memory. Plain arithmetic, for the host and the device.
//
// Axes here are those of the walk, z, y, x: planes lie along z, and what a problem has no use for
// has size 1 (fprop_plan.h).

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_PARAMS_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_PARAMS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/tensor_map.h"
#include "cuda/kernels/implicit_gemm/walk.h"

namespace jax_convgrad {

constexpr int kFpropMaxWarpgroups = 4;
// By the columns of a product: the registers of a multiprocessor have the sums of so many.
constexpr int FpropMaxWarpgroups(int64_t columns) {
  return columns <= 112 ? kFpropMaxWarpgroups : 3;
}
constexpr int kFpropMaxStages = 16;
constexpr int kFpropWarpRows = 16;  // positions of a warp
// Threads beside those of the warpgroups that multiply: a warp that loads; of floats, the other
// warps of its warpgroup round what it has loaded.
constexpr int kFpropRoundThreads = 96;
constexpr int FpropHelpers(bool floats) { return floats ? 32 + kFpropRoundThreads : 32; }

// A warpgroup has 64 positions of the tile: 8 rows of 8, or one row.
struct FpropPart {
  int rows, columns;
  int along_x;                  // how many lie side by side in a tile
  int warp_rows, warp_columns;  // from one warp's positions to the next one's
};

// What floats need (fprop_floats.cuh), whose weights and results are not copied in boxes.
struct FpropFloats {
  const float* weights;
  float* result;
  int tap_step, depth_step, column_step;  // from one weight to the next; one of the last two is 1
  int in_channels, out_channels, out_planes;
};

struct FpropParams {
  TensorMap image, weights, result;
  GemmWalk walk;
  FpropPart part;
  int warpgroups;
  int planes_in;     // of the image
  int column_tiles;  // of the output channels; neighboring blocks have one of a step's each
  int out_rows, out_columns;
  int kernel[3], padding[3], dilation[3];
  int taps;
  bool reversed;  // the first tap of the walk is the last of the weights

  // Shared memory: the weights of one tap after the other, or of all of the walk, the last one
  // first, for one place in a plane after the other; a ring of slots, a plane of the image with all
  // that the tile's taps read of it each; the results of each warp, but of floats; barriers.
  int tap_bytes;
  int ring_at, results_at, barriers_at;
  int stages, slot_bytes;
  // A slot is copied by one box, or, of one row, by several side by side.
  int boxes, box_columns, box_bytes;
  // Bytes between neighbors in a slot, as the taps have them, and the warpgroup's parts and rows.
  int tap_column_bytes, tap_row_bytes;
  int part_column_bytes, part_row_bytes;
  int group_bytes;  // from 8 positions of a warpgroup to the next 8
  int half_bytes;   // from the first 32 floats of all pixels of a slot to their others
  FpropFloats floats;
};

// The planes of the image that are multiplied for the steps of a place: from `begin` to `end`,
// where 0 is the first one that its first step reads.
struct FpropPlanes {
  int begin, end;
};

// All that the steps read; or, if `inside`, without those that are in front of the image, as long
// as they complete no step, and without those behind it.
__host__ __device__ inline FpropPlanes FpropPlanesOf(const FpropParams& p, const GemmPlace& place,
                                                     bool inside) {
  const int kernel = p.kernel[0], all = place.steps + kernel - 1;
  if (!inside) return {0, all};
  // Planes that follow each other from z on, until one is at or behind `to`.
  const auto until = [&](int z, int to) {
    return z < to ? (to - z + p.dilation[0] - 1) / p.dilation[0] : 0;
  };
  const int z = place.z - p.padding[0];
  const int in_front = until(z, 0), not_behind = until(z, p.planes_in);
  const int begin = in_front < kernel ? in_front : kernel - 1;
  const int end = not_behind < all ? not_behind : all;
  return {begin, end > begin ? end : begin};
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_PARAMS_H_
