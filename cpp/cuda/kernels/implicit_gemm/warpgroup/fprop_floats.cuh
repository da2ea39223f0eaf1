// What the kernel of fprop and dgrad (fprop.cuh) does for floats alone: they are
// multiplied as TF32 by tensor cores that leave out the last bits, so operands are rounded before.
//
// Weights: floats are not transposed by the tensor cores, so that lines are along the depth in any
// case. The warps that multiply read the weights as they lie, round them, and write the lines.
//
// Image: planes come as they are. Warps of their own, beside the one that loads, round each of them
// where it lies, once for all taps that read it.
//
// Results: columns of products are permuted, so that a lane has 4 neighboring channels, and stores
// them from registers. So shared memory, which floats fill twice as fast, has no results.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_FLOATS_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_FLOATS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/tensor_core.cuh"
#include "cuda/kernels/common/tf32.cuh"
#include "cuda/kernels/implicit_gemm/walk.h"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_params.h"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_parts.cuh"
#include "cuda/kernels/implicit_gemm/warpgroup/ring.cuh"

namespace jax_convgrad {

using FpropFloatPiece = Pack<float, 4>;

__device__ inline FpropFloatPiece RoundedPiece(const FpropFloatPiece& piece) {
  FpropFloatPiece rounded;
#pragma unroll
  for (int i = 0; i < 4; ++i) rounded.value[i] = ToTf32(piece.value[i]);
  return rounded;
}

// The column of a product that has a channel of the result. A lane has columns 2 * t and the next
// of each 8, with t = lane % 4: of 16 channels, those from 4 * t on.
__device__ inline int FpropFloatColumn(int channel) {
  return channel / 16 * 16 + channel / 2 % 2 * 8 + channel / 4 % 4 * 2 + channel % 2;
}

// Reads and writes the weights of a block. Taps are numbered as they lie in shared memory: those of
// a product, the last of the walk first, for one place in a plane after the other.
template <typename Form>
class FpropFloatWeights {
 public:
  __device__ FpropFloatWeights(const FpropParams& p, int first_channel)
      : f_(p.floats), p_(p), first_channel_(first_channel), together_(p.taps / Form::kTaps) {}

  // 4 neighbors in memory, from a column and a depth on; zeros beyond the channels of either.
  __device__ FpropFloatPiece Read(int number, int column, int depth, bool exists) const {
    const int walked = (Form::kTaps - 1 - number % Form::kTaps) * together_ + number / Form::kTaps;
    const int tap = p_.reversed ? p_.taps - 1 - walked : walked;
    column += first_channel_;
    exists = exists & (column < f_.out_channels) & (depth < f_.in_channels);
    const int at = tap * f_.tap_step + column * f_.column_step + depth * f_.depth_step;
    return Load<float, 4>(f_.weights + (exists ? at : 0), exists).pack;
  }

  // 4 of a column, from a multiple of 4 of the depth on.
  __device__ static void Write(unsigned char* shared, int number, int column, int depth,
                               const FpropFloatPiece& piece) {
    constexpr int kBytes = Form::kTaps * Form::kColumns * Form::kDepthBytes;  // of a product
    const int line = number % Form::kTaps * Form::kColumns + FpropFloatColumn(column);
    const int at = number / Form::kTaps * kBytes + depth / 32 * Form::kWeightsHalf +
                   line * Form::kDepthLine + depth % 32 * 4;
    // As operands have the pieces of lines.
    const int swizzled = at ^ (at >> 7 & (Form::kDepthLine / 16 - 1)) << 4;
    *reinterpret_cast<FpropFloatPiece*>(shared + swizzled) = RoundedPiece(piece);
  }

 private:
  const FpropFloats& f_;
  const FpropParams& p_;
  const int first_channel_;
  const int together_;  // places in a plane, or all taps
};

// By the warps that multiply, which then wait for all of them: brings the weights of a block's
// channels, 16 bytes of the depth or of the columns at once.
template <typename Form>
__device__ inline void FpropStageWeights(const FpropParams& p, unsigned char* shared,
                                         const FpropBarriers& barriers, int first_channel) {
  const FpropFloatWeights<Form> weights(p, first_channel);
  const int thread = static_cast<int>(threadIdx.x), threads = 128 * p.warpgroups;
  constexpr int kQuads = Form::kDepth / 4, kColumns = Form::kColumns;
  if (p.floats.depth_step == 1) {
    constexpr int kBatch = 8;  // reads that are under way at once
    const int count = p.taps * kColumns * kQuads;
    for (int first = thread; first < count; first += kBatch * threads) {
      FpropFloatPiece pieces[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int item = first + i * threads, line = item / kQuads;
        pieces[i] = weights.Read(line / kColumns, line % kColumns, item % kQuads * 4, item < count);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int item = first + i * threads, line = item / kQuads;
        if (item >= count) break;
        weights.Write(shared, line / kColumns, line % kColumns, item % kQuads * 4, pieces[i]);
      }
    }
  } else {
    // A thread takes 4 columns by 4 of the depth.
    constexpr int kBatch = 2, kColumnQuads = kColumns / 4;
    const int count = p.taps * kQuads * kColumnQuads;
    for (int first = thread; first < count; first += kBatch * threads) {
      FpropFloatPiece pieces[kBatch][4];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int item = first + i * threads, quad = item / kColumnQuads;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          pieces[i][k] = weights.Read(quad / kQuads, item % kColumnQuads * 4, quad % kQuads * 4 + k,
                                      item < count);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int item = first + i * threads, quad = item / kColumnQuads;
        if (item >= count) break;
#pragma unroll
        for (int column = 0; column < 4; ++column) {
          FpropFloatPiece piece;
#pragma unroll
          for (int k = 0; k < 4; ++k) piece.value[k] = pieces[i][k].value[column];
          weights.Write(shared, quad / kQuads, item % kColumnQuads * 4 + column, quad % kQuads * 4,
                        piece);
        }
      }
    }
  }
  ShowTensorCores();
  __syncwarp();
  if (thread % 32 == 0) barriers.weights->Arrive();
}

// Rounds pieces that follow each other, with all threads that round. Infinities and NaNs stay what
// they are, and so do the zeros around an image.
__device__ inline void FpropRoundPieces(FpropFloatPiece* pieces, int count, int thread) {
  constexpr int kBatch = 8;
  for (int first = thread; first < count; first += kBatch * kFpropRoundThreads) {
    FpropFloatPiece batch[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + i * kFpropRoundThreads;
      batch[i] = pieces[at < count ? at : first];
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = first + i * kFpropRoundThreads;
      if (at < count) pieces[at] = RoundedPiece(batch[i]);
    }
  }
}

// By the threads that round, of which each has a number: rounds all planes that a block reads.
template <typename Form>
__device__ inline void FpropRoundPlanes(const FpropParams& p, unsigned char* shared, int thread) {
  const FpropBarriers barriers(p, shared);
  const FpropShare share(p, Form::kColumns);
  const int count = p.boxes * p.box_bytes / static_cast<int>(sizeof(FpropFloatPiece));
  RingPlace ring;
  for (int step = share.begin; step < share.end;) {
    const GemmPlace place = GemmPlaceOf(p.walk, step, share.end);
    const FpropPlanes planes = FpropPlanesOf(p, place, Form::kTaps > 1);
    for (int plane = planes.begin; plane < planes.end; ++plane) {
      unsigned char* const at = shared + p.ring_at + ring.slot * p.slot_bytes;
      barriers.loaded[ring.slot].Wait(ring.odd);
#pragma unroll
      for (int half = 0; half < Form::kHalves; ++half) {
        FpropRoundPieces(reinterpret_cast<FpropFloatPiece*>(at + half * p.half_bytes), count,
                         thread);
      }
      ShowTensorCores();
      __syncwarp();
      if (thread % 32 == 0) barriers.rounded[ring.slot].Arrive();
      ring.Next(p.stages);
    }
    step += place.steps;
  }
}

// Stores the results of a warp's 16 positions, of which the first is at (z, y, x).
template <typename Form>
__device__ inline void FpropStoreFloats(const FpropParams& p, const float (&sums)[Form::kSums],
                                        int channel, int image, int z, int y, int x) {
  const FpropFloats& f = p.floats;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  channel += lane % 4 * 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    // The positions are 2 rows of 8, or one row.
    const int of_y = y + (p.part.rows > 1 ? half : 0);
    const int of_x = x + lane / 4 + (p.part.rows > 1 ? 0 : half * 8);
    const bool exists = (z < f.out_planes) & (of_y < p.out_rows) & (of_x < p.out_columns);
    const int position = ((image * f.out_planes + z) * p.out_rows + of_y) * p.out_columns + of_x;
    // Of a position that does not exist this may be anywhere.
    float* const to = f.result + (exists ? int64_t{position} * f.out_channels : 0);
#pragma unroll
    for (int i = 0; i < Form::kColumns / 16; ++i) {
      const int first = channel + i * 16, at = i * 8 + half * 2;
      const FpropFloatPiece piece{{sums[at], sums[at + 1], sums[at + 4], sums[at + 5]}};
      if (exists & (first < f.out_channels))
        *reinterpret_cast<FpropFloatPiece*>(to + first) = piece;
    }
  }
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_FLOATS_CUH_
