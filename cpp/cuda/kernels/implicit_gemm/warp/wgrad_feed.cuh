// wgrad by warps: the rings of planes that a block's steps read, in shared memory.
//
// A strip's steps share planes of x, so that a step copies those alone that the step before does
// not hold; a strip's first step copies all. Steps are copied ahead of the one that is multiplied
// as far as there are free slots. One thread finds out what the next step is, and the others read
// it in shared memory.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_FEED_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_FEED_CUH_

#include <cuda_runtime.h>

#include "cuda/kernels/common/copy_async.cuh"
#include "cuda/kernels/common/tf32.cuh"
#include "cuda/kernels/implicit_gemm/walk.h"
#include "cuda/kernels/implicit_gemm/warp/planes.cuh"
#include "cuda/kernels/implicit_gemm/warp/planes.h"
#include "cuda/kernels/implicit_gemm/warp/wgrad_params.h"

namespace jax_convgrad {

static_assert(kWarpWgradMaxAhead <= kWarpMaxPending, "those behind the step that is awaited");

__device__ inline WarpWgradBlock* WarpWgradBlockOf(const WarpWgradParams& p,
                                                   unsigned char* shared) {
  return reinterpret_cast<WarpWgradBlock*>(shared + p.block_at);
}

// A block's first step.
__device__ inline WarpWgradStep FirstWarpWgradStep(const WarpWgradParams& p, int part) {
  const int begin = GemmWalkBegin(p.walk, part), end = GemmWalkBegin(p.walk, part + 1);
  WarpWgradStep step{};
  step.place = GemmPlaceOf(p.walk, begin, end);
  step.left = end - begin;
  step.end = end;
  step.planes = p.held;
  return step;
}

// The one behind it.
__device__ inline WarpWgradStep NextWarpWgradStep(const WarpWgradParams& p,
                                                  const WarpWgradStep& step) {
  WarpWgradStep next = step;
  --next.left;
  if (next.left == 0) return next;
  if (--next.place.steps > 0) {
    next.place.z += p.walk.phases;
    next.planes = p.advance;
  } else {
    next.place = GemmPlaceOf(p.walk, next.end - next.left, next.end);
    next.planes = p.held;
  }
  next.plane += static_cast<unsigned>(next.planes);
  next.x_slot += next.planes;
  if (next.x_slot >= p.x_slots) next.x_slot -= p.x_slots;
  next.y_slot = next.y_slot + 1 == p.y_slots ? 0 : next.y_slot + 1;
  return next;
}

// By all threads: begins to copy what a step does not share with the one before.
template <typename T, int kFragments>
__device__ inline void CopyWarpWgradStep(const WarpWgradParams& p, const WarpWgradTile& tile,
                                         const WarpWgradStep& step, unsigned char* shared) {
  const GemmPlace& at = step.place;
  // A tile is within its plane: the last one begins earlier than it would, and its positions that
  // another tile has get zeros as y's gradient.
  const int y = min(at.y, p.out[1] - p.walk.rows), x = min(at.x, p.out[2] - p.walk.columns);
  WarpBox box;
  box.image = at.image;
  box.y = y * p.strides[1] + tile.tap[1] * p.dilation[1] - p.padding[1];
  box.x = x * p.strides[2] + tile.tap[2] * p.dilation[2] - p.padding[2];
  box.first_byte = tile.input * kWarpWgradInputs * static_cast<int>(sizeof(T));
  const int first_z = at.z * p.strides[0] + tile.tap[0] * p.dilation[0] - p.padding[0];
  for (int plane = p.held - step.planes; plane < p.held; ++plane) {
    box.z = first_z + plane * p.dilation[0];
    int slot = step.x_slot + plane;
    if (slot >= p.x_slots) slot -= p.x_slots;
    CopyWarpPlane(p.x, shared + slot * p.x_slot_bytes, box);
  }
  const int first_byte = tile.output * kFragments * kWarpWgradOutputs * static_cast<int>(sizeof(T));
  CopyWarpPlane(p.y, shared + p.y_at + step.y_slot * p.y_slot_bytes,
                {at.image, at.z, y, x, first_byte, at.y - y, at.x - x});
  CommitCopies();
}

// By all threads: begins to copy the steps from `copied` on, counted from the block's first, for
// which there are free slots while `step` is multiplied; returns the first that is not copied.
template <typename T, int kFragments>
__device__ inline int CopyWarpWgradAhead(const WarpWgradParams& p, int step, int copied,
                                         unsigned char* shared) {
  WarpWgradBlock* const block = WarpWgradBlockOf(p, shared);
  const unsigned first_plane = block->steps[step % kWarpWgradSteps].plane;
  while (copied - step < p.y_slots) {
    const WarpWgradStep& next = block->steps[copied % kWarpWgradSteps];
    const int used = static_cast<int>(next.plane - first_plane) + p.held;
    if (next.left == 0 || used > p.x_slots) break;
    CopyWarpWgradStep<T, kFragments>(p, block->tile, next, shared);
    ++copied;
    if (threadIdx.x == 0) {
      block->steps[copied % kWarpWgradSteps] = NextWarpWgradStep(p, next);
    }
    if (copied - step == p.y_slots) break;
    __syncthreads();
  }
  return copied;
}

// By all threads: rounds what this thread has copied of a plane of floats, and has arrived, to what
// the tensor cores multiply. A thread has those pieces which CopyWarpPlane gives it.
__device__ inline void RoundWarpPlane(const WarpPlanes& p, unsigned char* plane) {
  int first = static_cast<int>(threadIdx.x);
  unsigned char* const to = plane + p.by_pieces.Split(&first) * kWarpPieceBytes;
  const int every = p.by_pieces.Quotient(static_cast<int>(blockDim.x));
  if (first >= every) return;
  const int pixels = p.rows * p.columns;
#pragma unroll 2
  for (int pixel = first; pixel < pixels; pixel += every) {
    int place = pixel;
    if (p.stride > 1) {
      int row = pixel;
      int column = p.by_columns.Split(&row);
      const int remainder = p.by_stride.Split(&column);
      place = (row * p.stride + remainder) * p.remainder_columns + column;
    }
    auto* const piece = reinterpret_cast<float4*>(to + place * p.pixel_bytes);
    const float4 four = *piece;
    *piece = make_float4(ToTf32(four.x), ToTf32(four.y), ToTf32(four.z), ToTf32(four.w));
  }
}

// By all threads: rounds what this thread has copied of a step, which has arrived.
__device__ inline void RoundWarpWgradStep(const WarpWgradParams& p, const WarpWgradStep& step,
                                          unsigned char* shared) {
  for (int plane = p.held - step.planes; plane < p.held; ++plane) {
    int slot = step.x_slot + plane;
    if (slot >= p.x_slots) slot -= p.x_slots;
    RoundWarpPlane(p.x, shared + slot * p.x_slot_bytes);
  }
  RoundWarpPlane(p.y, shared + p.y_at + step.y_slot * p.y_slot_bytes);
}

// By all threads, for the steps from the block's first on: waits until what `step` reads is there,
// and begins to copy later ones.
template <typename T, int kFragments>
__device__ inline void WaitForWarpWgradStep(const WarpWgradParams& p, int step, int* copied,
                                            unsigned char* shared) {
  const bool is_late = *copied == step;
  if (is_late) {
    // Its slots are those of the step before, and free when all warps are done with them.
    __syncthreads();
    *copied = CopyWarpWgradAhead<T, kFragments>(p, step, *copied, shared);
  }
  WaitForPendingCopies(*copied - step - 1);
  // Floats are rounded once, and not for each tap, before others may read them.
  if constexpr (sizeof(T) == 4) {
    RoundWarpWgradStep(p, WarpWgradBlockOf(p, shared)->steps[step % kWarpWgradSteps], shared);
  }
  __syncthreads();
  if (!is_late) *copied = CopyWarpWgradAhead<T, kFragments>(p, step, *copied, shared);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARP_WGRAD_FEED_CUH_
