// fprop and dgrad of stride 1: each plane of the image is loaded into shared memory once, and a tap
// is a place in it from which on the tensor cores read 64 pixels.
//
// A block keeps the weights of all taps in shared memory and walks through planes, whose pixels lie
// in a ring of slots as lines of channels. One warp loads, warpgroups multiply: pixels are rows,
// input channels the depth and output channels the columns, and a position's sums over all taps are
// in registers. What a warpgroup has summed it rounds, writes to shared memory and stores from
// there in the background while it goes on, and while others multiply.
//
// Floats are twice as many bytes, and rounded in shared memory before the tensor cores read them:
// fprop_floats.cuh has what differs for them.
//
// There are two forms. Here, a step reads all planes of its taps from the ring, one tap after the
// other. In fprop_planes.cuh a plane is read once, by the taps of all steps that it
// belongs to.
//
// Blocks have all output channels, or 16, 32 or 64 of them, with the weights of these.
//
// The weights are the column operand as they lie in memory, but those of floats. If input channels
// (of dgrad the output channels of the convolution) are neighbors, lines are along the depth; else
// across it.
//
// Channels beyond the image's are zeros in shared memory, in the depth of both operands, and so are
// columns beyond the output channels, whose sums are not stored.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/bulk_copy.cuh"
#include "cuda/kernels/common/elements.cuh"
#include "cuda/kernels/common/tensor_core.cuh"
#include "cuda/kernels/common/warpgroup_product.cuh"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_floats.cuh"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_params.h"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_parts.cuh"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_planes.cuh"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_warpgroup.cuh"
#include "cuda/kernels/implicit_gemm/warpgroup/ring.cuh"

namespace jax_convgrad {

// The sums of a warpgroup's positions over all taps, of planes from a slot on.
template <typename Form>
__device__ inline void FpropSum(const FpropParams& p, const typename Form::Pixels& pixels,
                                const typename Form::Weights& weights, int slot,
                                float (&sums)[Form::kSums]) {
#pragma unroll
  for (float& sum : sums) sum = 0;
  BeginProducts();
  typename Form::Weights tap = weights;
  int planes = p.kernel[0];
  do {
    FpropAddPlane<Form>(p, pixels.At(slot * p.slot_bytes), &tap, sums);
    if (++slot == p.stages) slot = 0;
  } while (--planes > 0);
  CommitProducts();
  WaitForProducts<0>();
  ShowSums(sums);
}

// By a warpgroup: multiplies and stores its positions of all steps of a block.
template <typename Form>
__device__ inline void FpropMultiply(const FpropParams& p, unsigned char* shared) {
  const FpropWarpgroup<Form> of(p, shared);
  RingPlace newest, oldest;
  int held = 0;  // planes, from the oldest on
  for (int step = of.share.begin; step < of.share.end;) {
    const GemmPlace place = GemmPlaceOf(p.walk, step, of.share.end);
    const int y = place.y + of.own.y * p.part.rows, x = place.x + of.own.x * p.part.columns;
    // A part without positions has no products, but goes on in turn with the others.
    const bool inside = y < p.out_rows && x < p.out_columns;
    int z = place.z;
    for (int i = 0; i < place.steps; ++i) {
      for (; held < p.kernel[0]; ++held) {
        of.ready[newest.slot].Wait(newest.odd);
        newest.Next(p.stages);
      }
      --held;
      if (inside) {
        float sums[Form::kSums];
        FpropSum<Form>(p, of.pixels, of.weights, oldest.slot, sums);
        FpropRelease(p, of.barriers, &oldest);
        const int warp_y = y + of.warp % 4 * p.part.warp_rows;
        const int warp_x = x + of.warp % 4 * p.part.warp_columns;
        if constexpr (Form::kFloats) {
          FpropStoreFloats<Form>(p, sums, of.share.channel, place.image, z, warp_y, warp_x);
        } else {
          uint32_t words[Form::kColumns / 4];
          FpropRound<Form>(sums, words);
          FpropStore<Form>(p, words, of.staged, of.share.channel, place.image, z, warp_y, warp_x);
        }
      } else {
        FpropRelease(p, of.barriers, &oldest);
      }
      z += p.dilation[0];
    }
    // The planes that only a next step would still read.
    for (; held > 0; --held) FpropRelease(p, of.barriers, &oldest);
    step += place.steps;
  }
  if (threadIdx.x % 32 == 0) WaitForBulkStores<0>();
}

// kDepth input channels, 16, 32, 48 or 64, or 8, 16, 32 or 64 floats, and kColumns output channels
// a block, 16, 32 or 64; all taps of the walk in a product, or, if kTaps is 1, one.
template <typename T, int kDepth, int kColumns, int kTaps, Lines kWeights>
__global__ void __launch_bounds__(128 * FpropMaxWarpgroups(kTaps * kColumns) +
                                      FpropHelpers(sizeof(T) == 4),
                                  1) ImplicitGemmFprop(const __grid_constant__ FpropParams p) {
  using Form = FpropForm<T, kDepth, kColumns, kTaps, kWeights>;
  unsigned char* const shared = SharedMemory<unsigned char>();
  if (threadIdx.x == 0) {
    const FpropBarriers barriers(p, shared);
    for (int i = 0; i < p.stages; ++i) {
      barriers.loaded[i].Init();
      barriers.read[i].Init(4 * p.warpgroups);
      if constexpr (Form::kFloats) barriers.rounded[i].Init(kFpropRoundThreads / 32);
    }
    barriers.weights->Init(Form::kFloats ? 4 * p.warpgroups : 1);
  }
  __syncthreads();
  const int helper = static_cast<int>(threadIdx.x) - 128 * p.warpgroups;
  if (WarpgroupNumber() < p.warpgroups) {
    if constexpr (kTaps > 1) {
      FpropMultiplyByPlanes<Form>(p, shared);
    } else {
      FpropMultiply<Form>(p, shared);
    }
    return;
  }
  if constexpr (Form::kFloats) {
    if (WarpNumber() > 4 * p.warpgroups) {
      FpropRoundPlanes<Form>(p, shared, helper - 32);
      return;
    }
  }
  if (helper == 0) FpropLoad<Form>(p, shared);
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_CUH_
