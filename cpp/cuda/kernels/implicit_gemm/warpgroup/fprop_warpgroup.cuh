// What a warpgroup has of a block, and how it begins, in both forms of the kernel of fprop and
// dgrad (fprop.cuh, fprop_planes.cuh).

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_WARPGROUP_CUH_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_WARPGROUP_CUH_

#include <cuda_runtime.h>

#include "cuda/kernels/common/bulk_copy.cuh"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_floats.cuh"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_params.h"
#include "cuda/kernels/implicit_gemm/warpgroup/fprop_parts.cuh"

namespace jax_convgrad {

template <typename Form>
struct FpropWarpgroup {
  // Waits for the weights.
  __device__ FpropWarpgroup(const FpropParams& p, unsigned char* shared)
      : barriers(p, shared),
        share(p, Form::kColumns),
        own(p),
        warp(static_cast<int>(threadIdx.x) / 32),
        pixels(shared + p.ring_at + own.bytes(p), p.group_bytes),
        weights(Form::FirstWeights(p, shared)),
        staged(shared + p.results_at + warp * kFpropWarpRows * Form::kColumnsLine),
        ready(Form::kFloats ? barriers.rounded : barriers.loaded) {
    if constexpr (Form::kFloats) FpropStageWeights<Form>(p, shared, barriers, share.channel);
    barriers.weights->Wait(0);
  }

  const FpropBarriers barriers;
  const FpropShare share;
  const FpropOwn own;
  const int warp;
  const typename Form::Pixels pixels;    // of its positions, in the ring's first slot
  const typename Form::Weights weights;  // of the first tap
  unsigned char* const staged;           // the results of this warp
  BulkBarrier* const ready;              // of each slot: its plane may be multiplied
};

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_WARPGROUP_FPROP_WARPGROUP_CUH_
