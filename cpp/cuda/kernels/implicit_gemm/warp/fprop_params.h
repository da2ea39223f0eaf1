// What the kernel of fprop and dgrad for warps and its plan agree on. Plain arithmetic, for the
// host and the device.
//
// Axes are those of the walk, z, y, x (fprop_axes.h). A tile and a step count groups of the
// result: a group is one position of fprop, or as many of dgrad as its stride has along all axes,
// of which each, a phase, has taps of its own.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_FPROP_PARAMS_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_FPROP_PARAMS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/implicit_gemm/walk.h"
#include "cuda/kernels/implicit_gemm/warp/planes.h"

namespace jax_convgrad {

// Tables of taps and phases are among a kernel's parameters, which have 4 KB.
constexpr int kWarpFpropMaxTaps = 352;
constexpr int kWarpFpropMaxPhases = 128;
constexpr int kWarpFpropMaxPending = 8;  // steps whose planes are on their way

// A step of a block, from when its planes are copied until it is multiplied.
struct alignas(16) WarpFpropStep {
  int image, z, y, x;  // its first group
  int slot;            // of its first plane
  unsigned planes;     // copied before that one; only differences count
  int part;            // of its groups, the part of the planes that it reads
  bool begins;         // a strip
  bool stores;         // results are complete with it
};
constexpr int kWarpFpropSteps = 16;  // more than those on their way and the one that is multiplied
static_assert(kWarpFpropSteps > kWarpFpropMaxPending + 1, "none is overwritten");
constexpr int kWarpFpropKeptBytes = 64;  // of each warp
// Of the steps and of what warps keep, in front of the weights.
constexpr int kWarpFpropStepsBytes =
    kWarpFpropSteps * static_cast<int>(sizeof(WarpFpropStep)) + 16 * kWarpFpropKeptBytes;

constexpr int kWarpFragmentRows = 16;  // positions of a product
// Of a multiprocessor at most, so that each has all the registers that it may have.
constexpr int kWarpFpropThreads = 256;

// The weights: depth is the image's channels, columns the result's.
struct WarpWeights {
  const void* from;            // set at each launch
  int64_t tap, depth, column;  // elements between neighbors; the depth's or the column's is 1
  int depths, columns;         // that there are
  int units;                   // of depth, 32 bytes each
  int taps;
  // Of each tap, in the order in which they are multiplied, where it is in memory.
  uint16_t places[kWarpFpropMaxTaps];
  Divider by_taps, by_pieces;  // pieces of the depth
};

struct WarpFpropParams {
  WarpPlanes image;
  WarpWeights weights;
  void* result;  // set at each launch
  GemmWalk walk;
  Divider by_tile_columns;
  int column_tiles;  // of the result's channels; neighboring blocks have one of a step's each
  int groups[3];     // of the result
  int sizes[3];      // of the result, in positions
  int phases[3];     // positions of a group along each axis
  Divider by_phases_x, by_phases_y;

  // The image's pixels: from one group's to the next one's, and the first that the first reads.
  int steps[3], first[3];
  // The planes that a step reads, how far apart they are, and how many the step before does not.
  int held, spacing, advance;
  int next_z;  // groups from one step's to the next one's of a strip
  // Steps that read the planes of the same groups one after the other, each `held` of them.
  int parts;
  // In front of a strip's first results, planes that are multiplied for results of later steps.
  int lead;

  // Products, for each of which the weights are `product_weights` bytes: units of depth of all taps
  // that are multiplied with the same pixels. Of a part of the planes, or of all.
  int products, product_weights;
  Divider by_units;
  // Weights are in shared memory, or come in chunks of some products, in a ring of as many slots,
  // from where another kernel laid them out. Of one chunk, they are there.
  int chunks, chunk_products, chunk_slots;
  const void* arranged;   // set at each launch
  int64_t arranged_tile;  // bytes from one column tile's to the next one's

  // Shared memory: steps; the weights; a ring of planes, from the weights' begin.
  int ring_at, ring_bytes, slots, slot_bytes;
  int row_step_bytes;  // from one row of groups to the next
  // The taps of phase i are phase_taps[i] to phase_taps[i + 1]. Of each, its plane and its place
  // there, from the group's, in bytes.
  uint16_t phase_taps[kWarpFpropMaxPhases + 1];
  int taps[kWarpFpropMaxTaps];
};
static_assert(sizeof(WarpFpropParams) <= 4096, "what a kernel's parameters may be");

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_FPROP_PARAMS_H_
