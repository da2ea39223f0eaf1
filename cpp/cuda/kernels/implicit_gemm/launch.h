// What all plans of implicit GEMM have in common: launches, what kernels count to, and problems in
// which x and y exchange their roles.

#ifndef JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_LAUNCH_H_
#define JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_LAUNCH_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "cuda/kernels/common/load_kernel.h"
#include "cuda/kernels/implicit_gemm/plan.h"

namespace jax_convgrad {

// Sums of a few sizes fit an int, and so does a size times a kernel.
constexpr int64_t kGemmMaxPositions = int64_t{1} << 30;
constexpr int64_t kGemmMaxSize = int64_t{1} << 24;  // of an axis, its padding and its steps
constexpr int64_t kGemmMaxKernel = 64;              // along an axis

template <typename Params>
cudaError_t LaunchGemm(void (*kernel)(Params), int64_t blocks, int64_t threads,
                       int64_t shared_bytes, cudaStream_t stream, const Params& params) {
  void* arguments[] = {const_cast<Params*>(&params)};
  return cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)),
                          dim3(static_cast<unsigned>(threads)), arguments,
                          static_cast<size_t>(shared_bytes), stream);
}

// Lets a kernel have as much shared memory as the device gives a block. A kernel has one limit for
// all launches, so that a plan's own size would forbid those of plans made before with more.
template <typename Params>
cudaError_t AllowGemmBytes(void (*kernel)(Params), int64_t block_shared_bytes) {
  const cudaError_t status = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(block_shared_bytes));
  if (status != cudaSuccess) (void)cudaGetLastError();
  return status;
}

// The same, and loads a second kernel that the plan launches.
template <typename Params, typename OtherParams>
cudaError_t PrepareGemm(void (*kernel)(Params), void (*other)(OtherParams),
                        int64_t block_shared_bytes) {
  const cudaError_t status = AllowGemmBytes(kernel, block_shared_bytes);
  return status != cudaSuccess ? status : LoadKernel(other);
}

inline int64_t GemmVolume(const ImplicitGemmProblem::PerAxis& sizes) {
  return sizes[0] * sizes[1] * sizes[2];
}

// Whether positions and steps along all axes are numbers that the kernels count to.
inline bool IsCountableGemm(const ImplicitGemmProblem& p) {
  int64_t in = p.batch, out = p.batch;
  for (size_t axis = 0; axis < 3; ++axis) {
    if (std::max({p.in[axis], p.out[axis], std::abs(p.padding_low[axis]), p.strides[axis],
                  p.dilation[axis]}) > kGemmMaxSize ||
        p.out[axis] * p.strides[axis] > kGemmMaxSize || p.kernel[axis] > kGemmMaxKernel ||
        p.kernel[axis] * p.dilation[axis] > kGemmMaxSize) {
      return false;
    }
    in *= p.in[axis];
    out *= p.out[axis];
    if (in > kGemmMaxPositions || out > kGemmMaxPositions) return false;
  }
  return p.alignment >= 16 && p.batch <= kGemmMaxSize;
}

// y's gradient and x may exchange their roles: each pixel of x is a window of it, whose taps are
// those of the convolution in reverse. dgrad is then fprop.
inline ImplicitGemmProblem GemmExchanged(const ImplicitGemmProblem& problem) {
  ImplicitGemmProblem p = problem;
  std::swap(p.in, p.out);
  std::swap(p.in_channels, p.out_channels);
  for (size_t axis = 0; axis < 3; ++axis) {
    p.padding_low[axis] = (p.kernel[axis] - 1) * p.dilation[axis] - p.padding_low[axis];
  }
  return p;
}

}  // namespace jax_convgrad

#endif  // JAX_CONVGRAD_CUDA_KERNELS_IMPLICIT_GEMM_LAUNCH_H_
