// wgrad by warps. It is a product of matrices whose depth is the positions: y's gradient by what
// each tap reads of x.
//
// Planes of both lie in shared memory (wgrad_feed.cuh), each once for all taps and channels of
// a block. A warp reads y's gradient once for all its units, and keeps their sums while the block
// walks. Warps that have the same units share a tile's positions, and add their sums up in the end,
// in a fixed order. All positions of a tile exist. Where it has too few for whole products, its
// first position is read again, with zeros as y's gradient. So an infinity or a NaN of x is
// multiplied at its own taps alone.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/implicit_gemm/walk.h"
#include "cuda/kernels/implicit_gemm/warp/planes.h"
#include "cuda/kernels/implicit_gemm/warp/wgrad_feed.cuh"
#include "cuda/kernels/implicit_gemm/warp/wgrad_params.h"
#include "cuda/kernels/implicit_gemm/warp/wgrad_products.cuh"

namespace jax_convgrad {

__device__ inline WarpWgradShare WarpWgradShareOf(const WarpWgradParams& p,
                                                  const WarpWgradTile& tile, int warp) {
  WarpWgradShare share{};
  share.group = warp % p.groups;
  share.depth = warp / p.groups;
  share.output = share.group / p.output_groups;
  const int all = WarpWgradUnitsOf(tile), group = share.group % p.output_groups;
  share.first = WarpWgradFirstUnit(all, group, p.output_groups);
  share.units = share.depth < p.depth_warps && share.output < tile.outputs
                    ? WarpWgradFirstUnit(all, group + 1, p.output_groups) - share.first
                    : 0;
  return share;
}

// By all threads: where the tile's positions lie in a plane of x, where the operands of all groups
// do, and zeros behind the positions of y.
template <typename T, int kUnits>
__device__ inline void FillWarpWgradTables(const WarpWgradParams& p, const WarpWgradTile& tile,
                                           unsigned char* shared) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  int* const offsets = reinterpret_cast<int*>(shared + p.offsets_at);
  for (int i = thread; i < p.chunks * kWarpWgradChunk; i += threads) {
    const int position = i < p.positions ? i : 0;
    offsets[WarpWgradOffsetPlace<T>(i)] = WarpPixel(p.x, position / p.walk.columns * p.strides[1],
                                                    position % p.walk.columns * p.strides[2]);
  }
  auto* const operands = reinterpret_cast<WarpWgradOperand*>(shared + p.units_at);
  for (int i = thread; i < p.groups * kUnits; i += threads) {
    const WarpWgradShare share = WarpWgradShareOf(p, tile, i / kUnits);
    // What a group does not have is read where its first one is.
    const int of_group = i % kUnits < share.units ? i % kUnits : 0;
    const WarpWgradUnit unit = WarpWgradUnitOf(tile, share.first + of_group);
    operands[i] = {unit.tap[0],
                   WarpPixel(p.x, unit.tap[1] * p.dilation[1], unit.tap[2] * p.dilation[2]) +
                       unit.input * kWarpWgradInputs * static_cast<int>(sizeof(T))};
  }
  if (thread < kWarpWgradMaxWarps) {
    WarpWgradBlockOf(p, shared)->shares[thread] = WarpWgradShareOf(p, tile, thread);
  }
  const int first_byte = p.positions * p.y.pixel_bytes;
  for (int slot = 0; slot < p.y_slots; ++slot) {
    unsigned char* const to = shared + p.y_at + slot * p.y_slot_bytes;
    for (int at = first_byte + thread * 16; at < p.y_slot_bytes; at += threads * 16) {
      *reinterpret_cast<uint4*>(to + at) = make_uint4(0, 0, 0, 0);
    }
  }
}

// Adds what warps with the same units have, halving their number each time.
template <int kFragments, int kUnits>
__device__ inline void AddWarpWgradSums(const WarpWgradParams& p, const WarpWgradShare& share,
                                        int lane, float* shared,
                                        WarpWgradSums<kFragments, kUnits>& sums) {
  constexpr int kSums = kUnits * kFragments * 8;
  float* const flat = &sums[0][0][0][0];
  for (int warps = p.depth_warps; warps > 1; warps = (warps + 1) / 2) {
    const int half = (warps + 1) / 2;
    if (share.units > 0 && share.depth >= half && share.depth < warps) {
      float* const to =
          shared + ((share.depth - half) * p.groups + share.group) * kSums * 32 + lane;
#pragma unroll
      for (int i = 0; i < kSums; ++i) to[i * 32] = flat[i];
    }
    __syncthreads();
    if (share.units > 0 && share.depth + half < warps) {
      const float* const from = shared + (share.depth * p.groups + share.group) * kSums * 32 + lane;
#pragma unroll
      for (int i = 0; i < kSums; ++i) flat[i] += from[i * 32];
    }
    __syncthreads();
  }
}

// Stores a warp's sums as those of its part.
template <typename T, int kFragments, int kUnits>
__device__ inline void StoreWarpWgradSums(const WarpWgradParams& p, const WarpWgradTile& tile,
                                          const WarpWgradShare& share, int lane, int part,
                                          const WarpWgradSums<kFragments, kUnits>& sums) {
  const int taps = p.taps[0].all * p.taps[1].all * p.taps[2].all;
  const int64_t rows = static_cast<int64_t>(taps) * p.in_channels;
  float* const to = p.partial + part * rows * p.out_channels;
  const int first_output = (tile.output + share.output) * kFragments * kWarpWgradOutputs;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    if (u >= share.units) break;
    const WarpWgradUnit unit = WarpWgradUnitOf(tile, share.first + u);
    const int tap =
        ((tile.tap[0] + unit.tap[0]) * p.taps[1].all + tile.tap[1] + unit.tap[1]) * p.taps[2].all +
        tile.tap[2] + unit.tap[2];
    const int first_input = (tile.input + unit.input) * kWarpWgradInputs;
#pragma unroll
    for (int i = 0; i < kFragments * 8; ++i) {
      const int fragment = i / 8, product = i / 4 % 2, of_four = i % 4;
      const int output = first_output + fragment * kWarpWgradOutputs +
                         WarpWgradOutputOf<T>(lane, product, of_four);
      const int input = first_input + WarpWgradInputOf<T>(lane, product, of_four);
      if (output < p.out_channels && input < p.in_channels) {
        to[(static_cast<int64_t>(tap) * p.in_channels + input) * p.out_channels + output] =
            sums[u][fragment][product][of_four];
      }
    }
  }
}

// Units of `kFragments` times 16 output channels. Every block has a step.
template <typename T, int kFragments>
__global__ void __launch_bounds__(kWarpWgradMaxThreads, 1)
    WarpWgrad(const __grid_constant__ WarpWgradParams p) {
  constexpr int kUnits = WarpWgradUnits(kFragments);
  unsigned char* const shared = SharedMemory<unsigned char>();
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  WarpWgradBlock* const block = WarpWgradBlockOf(p, shared);
  if (threadIdx.x == 0) {
    block->tile = WarpWgradTileOf(p, static_cast<int>(blockIdx.x) % p.result_tiles);
    block->steps[0] = FirstWarpWgradStep(p, static_cast<int>(blockIdx.x) / p.result_tiles);
  }
  __syncthreads();
  FillWarpWgradTables<T, kUnits>(p, block->tile, shared);

  WarpWgradSums<kFragments, kUnits> sums = {};
  int copied = 0;
  for (int step = 0;; ++step) {
    WaitForWarpWgradStep<T, kFragments>(p, step, &copied, shared);
    const WarpWgradStep& current = block->steps[step % kWarpWgradSteps];
    const WarpWgradShare& share = block->shares[warp];
    const WarpWgradLane of{
        shared + p.y_at + current.y_slot * p.y_slot_bytes +
            WarpWgradLaneOfY<T>(lane, p.y.pixel_bytes) +
            share.output * kFragments * kWarpWgradOutputs * static_cast<int>(sizeof(T)),
        p.y.pixel_bytes,
        shared + WarpWgradLaneOfX<T>(lane),
        reinterpret_cast<const int*>(shared + p.offsets_at),
        reinterpret_cast<const WarpWgradOperand*>(shared + p.units_at) + share.group * kUnits,
        current.x_slot,
        p.x_slots,
        p.x_slot_bytes,
        share.depth,
        p.chunks,
        p.depth_warps};
    if (share.units > 0 && current.place.z < p.out[0]) {
      MultiplyWarpWgradStep<T, kUnits, kFragments, kUnits>(of, share.units, lane, sums);
    }
    if (current.left == 1) break;
  }

  WaitForCopies<0>();
  const WarpWgradTile tile = block->tile;
  const WarpWgradShare share = block->shares[warp];
  __syncthreads();
  AddWarpWgradSums<kFragments, kUnits>(p, share, lane, reinterpret_cast<float*>(shared), sums);
  if (share.units > 0 && share.depth == 0) {
    StoreWarpWgradSums<T, kFragments, kUnits>(p, tile, share, lane,
                                              static_cast<int>(blockIdx.x) / p.result_tiles, sums);
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_CUH_
