// fprop and dgrad with all taps of the walk in one product, a form of the kernel of
// fprop.cuh.
//
// A plane of the image is multiplied once, by the weights of all taps of the walk side by side. So
// a product has as columns the output channels of as many planes of the result as there are such
// taps, and the tensor cores read pixels once for all of them: where output channels are few, that
// is what takes them the most time. After a plane, the first of the sums in registers have met all
// theirs and are stored, and the others move up. A slot of the ring is read by one step alone.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_PLANES_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_PLANES_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/common/bulk_copy.cuh"
#include "cuda/kernels/common/tensor_core.cuh"
#include "cuda/kernels/common/warpgroup_product.cuh"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_floats.cuh"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_params.h"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_parts.cuh"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_warpgroup.cuh"
#include "cuda/kernels/implicit_gemm/warpgroup/ring.cuh"

namespace jax_convgrad {

// By a warpgroup: multiplies and stores its positions of all steps of a block.
template <typename Form>
__device__ inline void FpropMultiplyByPlanes(const FpropParams& p, unsigned char* shared) {
  const FpropWarpgroup<Form> of(p, shared);
  RingPlace ring;
  for (int step = of.share.begin; step < of.share.end;) {
    const GemmPlace place = GemmPlaceOf(p.walk, step, of.share.end);
    const FpropPlanes planes = FpropPlanesOf(p, place, true);
    const int y = place.y + of.own.y * p.part.rows, x = place.x + of.own.x * p.part.columns;
    if (y < p.out_rows && x < p.out_columns) {
      constexpr int kCompleted = Form::kColumns / 2;
      float sums[Form::kSums];
#pragma unroll
      for (float& sum : sums) sum = 0;
      // Of the first sums; in front of the first step they are of some of its planes, and dropped.
      int z = place.z + (planes.begin - (Form::kTaps - 1)) * p.dilation[0];
      const auto move_up = [&] {
#pragma unroll
        for (int i = 0; i < Form::kSums; ++i) {
          sums[i] = i + kCompleted < Form::kSums ? sums[i + kCompleted] : 0;
        }
      };
      const auto complete = [&] {
        const int warp_y = y + of.warp % 4 * p.part.warp_rows;
        const int warp_x = x + of.warp % 4 * p.part.warp_columns;
        if constexpr (Form::kFloats) {
          if (z >= place.z) {
            FpropStoreFloats<Form>(p, sums, of.share.channel, place.image, z, warp_y, warp_x);
          }
          move_up();
        } else {
          uint32_t words[Form::kColumns / 4];
          FpropRound<Form>(sums, words);
          move_up();
          if (z >= place.z) {
            FpropStore<Form>(p, words, of.staged, of.share.channel, place.image, z, warp_y, warp_x);
          }
        }
        z += p.dilation[0];
      };
      for (int plane = planes.begin; plane < planes.end; ++plane) {
        of.ready[ring.slot].Wait(ring.odd);
        typename Form::Weights tap = of.weights;
        BeginProducts();
        FpropAddPlane<Form>(p, of.pixels.At(ring.slot * p.slot_bytes), &tap, sums);
        CommitProducts();
        WaitForProducts<0>();
        ShowSums(sums);
        FpropRelease(p, of.barriers, &ring);
        complete();
      }
      // The planes behind the image are zeros.
      for (int plane = planes.end; plane < place.steps + Form::kTaps - 1; ++plane) complete();
    } else {
      // A part without positions has no products, but goes on in turn with the others.
      for (int plane = planes.begin; plane < planes.end; ++plane) {
        of.ready[ring.slot].Wait(ring.odd);
        FpropRelease(p, of.barriers, &ring);
      }
    }
    step += place.steps;
  }
  if (threadIdx.x % 32 == 0) WaitForBulkStores<0>();
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_PLANES_CUH_
