// What the kernel for wgrad by warps (wgrad.cuh) is given, and how blocks and warps share the
// result. Plain arithmetic, for the host and the device.
//
// A unit is what products have of one tap: 16 or 32 output channels by 16 input channels. A block
// has a tile of all units, those of some neighboring taps and channels, and adds them up over its
// part of the positions.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_PARAMS_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_PARAMS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/implicit_gemm/walk.h"
#include "cuda/kernels/implicit_gemm/warp/planes.h"

namespace jax_convgrad {

constexpr int kWarpWgradInputs = 16;          // channels of a unit
constexpr int kWarpWgradOutputs = 16;         // channels of a fragment
constexpr int kWarpWgradChunk = 16;           // positions that are multiplied at once
constexpr int kWarpWgradMaxThreads = 512;     // of a multiprocessor: 128 registers each
constexpr int kWarpWgradMaxAhead = 6;         // steps on their way
constexpr int kWarpWgradMaxPositions = 1024;  // of a tile

// The units that a warp has sums for: 8 a thread for each fragment of output channels.
__host__ __device__ constexpr int WarpWgradUnits(int fragments) { return fragments == 1 ? 8 : 5; }

// An axis of the result that blocks share: `all` taps or blocks of channels, `each` to a tile.
struct WarpWgradCut {
  int all, each, tiles;
};

struct WarpWgradParams {
  WarpPlanes x, y;  // y's gradient
  float* partial;   // part, tap, input channel, output channel
  GemmWalk walk;    // its blocks are the parts
  int out[3], strides[3], padding[3], dilation[3];
  int in_channels, out_channels;
  // Taps, blocks of 16 input channels, blocks of a unit's output channels.
  WarpWgradCut taps[3], inputs, outputs;
  int result_tiles;
  // A block's warps: `groups` with other units, of which a block of output channels has
  // `output_groups`, and `depth_warps` with the same that share the tile's positions.
  int groups, output_groups, depth_warps;
  // A step multiplies `held` planes of x, the dilation apart, of which the last `advance` are not
  // those of the step before.
  int held, advance;
  int x_slots, y_slots;  // a step takes one of y
  int x_slot_bytes, y_slot_bytes;
  int positions, chunks;                     // of a tile
  int y_at, offsets_at, block_at, units_at;  // in shared memory, behind the slots of x
};

// The units of a block: of each axis the first, and how many.
struct WarpWgradTile {
  int tap[3], taps[3];
  int input, inputs, output, outputs;
};

__host__ __device__ inline void WarpWgradSplit(const WarpWgradCut& cut, int* tile, int* first,
                                               int* count) {
  *first = *tile % cut.tiles * cut.each;
  *tile /= cut.tiles;
  *count = cut.all - *first < cut.each ? cut.all - *first : cut.each;
}

__host__ __device__ inline WarpWgradTile WarpWgradTileOf(const WarpWgradParams& p, int tile) {
  WarpWgradTile t;
  for (int axis = 2; axis >= 0; --axis) {
    WarpWgradSplit(p.taps[axis], &tile, &t.tap[axis], &t.taps[axis]);
  }
  WarpWgradSplit(p.inputs, &tile, &t.input, &t.inputs);
  WarpWgradSplit(p.outputs, &tile, &t.output, &t.outputs);
  return t;
}

// A unit of a block of output channels.
struct WarpWgradUnit {
  int tap[3];  // of the tile's
  int input;
};

__host__ __device__ inline int WarpWgradUnitsOf(const WarpWgradTile& t) {
  return t.taps[0] * t.taps[1] * t.taps[2] * t.inputs;
}

__host__ __device__ inline WarpWgradUnit WarpWgradUnitOf(const WarpWgradTile& t, int index) {
  WarpWgradUnit unit;
  unit.input = index % t.inputs;
  index /= t.inputs;
  unit.tap[2] = index % t.taps[2];
  index /= t.taps[2];
  unit.tap[1] = index % t.taps[1];
  unit.tap[0] = index / t.taps[1];
  return unit;
}

// The first unit of one of the groups that share them.
__host__ __device__ inline int WarpWgradFirstUnit(int units, int group, int groups) {
  return static_cast<int>(static_cast<int64_t>(units) * group / groups);
}

// What is known of a step of a block. The one behind its last step has nothing but `left`.
struct alignas(16) WarpWgradStep {
  GemmPlace place;
  int left;        // steps of the block from this one on
  int end;         // of the block, among all
  unsigned plane;  // of x, its first, among all that the block copies; differences count
  int x_slot;      // of that plane
  int y_slot;
  int planes;  // of x that it does not share with the step before
  int unused;
};
// As many as there are on their way, the one that is multiplied, and the one to be copied next.
constexpr int kWarpWgradSteps = kWarpWgradMaxAhead + 2;

// What a warp has of a block's units.
struct alignas(16) WarpWgradShare {
  int group, depth;
  int output;        // block of output channels, of the tile's
  int first, units;  // of this block's; no units if the warp has none
  int unused[3];
};
constexpr int kWarpWgradMaxWarps = kWarpWgradMaxThreads / 32;

// What a block has in shared memory beside planes and tables: registers are scarce.
struct alignas(16) WarpWgradBlock {
  WarpWgradStep steps[kWarpWgradSteps];  // a ring
  WarpWgradTile tile;
  WarpWgradShare shares[kWarpWgradMaxWarps];
};

// An operand's place in shared memory: the plane, of those that a step holds, and the byte in it.
struct alignas(8) WarpWgradOperand {
  int plane, at;
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_PARAMS_H_
